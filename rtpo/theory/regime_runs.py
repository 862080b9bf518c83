"""What is measured at the points of the map of regimes (`rtpo.theory.regimes`), by the algorithm files."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from baselines import grpo
from rtpo import rtpo
from rtpo.algorithms import configured
from rtpo.harness.budget import Budget, Ledger
from rtpo.theory.luck import gradient
from rtpo.theory.mdp import MDP, Table
from rtpo.theory.mdps import uniform
from rtpo.theory.regimes import METHODS, Point
from rtpo.theory.tabular import TabularHarness, train
from rtpo.types import TrainRow
from rtpo.verbs import Loss, Update


def config_of(method: str, point: Point) -> Any:
    """Without KL; GRPO with one update a data step, and returns that are not divided by their deviation, as RTPO's. Its
    contexts are exact ones: over a table flattened and recorded contexts are the same ids, and flattened ones are a row
    a chain instead of a row a turn."""
    if method == "rtpo":
        return configured("rtpo", kl=0.0, trunks=point.trunks, group_size=point.group_size)
    return configured("grpo", kl=0.0, chains=point.chains, normalise_std=False, minibatches=1)


def unbiased_rate(method: str, point: Point) -> float:
    """The learning rate with which a data step moves the logits by the gradient, on average: a group's own mean takes a
    share of it, and a chain of K turns gives each the weight 1/K."""
    if method == "rtpo":
        return (point.group_size - 1) / (point.group_size - 2)
    return point.turns * point.chains / (point.chains - 1)


class FrozenHarness(TabularHarness):
    """Keeps how far a data step would move the logits, [K, A] a step, and leaves them where they are."""

    def __init__(self, mdp: MDP, *arguments: Any, **settings: Any) -> None:
        super().__init__(mdp, *arguments, **settings)
        self.moves: defaultdict[int, Table] = defaultdict(lambda: np.zeros((mdp.shape[0], mdp.shape[2])))

    def update(self, rows: Sequence[TrainRow], loss: Loss, **settings: Any) -> Update:
        before = self.logits
        done = super().update(rows, loss, **settings)
        self.moves[self._step] += (self.logits - before)[:, 0]
        self.logits = before
        return done


def trained(point: Point, seed: int) -> dict[str, Any]:
    """The success of each method at equal rollouts."""
    rates = {method: unbiased_rate(method, point) * point.step_size / point.task.stake for method in METHODS}
    return {method: point.task.success(_run(method, point, rate, seed).policy) for method, rate in rates.items()}


def frozen(point: Point, seed: int) -> dict[str, Any]:
    """Each method's gradient at the untrained policy, by turn: its mean for the right action, and its mean squared
    distance from the exact one, over `steps` batches."""
    measured: dict[str, Any] = {}
    for method in METHODS:
        harness = _run(method, point, unbiased_rate(method, point), seed, FrozenHarness)
        moves = np.array(list(harness.moves.values()))
        squares = ((moves - gradient(harness.mdp, uniform(harness.mdp))) ** 2).sum(-1)
        measured[method] = {"mean": moves[..., 0].mean(0).tolist(), "noise": squares.mean(0).tolist()}
    return measured


def _run(method: str, point: Point, rate: float, seed: int, kind: type[TabularHarness] = TabularHarness) -> Any:
    """A harness of this kind after the point's data steps."""
    ledger = Ledger(Budget(point.chains * point.steps))
    harness = kind(point.task.mdp(), ledger, learning_rate=rate, seed=seed, shared=True)
    algorithm, config = rtpo if method == "rtpo" else grpo, config_of(method, point)
    for _ in train(harness, algorithm.step, config, algorithm.rollouts_per_task, point.steps):
        pass
    if ledger.rollouts != point.chains * point.steps:
        raise AssertionError(f"{method} took {ledger.rollouts} rollouts at {point}")
    return harness
