"""Measures which turns decide a toy task's return: f_k, the share of its variance from turn k on, before training.

V(S_k) is the mean return of continuations from S_k. Given S_k, the returns of a path and of another path forked from
its S_k are independent. So their covariance, within a prompt, is the variance of V(S_k). The rest of the return's
variance comes from turn k and later turns: f_k is its share.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from rtpo.harness.episodes import Plan
from rtpo.types import Role, Rollout, Task

PROBLEMS, PATHS = 24, 8
"""number of problems for the estimate, and of paths per problem"""


def remaining_variance(
    play_paths: Callable[[Sequence[Plan]], list[Rollout]], tasks: Sequence[Task], max_turns: int
) -> tuple[float, list[float]]:
    """The return's standard deviation within a prompt, and f_k of each turn (1 at the first). The estimate uses PATHS
    paths per task, and one fork from each later boundary of each path."""
    paths = play_paths([Plan(f"{task.uid}.{i}", task, Role.TRUNK) for task in tasks for i in range(PATHS)])
    returns = np.array([path.reward for path in paths])
    variance = _covariance(returns, returns)
    left = [1.0]
    for k in range(1, max_turns):
        again = returns.copy()  # an ended path is its own continuation
        going = [i for i, path in enumerate(paths) if len(path.turns) > k]
        forks = play_paths([Plan(f"{paths[i].uid}.{k}", paths[i].boundary(k), Role.SIBLING) for i in going])
        again[going] = [fork.reward for fork in forks]
        left.append(1 - _covariance(returns, again) / variance)
    return float(np.sqrt(variance)), left


def _covariance(returns: npt.NDArray[np.float64], others: npt.NDArray[np.float64]) -> float:
    """The unbiased covariance within prompts."""
    first, second = (values.reshape(-1, PATHS) for values in (returns, others))
    products = (first - first.mean(axis=1, keepdims=True)) * (second - second.mean(axis=1, keepdims=True))
    return float(products.sum() / (len(first) * (PATHS - 1)))
