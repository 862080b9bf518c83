"""Estimates that carry their bootstrap draws, so that means, differences and ratios of them keep their pairing.

The bootstrap is hierarchical and paired: a draw takes seeds and questions with replacement. Runs of the same seeds get
the same seeds, whatever their label and benchmark; evaluations of the same panel get the same questions. What two
methods have in common so cancels in their difference. With one seed only questions are drawn: the interval then says
nothing about other seeds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from analysis.intervals import LEVEL, wilson

DRAWS = 4000
Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.uint16]
NONE = (float("nan"), float("nan"))
"""no interval"""
SAME = 1e-9
"""what is not more than this apart is alike"""


@dataclass(frozen=True, eq=False)
class Cells:
    """What a quantity is a ratio of: `above` and `below`, [seeds, units], a row a run. A quantity is the sum of `above`
    over the sum of `below`, times `scale`, over all runs and units together; a unit without a graded sample has 0 in
    both. units: the name of what is drawn beside seeds, which evaluations of one panel share. share: whether a unit's
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
    """A number with its draws, [DRAWS]; None for one that is known exactly, such as a setting.

    units: of what is drawn beside seeds, how many by name. fixed: an interval that is not the draws'. NaN where there
    is no value.
    """

    value: float
    draws: Floats | None = None
    seeds: int = 0
    units: Mapping[str, int] = field(default_factory=dict)
    ungraded: int = 0
    fixed: tuple[float, float] | None = None

    @property
    def is_exact(self) -> bool:
        return self.draws is None

    @property
    def interval(self) -> tuple[float, float]:
        """95 %, of the draws that have a value; NONE where they do not differ, or less than half of them have one."""
        if self.fixed is not None:
            return self.fixed
        if self.draws is None:
            return NONE
        drawn = self.draws[~np.isnan(self.draws)]
        if len(drawn) < len(self.draws) / 2:
            return NONE
        tail = (1 - LEVEL) / 2
        # without interpolation, which would make NaN of two infinities
        low, high = np.quantile(drawn, [tail, 1 - tail], method="nearest")
        if low == high or high - low < SAME * max(1.0, abs(self.value)):
            return NONE
        return float(low), float(high)

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
    """What `function` gives for the values, and draw by draw for the draws."""
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(np.asarray(function(*(np.float64(part.value) for part in parts))))
        if all(part.is_exact for part in parts):
            return Estimate(value)
        draws = [np.full(DRAWS, part.value) if part.draws is None else part.draws for part in parts]
        drawn = np.asarray(function(*draws), np.float64)
    units = {name: count for part in parts for name, count in part.units.items()}
    random = [part for part in parts if not part.is_exact]
    return Estimate(
        value, drawn, min(part.seeds for part in random), units, sum(part.ungraded for part in dict.fromkeys(parts))
    )


def mean(*parts: Estimate) -> Estimate:
    """Of the different ones among `parts`."""
    different = list(dict.fromkeys(parts))
    return combined(lambda *values: sum(values[1:], values[0]) / len(values), *different)


def estimate(cells: Cells) -> Estimate:
    """The ratio of sums with its draws; Wilson's interval over units for a share of which all are 0 or all are 1."""
    above, below = _sums(cells)
    weights = _seed_counts(cells.seeds)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(cells.scale * cells.above.sum() / cells.below.sum())
        draws = cells.scale * (weights * above).sum(axis=1) / (weights * below).sum(axis=1)
    there = int((cells.below > 0).any(axis=0).sum())
    fixed = None
    if cells.share and there and value in (0.0, cells.scale):
        low, high = wilson(value / cells.scale, there)
        fixed = (cells.scale * low, cells.scale * high)
    return Estimate(value, draws, len(cells.seeds), {cells.units: cells.count}, cells.ungraded, fixed)


def _sums(cells: Cells) -> tuple[Floats, Floats]:
    """Of each draw and run, above and below over the drawn units, [DRAWS, seeds]."""
    counts = _unit_counts(cells.units, cells.above.shape[1]).astype(np.float64)
    return counts @ cells.above.T, counts @ cells.below.T


@lru_cache(maxsize=64)
def _seed_counts(seeds: tuple[int, ...]) -> Counts:
    """How often each seed is in each draw, [DRAWS, seeds]."""
    return np.stack([(_seeds_drawn(seeds) == place).sum(axis=1) for place in range(len(seeds))], 1).astype(np.uint16)


