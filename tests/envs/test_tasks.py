"""Where a run's tasks come from: generated, or a file cut into the same splits."""

import json
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from types import ModuleType

import pytest
from conftest import compose_config

from rtpo.core.splits import SPLITS, split_of
from rtpo.data.records import Record, write_records
from rtpo.envs.registry import ENVIRONMENTS
from rtpo.envs.toy import knowledge, math
from rtpo.errors import ConfigError, DataError
from rtpo.run.tasks import check_splits, load_tasks, take
from rtpo.types import Task


def data_file(folder: Path, tasks: list[Task]) -> Path:
    path = folder / "problems.jsonl"
    lines = [json.dumps({"question": t.question, "answer": t.answer, "uid": t.uid}) for t in tasks]
    path.write_text("\n".join(lines) + "\n")
    return path


def loaded(*overrides: str) -> tuple[list[Task], list[Task]]:
    task = compose_config(*overrides).task
    return load_tasks(task, task.train), load_tasks(task, task.held_out)


@pytest.mark.parametrize(("name", "module"), [("toy_math", math), ("toy_knowledge", knowledge)])
def test_a_problem_has_one_split_wherever_it_comes_from(tmp_path: Path, name: str, module: ModuleType) -> None:
    generated = {split: module.problems(split, 20, seed=7) for split in SPLITS}
    data = data_file(tmp_path, [task for tasks in generated.values() for task in tasks])
    assert loaded(f"task={name}", f"data={data}") == (generated["train"], generated["held_out"])
    with pytest.raises(DataError, match="held_out"):
        loaded(f"task={name}", f"data={data_file(tmp_path, generated['train'])}")


def test_tasks_are_generated_where_no_file_is_named() -> None:
    task = compose_config("task=toy_math", "task.train.count=20", "task.train.seed=7").task
    assert load_tasks(task, task.train) == math.problems("train", 20, seed=7)
    with pytest.raises(ConfigError, match="data=<file>"):
        loaded("task=math", "task.train.count=20", "task.held_out.count=5")


def test_a_maths_file_is_cut_into_splits_by_its_questions(tmp_path: Path) -> None:
    data = tmp_path / "problems.jsonl"
    write_records(data, [Record(f"p/{n}", f"What is {n}?", (str(n),), {}) for n in range(100)])
    train, held_out = loaded("task=math", f"data={data}")
    assert {split_of(task.question) for task in train} == {"train"}
    assert {split_of(task.question) for task in held_out} == {"held_out"}
    assert len(train) > 60
    assert len(held_out) > 2


@pytest.mark.parametrize("name", ["math", "toy_math", "toy_knowledge", "toy_walk", "toy_keys"])
def test_all_rows_of_a_file_are_taken_unless_a_count_is_set(name: str, tmp_path: Path) -> None:
    for place, overrides in (("train", ()), ("held_out", ()), ("train", ("task.train.count=30",))):
        task = compose_config(f"task={name}", f"data={tmp_path / 'mine.jsonl'}", *overrides).task
        assert getattr(task, place).count == (30 if overrides else None)


def test_a_prepared_file_that_is_missing_comes_with_the_command_that_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rtpo.run.tasks.PROJECT", tmp_path)
    for folder, more in (("data", ""), ("elsewhere", f" --folder {tmp_path / 'elsewhere'}")):
        with pytest.raises(DataError, match=rf"prepare_data\.py math500{more} makes it"):
            loaded("task=math", f"data={tmp_path / folder / 'math500.jsonl'}")
    data = tmp_path / "math500.jsonl"
    write_records(data, [Record(f"p/{n}", f"What is {n}?", (str(n),), {}) for n in range(50)])
    assert loaded("task=math", f"data={data}")[0]


def test_each_epoch_has_all_tasks_in_an_order_of_its_own() -> None:
    tasks = math.problems("train", 30, seed=0)
    epochs = [[task.uid for task in take(tasks, 30 * epoch, 30, seed=0)] for epoch in range(3)]
    assert {tuple(sorted(epoch)) for epoch in epochs} == {tuple(sorted(task.uid for task in tasks))}
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert [task.uid for task in take(tasks, 20, 50, seed=0)] == [uid for epoch in epochs for uid in epoch][20:70]
    assert [task.uid for task in take(tasks, 0, 30, seed=1)] != epochs[0]


def test_one_prompt_for_all_tasks_is_trained_where_split_key_tells_them_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    train, held_out = ([Task(f"{part}.{i}", "play", None, {"level": f"{part} {i}"}) for i in range(3)] for part in "ab")
    toy = ENVIRONMENTS["toy_math"]
    by_question, by_level = (replace(toy, split_key=key) for key in (attrgetter("question"), lambda t: t.meta["level"]))
    monkeypatch.setitem(ENVIRONMENTS, "game", by_level)
    check_splits("game", train, held_out, tasks_per_step=3)
    with pytest.raises(DataError, match=r"task\.train has 3"):
        check_splits("game", train, held_out, tasks_per_step=4)
    with pytest.raises(DataError, match=r"share 1 problem.*b 1.*split_key"):
        check_splits("game", [*train, held_out[1]], held_out, tasks_per_step=3)
    monkeypatch.setitem(ENVIRONMENTS, "game", by_question)
    with pytest.raises(DataError, match=r"play.*split_key"):
        check_splits("game", train, held_out, tasks_per_step=3)
