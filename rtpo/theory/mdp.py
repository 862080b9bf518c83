"""Finite MDPs and their exact values, stage by stage.

A policy is a table [K, S, A]: at each stage k a distribution over the actions in each state.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from rtpo.errors import ConfigError

Table = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MDP:
    """A finite MDP with one reward, that of the final state; gamma = 1. Raises ConfigError for invalid tables."""

    transition: Table  # [S, A, S] probabilities of the next state
    reward: Table  # [S] mean reward of each final state
    start: Table  # [S] distribution of s_0
    horizon: int  # K, the most turns
    terminal: frozenset[int] = frozenset()  # states that end an episode before K turns
    bernoulli: bool = False  # the reward is drawn: 1 with probability reward[s], otherwise 0

    def __post_init__(self) -> None:
        states, actions = len(self.reward), np.shape(self.transition)[1] if np.ndim(self.transition) == 3 else 0
        if actions < 2 or np.shape(self.transition) != (states, actions, states) or self.start.shape != (states,):
            raise ConfigError(
                f"MDP shapes do not match: transition {np.shape(self.transition)}, reward {self.reward.shape}, start "
                f"{self.start.shape}; use [S, A, S], [S] and [S] with at least two actions."
            )
        for name, table in (("transition", self.transition), ("start", self.start)):
            if not ((table >= 0).all() and np.allclose(table.sum(-1), 1)):
                raise ConfigError(f"MDP.{name} must hold distributions over states: numbers >= 0 that sum to 1.")
        if not np.isfinite(self.reward).all() or (
            self.bernoulli and not ((self.reward >= 0) & (self.reward <= 1)).all()
        ):
            raise ConfigError("MDP.reward must be finite, and between 0 and 1 where bernoulli is set.")
        if self.horizon < 1:
            raise ConfigError(f"MDP.horizon is {self.horizon}: an episode has at least one turn; use 1 or more.")
        if not self.terminal <= set(range(states)) or any(self.start[state] for state in self.terminal):
            raise ConfigError("MDP.terminal must name states in which MDP.start never begins.")

    @property
    def shape(self) -> tuple[int, int, int]:
        """[K, S, A], the shape of a policy."""
        return self.horizon, len(self.reward), self.transition.shape[1]

    @property
    def is_terminal(self) -> npt.NDArray[np.bool_]:
        return np.isin(np.arange(len(self.reward)), list(self.terminal))


def softmax(logits: Table) -> Table:
    return np.exp(log_softmax(logits))


def log_softmax(logits: Table) -> Table:
    return np.asarray(special.log_softmax(logits, axis=-1))


def state_values(mdp: MDP, policy: Table) -> Table:
    """V_k(s), [K + 1, S]: the mean reward from state s at stage k. It is reward[s] at stage K and in terminal
    states."""
    values, continuing = np.tile(mdp.reward, (mdp.horizon + 1, 1)), ~mdp.is_terminal
    for k in reversed(range(mdp.horizon)):
        values[k, continuing] = (policy[k] * (mdp.transition @ values[k + 1])).sum(-1)[continuing]
    return values


def action_values(mdp: MDP, policy: Table) -> Table:
    """Q_k(s, a), [K, S, A]: the mean reward of action a at stage k, followed by `policy`. Undefined in terminal
    states."""
    return np.stack([mdp.transition @ values for values in state_values(mdp, policy)[1:]])


def advantages(mdp: MDP, policy: Table) -> Table:
    """A_k(s, a) = Q_k(s, a) - V_k(s), [K, S, A]. Undefined in terminal states."""
    return action_values(mdp, policy) - state_values(mdp, policy)[:-1, :, None]


def value(mdp: MDP, policy: Table) -> float:
    """The mean reward of an episode."""
    return float(mdp.start @ state_values(mdp, policy)[0])


def backward_induction(mdp: MDP) -> Table:
    """A deterministic optimal policy, [K, S, A]; of equally good actions it takes the first."""
    policy, values, continuing = np.zeros(mdp.shape), mdp.reward.copy(), ~mdp.is_terminal
    for k in reversed(range(mdp.horizon)):
        best = mdp.transition @ values
        policy[k] = np.eye(mdp.shape[2])[best.argmax(-1)]
        values[continuing] = best.max(-1)[continuing]
    return policy