@lru_cache(maxsize=64)
def _seeds_drawn(seeds: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """The places of the seeds in each draw, [DRAWS, seeds]."""
    return np.random.default_rng([0, *seeds]).integers(len(seeds), size=(DRAWS, len(seeds)))


@lru_cache(maxsize=64)
def _unit_counts(name: str, of: int) -> Counts:
    """How often each unit is in each draw, [DRAWS, units]. A single unit is in all."""
    random = np.random.default_rng([1, of, *name.encode()])
    counts = np.empty((DRAWS, of), np.uint16)
    for start in range(0, DRAWS, 500):
        drawn = random.integers(of, size=(500, of)) + of * np.arange(500)[:, None]
        counts[start : start + 500] = np.bincount(drawn.ravel(), minlength=500 * of).reshape(500, of)
    return counts


# over runs and benchmarks together


def interquartile_mean(benchmarks: Sequence[Cells]) -> Estimate:
    """The mean of the middle half of the scores of all seeds on all benchmarks (Agarwal et al. 2021): a quarter of
    them, rounded down, is left out at either end. Seeds and questions are drawn as everywhere."""
    scores, draws = zip(*(_scores(cells) for cells in benchmarks), strict=True)
    value = _middle(np.concatenate(scores)[None])[0]
    drawn = _middle(np.concatenate(draws, axis=1))
    return _over(benchmarks, float(value), drawn)


def improvement(one: Sequence[Cells], other: Sequence[Cells]) -> Estimate:
    """The probability of improvement (Agarwal et al. 2021): that a run of `one` scores more than a run of `other` on a
    benchmark, both runs and the benchmark taken at random, a tie counting half. Benchmark by benchmark alike in both.
    Seeds and questions are drawn as everywhere."""
    values, draws = [], []
    for first, second in zip(one, other, strict=True):
        (score, drawn), (score_other, drawn_other) = _scores(first), _scores(second)
        values.append(_above(score[None], score_other[None])[0])
        draws.append(_above(drawn, drawn_other))
    return _over([*one, *other], float(np.mean(values)), np.mean(draws, axis=0))


def p_value(difference: Estimate) -> float:
    """Two-sided, of a difference of 0, from the draws on either side of it, one added to their number. Where all of n
    units differ alike and the draws so are one number, at least the sign test's 2^(1 - n). NaN where less than half of
    the draws have a value."""
    if difference.draws is None:
        return float("nan")
    drawn = difference.draws[~np.isnan(difference.draws)]
    if len(drawn) < len(difference.draws) / 2:
        return float("nan")
    least = min(int((drawn <= SAME).sum()), int((drawn >= -SAME).sum()))
    p = min(1.0, 2 * (least + 1) / (len(drawn) + 1))
    is_one_number = np.isnan(difference.interval[0])
    return max(p, 2.0 ** (1 - sum(difference.units.values()))) if is_one_number else p


def _scores(cells: Cells) -> tuple[Floats, Floats]:
    """Of each run, [seeds], and of each drawn run in each draw, [DRAWS, seeds]."""
    above, below = _sums(cells)
    with np.errstate(divide="ignore", invalid="ignore"):
        by_run = cells.scale * above / below
        values = cells.scale * cells.above.sum(axis=1) / cells.below.sum(axis=1)
    return values, np.take_along_axis(by_run, _seeds_drawn(cells.seeds), axis=1)


def _middle(scores: Floats) -> Floats:
    """The interquartile mean of each row."""
    cut = scores.shape[1] // 4
    return np.asarray(np.sort(scores, axis=1)[:, cut : scores.shape[1] - cut].mean(axis=1))


def _above(one: Floats, other: Floats) -> Floats:
    """Of each row, the share of the pairs of which that of `one` is more, [rows]."""
    first, second = one[:, :, None], other[:, None, :]
    return np.asarray(((first > second) + 0.5 * (first == second)).mean(axis=(1, 2)))


def _over(benchmarks: Sequence[Cells], value: float, draws: Floats) -> Estimate:
    units = {cells.units: cells.count for cells in benchmarks}
    return Estimate(
        value,
        draws,
        min(len(cells.seeds) for cells in benchmarks),
        units,
        sum(cells.ungraded for cells in benchmarks),
    )
