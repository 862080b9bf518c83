"""Where a toy task's return is decided: how much of its variance each turn adds, before any training.

Within a prompt, V(S_k) is the mean return of what goes on from S_k. A path's return and that of another path forked
from its S_k are independent given S_k, so their covariance over paths is the variance of V(S_k); what V(S_k) does not
explain is the share f_k that turn k and those after it decide.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from rtpo.harness.episodes import Plan
from rtpo.types import Role, Rollout, Task

PROBLEMS, PATHS = 24, 8
"""of which variances are estimated, and paths of each"""


def decided(
    play_paths: Callable[[Sequence[Plan]], list[Rollout]], tasks: Sequence[Task], max_turns: int
) -> tuple[float, list[float]]:
    """The return's deviation within a prompt, and f_k of each turn, 1 at the first. Estimated from PATHS paths of each
    task, and one more from each of their later boundaries."""
    paths = play_paths([Plan(f"{task.uid}.{i}", task, Role.TRUNK) for task in tasks for i in range(PATHS)])
    returns = np.array([path.reward for path in paths])
    variance = _covariance(returns, returns)
    left = [1.0]
    for k in range(1, max_turns):
        again = returns.copy()  # a path that has ended before is its own continuation
        going = [i for i, path in enumerate(paths) if len(path.turns) > k]
        forks = play_paths([Plan(f"{paths[i].uid}.{k}", paths[i].boundary(k), Role.SIBLING) for i in going])
        again[going] = [fork.reward for fork in forks]
        left.append(1 - _covariance(returns, again) / variance)
    return float(np.sqrt(variance)), left


def _covariance(returns: npt.NDArray[np.float64], others: npt.NDArray[np.float64]) -> float:
    """Within prompts, unbiased."""
    first, second = (values.reshape(-1, PATHS) for values in (returns, others))
    products = (first - first.mean(axis=1, keepdims=True)) * (second - second.mean(axis=1, keepdims=True))
    return float(products.sum() / (len(first) * (PATHS - 1)))
