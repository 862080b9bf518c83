"""Reads the airline domain's task files, and says which tasks reward an agent that does nothing (docs/run/tasks.md).

The reward is DB times COMMUNICATE. DB is 1 if the database equals a fresh one after the gold calls. COMMUNICATE is 1 if
the agent said each required string. So a task with neither gold writes nor required strings rewards an agent that
does nothing until the user ends the dialogue.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rtpo.core.files import readable
from rtpo.core.json_text import parse
from rtpo.errors import DataError

WRITES = frozenset(
    {
        "book_reservation",
        "cancel_reservation",
        "send_certificate",
        "update_reservation_baggages",
        "update_reservation_flights",
        "update_reservation_passengers",
    }
)
"""tools that change the database"""
READ_ONLY = frozenset(
    {
        "calculate",
        "get_flight_status",
        "get_reservation_details",
        "get_user_details",
        "list_all_airports",
        "search_direct_flight",
        "search_onestop_flight",
        "transfer_to_human_agents",
    }
)
"""tools that do not change the database"""
TOO_MANY_ERRORS = "too many errors"
"""detail of the grade of an episode that ended after too many errors"""
REWARD_BASIS = frozenset({"DB", "COMMUNICATE"})


@dataclass(frozen=True, slots=True)
class Criteria:
    """What a task's reward requires."""

    id: str
    writes: tuple[str, ...]  # tools of the gold calls that change the database
    figures: tuple[str, ...]  # strings that the agent must say

    @property
    def needs_write(self) -> bool:
        return bool(self.writes)

    @property
    def no_op_scores(self) -> bool:
        """Whether the task rewards an agent that does nothing."""
        return not self.writes and not self.figures


def read_criteria(path: str | Path) -> dict[str, Criteria]:
    """Read each task's criteria, by id, from `tasks.json`. Raises DataError naming the task and the field."""
    rows = _read_json(Path(path))
    if not isinstance(rows, list):
        raise DataError(f"{path} is not a list of tasks: give the airline domain's tasks.json")
    tasks: dict[str, Criteria] = {}
    for number, row in enumerate(rows):
        criteria = _criteria(f"task {number} of {path}", row)
        if criteria.id in tasks:
            raise DataError(f"task {number} of {path} repeats the id {criteria.id!r}")
        tasks[criteria.id] = criteria
    return tasks


def read_splits(path: str | Path) -> dict[str, tuple[str, ...]]:
    """Read the task ids of each split from `split_tasks.json`. Raises DataError."""
    splits = _read_json(Path(path))
    if not isinstance(splits, dict) or not all(_is_strings(ids) for ids in splits.values()):
        raise DataError(f"{path} is not an object of lists of task ids: give the airline domain's split_tasks.json")
    return {split: tuple(ids) for split, ids in splits.items()}


def _read_json(path: Path) -> Any:
    with readable("file", path):
        text = path.read_text(encoding="utf-8")
    try:
        return parse(text)
    except ValueError as error:
        raise DataError(f"file {path} is not JSON ({error})") from error


def _criteria(place: str, row: Any) -> Criteria:
    if not isinstance(row, dict) or not isinstance(row.get("id"), str):
        raise DataError(f"{place} has no id: write the id as text")
    criteria = row.get("evaluation_criteria")
    if not isinstance(criteria, dict):
        raise DataError(f"{place} has no evaluation_criteria, so its reward is undefined")
    basis = criteria.get("reward_basis")
    if not isinstance(basis, list) or set(basis) != REWARD_BASIS:
        raise DataError(f"{place}: reward_basis is {basis!r}, but only DB with COMMUNICATE is supported")
    if row.get("initial_state") is not None:
        raise DataError(f"{place} has an initial_state, which is not supported")
    actions, figures = criteria.get("actions") or [], criteria.get("communicate_info") or []
    if not isinstance(actions, list) or not all(isinstance(action, dict) for action in actions):
        raise DataError(f"{place}: actions must be a list of calls")
    names = [action.get("name") for action in actions]
    for name in names:
        if name not in WRITES | READ_ONLY:
            raise DataError(f"{place}: the airline domain has no tool {name!r}")
    if not _is_strings(figures):
        raise DataError(f"{place}: communicate_info must be a list of strings")
    return Criteria(row["id"], tuple(name for name in names if name in WRITES), tuple(figures))


def _is_strings(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)
