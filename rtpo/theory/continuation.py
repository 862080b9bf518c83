"""Theorem 3: importance weights and returns of the siblings that RTPO trains on, and their exact values."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rtpo import rtpo
from rtpo.algorithms import configured
from rtpo.harness.budget import Budget, Ledger
from rtpo.rtpo import RTPOConfig
from rtpo.theory.mdp import MDP, Table, action_values
from rtpo.theory.mdps import ladder, layered, lock, weight_moments
from rtpo.theory.tabular import TabularHarness, train
from rtpo.types import Grade, GradeOutcome, Group, Role, Rollout, TrainRow
from rtpo.verbs import Loss, Update


@dataclass(frozen=True)
class ContinuationSettings:
    """Settings of two kinds of runs. Fresh: each turn's siblings are sampled after the updates of later turns. Stale:
    all siblings are sampled before any update."""

    fresh_mdps: int = 2  # of each family
    fresh_steps: int = 5
    fresh_trunks: int = 400
    fresh_group_size: int = 5
    fresh_rate: float = 30.0  # learning rate
    stale_seeds: tuple[int, ...] = (0, 1, 2)  # of the MDPs and of the runs on them
    stale_turns: int = 8
    stale_trunks: int = 1000
    stale_group_size: int = 5
    stale_rate: float = 80.0


@dataclass(frozen=True, eq=False)
class Phase:
    """One update of turn k: the siblings that it trains on, and the policies before it."""

    step: int
    k: int
    siblings: tuple[Rollout, ...]
    sampled_by: Table  # the policy that sampled the siblings, [K, S, A]
    policy: Table  # the policy before the update, [K, S, A]
    version: int  # of `policy`
    weights: dict[str, float]  # importance weight of the turns after k, by uid of the sibling


class WatchedHarness(TabularHarness):
    """A harness that records a `Phase` for every update."""

    def __init__(self, mdp: MDP, config: RTPOConfig, *, learning_rate: float, seed: int) -> None:
        super().__init__(mdp, Ledger(Budget(10_000_000)), learning_rate=learning_rate, seed=seed)
        self.config = config
        self.phases: list[Phase] = []
        self._siblings: dict[str, Rollout] = {}

    def rollout(self, *starts: Any, role: Role, **settings: Any) -> list[Group]:
        groups = super().rollout(*starts, role=role, **settings)
        if role is Role.SIBLING:
            self._siblings |= {sibling.uid: sibling for group in groups for sibling in group}
        return groups

    def update(
        self, rows: Sequence[TrainRow], loss: Loss, *, epochs: int = 1, minibatches: int = 1, scores: bool = False
    ) -> Update:
        siblings = tuple(self._siblings[row.rollout_uid] for row in rows)
        k = rows[0].turns[0].k
        weights = tail_weights(self, siblings, k, self.config)
        sampled_by = np.exp(self._engine_logprobs)
        self.phases.append(Phase(self._step, k, siblings, sampled_by, self.policy, self.policy_version, weights))
        return super().update(rows, loss, epochs=epochs, minibatches=minibatches, scores=scores)


def tail_weights(harness: TabularHarness, siblings: Sequence[Rollout], k: int, config: RTPOConfig) -> dict[str, float]:
    """The unclamped importance weight of the turns after k, by sibling uid. Siblings that end with turn k have none."""
    reward_one = Grade(GradeOutcome.GRADED, 1.0)  # with it, RTPO's weighted return is the weight
    unclamped = replace(config, tail_low=1e-300, tail_high=1e300)
    return rtpo.stale_returns(harness, [tuple(replace(s, grade=reward_one) for s in siblings)], k, unclamped)


def record_phases(mdp: MDP, config: RTPOConfig, steps: int, learning_rate: float, seed: int) -> list[Phase]:
    """Train from the uniform policy and return the phases."""
    harness = WatchedHarness(mdp, config, learning_rate=learning_rate, seed=seed)
    for _ in train(harness, rtpo.step, config, rtpo.rollouts_per_task, steps):
        pass
    return harness.phases


def lines(settings: ContinuationSettings) -> Iterator[dict[str, Any]]:
    """Yield the records: the weights of all phases, and the returns of fresh phases by state and action."""
    fresh: RTPOConfig = configured(
        "rtpo", kl=0.0, trunks=settings.fresh_trunks, group_size=settings.fresh_group_size, sync_every=1
    )
    stale = replace(fresh, trunks=settings.stale_trunks, group_size=settings.stale_group_size, sync_every=None)
    for family, make_mdp in (("lock", lock), ("layered", layered)):
        for number in range(settings.fresh_mdps):
            mdp = make_mdp(number)
            identity = {"family": family, "mdp": number, "seed": number}
            for phase in record_phases(mdp, fresh, settings.fresh_steps, settings.fresh_rate, number):
                yield {"kind": "weights", "variant": "fresh"} | identity | weight_line(mdp, phase)
                for line in return_lines(mdp, phase):
                    yield {"kind": "returns"} | identity | line
    for seed in settings.stale_seeds:
        mdp = ladder(seed, settings.stale_turns)
        identity = {"family": "ladder", "mdp": seed, "seed": seed}
        for phase in record_phases(mdp, stale, 1, settings.stale_rate, seed):
            yield {"kind": "weights", "variant": "stale"} | identity | weight_line(mdp, phase)


def weight_line(mdp: MDP, phase: Phase) -> dict[str, Any]:
    """Measure the weights w of the turns after k in a phase. E[w] is 1, so their variance is the mean of (w - 1)^2."""
    tail_turns = [turn for sibling in phase.siblings for turn in sibling.turns[phase.k + 1 :]]
    second_moments = weight_moments(mdp, phase.sampled_by, phase.policy)[phase.k + 1]
    next_second_moments = (phase.sampled_by[phase.k] * (mdp.transition @ second_moments)).sum(-1)
    exact = np.mean([next_second_moments[sibling.turns[phase.k].snapshot.state] for sibling in phase.siblings])
    weights = np.array([phase.weights.get(sibling.uid, 1.0) for sibling in phase.siblings])
    squares = (weights - 1) ** 2
    return {
        "step": phase.step,
        "k": phase.k,
        "later_turns": mdp.horizon - 1 - phase.k,
        "n": len(weights),
        "turns": len(tail_turns),
        "newest": sum(turn.policy_version == phase.version for turn in tail_turns),  # sampled by the newest policy
        "farthest": float(np.abs(weights - 1).max()),  # largest distance of a weight from 1
        "variance": float(squares.mean()),
        "error": float(squares.std(ddof=1) / len(squares) ** 0.5),  # standard error of the variance
        "exact": float(exact - 1),  # exact variance, as a mean over the siblings' boundaries
    }


def return_lines(mdp: MDP, phase: Phase) -> Iterator[dict[str, Any]]:
    """For each state and action of turn k: the mean return, and the mean squared distance of returns from the exact
    action value, with standard errors."""
    exact = action_values(mdp, phase.policy)[phase.k]
    returns: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
    for sibling in phase.siblings:
        turn = sibling.turns[phase.k]
        returns[turn.snapshot.state, int(turn.output_ids[0])].append(sibling.reward)
    for (state, action), rewards in sorted(returns.items()):
        if len(rewards) > 1:
            values, exact_value = np.array(rewards), float(exact[state, action])
            squares = (values - exact_value) ** 2
            identity = {"step": phase.step, "k": phase.k, "state": state, "action": action, "n": len(rewards)}
            yield identity | {
                "exact": exact_value,
                "mean": float(values.mean()),
                "error": float(values.std(ddof=1) / len(rewards) ** 0.5),
                "square": float(squares.mean()),
                "square_error": float(squares.std(ddof=1) / len(rewards) ** 0.5),
            }
