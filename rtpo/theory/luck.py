"""Tasks whose return mixes decisions and luck, and exact moments of policies that depend on the turn alone
(`TabularHarness(shared=True)`).

The return is (1 - w) x decisions + w x luck, with w = LUCK and both in [0, 1]. Luck is a fair coin that the policy does
not see. It is tossed in one random turn, so the variance that luck adds in a turn is proportional to the chance of a
toss there. Each turn has two actions; action 0 is right.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from rtpo.theory.mdp import MDP, Table, action_values, value
from rtpo.theory.mdps import return_variances, visits

When = Literal["early", "even", "late"]
Decisions = Literal["even", "late", "chain"]
LUCK: dict[Decisions, float] = {"even": 2 / 3, "late": 0.9, "chain": 0.5}
"""w, chosen so that in the closed form (docs/results/theory.md) some method learns each task in part"""
FALLBACK = 0.6
"""the value of the wrong first action of a chain; a whole chain is worth 1"""
LEVELS = 3
"""open, good or bad, for luck and for decisions"""


@dataclass(frozen=True)
class LuckTask:
    """A task of K turns.

    luck: the coin is tossed in the first turn (`early`), any turn (`even`) or the last (`late`). decisions: with
    `even`, the action of one random turn counts, and with `late` that of a random turn in the last quarter. With
    `chain`, the right first action begins a chain, and each later wrong action breaks it with chance 2/K. A broken
    chain is worth 0, and the wrong first action is worth FALLBACK. An untrained policy gains less than that from a
    chain, so the wrong first action is better until the later turns have learnt.
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
        """The number of last turns in which an action may count."""
        return max(1, self.turns // 4) if self.decisions == "late" else self.turns

    @property
    def stake(self) -> float:
        """The value of the right action minus that of the wrong one, in a turn that may count. For a chain: in a later
        turn, with the chain whole and all following actions right."""
        return (1 - LUCK[self.decisions]) * (self.hazard if self.decisions == "chain" else 1 / self.last)

    def mdp(self) -> MDP:
        """The task as an MDP; state 9k + 3d + l is turn k, level d of decisions and level l of luck."""
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
        """A policy's value on a scale from 0 for the untrained policy to 1 for the best."""
        mdp = self.mdp()
        untrained, best = (value(mdp, by_turn(mdp, np.full(self.turns, right))) for right in (0.5, 1.0))
        return (value(mdp, policy) - untrained) / (best - untrained)

    def _tossed(self, k: int) -> float:
        """The chance that the coin is tossed in turn k, given that it was not tossed before."""
        when = {"early": float(k == 0), "even": 1 / (self.turns - k), "late": float(k + 1 == self.turns)}
        return when[self.luck]

    def _outcomes(self, k: int) -> list[Table]:
        """The chances of good and bad after the right, and after the wrong action, while decisions are open."""
        if self.decisions == "chain":
            return [np.zeros(2), np.array([0, self.hazard]) if k else np.array([1, 0])]
        counts = 1 / (self.turns - k) if k >= self.turns - self.last else 0.0
        return [np.array([counts, 0]), np.array([0, counts])]


def by_turn(mdp: MDP, right: Table) -> Table:
    """The policy [K, S, A] that is right in turn k with chance right[k]."""
    return np.broadcast_to(np.stack([right, 1 - right], -1)[:, None], mdp.shape)


def variance_ahead(mdp: MDP, policy: Table) -> Table:
    """E[Var(R | S_k)], [K]: the variance of the return that arises in turn k or later. Divided by the first entry, the
    variance of the return, it is f_k. Assumes episodes of K turns."""
    return (visits(mdp, policy) * _variances(mdp, policy)).sum(-1)


def gradient(mdp: MDP, policy: Table) -> Table:
    """The gradient of the mean return by the logits of each turn, [K, A]; the policy depends on the turn alone."""
    return (visits(mdp, policy)[..., None] * policy * _advantages(mdp, policy)).sum(1)


def sibling_noise(mdp: MDP, policy: Table, groups: int, siblings: int) -> Table:
    """The exact E |estimate - gradient|^2 of each turn, [K]. The estimate is the mean over `groups` boundaries S_k of
    the unbiased sample covariance of return and score over `siblings` siblings."""
    at, advantage = visits(mdp, policy), _advantages(mdp, policy)
    mean = policy * advantage
    second = (policy * _scores(policy) * (return_variances(mdp, policy) + advantage**2)).sum(-1)
    both = _variances(mdp, policy) * (policy * _scores(policy)).sum(-1)
    within = _covariance_noise((mean**2).sum(-1), second, both, siblings)
    between = (at * (mean**2).sum(-1)).sum(-1) - (gradient(mdp, policy) ** 2).sum(-1)
    return ((at * within).sum(-1) + between) / groups


def chain_noise(mdp: MDP, policy: Table, chains: int) -> Table:
    """As `sibling_noise`, for the unbiased sample covariance of return and score over `chains` chains."""
    at, mean = visits(mdp, policy)[..., None], value(mdp, policy)
    squares = return_variances(mdp, policy) + (action_values(mdp, policy) - mean) ** 2
    second = (at * policy * _scores(policy) * squares).sum((1, 2))
    both = variance_ahead(mdp, policy)[0] * (at * policy * _scores(policy)).sum((1, 2))
    return _covariance_noise((gradient(mdp, policy) ** 2).sum(-1), second, both, chains)


def _covariance_noise(squared_mean: Table, second: Table, product: Table, n: int) -> Table:
    """The variance of an unbiased sample covariance of n pairs. second: E[x^2 y^2] about the means. product: of the two
    variances."""
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
    """Transitions between open, good and bad, [3, 3]: open becomes good and bad with these chances."""
    table = np.eye(LEVELS)
    table[0] = 1 - chances.sum(), *chances
    return table
