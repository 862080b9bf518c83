"""Intervals, paired differences, p-values and verdicts, as pure functions of arrays (on scipy).

The interval of a mean over runs and questions adds the variance over runs and the variance over questions. It is never
narrower than the interval over questions alone (`half_width`). All claims are judged by `verdict`.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import isnan, nan, sqrt

import numpy as np
import numpy.typing as npt
from scipy import special

from rtpo.core.names import counted

LEVEL = 0.95
SAME = 1e-9
"""values that differ by less are equal"""
LEAST_RUNS = 3
"""a claim with fewer runs, or pairs of runs, is undecided"""
SUPPORTED, CONTRADICTED, UNDECIDED = "supported", "contradicted", "undecided"
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval."""

    mean: float
    low: float  # NaN without an interval
    high: float
    runs: int  # seeds that the mean is over
    questions: int


def interval(values: npt.ArrayLike, *, strata: Sequence[Hashable] | None = None, share: bool = False) -> Interval:
    """The mean of `values`, [runs, questions], or of the differences of paired runs. All runs have the same questions.

    strata: the warm start of each run. Differences between warm starts are removed; a warm start costs a degree of
    freedom. Where no warm start has two runs, the interval is over questions alone, and absent with a single question.
    share: values lie in [0, 1], and so does the interval. If all are 0 or all are 1, it is Wilson's over questions.
    Other equal values have no interval. Raises ValueError for missing values, and for a wrong number of strata.
    """
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2 or not table.size or not np.isfinite(table).all():
        raise ValueError(f"values must be finite and [runs, questions], neither of them 0; got shape {table.shape}")
    runs, questions = table.shape
    kinds = list(strata) if strata is not None else [0] * runs
    if len(kinds) != runs:
        raise ValueError(f"{counted(runs, 'run')} need as many strata, got {len(kinds)}")
    mean = float(table.mean())
    if share and mean in (0.0, 1.0):
        return Interval(mean, *wilson(mean, questions), runs, questions)
    half = half_width([table / table.size], kinds)
    if not half > SAME:
        return Interval(mean, nan, nan, runs, questions)
    low, high = mean - half, mean + half
    return Interval(mean, max(0.0, low) if share else low, min(1.0, high) if share else high, runs, questions)


def half_width(tables: Sequence[Floats], strata: Sequence[Hashable], runs: int | None = None) -> float:
    """Half the width of the interval of the sum of all `tables`. NaN if no stratum has two runs and no table two units.

    tables: one for each set of units, such as the questions of a benchmark. A table, [runs, units], has what each run
    and unit adds to the sum. strata: the stratum of each run; differences between strata are removed. runs: number of
    independent runs, by default the rows.

    Runs and units are crossed random effects: the interval adds the squared half-widths of two t intervals, one over
    runs within strata and one over units. The noise of single answers is in both variances, so it is subtracted
    from the variance over units.
    """
    return _half_width(*_variances(tables, strata, runs), LEVEL)


def _half_width(freedom: int, units: int, of_runs: float, of_units: float, noise: float, level: float) -> float:
    if freedom < 1 and not units:
        return nan
    t_units = student(units or 1, level)
    units_alone = t_units * sqrt(of_units)
    if freedom < 1:
        return units_alone
    both = student(freedom, level) ** 2 * of_runs + t_units**2 * max(of_units - noise, 0.0)
    return max(sqrt(both), units_alone)


