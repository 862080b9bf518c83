"""Measures which turns of a task decide the return, before training.

f_k is the share of the return's variance that turn k and later turns cause. The rest is the variance of V(S_k), the
mean return from S_k. Given S_k, a path and a fork from its S_k have independent returns. So the covariance of the two
returns, within a problem, is the variance of V(S_k).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rtpo.errors import DataError
from rtpo.harness.episodes import Plan
from rtpo.types import Role, Rollout, Task

PROBLEMS, PATHS = 32, 8
"""number of problems for the estimate, and of paths per problem"""


@dataclass(frozen=True)
class TurnMeasures:
    """The measures. Lists have one entry per turn. `ties` and `recurring` are NaN for turns that no path reached."""

    deviation: float  # the return's standard deviation within a problem
    left: list[float]  # f_k, 1 at the first turn
    reached: list[float]  # share of the paths that reach turn k
    ties: list[float]  # share of pairs of continuations of one S_k with equal returns
    recurring: list[float]  # share of the paths at turn k whose S_k another path of the problem has too


def measure_turns(
    play_paths: Callable[[Sequence[Plan]], list[Rollout]], tasks: Sequence[Task], max_turns: int
) -> TurnMeasures:
    """Play PATHS paths per task, and one fork from each later boundary of each path. Raises DataError if no problem's
    returns differ.
    play_paths: plays the plans' episodes."""
    paths = play_paths([Plan(f"{task.uid}.{i}", task, Role.TRUNK) for task in tasks for i in range(PATHS)])
    returns = np.array([path.reward for path in paths])
    variance = _covariance(returns, returns)
    if variance == 0:
        raise DataError("every path of a problem has the same return, so no turn decides it: measure other problems.")
    left, reached, ties, recurring = [1.0], [1.0], [float(np.mean(returns[::2] == returns[1::2]))], [1.0]
    for k in range(1, max_turns):
        continued = returns.copy()  # an ended path is its own continuation
        open_paths = [i for i, path in enumerate(paths) if len(path.turns) > k]
        forks = play_paths([Plan(f"{paths[i].uid}.{k}", paths[i].boundary(k), Role.SIBLING) for i in open_paths])
        continued[open_paths] = [fork.reward for fork in forks]
        left.append(1 - _covariance(returns, continued) / variance)
        states = [(paths[i].task.uid, paths[i].turns[k].snapshot.digest) for i in open_paths]
        state_counts = Counter(states)
        reached.append(len(open_paths) / len(paths))
        ties.append(float(np.mean(returns[open_paths] == continued[open_paths])) if open_paths else np.nan)
        recurring.append(float(np.mean([state_counts[state] > 1 for state in states])) if open_paths else np.nan)
    return TurnMeasures(float(np.sqrt(variance)), left, reached, ties, recurring)


def _covariance(returns: npt.NDArray[np.float64], other_returns: npt.NDArray[np.float64]) -> float:
    """The unbiased covariance within problems. Inputs have PATHS entries per problem, one problem after another."""
    first, second = (values.reshape(-1, PATHS) for values in (returns, other_returns))
    products = (first - first.mean(axis=1, keepdims=True)) * (second - second.mean(axis=1, keepdims=True))
    return float(products.sum() / (len(first) * (PATHS - 1)))
