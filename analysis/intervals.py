"""Intervals, as pure functions of arrays.

The rule for runs is one everywhere: a t interval over the means of runs, widened by what other questions would change,
and never narrower than that of the questions alone (`half_width`).
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import atan, cos, pi, sin, sqrt

import numpy as np
import numpy.typing as npt

LEVEL = 0.95
WILSON_Z = 1.959963984540054
SAME = 1e-9
"""what is not more than this apart is alike"""
MOST_FREEDOM = 2000
"""degrees of freedom beyond which Student's t is taken with these"""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval, and over how many runs (seeds) and questions it was taken.

    `low` and `high` are NaN where there is no interval. alone: the interval is over questions alone and says nothing
    about other seeds.
    """

    mean: float
    low: float
    high: float
    runs: int
    questions: int
    alone: bool = False


def interval(values: npt.ArrayLike, *, strata: Sequence[Hashable] | None = None, share: bool = False) -> Interval:
    """Of the mean of `values`, [runs, questions], every run on the same questions.

    Where `strata` has a value for each run, the interval is for these strata: what they differ in is taken out, and
    with it a degree of freedom each. Where no stratum has two runs it is over questions alone. There is none where all
    values are alike, nor over single values of runs that have no partner in their stratum. Of a `share` it stays
    within [0, 1], and where all are 0 or all are 1 it is Wilson's over questions. Raises ValueError for values that are
    not a full table, and unless every run has its stratum.
    """
    table = _table(values)
    runs, questions = table.shape
    kinds = list(strata) if strata is not None else [0] * len(table)
    if len(kinds) != len(table):
        raise ValueError(f"{len(table)} runs need as many strata, got {len(kinds)}")
    mean, alone = float(table.mean()), len(set(kinds)) == len(kinds)
    if share and mean in (0.0, 1.0):
        return Interval(mean, *wilson(mean, questions), runs, questions, alone)
    half = half_width([table / table.size], kinds)
    if not half > SAME:
        return Interval(mean, float("nan"), float("nan"), runs, questions)
    low, high = mean - half, mean + half
    return Interval(mean, max(0.0, low) if share else low, min(1.0, high) if share else high, runs, questions, alone)


def half_width(
    tables: Sequence[Floats], strata: Sequence[Hashable], runs: int | None = None, level: float = LEVEL
) -> float:
    """Half of the width of the interval of a sum of all `tables`, each [runs, units] and of units of its own: what
    every run and unit adds to a mean, up to a constant for each stratum of runs. runs: as how many the rows count, all
    unless said. NaN where neither runs nor units can tell.

    Runs and units are random, crossed with each other. Two half-widths are added in squares: Student's over the runs'
    sums, pooled over strata, and that over the units' sums less the part of their spread that is the noise of single
    answers, which the runs' sums have too.
    """
    places = [np.flatnonzero([one == stratum for one in strata]) for stratum in dict.fromkeys(strata)]
    runs = len(strata) if runs is None else runs
    freedom = runs - len(places)
    several = [table for table in tables if table.shape[1] > 1]
    t_units = student(min((table.shape[1] - 1 for table in several), default=1), level)
    of_units = sum(_spread(table.sum(axis=0)) * table.shape[1] / (table.shape[1] - 1) for table in several)
    if freedom < 1:
        return t_units * sqrt(of_units) if several else float("nan")
    sums = np.sum([table.sum(axis=1) for table in tables], axis=0)
    of_runs = sum(_spread(sums[rows]) for rows in places) * runs / freedom
    noise = 0.0
    for table in several:
        left = table - table.mean(axis=1, keepdims=True)
        within = sum(float(((left[rows] - left[rows].mean(axis=0)) ** 2).sum()) for rows in places)
        noise += within * runs * table.shape[1] / (freedom * (table.shape[1] - 1))
    both = student(freedom, level) ** 2 * of_runs + t_units**2 * max(of_units - noise, 0.0)
    return max(sqrt(both), t_units * sqrt(of_units))


def _spread(values: Floats) -> float:
    return float(((values - values.mean()) ** 2).sum())


@lru_cache(maxsize=4096)
def student(freedom: int, level: float = LEVEL) -> float:
    """What Student's t with so many degrees of freedom stays below in size with the chance `level`."""
    freedom = min(freedom, MOST_FREEDOM)
    low, high = 0.0, 1.0
    while _within(high, freedom) < level:
        low, high = high, 2 * high
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < level else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """The chance that Student's t is not farther than `t` from 0: the finite series of Abramowitz and Stegun 26.7.3
    and 26.7.4."""
    angle = atan(t / sqrt(freedom))
    odd = freedom % 2
    over = np.arange(2 + odd, freedom, 2)
    series = 1.0 + float(np.cumprod((over - 1) / over * cos(angle) ** 2).sum())
    if not odd:
        return sin(angle) * series
    return 2 / pi * (angle + (sin(angle) * cos(angle) * series if freedom > 1 else 0.0))


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


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values of one family, adjusted by Holm's step-down method, in their order."""
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = highest
    return adjusted
