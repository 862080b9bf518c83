"""What one step of training did, for the records."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rtpo.types import Grade, Rollout, TrainRow


@dataclass(frozen=True, slots=True)
class Trained:
    """A turn that an update trained. Its path may have inherited it from a parent."""

    rollout_uid: str
    update: int  # index of the update in its step
    k: int  # index of the turn
    advantage: float  # mean over the turn's tokens
    group: str  # the path's comparison group


@dataclass
class StepLog:
    """What one step did, in order. Rollouts outside the budget enter only `grades`, `retries` and `free_calls`."""

    rollouts: list[dict[str, Any]] = field(default_factory=list)  # metrics of each rollout call
    updates: list[dict[str, Any]] = field(default_factory=list)  # metrics of each update call
    retries: list[str] = field(default_factory=list)  # a sentence for each restarted episode
    samples: list[Rollout] = field(default_factory=list)  # the rollouts kept for the records
    grades: list[Grade] = field(default_factory=list)  # the grade of each rollout
    trained: list[Trained] = field(default_factory=list)  # the trained turns of `samples`
    paths: list[dict[str, Any]] = field(default_factory=list)  # all ended paths, without their tokens
    numbers: dict[str, float] = field(default_factory=dict)  # numbers that the algorithm recorded, by name
    free_calls: int = 0  # number of rollout calls outside the budget

    def keep(self, rollouts: Sequence[Rollout], count: int) -> None:
        """Keep the first `count` of a call's rollouts from tasks, and all rollouts that were forked from kept ones."""
        kept = self._kept
        self.samples += [rollout for rollout in rollouts if rollout.parent_uid is None][:count]
        self.samples += [rollout for rollout in rollouts if rollout.parent_uid in kept]

    def note_training(self, rows: Sequence[TrainRow]) -> None:
        """Note the turns of `samples` that these rows train. Their update is the next entry of `updates`."""
        kept, update = self._kept, len(self.updates)
        for row in rows:
            if row.rollout_uid in kept:
                for turn in row.turns:
                    advantages = row.advantage[row.mask & (row.turn_index == turn.k)]
                    advantage = float(advantages.mean(dtype=np.float64))
                    self.trained.append(Trained(row.rollout_uid, update, turn.k, advantage, row.group))

    @property
    def _kept(self) -> set[str]:
        return {rollout.uid for rollout in self.samples}
