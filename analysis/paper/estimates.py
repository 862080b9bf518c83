"""Estimates that carry what every seed and question adds to them, so that means, differences and ratios keep their
pairing.

A number is taken as a sum over seeds and questions, to first order: what an estimate's parts say is added up, seed by
seed and question by question, and the interval is that of `intervals.half_width`. Runs of the same seeds are paired,
whatever their label and benchmark; so are evaluations of the same panel, question by question. What two methods have in
common so cancels in their difference. With one seed the interval is over questions alone and says nothing about other
seeds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite, isnan

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.intervals import LEVEL, SAME, half_width, wilson
from analysis.paper import formulas

Floats = npt.NDArray[np.float64]
Parts = Mapping[tuple[str, int], pd.DataFrame]
"""by the name of the units and how many there are: what each seed (row) and unit (column) adds to a number"""
NONE = (float("nan"), float("nan"))
"""no interval"""
STEP = 1e-4
"""of a number, by which it is moved to see how another follows"""


@dataclass(frozen=True, eq=False)
class Cells:
    """What a quantity is a ratio of: `above` and `below`, [seeds, units], a row a run. A quantity is the sum of `above`
    over the sum of `below`, times `scale`, over all runs and units together; a unit without a graded sample has 0 in
    both. units: the name of what is random beside seeds, which evaluations of one panel share. share: whether a unit's
    ratio lies in [0, 1]. count: units with a graded sample. ungraded: samples left out."""

    above: Floats
    below: Floats
    seeds: tuple[int, ...]
    units: str
    count: int
    scale: float = 1.0
    share: bool = False
    ungraded: int = 0


@dataclass(frozen=True, eq=False)
class Estimate:
    """A number with its parts; None for one that is known exactly, such as a setting.

    seeds: the fewest that one of its parts has. units: of what is random beside seeds, how many by name. fixed: an
    interval that is not the parts'. bounds: what the interval stays within. decoding: of the episodes it is of. NaN
    where there is no value.
    """

    value: float
    parts: Parts | None = None
    seeds: int = 0
    units: Mapping[str, int] = field(default_factory=dict)
    ungraded: int = 0
    fixed: tuple[float, float] | None = None
    bounds: tuple[float, float] = (-inf, inf)
    decoding: tuple[str, ...] = ()

    @property
    def is_exact(self) -> bool:
        return self.parts is None

    @property
    def interval(self) -> tuple[float, float]:
        """95 %; NONE where nothing differs between seeds or questions, or there is no value."""
        if self.fixed is not None:
            return self.fixed
        half = self.half_width()
        if not SAME * max(1.0, abs(self.value)) < half < inf:
            return NONE
        return max(self.bounds[0], self.value - half), min(self.bounds[1], self.value + half)

    def half_width(self, level: float = LEVEL) -> float:
        """Half of the width of the interval; NaN without a value or anything that tells its spread."""
        if not self.parts or not isfinite(self.value):
            return float("nan")
        seeds = sorted({seed for part in self.parts.values() for seed in part.index})
        tables = [part.reindex(seeds, fill_value=0.0).to_numpy() for part in self.parts.values()]
        return half_width(tables, [0] * len(seeds), self.seeds, level)

    def __add__(self, other: "Estimate") -> "Estimate":
        return combined(np.add, self, other)

    def __sub__(self, other: "Estimate") -> "Estimate":
        return combined(np.subtract, self, other)

    def __mul__(self, other: "Estimate") -> "Estimate":
        return combined(np.multiply, self, other)

    def __truediv__(self, other: "Estimate") -> "Estimate":
        return combined(np.divide, self, other)


def exact(value: float) -> Estimate:
    """A number that is known."""
    return Estimate(float(value))


def combined(function: Callable[..., npt.ArrayLike], *parts: Estimate) -> Estimate:
    """What `function` gives for the values; its parts follow those of `parts` as it does, to first order."""
    values = [np.float64(part.value) for part in parts]

    def at(place: int, by: float) -> float:
        moved = [value + by if i == place else value for i, value in enumerate(values)]
        return float(np.asarray(function(*moved)))

    random = [place for place, part in enumerate(parts) if not part.is_exact]
    with np.errstate(divide="ignore", invalid="ignore"):
        value = at(-1, 0.0)
        if not random:
            return Estimate(value)
        steps = {place: STEP * (abs(float(values[place])) or 1.0) for place in random}
        slopes = {place: (at(place, step) - at(place, -step)) / (2 * step) for place, step in steps.items()}
        summed: dict[tuple[str, int], pd.DataFrame] = {}
        for place, slope in slopes.items():
            for name, part in (parts[place].parts or {}).items():
                own = slope * part
                summed[name] = summed[name].add(own, fill_value=0.0) if name in summed else own
    units = {name: count for part in parts for name, count in part.units.items()}
    ungraded = sum(part.ungraded for part in dict.fromkeys(parts))
    decoding = dict.fromkeys(each for part in parts for each in part.decoding)
    seeds = min(parts[place].seeds for place in random)
    return Estimate(value, summed, seeds, units, ungraded, decoding=tuple(decoding))


def mean(*parts: Estimate) -> Estimate:
    """Of the different ones among `parts`."""
    different = list(dict.fromkeys(parts))
    return combined(lambda *values: sum(values[1:], values[0]) / len(values), *different)


FUNCTIONS: Mapping[str, Callable[..., Estimate]] = {
    "mean": mean,
    "total": lambda *parts: combined(lambda *values: sum(values[1:], values[0]), *dict.fromkeys(parts)),
    "max": lambda *parts: combined(lambda *values: np.maximum.reduce(np.broadcast_arrays(*values)), *parts),
    "min": lambda *parts: combined(lambda *values: np.minimum.reduce(np.broadcast_arrays(*values)), *parts),
    "relative": lambda new, old: combined(lambda one, other: 100 * (one / other - 1), new, old),
}
"""mean, total: of the different ones. relative: in %"""


def evaluate(formula: str, value_of: Callable[[str], Estimate]) -> Estimate:
    """A formula (`analysis.paper.formulas`) of estimates and FUNCTIONS. Raises DataError for a text that is none."""
    return formulas.evaluate(formula, value_of, exact, FUNCTIONS)


def estimate(cells: Cells) -> Estimate:
    """The ratio of sums; Wilson's interval over units for a share of which all are 0 or all are 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(cells.scale * cells.above.sum() / cells.below.sum())
        table = (cells.scale * cells.above - value * cells.below) / cells.below.sum()
    there = int((cells.below > 0).any(axis=0).sum())
    fixed = None
    if cells.share and there and value in (0.0, cells.scale):
        low, high = wilson(value / cells.scale, there)
        fixed = (cells.scale * low, cells.scale * high)
    bounds = (0.0, cells.scale) if cells.share else (-inf, inf)
    parts = {(cells.units, table.shape[1]): pd.DataFrame(table, index=pd.Index(cells.seeds))}
    return Estimate(value, parts, len(cells.seeds), {cells.units: cells.count}, cells.ungraded, fixed, bounds)


def p_value(difference: Estimate) -> float:
    """Two-sided, of a difference of 0: one less the level of the widest interval that leaves 0 out. Where nothing
    differs between seeds or questions it is the sign test's over seeds. NaN with one seed, which says nothing about
    others, and without a value."""
    if difference.seeds < 2 or not isfinite(difference.value):
        return float("nan")
    size = abs(difference.value)
    if isnan(difference.interval[0]):
        return 1.0 if size < SAME else 2.0 ** (1 - difference.seeds)
    low, high = 0.0, 1.0
    while high - low > 1e-5:
        level = (low + high) / 2
        low, high = (level, high) if difference.half_width(level) < size else (low, level)
    return 1 - low
