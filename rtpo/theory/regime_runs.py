"""Measurements at the points of the map of regimes (`rtpo.theory.regimes`), with the algorithm files."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from baselines import grpo
from rtpo import rtpo
from rtpo.algorithms import configured
from rtpo.core.names import counted
from rtpo.harness.budget import Budget, Ledger
from rtpo.theory.luck import gradient
from rtpo.theory.mdp import MDP, Table
from rtpo.theory.mdps import uniform
from rtpo.theory.regimes import METHODS, Point
from rtpo.theory.tabular import TabularHarness, train
from rtpo.types import TrainRow
from rtpo.verbs import Loss, Update


def config_of(method: str, point: Point) -> Any:
    """A method's configuration at a point, without KL. GRPO has one update per data step, and does not divide returns
    by their deviation, like RTPO. Its contexts are flattened, with one row per chain; on a table they have the same ids
    as exact ones."""
    if method == "rtpo":
        return configured("rtpo", kl=0.0, trunks=point.trunks, group_size=point.group_size)
    return configured("grpo", kl=0.0, chains=point.chains, normalise_std=False, minibatches=1)


def unbiased_rate(method: str, point: Point) -> float:
    """The learning rate at which a data step moves the logits by the gradient on average. It makes up for the group's
    mean, which contains each path's own return, and for the weight 1/K of each turn of a chain."""
    if method == "rtpo":
        return (point.group_size - 1) / (point.group_size - 2)
    return point.turns * point.chains / (point.chains - 1)


class FrozenHarness(TabularHarness):
    """A harness that records how far each data step would move the logits, [K, A], without moving them."""

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
    """Each method's gradient at the untrained policy over `steps` batches, by turn: the mean for the right action, and
    the mean squared distance from the exact gradient (`noise`)."""
    measured: dict[str, Any] = {}
    for method in METHODS:
        harness = _run(method, point, unbiased_rate(method, point), seed, FrozenHarness)
        moves = np.array(list(harness.moves.values()))
        squares = ((moves - gradient(harness.mdp, uniform(harness.mdp))) ** 2).sum(-1)
        measured[method] = {"mean": moves[..., 0].mean(0).tolist(), "noise": squares.mean(0).tolist()}
    return measured


def _run(method: str, point: Point, rate: float, seed: int, kind: type[TabularHarness] = TabularHarness) -> Any:
    """A harness of this kind, after all data steps of a point."""
    ledger = Ledger(Budget(point.chains * point.steps))
    harness = kind(point.task.mdp(), ledger, learning_rate=rate, seed=seed, shared=True)
    algorithm, config = rtpo if method == "rtpo" else grpo, config_of(method, point)
    for _ in train(harness, algorithm.step, config, algorithm.rollouts_per_task, point.steps):
        pass
    if ledger.rollouts != point.chains * point.steps:
        raise AssertionError(f"{method} took {counted(ledger.rollouts, 'rollout')} at {point}")
    return harness
