"""What doing nothing earns on an airline task file, and what the files must be."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from experiments.maintenance import airline_no_op
from rtpo.envs.airline.tasks import SplitCounts, counts, read_splits, read_wanted, split_counts
from rtpo.errors import DataError

DATA = os.environ.get("RTPO_DATA")
FIXTURES = Path(__file__).parent / "fixtures" / "airline" / "tau2" / "domains" / "airline"
REAL = Path(DATA or "") / "airline"


def counted(folder: Path) -> dict[str, SplitCounts]:
    return split_counts(read_wanted(folder / "tasks.json"), read_splits(folder / "split_tasks.json"))


def test_doing_nothing_scores_where_nothing_is_written_or_said() -> None:
    found = counted(FIXTURES)
    assert found["train"] == SplitCounts(tasks=3, no_op=1, write=1, figure_alone=1)
    assert found["test"] == SplitCounts(tasks=3, no_op=1, write=2, figure_alone=0)
    assert found["test"].no_op_rate == pytest.approx(1 / 3)


@pytest.mark.skipif(not DATA, reason="set RTPO_DATA to a folder with the official airline task files")
def test_doing_nothing_on_the_official_tasks() -> None:
    """35.0 % of the test tasks and 53.3 % of the training tasks."""
    found = counted(REAL)
    assert found["train"] == SplitCounts(tasks=30, no_op=16, write=13, figure_alone=1)
    assert found["test"] == SplitCounts(tasks=20, no_op=7, write=13, figure_alone=0)
    assert found["base"] == counts(list(read_wanted(REAL / "tasks.json").values()))


def test_the_command_prints_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert airline_no_op.main([str(FIXTURES)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["test", "3", "1", "(33.3", "%)", "2", "0"] in lines
    assert airline_no_op.main([str(tmp_path)]) == 1
    assert "tasks.json" in capsys.readouterr().err


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
    with pytest.raises(DataError, match="split 'test' names task 'z'"):
        split_counts(read_wanted(FIXTURES / "tasks.json"), {"test": ["a", "z"]})
