"""Where a run's tasks come from: generated, or a file cut into splits by its questions."""

import json
from pathlib import Path

import pytest
from conftest import compose_config

from rtpo.errors import ConfigError, DataError
from rtpo.splits import split_of
from rtpo.tasks import load_tasks
from rtpo.toy.math_problems import problems
from rtpo.types import Task


def data_file(folder: Path, count: int) -> Path:
    path = folder / "problems.jsonl"
    tasks = problems("train", count, seed=7)
    lines = [json.dumps({"question": t.question, "answer": t.answer, "uid": t.uid}) for t in tasks]
    path.write_text("\n".join(lines) + "\n")
    return path


def loaded(*overrides: str) -> tuple[list[Task], list[Task]]:
    task = compose_config(*overrides).task
    return load_tasks(task, task.train), load_tasks(task, task.held_out)


def test_a_file_is_cut_into_splits_by_its_questions(tmp_path: Path) -> None:
    train, held_out = loaded(f"data={data_file(tmp_path, 100)}")
    assert {split_of(task.question) for task in train} == {"train"}
    assert {split_of(task.question) for task in held_out} == {"held_out"}
    assert len(train) > 60
    assert len(held_out) > 2


def test_count_bounds_a_file_and_all_takes_every_task(tmp_path: Path) -> None:
    data = data_file(tmp_path, 30)
    train, _ = loaded(f"data={data}", "task.train.count=16")
    assert len(train) == 16
    train, _ = loaded(f"data={data}", "task.train.count=null", "task.train.split=all")
    assert len(train) == 30


def test_a_file_without_the_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no task in the split 'held_out'"):
        loaded(f"data={data_file(tmp_path, 1)}")


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("task.train.count=null", r"task\.train\.count is null"),
        ("task.held_out.count=0", r"task\.held_out\.count is 0"),
        ("task.train.split=all", r"task\.train\.split is 'all'"),
        ("task.held_out.split=test", r"task\.held_out\.split is 'test': use one of held_out, validation, train"),
    ],
)
def test_a_split_or_count_that_cannot_be_is_refused(override: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        compose_config(override)
