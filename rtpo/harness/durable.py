"""Steps that can stop between two phases and continue later, for any algorithm.

A step keeps the results of its verbs. To continue, the algorithm runs again from the start of the step. Verbs with a
kept result return it; the verbs after them run. An algorithm draws random numbers from `Harness.random` alone, so it
makes the same calls again.

A step can stop at its synchronisations. They replace the engine's weights, so no state of the engine needs saving.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from rtpo.errors import DataError
from rtpo.types import Boundary, Floats, Group, Role, Task, TrainRow
from rtpo.verbs import Harness, Loss, Update


@dataclass(frozen=True, slots=True)
class Done:
    """A verb that was carried out, and its result."""

    verb: str
    result: Any


class DurableHarness:
    """A `rtpo.verbs.Harness` that keeps the verbs' results.

    done: the verbs done in the current step; a continued step starts with those of its save.
    between_phases: called with `done` before each new synchronisation, unless it is the step's first verb.
    """

    def __init__(self, harness: Harness, done: Sequence[Done], between_phases: Callable[[list[Done]], None]) -> None:
        self._harness = harness
        self.max_turns, self.vocabulary_size = harness.max_turns, harness.vocabulary_size
        self.done = list(done)
        self._replayed = 0
        self._between_phases = between_phases

    @property
    def step(self) -> int:
        return self._harness.step

    @property
    def budget_share(self) -> float:
        return self._harness.budget_share

    @property
    def state(self) -> dict[str, Any]:
        return self._harness.state

    def log(self, name: str, value: float) -> None:
        self._once("log", lambda: self._harness.log(name, value))

    def random(self, name: str) -> np.random.Generator:
        return self._harness.random(name)

    def rollout(
        self,
        starts: Sequence[Task] | Sequence[Boundary],
        *,
        n: int,
        role: Role,
        turns: int | None = None,
        top_logprobs: int = 0,
    ) -> list[Group]:
        return self._once(
            "rollout", lambda: self._harness.rollout(starts, n=n, role=role, turns=turns, top_logprobs=top_logprobs)
        )

    def score(self, rows: Sequence[TrainRow]) -> list[Floats]:
        return self._once("score", lambda: self._harness.score(rows))

    def reference(self, rows: Sequence[TrainRow]) -> list[Floats]:
        return self._once("reference", lambda: self._harness.reference(rows))

    def update(
        self, rows: Sequence[TrainRow], loss: Loss, *, epochs: int = 1, minibatches: int = 1, scores: bool = False
    ) -> Update:
        return self._once(
            "update",
            lambda: self._harness.update(rows, loss, epochs=epochs, minibatches=minibatches, scores=scores),
        )

    def sync(self) -> int:
        if self._replayed == len(self.done) and self.done:
            self._between_phases(self.done)
        return self._once("sync", self._harness.sync)

    def _once(self, verb: str, act: Callable[[], Any]) -> Any:
        if self._replayed < len(self.done):
            past = self.done[self._replayed]
            if past.verb != verb:
                raise DataError(
                    f"the save has the verb {past.verb!r} where the algorithm now calls {verb!r}: another version "
                    "of the algorithm wrote this save; continue the run with that version."
                )
            result = past.result
        else:
            result = act()
            self.done.append(Done(verb, result))
        self._replayed += 1
        # a copy, since an algorithm may extend the list
        return copy(result)
