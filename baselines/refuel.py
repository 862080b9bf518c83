"""REFUEL: each path is sampled a second time from one random turn on. The loss fits the difference of the two
log-ratios at this turn to the difference of the returns. The pair's mean includes the path's own return."""

from collections.abc import Sequence
from dataclasses import dataclass

from rtpo.credit import sibling_advantages
from rtpo.rows import turn_row
from rtpo.types import Boundary, Group, Role, Rollout, Task, TrainRow
from rtpo.verbs import Algorithm, AlgorithmConfig, Harness, SquaredPair


@dataclass(frozen=True)
class REFUELConfig(AlgorithmConfig):
    """pairs: number for each prompt, 1 or more. eta: scale of the return difference, above 0.
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
    first_paths = [first for group in harness.rollout(tasks, n=config.pairs, role=Role.CHAIN) for first in group]
    boundaries = [first.boundary(int(rng.integers(len(first.turns)))) for first in first_paths]
    second_paths = harness.rollout(boundaries, n=1, role=Role.BRANCH)
    rows = pair_rows(first_paths, boundaries, second_paths)
    harness.update(rows, config.loss, epochs=config.epochs, minibatches=config.minibatches)


def pair_rows(
    first_paths: Sequence[Rollout], boundaries: Sequence[Boundary], second_paths: Sequence[Group]
) -> list[TrainRow]:
    """Two neighbouring rows for each pair: each path's turn at the boundary. A path's advantage is its return minus the
    pair's mean.

    A pair is left out if its two turns have the same ids, or if one of its paths could not be graded. A pair with equal
    returns is kept: after the first optimizer step the loss pulls its log-ratios together.
    """
    rows = []
    for first, boundary, (second,) in zip(first_paths, boundaries, second_paths, strict=True):
        pair = [(path, path.turns[boundary.k]) for path in (first, second)]
        ids, other_ids = (turn.output_ids.tobytes() for _, turn in pair)
        if first.is_graded and second.is_graded and ids != other_ids:
            advantages = sibling_advantages([first.reward, second.reward])
            rows += [
                turn_row(turn, path, float(advantage), 0.5, boundary.uid)
                for (path, turn), advantage in zip(pair, advantages, strict=True)
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
            f"algorithm.training_context is {config.training_context}: both turns of a pair are sampled from one "
            "c_k; use recorded."
        )
    return problems


ALGORITHM = Algorithm(
    config=REFUELConfig,
    step=step,
    rollouts_per_task=rollouts_per_task,
    check=check,
    plan="n chains, each sampled again once from a random realised turn",
    credit="difference of the pair's returns, no std",
    schedule="one update a step, several epochs",
    contexts="recorded c_k",
    loss="squared pair",
    trained="both paths' turn at the fork",
)
