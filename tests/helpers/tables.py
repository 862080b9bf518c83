"""Small decision processes, and the verbs on them, for tests of methods."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rtpo.harness.budget import Budget, Ledger
from rtpo.theory.mdp import MDP, Table
from rtpo.theory.tabular import TabularHarness, train
from rtpo.types import Group, TrainRow
from rtpo.verbs import AlgorithmConfig, Loss, Update

START, SAFE, KEY, SAFE_END, KEY_END, BEST, GOOD, FAIR, NOTHING = range(9)
GOING = [(0, START), (1, SAFE), (1, KEY), (2, SAFE_END), (2, KEY_END)]
"""every stage and state in which an action is taken, under any policy"""


def lure() -> MDP:
    """Three layers with Bernoulli rewards. From the start, one action leads to where most ways end with a fair chance,
    one to where a single way ends with a better one and all others with none; the last ends the episode. One time in
    ten the action makes no difference."""
    moves = {
        START: ([SAFE, KEY, NOTHING], [SAFE, KEY]),
        SAFE: ([SAFE_END, FAIR, FAIR], [SAFE_END, KEY_END]),
        KEY: ([NOTHING, NOTHING, KEY_END], [SAFE_END, KEY_END]),
        SAFE_END: ([GOOD, FAIR, FAIR], [BEST, NOTHING]),
        KEY_END: ([NOTHING, BEST, NOTHING], [BEST, NOTHING]),
    }
    transition = np.zeros((9, 3, 9))
    transition[BEST:, :, NOTHING] = 1
    for state, (actions, slips) in moves.items():
        transition[state, range(3), actions] += 0.9
        transition[state][:, slips] += 0.05
    reward = np.zeros(9)
    reward[[BEST, GOOD, FAIR]] = 0.95, 0.6, 0.4
    return MDP(transition, reward, np.eye(9)[START], 3, frozenset({BEST, GOOD, FAIR, NOTHING}), bernoulli=True)


def random_mdp(seed: int, states: int = 4, actions: int = 3, horizon: int = 3, bernoulli: bool = False) -> MDP:
    """Any state may follow any other; episodes begin in the first two and may end early in the last."""
    rng = np.random.default_rng(seed)
    start = np.zeros(states)
    start[:2] = 0.3, 0.7
    transition = rng.dirichlet(np.ones(states), (states, actions))
    return MDP(transition, rng.random(states), start, horizon, frozenset({states - 1}), bernoulli)


def random_logits(mdp: MDP, seed: int) -> Table:
    return np.random.default_rng(seed).normal(size=mdp.shape)


class RecordingHarness(TabularHarness):
    """The harness, remembering in order what its verbs did."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.done: list[tuple[str, Any]] = []

    def rollout(self, starts: Any, **settings: Any) -> list[Group]:
        self.done.append(("rollout", groups := super().rollout(starts, **settings)))
        return groups

    def update(self, rows: Sequence[TrainRow], loss: Loss, **settings: Any) -> Update:
        self.done.append(("update", list(rows)))
        return super().update(rows, loss, **settings)

    def sync(self) -> int:
        self.done.append(("sync", version := super().sync()))
        return version

    def all_of(self, verb: str) -> list[Any]:
        return [what for name, what in self.done if name == verb]


def harness_on(mdp: MDP, *, reserve: int = 1_000_000, learning_rate: float = 1.0, **settings: Any) -> RecordingHarness:
    """In a step of `reserve` rollouts, synchronised."""
    harness = RecordingHarness(mdp, Ledger(Budget(10_000_000)), learning_rate=learning_rate, **settings)
    harness.begin_step(0, reserve)
    harness.sync()
    return harness


def trained(
    method: Any, config: AlgorithmConfig, mdp: MDP, steps: int, learning_rate: float, seed: int
) -> TabularHarness:
    harness = TabularHarness(mdp, Ledger(Budget(1_000_000)), learning_rate=learning_rate, seed=seed)
    for _ in train(harness, method.step, config, method.rollouts_per_task, steps):
        pass
    return harness
