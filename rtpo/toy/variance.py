"""Measures the turns of a toy task before training: f_k, the share of the return's variance from turn k on, how often
continuations of a state have equal returns, and how often paths share a state.

V(S_k) is the mean return of continuations from S_k. Given S_k, the returns of a path and of another path forked from
its S_k are independent. So their covariance, within a prompt, is the variance of V(S_k). The rest of the return's
variance comes from turn k and later turns: f_k is its share.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rtpo.harness.episodes import Plan
from rtpo.types import Role, Rollout, Task

PROBLEMS, PATHS = 32, 8
"""number of problems for the estimate, and of paths per problem"""


@dataclass(frozen=True)
class TurnMeasures:
    """By turn k. A turn that no path reached has NaN for `ties` and `recurring`."""

    deviation: float  # the return's standard deviation within a prompt
    left: list[float]  # f_k, 1 at the first turn
    reached: list[float]  # share of the paths that reach turn k
    ties: list[float]  # share of pairs of continuations of one S_k with equal returns
    recurring: list[float]  # share of these paths whose S_k another path of the prompt has at turn k


def measure_turns(
    play_paths: Callable[[Sequence[Plan]], list[Rollout]], tasks: Sequence[Task], max_turns: int
) -> TurnMeasures:
    """The estimate uses PATHS paths per task, and one fork from each later boundary of each path."""
    paths = play_paths([Plan(f"{task.uid}.{i}", task, Role.TRUNK) for task in tasks for i in range(PATHS)])
    returns = np.array([path.reward for path in paths])
    variance = _covariance(returns, returns)
    left, reached, ties, recurring = [1.0], [1.0], [float(np.mean(returns[::2] == returns[1::2]))], [1.0]
    for k in range(1, max_turns):
        again = returns.copy()  # an ended path is its own continuation
        going = [i for i, path in enumerate(paths) if len(path.turns) > k]
        forks = play_paths([Plan(f"{paths[i].uid}.{k}", paths[i].boundary(k), Role.SIBLING) for i in going])
        again[going] = [fork.reward for fork in forks]
        left.append(1 - _covariance(returns, again) / variance)
        states = [(paths[i].task.uid, paths[i].turns[k].snapshot.digest) for i in going]
        met = Counter(states)
        reached.append(len(going) / len(paths))
        ties.append(float(np.mean(returns[going] == again[going])) if going else np.nan)
        recurring.append(float(np.mean([met[state] > 1 for state in states])) if going else np.nan)
    return TurnMeasures(float(np.sqrt(variance)), left, reached, ties, recurring)


def _covariance(returns: npt.NDArray[np.float64], others: npt.NDArray[np.float64]) -> float:
    """The unbiased covariance within prompts."""
    first, second = (values.reshape(-1, PATHS) for values in (returns, others))
    products = (first - first.mean(axis=1, keepdims=True)) * (second - second.mean(axis=1, keepdims=True))
    return float(products.sum() / (len(first) * (PATHS - 1)))
