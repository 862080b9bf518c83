"""REFUEL: a path, sampled again from one random turn. The difference of the two log-ratios at this turn is fitted to
the difference of the returns. A path's own return is in the pair's mean."""

from collections.abc import Sequence
from dataclasses import dataclass

from rtpo.credit import sibling_advantages
from rtpo.rows import turn_row
from rtpo.types import Boundary, Group, Role, Rollout, Task, TrainRow
from rtpo.verbs import Algorithm, AlgorithmConfig, Harness, SquaredPair


@dataclass(frozen=True)
class REFUELConfig(AlgorithmConfig):
    """pairs: for each prompt, 1 or more. eta: scale of the return difference, above 0.
    clip_low, clip_high: not used by this loss.

    With one epoch of one mini-batch, the log-ratios are 0 at the only optimizer step. It is then a plain policy
    gradient.
    """

    pairs: int
    eta: float

    @property
    def loss(self) -> SquaredPair:
        return SquaredPair(self.eta, kl=self.kl)


def step(harness: Harness, tasks: Sequence[Task], config: REFUELConfig) -> None:
    """One data step."""
    rng = harness.random("turn")
    firsts = [first for group in harness.rollout(tasks, n=config.pairs, role=Role.CHAIN) for first in group]
    boundaries = [first.boundary(int(rng.integers(len(first.turns)))) for first in firsts]
    seconds = harness.rollout(boundaries, n=1, role=Role.BRANCH)
    rows = pair_rows(firsts, boundaries, seconds)
    harness.update(rows, config.loss, epochs=config.epochs, minibatches=config.minibatches)


def pair_rows(firsts: Sequence[Rollout], boundaries: Sequence[Boundary], seconds: Sequence[Group]) -> list[TrainRow]:
    """The turn at the boundary, of both members in neighbouring rows. A member's advantage is its return minus the
    pair's mean.

    A pair is left out if its two turns have the same ids, or if a member could not be graded. A pair with equal returns
    is kept: after the first step it pulls its log-ratios together.
    """
    rows = []
    for first, boundary, (second,) in zip(firsts, boundaries, seconds, strict=True):
        members = [(rollout, rollout.turns[boundary.k]) for rollout in (first, second)]
        ids, other_ids = (turn.output_ids.tobytes() for _, turn in members)
        if first.is_graded and second.is_graded and ids != other_ids:
            advantages = sibling_advantages([first.reward, second.reward])
            rows += [
                turn_row(turn, rollout, float(advantage), 0.5, boundary.uid)
                for (rollout, turn), advantage in zip(members, advantages, strict=True)
            ]
    return rows


def rollouts_per_task(config: REFUELConfig, max_turns: int) -> int:
    return 2 * config.pairs


def check(config: REFUELConfig) -> list[str]:
    problems = []
    if config.pairs < 1:
        problems.append(f"algorithm.pairs is {config.pairs}: use 1 or more.")
    if config.training_context != "recorded":
        problems.append(
            f"algorithm.training_context is {config.training_context}: a pair shares the c_k both turns were sampled "
            "from; use recorded."
        )
    return problems


ALGORITHM = Algorithm(
    config=REFUELConfig,
    step=step,
    rollouts_per_task=rollouts_per_task,
    check=check,
    plan="n chains, each continued anew once from a random realised turn",
    credit="difference of the pair's returns, no std",
    schedule="one update a step, several epochs",
    contexts="recorded c_k",
    loss="squared pair",
    trained="both paths' turn at the fork",
)
