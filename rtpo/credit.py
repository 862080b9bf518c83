"""Advantages from terminal rewards: pure functions of float arrays. Advantages are float32.

If all rewards are equal (a tied group), the advantages are exactly 0. All functions raise NonFinite for a reward that
is NaN or infinite, and ValueError for an array that is not one-dimensional.
"""

import math

import numpy as np
import numpy.typing as npt

from rtpo.errors import NonFinite
from rtpo.types import Floats

STD_EPSILON = 1e-6


def sibling_advantages(rewards: npt.ArrayLike) -> Floats:
    """A_j = R_j - mean_r R_r over the n = G-1 siblings of one boundary (Algorithm 1), [n] to [n]; no std division.

    The baseline contains R_j itself, so E[A_j | S_k, u_j] = (n-1)/n times the true advantage, that is (G-2)/(G-1)
    (Theorem 2a). Raises ValueError for fewer than two siblings: a single one always has advantage 0.
    """
    values = _rewards(rewards)
    if len(values) < 2:
        raise ValueError(f"sibling_advantages needs at least 2 siblings (G >= 3), got {len(values)}")
    return _centred(values).astype(np.float32)


def group_advantages(rewards: npt.ArrayLike, normalise_std: bool) -> Floats:
    """A_i = R_i - mean over the chains of one prompt, [n] to [n]. R_i itself is in the mean.

    normalise_std: divide by std + 1e-6, std with ddof 1. A group of one has advantage 0 (docs/method/deviations.md).
    Raises ValueError for an empty group.
    """
    values = _rewards(rewards)
    if not len(values):
        raise ValueError("group_advantages needs at least one reward")
    return standardised(values) if normalise_std else _centred(values).astype(np.float32)


def group_scale(rewards: npt.ArrayLike, normalise_std: bool) -> float:
    """The divisor in `group_advantages` (std + 1e-6, or 1), for methods that have another baseline. It is infinite if
    all rewards are equal, so a tied group stays tied with any baseline. Raises ValueError for an empty group."""
    values = _rewards(rewards)
    if not len(values):
        raise ValueError("group_scale needs at least one reward")
    if _all_equal(values):
        return math.inf
    return float(values.std(ddof=1)) + STD_EPSILON if normalise_std else 1.0


def standardised(values: npt.ArrayLike) -> Floats:
    """(x - mean) / (std + 1e-6) with ddof 1, [n] to [n]; 0 if all values are equal, or if there is only one. Raises
    ValueError without values."""
    numbers = _rewards(values)
    if not len(numbers):
        raise ValueError("standardised needs at least one value")
    centred = _centred(numbers)
    return (centred / (numbers.std(ddof=1) + STD_EPSILON) if len(numbers) > 1 else centred).astype(np.float32)


def _rewards(rewards: npt.ArrayLike) -> npt.NDArray[np.float64]:
    values = np.asarray(rewards, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"rewards must be one number for each rollout, got an array of shape {values.shape}")
    if not np.isfinite(values).all():
        raise NonFinite(f"Rewards must be finite, got {values.tolist()}: check the task's grader.")
    return values


def _all_equal(values: npt.NDArray[np.float64]) -> bool:
    return bool((values == values[0]).all())


def _centred(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.zeros_like(values) if _all_equal(values) else values - values.mean()
