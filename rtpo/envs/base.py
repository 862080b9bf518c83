"""The protocol of an environment, and `Environment`, the descriptor at the end of each environment's module."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol

from rtpo.types import Feedback, Grade, Opening, Snapshot, StopReason, Task


@dataclass(frozen=True)
class Settings:
    """An environment's settings, read from `task.settings`. An environment that has none uses this class."""

    def problems(self, path: str) -> list[str]:
        """A sentence for each invalid value, naming its field under `path`."""
        return []

    def check(self) -> dict[str, Any]:
        """Try everything that episodes need, before the run starts; returns facts for the manifest. Raises an RTPOError
        that says what is missing."""
        return {}


class Env(Protocol):
    """One episode of one task. Each rollout makes a new one, then calls `reset` or `restore`.

    Contract, tested for every registered environment: after `restore`, the same replies give the same feedback and
    snapshot digests as in the original episode, any number of times. Later steps never change a snapshot. Random draws
    depend on `path_seed` and are stored in the state. So the contract holds for paths with the same seed.
    """

    path_seed: int | None
    """seed of this path's random draws alone, set before `reset` or `restore`. It is None in an evaluation, where
    `toy.luck` tosses no coins"""

    async def reset(self, task: Task) -> Opening:
        """Begin the episode; returns its opening, S_0."""

    async def step(self, reply: str, stop: StopReason) -> Feedback:
        """Answer the policy's decoded reply (thinking included). Raises InfrastructureError if a tool cannot be
        reached. Such a failure never counts as the policy's mistake."""

    def snapshot(self) -> Snapshot:
        """The current state as a snapshot, snap_k."""

    def restore(self, task: Task, snapshot: Snapshot) -> None:
        """Continue from a snapshot of an episode of `task`."""

    async def grade(self) -> Grade:
        """The reward of the episode. An episode that reached its turn limit is graded too."""


@dataclass(frozen=True, slots=True)
class Environment:
    """How to make an environment and get its tasks."""

    make: Callable[[Any, int], Env]  # (settings, max_turns) -> a new environment
    read: Callable[[Path], list[Task]]  # the tasks of a data file; raises DataError naming the line
    generate: Callable[[str, int, int], list[Task]] | None = None  # (split, count, seed) -> tasks; None: only files
    split_key: Callable[[Task], str] = attrgetter("question")  # decides a task's split (`rtpo.core.splits`)
    settings: type[Settings] = Settings
