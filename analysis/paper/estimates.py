"""Estimates that carry what every seed and question adds to them, so that means, differences and ratios keep their
pairing.

A number is taken as a sum over seeds and questions, to first order: what an estimate's parts say is added up, seed by
seed and question by question, and the interval is that of `intervals.half_width`. Runs of the same seeds are paired,
whatever their label and benchmark; so are evaluations of the same panel, question by question. What two methods have in
common so cancels in their difference. With one seed the interval is over questions alone and says nothing about other
seeds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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

    def of(self, seeds: Sequence[int]) -> "Cells":
        """Those of some seeds, in their order."""
        rows = [self.seeds.index(seed) for seed in seeds]
        return replace(self, above=self.above[rows], below=self.below[rows], seeds=tuple(seeds))


@dataclass(frozen=True, eq=False)
class Estimate:
    """A number with its parts; None for one that is known exactly, such as a setting.

    seeds: the fewest that one of its parts has. units: of what is random beside seeds, how many by name. fixed: an
    interval that is not the parts'. bounds: what the interval stays within. NaN where there is no value.
    """

    value: float
    parts: Parts | None = None
    seeds: int = 0
    units: Mapping[str, int] = field(default_factory=dict)
    ungraded: int = 0
    fixed: tuple[float, float] | None = None
    bounds: tuple[float, float] = (-inf, inf)

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
            _add(summed, parts[place].parts or {}, slope)
    units = {name: count for part in parts for name, count in part.units.items()}
    ungraded = sum(part.ungraded for part in dict.fromkeys(parts))
    return Estimate(value, summed, min(parts[place].seeds for place in random), units, ungraded)


def _add(summed: dict[tuple[str, int], pd.DataFrame], parts: Parts, times: float = 1.0) -> None:
    for name, part in parts.items():
        summed[name] = summed[name].add(times * part, fill_value=0.0) if name in summed else times * part


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
    units = {cells.units: cells.count}
    return Estimate(value, _parts(cells, table), len(cells.seeds), units, cells.ungraded, fixed, bounds)


def _parts(cells: Cells, table: Floats) -> Parts:
    return {(cells.units, table.shape[1]): pd.DataFrame(table, index=pd.Index(cells.seeds))}


# over runs and benchmarks together


def interquartile_mean(benchmarks: Sequence[Cells]) -> Estimate:
    """The mean of the middle half of the scores of all seeds on all benchmarks (Agarwal et al. 2021): a quarter of
    them, rounded down, is left out at either end. Seeds add to it what leaving them out takes away."""
    scores = [_scores(cells) for cells in benchmarks]
    middle = _middle(scores)
    parts: dict[tuple[str, int], pd.DataFrame] = {}
    for cells, score in zip(benchmarks, scores, strict=True):
        with np.errstate(divide="ignore", invalid="ignore"):
            own = cells.scale * cells.above - score.to_numpy()[:, None] * cells.below
            own = own / cells.below.sum(axis=1, keepdims=True)
        within = score.between(middle[0], middle[-1]).to_numpy()[:, None]
        _add(parts, _parts(cells, own * within / len(middle)))
    _add(parts, _of_seeds(lambda out: float(np.mean(_middle([_but(score, out) for score in scores]))), scores))
    return _over(benchmarks, float(np.mean(middle)), parts)


def improvement(one: Sequence[Cells], other: Sequence[Cells]) -> Estimate:
    """The probability of improvement (Agarwal et al. 2021): that a run of `one` scores more than a run of `other` on a
    benchmark, both runs and the benchmark taken at random, a tie counting half. Benchmark by benchmark alike in both.
    The interval is over seeds alone, each of which adds to it what leaving it out takes away."""
    pairs = [(_scores(first), _scores(second)) for first, second in zip(one, other, strict=True)]

    def won(out: int | None) -> float:
        there = [(_but(first, out), _but(second, out)) for first, second in pairs]
        return float(np.mean([_above(*pair) for pair in there if len(pair[0]) and len(pair[1])]))

    parts = _of_seeds(won, [score for pair in pairs for score in pair])
    return replace(_over([*one, *other], won(None), parts), bounds=(0.0, 1.0))


def _of_seeds(value: Callable[[int], float], scores: Sequence[pd.Series]) -> Parts:
    """What each seed adds to a number that `value` gives without it: the jackknife."""
    seeds = sorted({seed for score in scores for seed in score.index})
    if len(seeds) < 2:
        return {}
    without = np.array([value(seed) for seed in seeds])
    adds = (len(seeds) - 1) / len(seeds) * (without.mean() - without)
    return {("seeds", 1): pd.DataFrame(adds[:, None], index=pd.Index(seeds))}


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


def _scores(cells: Cells) -> pd.Series:
    """Of each run, by seed."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return pd.Series(cells.scale * cells.above.sum(axis=1) / cells.below.sum(axis=1), pd.Index(cells.seeds))


def _but(score: pd.Series, out: int | None) -> pd.Series:
    return score[score.index != out]


def _middle(scores: Sequence[pd.Series]) -> list[float]:
    """In order, without the lowest and the highest quarter."""
    ordered = sorted(value for score in scores for value in score)
    return ordered[len(ordered) // 4 : len(ordered) - len(ordered) // 4]


def _above(one: pd.Series, other: pd.Series) -> float:
    """The share of the pairs of which that of `one` is more."""
    first, second = one.to_numpy()[:, None], other.to_numpy()[None]
    return float(((first > second) + 0.5 * (first == second)).mean())


def _over(benchmarks: Sequence[Cells], value: float, parts: Parts) -> Estimate:
    units = {cells.units: cells.count for cells in benchmarks}
    seeds = min(len(cells.seeds) for cells in benchmarks)
    return Estimate(value, parts, seeds, units, sum(cells.ungraded for cells in benchmarks))
