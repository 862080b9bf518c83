"""REFUEL: a path and its re-run from one random turn; their log-ratios regress on the difference of their returns."""

from collections.abc import Sequence
from dataclasses import dataclass

from rtpo.rows import turn_row
from rtpo.types import Boundary, Group, Role, Rollout, Task, TrainRow
from rtpo.verbs import AlgorithmConfig, Harness, SquaredPair


@dataclass(frozen=True)
class REFUELConfig(AlgorithmConfig):
    """pairs: for each prompt. eta: scale of the return difference."""

    pairs: int = 8
    eta: float = 1.0


def step(harness: Harness, tasks: Sequence[Task], config: REFUELConfig) -> None:
    """One data step."""
    rng = harness.random("turn")
    firsts = [first for group in harness.rollout(tasks, n=config.pairs, role=Role.CHAIN) for first in group]
    boundaries = [first.boundary(int(rng.integers(len(first.turns)))) for first in firsts]
    seconds = harness.rollout(boundaries, n=1, role=Role.BRANCH)
    rows = pair_rows(firsts, boundaries, seconds)
    loss = SquaredPair(config.eta, kl=config.kl)
    harness.update(rows, loss, epochs=config.epochs, minibatches=config.minibatches)


def pair_rows(firsts: Sequence[Rollout], boundaries: Sequence[Boundary], seconds: Sequence[Group]) -> list[TrainRow]:
    """Both members' turn at the boundary, one after the other, with their returns; pairs that tell nothing left out."""
    rows = []
    for first, boundary, (second,) in zip(firsts, boundaries, seconds, strict=True):
        members = [(rollout, rollout.turns[boundary.k]) for rollout in (first, second)]
        (_, one), (_, other) = members
        if first.is_graded and second.is_graded and one.output_ids.tobytes() != other.output_ids.tobytes():
            rows += [turn_row(turn, rollout, rollout.reward, 0.5, boundary.uid) for rollout, turn in members]
    return rows


def rollouts_per_task(config: REFUELConfig, max_turns: int) -> int:
    return 2 * config.pairs
