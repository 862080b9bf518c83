"""The protocol of an environment, and the descriptor that the file of each ends with."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol

from rtpo.types import Feedback, Grade, Opening, Snapshot, StopReason, Task


@dataclass(frozen=True)
class Settings:
    """An environment's settings, built from `task.settings`; here of one that has none."""

    def problems(self, path: str) -> list[str]:
        """A sentence for each value that cannot be, naming `path` and its field."""
        return []

    def check(self) -> dict[str, Any]:
        """Try what the episodes will need, before anything starts; returns facts for the manifest. Raises an RTPOError
        that says what is missing."""
        return {}


class Env(Protocol):
    """One episode of one task. Made fresh for each rollout, then `reset` or `restore`d.

    Contract, tested for every registered environment: `restore` followed by the same replies gives the same feedback
    and the same snapshot digests as the episode the snapshot was taken from, any number of times, and nothing done
    after a snapshot changes it. What an environment draws by chance comes from the path's seed and stays in its state
    once it is drawn: the contract then holds for paths of one seed.

    path_seed: the path's, given before `reset` or `restore`, a number that nobody else has. An evaluation has none, and
    no chance that is there to make training's returns differ.
    """

    path_seed: int | None

    async def reset(self, task: Task) -> Opening:
        """Begin the episode; returns its opening (S_0)."""

    async def step(self, reply: str, stop: StopReason) -> Feedback:
        """Take the policy's decoded reply (thinking included) and answer it. Raises InfrastructureError, never blames
        the policy, when a tool cannot be reached."""

    def snapshot(self) -> Snapshot:
        """snap_k: the present state."""

    def restore(self, task: Task, snapshot: Snapshot) -> None:
        """Continue from a snapshot of an episode of `task`."""

    async def grade(self) -> Grade:
        """The reward of the ended episode. An episode cut off at its turn limit is graded too."""


@dataclass(frozen=True, slots=True)
class Environment:
    """make: a fresh environment, from its settings and K. read: the tasks of a data file; raises DataError naming the
    line. generate: `count` tasks of a split, (split, count, seed); None where tasks come from files alone. split_key:
    what a task's split is a function of (`rtpo.core.splits`), wherever the task comes from. settings: the type of its
    settings."""

    make: Callable[[Any, int], Env]
    read: Callable[[Path], list[Task]]
    generate: Callable[[str, int, int], list[Task]] | None = None
    split_key: Callable[[Task], str] = attrgetter("question")
    settings: type[Settings] = Settings
