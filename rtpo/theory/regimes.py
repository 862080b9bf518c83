"""Where RTPO and GRPO with exact contexts break even at equal rollouts: a closed form for the tasks of
`rtpo.theory.luck`. docs/results/theory.md derives it; `rtpo.theory.regime_runs` measures it.

Both methods have equal rollouts, data steps, and mean steps of a logit. So they differ only in the noise of their
gradients, in the order of turns and in the freshness of continuations.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from math import erf, exp, pi, sqrt
from typing import Any, get_args

import numpy as np

from rtpo.theory.luck import Decisions, LuckTask, When, by_turn, chain_noise, sibling_noise, variance_ahead
from rtpo.theory.mdp import Table
from rtpo.theory.mdps import uniform, visits

TRAVEL = 32.0
"""the sum of a point's step sizes; without noise a logit ends near its logarithm"""
SMOOTH = 8 / pi
"""the variance of the normal distribution whose cumulative function is close to the logistic"""
METHODS = ("rtpo", "grpo")
SEEDS = 5
MORE_SEEDS = {2: 20, 4: 10}
"""by horizon: with few turns, a run's result depends on few decisions, each right or wrong, and varies more"""
HORIZONS = (2, 4, 8, 16)


@dataclass(frozen=True)
class Point:
    """A point of the map: a task, and RTPO's budget on it."""

    turns: int  # K
    luck: When
    decisions: Decisions
    group_size: int  # G
    trunks: int  # M, in each data step
    steps: int  # data steps

    @property
    def task(self) -> LuckTask:
        return LuckTask(self.turns, self.luck, self.decisions)

    @property
    def chains(self) -> int:
        """GRPO's chains in a data step: as many as RTPO's rollouts."""
        return self.trunks * (1 + self.turns * (self.group_size - 1))

    @property
    def step_size(self) -> float:
        """Twice the change, in a data step, of the logit difference of an untrained action of full stake."""
        return TRAVEL / self.steps

    @property
    def name(self) -> str:
        return " ".join(f"{name}={value}" for name, value in asdict(self).items())


def points() -> Iterator[Point]:
    """The points of the map, by increasing cost: 32 trunks in total, split into 32 small steps down to one sweep; then
    larger groups; then fewer trunks. The longest horizon has only the first kind."""
    sizes = [(3, 1, 32), (3, 4, 8), (3, 16, 2), (3, 32, 1), (5, 4, 8), (5, 32, 1), (3, 4, 2)]
    for turns, luck, decisions in product(HORIZONS, get_args(When), get_args(Decisions)):
        for size in sizes[:4] if turns == HORIZONS[-1] else sizes:
            yield Point(turns, luck, decisions, *size)


def frozen_points() -> Iterator[Point]:
    """The points at which gradient noise is measured: the map's tasks and group sizes, with one trunk per batch."""
    sizes = {(point.turns, point.luck, point.decisions, point.group_size) for point in points()}
    for size in sorted(sizes):
        yield Point(*size, trunks=1, steps=16)


# the closed form


def break_even(turns: float, group_size: int) -> float:
    """f*: at equal rollouts RTPO's gradient of turn k has less noise than GRPO's if f_k < f*."""
    return (group_size - 2) / (1 + turns * (group_size - 1))


def noise_ratio(f: Table, group_size: int, chains: int) -> Table:
    """RTPO's gradient noise over GRPO's at equal rollouts, by turn, from f_k, [K]."""
    return f / break_even(len(f), group_size) * (1 - 1 / chains)


def excess(f: Table, weights: Table, group_size: int) -> float:
    """The mean of f_k, [K], weighted by `weights`, over f*. With little noise RTPO's rollout plan breaks even at 1."""
    return float(weights @ f / weights.sum()) / break_even(len(f), group_size)


def right(mean: Table, variance: Table) -> Table:
    """E[sigmoid(x)] for a normal x of these moments, [K]."""
    return np.array([(1 + erf(m / sqrt(2 * (SMOOTH + v)))) / 2 for m, v in zip(mean, variance, strict=True)])


def moved(mean: float, variance: float, drift: float, noise: float) -> tuple[float, float]:
    """Mean and variance, after a step, of the lead of the right action's logit. The step adds 2p(1-p) `drift`, and a
    random amount of variance 4p(1-p) `noise`. p(1-p) is replaced by its mean over leads; its slope shrinks the
    variance."""
    wide = SMOOTH + variance
    both = exp(-(mean**2) / (2 * wide)) / sqrt(2 * pi * wide)
    kept = 1 - 2 * drift * both * mean / wide
    return mean + 2 * drift * both, kept**2 * variance + 4 * both * noise


def learnt(task: LuckTask, step_size: float, steps: int, noise: Table, reverse: bool) -> float:
    """Success after `steps` steps of this size. noise: the gradient's variance by turn, [K], in units of the squared
    stake. reverse: turns are updated in reverse order, each with the new values of later turns; otherwise all at
    once."""
    mdp = task.mdp()
    mean, variance = np.zeros(task.turns), np.zeros(task.turns)
    for _ in range(steps):
        chances = right(mean, variance)
        at, values = visits(mdp, by_turn(mdp, chances)), mdp.reward
        for k in reversed(range(task.turns)):
            after = mdp.transition @ values
            stake = at[k] @ (after[:, 0] - after[:, 1]) / task.stake
            mean[k], variance[k] = moved(mean[k], variance[k], step_size * stake, step_size**2 * noise[k])
            chance = right(mean[k : k + 1], variance[k : k + 1])[0] if reverse else chances[k]
            values = after @ np.array([chance, 1 - chance])
    return task.success(by_turn(mdp, right(mean, variance)))


def predicted(point: Point) -> dict[str, Any]:
    """The closed form's predictions for a point. rtpo, grpo: success. cost: GRPO's success minus that of RTPO's rollout
    plan with all turns updated at once. gain: what reverse order and freshness add. So rtpo - grpo = gain - cost. f:
    f_k. excess: the mean of f_k over the turns that may count, over f*."""
    task, mdp = point.task, point.task.mdp()
    ahead = variance_ahead(mdp, uniform(mdp))
    unit = task.stake**2
    of_siblings = ahead / (point.trunks * (point.group_size - 2)) / unit
    of_chains = np.full(task.turns, ahead[0] / (point.chains - 1)) / unit
    size = point.step_size, point.steps
    chains = learnt(task, *size, of_chains, reverse=False)
    plan = learnt(task, *size, of_siblings, reverse=False)
    siblings = learnt(task, *size, of_siblings, reverse=True)
    f, counting = ahead / ahead[0], np.arange(task.turns) >= task.turns - task.last
    return {
        "rtpo": siblings,
        "grpo": chains,
        "cost": chains - plan,
        "gain": siblings - plan,
        "excess": excess(f, counting.astype(float), point.group_size),
        "f": f.tolist(),
    }


def exact_noise(point: Point) -> dict[str, Table]:
    """The exact noise of each method's gradient, by turn, to which the noise measured by `frozen` converges."""
    mdp = point.task.mdp()
    return {
        "rtpo": sibling_noise(mdp, uniform(mdp), point.trunks, point.group_size - 1),
        "grpo": chain_noise(mdp, uniform(mdp), point.chains),
    }
