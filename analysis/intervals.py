"""Intervals, as pure functions of arrays."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb

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


def bootstrap_mean(
    values: npt.ArrayLike, *, strata: Sequence[Hashable] | None = None, draws: int = 10_000, seed: int = 0
) -> Interval:
    """Percentile bootstrap of the mean of `values`, [runs, questions], every run on the same questions.

    Runs and questions are both drawn with replacement, the questions alike for all runs of a draw. Where `strata` has a
    value for each run, runs are drawn among those of one value: the interval is for these. With one run only questions
    are drawn: the interval then says nothing about other seeds. With few runs that differ much it is too narrow; with
    much noise in single answers it is somewhat wide. Raises ValueError for values that are not a full table, and unless
    every run has its stratum.
    """
    table = _table(values)
    kinds = list(strata) if strata is not None else [0] * len(table)
    if len(kinds) != len(table):
        raise ValueError(f"{len(table)} runs need as many strata, got {len(kinds)}")
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    weights, counts = _drawn(tuple(numbers[kind] for kind in kinds), table.shape[1], draws, seed)
    means = np.einsum("dr,dr->d", weights, counts @ table.T)
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(table.mean()), float(low), float(high), *table.shape)


def bootstrap_difference(
    before: npt.ArrayLike,
    after: npt.ArrayLike,
    *,
    strata: Sequence[Hashable] | None = None,
    draws: int = 10_000,
    seed: int = 0,
) -> Interval:
    """The mean of `after - before`, paired by run and question (see `bootstrap_mean`).

    Raises ValueError unless both are full tables of one shape.
    """
    first, second = _table(before), _table(after)
    if first.shape != second.shape:
        raise ValueError(f"a paired difference needs tables of one shape, got {first.shape} and {second.shape}")
    return bootstrap_mean(second - first, strata=strata, draws=draws, seed=seed)


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
def _drawn(
    strata: tuple[int, ...], questions: int, draws: int, seed: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """How much each run and each question weighs in each draw, [draws, runs] and [draws, questions]. Kept, since many
    tables are of one size."""
    random = np.random.default_rng(seed)
    weights, counts = np.empty((draws, len(strata))), np.empty((draws, questions))
    places = [np.flatnonzero(np.array(strata) == stratum) for stratum in dict.fromkeys(strata)]
    for start in range(0, draws, DRAWS_AT_ONCE):
        part = slice(start, min(start + DRAWS_AT_ONCE, draws))
        for runs in places:
            weights[part, runs] = _times_drawn(random, part.stop - start, len(runs)) / len(strata)
        counts[part] = _times_drawn(random, part.stop - start, questions) / questions
    return weights, counts


def _times_drawn(random: np.random.Generator, draws: int, of: int) -> npt.NDArray[np.int64]:
    """How often each is drawn when as many are drawn as there are, [draws, of]."""
    chosen = random.integers(of, size=(draws, of)) + of * np.arange(draws)[:, None]
    return np.bincount(chosen.ravel(), minlength=draws * of).reshape(draws, of)


def newcombe(one: int, of_one: int, other: int, of_other: int) -> tuple[float, float]:
    """The 95 % interval of the difference of two independent shares, one/of_one - other/of_other: Newcombe's hybrid of
    Wilson's intervals (1998, method 10). Raises ValueError for counts that cannot be."""
    _counts(one, of_one)
    _counts(other, of_other)
    first, second = one / of_one, other / of_other
    (low_one, high_one), (low_other, high_other) = wilson(first, of_one), wilson(second, of_other)
    below = np.hypot(first - low_one, high_other - second)
    above = np.hypot(high_one - first, second - low_other)
    return float(first - second - below), float(first - second + above)


def fisher(one: int, of_one: int, other: int, of_other: int) -> float:
    """The two-sided p-value of Fisher's exact test that two independent shares are equal: how likely tables of these
    margins are that are no more likely than this one. Raises ValueError for counts that cannot be."""
    _counts(one, of_one)
    _counts(other, of_other)
    right, everything = one + other, of_one + of_other
    ways = [
        comb(of_one, count) * comb(of_other, right - count)
        for count in range(max(0, right - of_other), min(right, of_one) + 1)
    ]
    here = comb(of_one, one) * comb(of_other, other)
    return sum(count for count in ways if count <= here) / comb(everything, right)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values of one family, adjusted by Holm's step-down method, in their order."""
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = highest
    return adjusted


def _counts(part: int, whole: int) -> None:
    if not 0 <= part <= whole or whole < 1:
        raise ValueError(f"{part} of {whole} is no share: give counts with 0 <= part <= whole, whole >= 1")