def _variances(
    tables: Sequence[Floats], strata: Sequence[Hashable], runs: int | None
) -> tuple[int, int, float, float, float]:
    """Degrees of freedom of runs and of units, and three variances of the mean: over runs, over units (which includes
    the noise of single answers), and of that noise."""
    stratum = [list(strata).index(kind) for kind in strata]
    runs = len(strata) if runs is None else runs
    freedom = runs - len(set(stratum))
    scaled = [(table, table.shape[1] / (table.shape[1] - 1)) for table in tables if table.shape[1] > 1]
    units = min((table.shape[1] - 1 for table, _ in scaled), default=0)
    of_units = sum(_squares(table.sum(axis=0) - table.sum(axis=0).mean()) * factor for table, factor in scaled)
    if freedom < 1:
        return freedom, units, 0.0, of_units, 0.0
    same_stratum = np.equal.outer(stratum, stratum)
    centred = np.eye(len(strata)) - same_stratum / same_stratum.sum(axis=0)
    of_runs = _squares(centred @ np.sum([table.sum(axis=1) for table in tables], axis=0))
    noise = sum(_squares(centred @ (table - table.mean(axis=1, keepdims=True))) * factor for table, factor in scaled)
    return freedom, units, of_runs * runs / freedom, of_units, noise * runs / freedom


def _squares(values: Floats) -> float:
    return float((values**2).sum())


def student(freedom: int, level: float = LEVEL) -> float:
    """The two-sided quantile of Student's t."""
    return float(special.stdtrit(freedom, (1 + level) / 2))


def normal(comparisons: int = 1) -> float:
    """The two-sided normal quantile for LEVEL, by Bonferroni's correction for this number of comparisons."""
    return float(special.ndtri(1 - (1 - LEVEL) / (2 * max(1, comparisons))))


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's interval of a share of n independent answers: (low, high). Raises ValueError for n < 1."""
    if n < 1:
        raise ValueError(f"a share of {counted(n, 'answer')} has no interval")
    z2 = normal() ** 2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = normal() / (1 + z2 / n) * sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def p_value(tables: Sequence[Floats], strata: Sequence[Hashable], runs: int | None = None) -> float:
    """The p-value of no difference: 1 minus the level of the widest interval without 0. NaN without an interval."""
    mean, variances = abs(float(sum(table.sum() for table in tables))), _variances(tables, strata, runs)
    if not _half_width(*variances, LEVEL) > 0:
        return nan
    from scipy.optimize import brentq  # slow to import, and seldom needed

    def beyond(level: float) -> float:
        return _half_width(*variances, level) - mean

    if beyond(1e-12) > 0:
        return 1.0
    return 1 - float(brentq(beyond, 1e-12, 1 - 1e-12)) if beyond(1 - 1e-12) > 0 else 0.0


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values of one family, adjusted by Holm's step-down method, in their order."""
    order = np.argsort(p_values)
    steps = np.asarray(p_values, dtype=np.float64)[order] * np.arange(len(order), 0, -1)
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return [float(p) for p in adjusted]


def verdict(
    result: Interval | None,
    claimed: float = 0.0,
    *,
    runs: int | None = None,
    slack: float | None = None,
    width: float | None = None,
) -> str:
    """The verdict on a claim that a number is above `claimed`, or, with `slack`, equals it.

    Above: supported if the whole interval is above `claimed`, contradicted if it is below, otherwise undecided. Equal:
    contradicted if the interval, widened by `slack`, excludes `claimed`; undecided if its half-width exceeds `width`
    (default: `slack`); otherwise supported. Without an interval, above is undecided, and equal is judged by the mean. A
    claim with fewer than LEAST_RUNS `runs` is undecided.
    """
    if result is None or isnan(result.mean) or (runs is not None and runs < LEAST_RUNS):
        return UNDECIDED
    if slack is None:
        return SUPPORTED if result.low > claimed else CONTRADICTED if result.high < claimed else UNDECIDED
    low, high = (result.mean, result.mean) if isnan(result.low) else (result.low, result.high)
    if not low - slack <= claimed <= high + slack:
        return CONTRADICTED
    return SUPPORTED if max(high - result.mean, result.mean - low) <= (slack if width is None else width) else UNDECIDED


def verdict_on_all(verdicts: Iterable[str]) -> str:
    """The verdict on "all parts hold": contradicted if a part is, supported if all parts are, otherwise undecided."""
    kinds = set(verdicts)
    return CONTRADICTED if CONTRADICTED in kinds else SUPPORTED if kinds == {SUPPORTED} else UNDECIDED
