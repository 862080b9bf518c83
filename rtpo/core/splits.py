"""A problem's split depends on the problem alone, so no problem is in two splits."""

import hashlib
from collections.abc import Callable
from typing import Final

from rtpo.errors import ConfigError
from rtpo.types import Task

SPLITS: Final = {"held_out": range(0, 1), "validation": range(1, 2), "train": range(2, 10)}
"""each split's tenths of all problems"""
MOST_REPEATS: Final = 100_000
"""after so many draws without a new problem, a split has no more"""


def word_hash(*words: object) -> int:
    """64 bits that depend on the words alone."""
    return int.from_bytes(hashlib.sha256(" ".join(map(str, words)).encode()).digest()[:8], "big")


def split_of(key: str) -> str:
    """The split of the problem with this key."""
    tenth = word_hash(key) % 10
    return next(split for split, tenths in SPLITS.items() if tenth in tenths)


def draw_tasks(split: str, count: int, draw: Callable[[int], Task | None], key: Callable[[Task], str]) -> list[Task]:
    """Draw `count` different tasks of a split. draw: takes the number of tasks so far, returns a task or None. key: the
    text that decides a task's split. Raises ConfigError for an unknown split, and for a count below 1 or above what the
    split has."""
    if split not in SPLITS:
        raise ConfigError(f"split {split!r} does not exist: use one of {', '.join(SPLITS)}")
    if count < 1:
        raise ConfigError(f"count of tasks is {count}: ask for at least 1")
    tasks: dict[str, Task] = {}
    repeats = 0
    while len(tasks) < count:
        task = draw(len(tasks))
        is_new = task is not None and split_of(key(task)) == split and task.uid not in tasks
        repeats = 0 if is_new else repeats + 1
        if task is not None and is_new:
            tasks[task.uid] = task
        if repeats == MOST_REPEATS:
            raise ConfigError(f"split {split} has about {len(tasks)} problems, and count is {count}: ask for fewer")
    return list(tasks.values())
