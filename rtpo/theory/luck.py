"""Tasks whose return is part decisions and part luck, with knobs for the turns in which each arises; and what is exact
about a policy that depends on the turn alone (`TabularHarness(shared=True)`).

A return is (1 - w) x decisions + w x luck, w = LUCK, both between 0 and 1. Luck is a fair coin that is tossed in one
turn, which the policy does not see; in which one is random, so that the variance that luck adds to the return in a turn
is proportional to the chance that it is tossed there. Each turn has two actions, of which action 0 is right.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from rtpo.theory.mdp import MDP, Table, action_values, value
from rtpo.theory.mdps import return_variances, visits

When = Literal["early", "even", "late"]
Decisions = Literal["even", "late", "chain"]
LUCK: dict[Decisions, float] = {"even": 2 / 3, "late": 0.9, "chain": 0.5}
"""w, so that the closed form (docs/results/theory.md) has something learnt on each task by some method, and not all"""
FALLBACK = 0.6
"""what the first turn's other action is worth, where a whole chain is worth 1"""
LEVELS = 3
"""of luck, and of decisions: open, good, bad"""


@dataclass(frozen=True)
class LuckTask:
    """turns: K. luck: when the coin is tossed, in the first turn, in any, in the last.

    decisions, `even`: one turn's action counts, any turn's with the same chance; `late`: one of the last quarter's;
    what an action is worth then does not depend on other turns. `chain`: the first turn's right action begins a chain,
    which a wrong action in a later turn breaks with chance 2/K, and a broken one is worth nothing. The first turn's
    wrong action is worth FALLBACK, more than an untrained policy makes of a chain, so that it is the better one until
    the later turns have learnt.
    """

    turns: int
    luck: When
    decisions: Decisions

    @property
    def hazard(self) -> float:
        """The chance that a wrong action breaks a chain."""
        return 2 / self.turns

    @property
    def last(self) -> int:
        """In how many of the last turns an action may count."""
        return max(1, self.turns // 4) if self.decisions == "late" else self.turns

    @property
    def stake(self) -> float:
        """By how much the right action's value exceeds the wrong one's in a turn that may count; of a chain in all
        turns but the first, where it is whole and all later actions are right."""
        return (1 - LUCK[self.decisions]) * (self.hazard if self.decisions == "chain" else 1 / self.last)

    def mdp(self) -> MDP:
        """State 9k + 3d + l: turn, level of decisions, level of luck."""
        turns, size = self.turns, LEVELS * LEVELS
        transition = np.zeros((size * (turns + 1), 2, size * (turns + 1)))
        transition[size * turns :, :, 0] = 1
        for k in range(turns):
            here, after = slice(size * k, size * (k + 1)), slice(size * (k + 1), size * (k + 2))
            luck = _resolved(self._tossed(k) * np.array([0.5, 0.5]))
            for action, outcome in enumerate(self._outcomes(k)):
                transition[here, action, after] = np.kron(_resolved(outcome), luck)
        of_decisions = [1.0, FALLBACK, 0.0] if self.decisions == "chain" else [0.0, 1.0, 0.0]
        share = LUCK[self.decisions]
        reward = np.add.outer((1 - share) * np.array(of_decisions), share * np.array([0.0, 1.0, 0.0])).ravel()
        return MDP(transition, np.tile(reward, turns + 1), np.eye(size * (turns + 1))[0], turns)

    def success(self, policy: Table) -> float:
        """How far a policy is on the way from the untrained one's decisions, 0, to the best ones, 1."""
        mdp = self.mdp()
        untrained, best = (value(mdp, by_turn(mdp, np.full(self.turns, right))) for right in (0.5, 1.0))
        return (value(mdp, policy) - untrained) / (best - untrained)

    def _tossed(self, k: int) -> float:
        """The chance that the coin is tossed in turn k, if it has not been before."""
        when = {"early": float(k == 0), "even": 1 / (self.turns - k), "late": float(k + 1 == self.turns)}
        return when[self.luck]

    def _outcomes(self, k: int) -> list[Table]:
        """The chances of good and bad after the right and after the wrong action, where decisions are still open."""
        if self.decisions == "chain":
            return [np.zeros(2), np.array([0, self.hazard]) if k else np.array([1, 0])]
        counts = 1 / (self.turns - k) if k >= self.turns - self.last else 0.0
        return [np.array([counts, 0]), np.array([0, counts])]


def by_turn(mdp: MDP, right: Table) -> Table:
    """The policy [K, S, A] that is right in turn k with chance right[k]."""
    return np.broadcast_to(np.stack([right, 1 - right], -1)[:, None], mdp.shape)


def variance_ahead(mdp: MDP, policy: Table) -> Table:
    """E[Var(R | S_k)], [K]: the variance of the return that arises in turn k or later. The first is that of the return,
    and divided by it they are f_k. For episodes that all take K turns."""
    return (visits(mdp, policy) * _variances(mdp, policy)).sum(-1)


def gradient(mdp: MDP, policy: Table) -> Table:
    """Of the mean return by the logits of each turn, [K, A]; the policy depends on the turn alone."""
    return (visits(mdp, policy)[..., None] * policy * _advantages(mdp, policy)).sum(1)


def sibling_noise(mdp: MDP, policy: Table, groups: int, siblings: int) -> Table:
    """E |estimate - gradient|^2 of each turn, [K], of the mean over `groups` boundaries S_k of the covariance of
    return and score over `siblings` of each, made unbiased. Exact."""
    at, advantage = visits(mdp, policy), _advantages(mdp, policy)
    mean = policy * advantage
    second = (policy * _scores(policy) * (return_variances(mdp, policy) + advantage**2)).sum(-1)
    both = _variances(mdp, policy) * (policy * _scores(policy)).sum(-1)
    within = _covariance_noise((mean**2).sum(-1), second, both, siblings)
    between = (at * (mean**2).sum(-1)).sum(-1) - (gradient(mdp, policy) ** 2).sum(-1)
    return ((at * within).sum(-1) + between) / groups


def chain_noise(mdp: MDP, policy: Table, chains: int) -> Table:
    """The same of the covariance of return and score over `chains` from the start."""
    at, mean = visits(mdp, policy)[..., None], value(mdp, policy)
    squares = return_variances(mdp, policy) + (action_values(mdp, policy) - mean) ** 2
    second = (at * policy * _scores(policy) * squares).sum((1, 2))
    both = variance_ahead(mdp, policy)[0] * (at * policy * _scores(policy)).sum((1, 2))
    return _covariance_noise((gradient(mdp, policy) ** 2).sum(-1), second, both, chains)


def _covariance_noise(squared_mean: Table, second: Table, product: Table, n: int) -> Table:
    """The variance of an unbiased sample covariance of n pairs: `second` is E[x^2 y^2] about the means, `product` the
    product of the variances."""
    return (second - squared_mean) / n + (product + squared_mean) / (n * (n - 1))


def _advantages(mdp: MDP, policy: Table) -> Table:
    values = action_values(mdp, policy)
    return values - (policy * values).sum(-1, keepdims=True)


def _variances(mdp: MDP, policy: Table) -> Table:
    """Var(R | S_k = s), [K, S]."""
    return (policy * (return_variances(mdp, policy) + _advantages(mdp, policy) ** 2)).sum(-1)


def _scores(policy: Table) -> Table:
    """|d log pi(a) / d logits|^2, [K, S, A]."""
    return 1 - 2 * policy + (policy**2).sum(-1, keepdims=True)


def _resolved(chances: Table) -> Table:
    """From open, good and bad to the same: what is open becomes good and bad with these chances."""
    table = np.eye(LEVELS)
    table[0] = 1 - chances.sum(), *chances
    return table
