"""What doing nothing earns on an airline task file, and what the files must be."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rtpo.envs.airline.tasks import read_criteria, read_splits
from rtpo.errors import DataError

DATA = os.environ.get("RTPO_DATA")
FIXTURES = Path(__file__).parents[1] / "fixtures" / "airline" / "tau2" / "domains" / "airline"
needs_data = pytest.mark.skipif(not DATA, reason="set RTPO_DATA to a folder with the official airline task files")


@pytest.mark.parametrize(
    ("folder", "counts"),
    [
        (FIXTURES, {"train": (3, 1, 1), "test": (3, 1, 2)}),
        pytest.param(Path(DATA or "", "airline"), {"train": (30, 16, 13), "test": (20, 7, 13)}, marks=needs_data),
    ],
    ids=["stand-in", "official"],
)
def test_doing_nothing_scores_where_nothing_is_written_or_said(folder: Path, counts: dict[str, Any]) -> None:
    """counts: by split, the tasks, those that doing nothing scores on, and those that need a write."""
    tasks, splits = read_criteria(folder / "tasks.json"), read_splits(folder / "split_tasks.json")
    for split, expected in counts.items():
        wanted = [tasks[uid] for uid in splits[split]]
        idle, writing = sum(task.no_op_scores for task in wanted), sum(task.needs_write for task in wanted)
        assert (len(wanted), idle, writing) == expected


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda r: r[1].pop("evaluation_criteria"), "task 1 of .*evaluation_criteria"),
        (lambda r: r[1]["evaluation_criteria"].update(reward_basis=["DB"]), "DB"),
        (lambda r: r[1]["evaluation_criteria"]["actions"][0].update(name="buy"), "'buy'"),
        (lambda r: r[2].update(initial_state={"message_history": []}), "initial_state"),
    ],
)
def test_a_task_of_which_it_cannot_be_said_is_refused(tmp_path: Path, change: Any, why: str) -> None:
    changed = json.loads((FIXTURES / "tasks.json").read_text())
    change(changed)
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps(changed))
    with pytest.raises(DataError, match=why):
        read_criteria(path)

    path.write_text('{"test": [1]}')
    with pytest.raises(DataError, match=r"tasks\.json"):
        read_splits(path)
