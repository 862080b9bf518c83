"""Estimates that keep the contribution of every seed and question, so that differences and ratios stay paired.

Runs with the same seed are paired, whatever their label and benchmark. Evaluations of the same panel are paired
question by question. Common noise of two methods cancels in their difference. Intervals are by `stats.half_width`; with
one seed they are over questions alone, and say nothing about other seeds.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, nan
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from numpy.lib.mixins import NDArrayOperatorsMixin

from analysis import stats
from analysis.stats import SAME, Interval

RUNS = "runs"
"""name of the units of a number that a run has once, such as hours: the units are runs"""
SLOPES: Mapping[np.ufunc, Callable[[np.float64, np.float64], tuple[Any, Any]]] = {
    np.add: lambda a, b: (1, 1),
    np.subtract: lambda a, b: (1, -1),
    np.multiply: lambda a, b: (b, a),
    np.true_divide: lambda a, b: (1 / b, -a / b**2),
}
"""partial derivatives of an operator by its two numbers"""


@dataclass(frozen=True, eq=False)
class Estimate(NDArrayOperatorsMixin):
    """A number with + - * / and comparisons."""

    value: float  # NaN where it is undefined
    parts: pd.DataFrame | None = None
    """by how much each seed and unit moves the number, to first order: [seeds, (name of the units, unit)]. None
    for an exact number, such as a setting"""
    seeds: int = 0  # the least number of seeds among its inputs
    ungraded: int = 0  # samples left out
    top: float = 0.0  # the largest possible value of a share; 0 for other numbers
    decoding: tuple[str, ...] = ()  # of its episodes, in words

    @property
    def is_exact(self) -> bool:
        return self.parts is None

    @cached_property
    def counts(self) -> Counter[str]:
        """The number of units by kind: questions, prompts or steps."""
        names: list[str] = [] if self.parts is None else list(self.parts.columns.get_level_values(0))
        return Counter(kind for kind in (name.partition(" ")[0] for name in names) if kind != RUNS)

    @cached_property
    def interval(self) -> Interval:
        """The 95 % interval; low and high are NaN without variation between seeds or questions, or without a value."""
        value, count = self.value, self.counts.total()
        low = high = value if self.is_exact else nan
        if self.top and count and value in (0.0, self.top):
            low, high = (self.top * end for end in stats.wilson(value / self.top, count))
        elif self.parts is not None and isfinite(value):
            half = stats.half_width(self._tables, [0] * len(self.parts), self.seeds)
            if half > SAME * max(1.0, abs(value)):
                low, high = value - half, value + half
                low, high = (max(0.0, low), min(self.top, high)) if self.top else (low, high)
        return Interval(value, low, high, self.seeds, count)

    @property
    def p_value(self) -> float:
        """The two-sided p-value of 0; NaN without an interval, and for one seed."""
        if self.is_exact or self.seeds < 2 or np.isnan(self.interval.low):
            return nan
        first, *rest = self._tables
        return stats.p_value([first + self.value / first.size, *rest], [0] * len(first), self.seeds)

    @property
    def _tables(self) -> list[npt.NDArray[np.float64]]:
        assert self.parts is not None
        names = self.parts.columns.get_level_values(0)
        return [self.parts.loc[:, names == name].to_numpy() for name in names.unique()]

    def __array_ufunc__(self, operator: np.ufunc, _: str, *operands: "Estimate | float") -> Any:
        """Apply an operator, for numpy's mixin. Arithmetic gives an estimate; a comparison compares the values."""
        sources = [each if isinstance(each, Estimate) else Estimate(float(each)) for each in operands]
        values = [np.float64(each.value) for each in sources]
        with np.errstate(divide="ignore", invalid="ignore"):
            value = operator(*values)
            if operator not in SLOPES:
                return value
            slopes = SLOPES[operator](*values)
        scaled = [(each, each.parts * slope) for each, slope in zip(sources, slopes, strict=True) if not each.is_exact]
        if not scaled:
            return Estimate(float(value))
        parts = scaled[0][1] if len(scaled) == 1 else scaled[0][1].add(scaled[1][1], fill_value=0.0).fillna(0.0)
        decoding = dict.fromkeys(text for each, _ in scaled for text in each.decoding)
        return Estimate(float(value), parts, min(each.seeds for each, _ in scaled), decoding=tuple(decoding))


def ratio(
    above: pd.DataFrame, below: pd.DataFrame, units: str, scale: float = 1.0, *, is_share: bool = False
) -> Estimate:
    """`scale` times the sum of `above` over the sum of `below`, both [seeds, units]. A unit without a graded sample has
    0 in both. units: their name. is_share: the ratio lies in [0, 1]; if it is 0 or 1, its interval is Wilson's."""
    with np.errstate(divide="ignore", invalid="ignore"):
        total = np.float64(below.to_numpy().sum())
        value = float(scale * above.to_numpy().sum() / total)
        parts = (scale * above - value * below) / total
    parts = parts.loc[:, ((above != 0) | (below != 0)).any()]
    parts.columns = pd.MultiIndex.from_product([[units], parts.columns])
    return Estimate(value, parts, len(parts), top=scale if is_share else 0.0)
