"""What doing nothing earns on an airline task file, and what the files must be."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from experiments.maintenance import airline_no_op
from rtpo.envs.airline.tasks import read_splits, read_wanted
from rtpo.errors import DataError

DATA = os.environ.get("RTPO_DATA")
FIXTURES = Path(__file__).parent / "fixtures" / "airline" / "tau2" / "domains" / "airline"
REAL = Path(DATA or "") / "airline"


def printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert airline_no_op.main([str(folder)]) == 0
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_doing_nothing_scores_where_nothing_is_written_or_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Tasks, those that doing nothing scores on, that need a write, and a figure alone."""
    assert {"train 3 1 (33.3 %) 1 1", "test 3 1 (33.3 %) 2 0"} <= set(printed(FIXTURES, capsys))


@pytest.mark.skipif(not DATA, reason="set RTPO_DATA to a folder with the official airline task files")
def test_doing_nothing_on_the_official_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    assert {"train 30 16 (53.3 %) 13 1", "test 20 7 (35.0 %) 13 0"} <= set(printed(REAL, capsys))


def test_a_split_of_other_tasks_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert airline_no_op.main([str(tmp_path)]) == 1
    assert "tasks.json" in capsys.readouterr().err
    (tmp_path / "tasks.json").write_text(json.dumps(rows()))
    (tmp_path / "split_tasks.json").write_text('{"test": ["a", "z"]}')
    assert airline_no_op.main([str(tmp_path)]) == 1
    assert "split 'test' names task 'z'" in capsys.readouterr().err


def rows() -> list[dict[str, Any]]:
    return list(json.loads((FIXTURES / "tasks.json").read_text()))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda r: r[0].pop("id"), "task 0 of .* has no id"),
        (lambda r: r[1].pop("evaluation_criteria"), "task 1 of .* has no evaluation_criteria"),
        (lambda r: r[1]["evaluation_criteria"].update(reward_basis=["DB"]), "only DB with COMMUNICATE"),
        (lambda r: r[1]["evaluation_criteria"].update(reward_basis=["DB", "COMMUNICATE", "ACTION"]), "reward_basis is"),
        (lambda r: r[1]["evaluation_criteria"]["actions"][0].update(name="buy"), "'buy' is no tool of the airline"),
        (lambda r: r[1]["evaluation_criteria"].update(actions="none"), "actions must be a list of calls"),
        (lambda r: r[2]["evaluation_criteria"].update(communicate_info=[327]), "communicate_info must be"),
        (lambda r: r[2].update(initial_state={"message_history": []}), "has an initial_state"),
        (lambda r: r[2].update(id="a"), "repeats the id 'a'"),
    ],
)
def test_a_task_of_which_it_cannot_be_said_is_refused(tmp_path: Path, change: Any, why: str) -> None:
    changed = rows()
    change(changed)
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps(changed))
    with pytest.raises(DataError, match=why):
        read_wanted(path)


def test_files_that_cannot_be_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    with pytest.raises(DataError, match="cannot be read"):
        read_wanted(path)
    path.write_text("{")
    with pytest.raises(DataError, match="is not JSON"):
        read_splits(path)
    path.write_text("{}")
    with pytest.raises(DataError, match="is not a list of tasks"):
        read_wanted(path)
    path.write_text('{"test": [1]}')
    with pytest.raises(DataError, match="lists of task ids"):
        read_splits(path)
