"""Intervals, as pure functions of arrays."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

LEVEL = 0.95
WILSON_Z = 1.959963984540054
DRAWS_AT_ONCE = 1000


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval, and over how many runs (seeds) and questions it was taken.

    `low` and `high` are NaN where there is no interval.
    """

    mean: float
    low: float
    high: float
    runs: int
    questions: int


def bootstrap_mean(values: npt.ArrayLike, *, draws: int = 10_000, seed: int = 0) -> Interval:
    """Percentile bootstrap of the mean of `values`, [runs, questions], every run on the same questions.

    Runs and questions are both drawn with replacement, the questions alike for all runs of a draw. With one run only
    questions are drawn: the interval then says nothing about other seeds. With few runs that differ much it is too
    narrow; with much noise in single answers it is somewhat wide. Raises ValueError for values that are not a full
    table.
    """
    table = _table(values)
    weights, counts = _drawn(*table.shape, draws, seed)
    means = np.einsum("dr,dr->d", weights, counts @ table.T)
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(table.mean()), float(low), float(high), *table.shape)


def bootstrap_difference(
    before: npt.ArrayLike, after: npt.ArrayLike, *, draws: int = 10_000, seed: int = 0
) -> Interval:
    """The mean of `after - before`, paired by run and question (see `bootstrap_mean`).

    Raises ValueError unless both are full tables of one shape.
    """
    first, second = _table(before), _table(after)
    if first.shape != second.shape:
        raise ValueError(f"a paired difference needs tables of one shape, got {first.shape} and {second.shape}")
    return bootstrap_mean(second - first, draws=draws, seed=seed)


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's interval of a share of n independent answers: (low, high). Raises ValueError for n < 1."""
    if n < 1:
        raise ValueError(f"a share of {n} answers has no interval")
    z2 = WILSON_Z**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = WILSON_Z / (1 + z2 / n) * np.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, float(centre - half)), min(1.0, float(centre + half))


def _table(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2 or not table.size:
        raise ValueError(f"values must be [runs, questions] and not empty, got shape {table.shape}")
    if not np.isfinite(table).all():
        missing = int((~np.isfinite(table)).sum())
        raise ValueError(f"{missing} values are missing: leave their questions out of all runs")
    return table


@lru_cache(maxsize=4)
def _drawn(runs: int, questions: int, draws: int, seed: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """How much each run and each question weighs in each draw, [draws, runs] and [draws, questions]. Kept, since many
    tables are of one size."""
    random = np.random.default_rng(seed)
    weights, counts = np.empty((draws, runs)), np.empty((draws, questions))
    for start in range(0, draws, DRAWS_AT_ONCE):
        part = slice(start, min(start + DRAWS_AT_ONCE, draws))
        for shares in (weights[part], counts[part]):
            size, of = shares.shape
            chosen = random.integers(of, size=(size, of)) + of * np.arange(size)[:, None]
            shares[:] = np.bincount(chosen.ravel(), minlength=size * of).reshape(size, of) / of
    return weights, counts
