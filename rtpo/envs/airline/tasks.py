"""The airline domain's task files, and what doing nothing earns on them (docs/run/tasks.md).

The reward is the product of DB (the database is what the gold calls make of a fresh one) and COMMUNICATE (the agent
said each required string). An agent that neither writes nor says a required string and lets the user end the dialogue
therefore scores on every task without a gold write and without a required string.
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
OTHERS = frozenset(
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
"""tools that do not"""
TOO_MANY_ERRORS = "too many errors"
"""detail of the grade of an episode that the environment broke off: nobody ended it"""
REWARD_BASIS = frozenset({"DB", "COMMUNICATE"})


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a task's reward asks for. writes: the gold calls that change the database, by name. figures: the strings
    that the agent must say."""

    id: str
    writes: tuple[str, ...]
    figures: tuple[str, ...]

    @property
    def needs_write(self) -> bool:
        return bool(self.writes)

    @property
    def no_op_scores(self) -> bool:
        """Whether an agent that does nothing is rewarded."""
        return not self.writes and not self.figures


def read_wanted(path: str | Path) -> dict[str, Wanted]:
    """What the tasks of a task file (`tasks.json`) ask for, by id. Raises DataError naming the task and the field."""
    rows = _read_json(Path(path))
    if not isinstance(rows, list):
        raise DataError(f"{path} is not a list of tasks: give the airline domain's tasks.json")
    tasks: dict[str, Wanted] = {}
    for number, row in enumerate(rows):
        wanted = _wanted(f"task {number} of {path}", row)
        if wanted.id in tasks:
            raise DataError(f"task {number} of {path} repeats the id {wanted.id!r}")
        tasks[wanted.id] = wanted
    return tasks


def read_splits(path: str | Path) -> dict[str, tuple[str, ...]]:
    """The ids of each split of a split file (`split_tasks.json`). Raises DataError."""
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


def _wanted(place: str, row: Any) -> Wanted:
    if not isinstance(row, dict) or not isinstance(row.get("id"), str):
        raise DataError(f"{place} has no id: write the id as text")
    criteria = row.get("evaluation_criteria")
    if not isinstance(criteria, dict):
        raise DataError(f"{place} has no evaluation_criteria: nothing says what its reward is")
    basis = criteria.get("reward_basis")
    if not isinstance(basis, list) or set(basis) != REWARD_BASIS:
        raise DataError(f"{place}: reward_basis is {basis!r}, and only DB with COMMUNICATE is known here")
    if row.get("initial_state") is not None:
        raise DataError(f"{place} has an initial_state: what doing nothing earns there is not known here")
    actions, figures = criteria.get("actions") or [], criteria.get("communicate_info") or []
    if not isinstance(actions, list) or not all(isinstance(action, dict) for action in actions):
        raise DataError(f"{place}: actions must be a list of calls")
    names = [action.get("name") for action in actions]
    for name in names:
        if name not in WRITES | OTHERS:
            raise DataError(f"{place}: {name!r} is no tool of the airline domain, so whether it writes is not known")
    if not _is_strings(figures):
        raise DataError(f"{place}: communicate_info must be a list of strings")
    return Wanted(row["id"], tuple(name for name in names if name in WRITES), tuple(figures))


def _is_strings(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)
