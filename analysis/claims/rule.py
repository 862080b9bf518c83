"""The one rule by which claims get their verdicts: the paper's at every scale, the toy study's and the theorems'."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from statistics import NormalDist
from typing import NamedTuple

from analysis.intervals import LEVEL, Interval
from analysis.tables import CONTRADICTED, FEW_RUNS, INTERVALS, NOT_RUN, SUPPORTED, UNDECIDED, said

LEAST_PAIRS = 3
"""fewer runs, or pairs of runs, than these decide nothing"""
RESOLUTION = 0.1
"""half of an interval's width, as a share of the comparison's scale, above which nothing is decided"""
OURS, BESIDE = "ours", "beside"
CONSISTENT = {SUPPORTED: "consistent with", CONTRADICTED: "not consistent with"}
"""Theorem 1 is about tabular Q-learning, not clipped policy gradients: no run of these can support or contradict it"""
_ORDER = (SUPPORTED, *CONSISTENT.values(), CONTRADICTED, UNDECIDED)
MIXED, NOT_TESTABLE = "mixed", "not testable"
RULE = (
    "A claim has parts, each an order or an equality. Differences are turned so that above 0 is for the claim. "
    "An order is supported where the whole 95 % interval of the difference lies above 0, contradicted where it lies "
    "below 0, and undecided otherwise. An equality is contradicted where the interval, widened by the slack that "
    "stands beside it, does not reach the value, undecided where a side of it is wider than the slack, and supported "
    "otherwise; where all runs are alike their value stands for the interval. Fewer than "
    f"{LEAST_PAIRS} runs, or pairs of runs of one seed, decide nothing; what rests on fewer than {FEW_RUNS} says so in "
    f"brackets. {INTERVALS.replace('They are', 'Intervals are', 1)} A claim has the verdict that all of its parts "
    "have, and is mixed where they differ; one that says “all” is contradicted where one part is. Parts marked “ours”, "
    "which the paper does not claim, or “beside” do not count. Parts without a complete run are not run and do not "
    "count either; how many were run is said. Of the paper's printed numbers, a part is supported where they have what "
    "is claimed and contradicted where they do not, without regard to chance. Theorems have the rule of "
    "[theory.md](theory.md)."
)
MANY = (
    "These verdicts are not corrected for the number of claims and parts: with so many, some intervals miss by chance. "
    "Holm's correction is made where methods are compared benchmark by benchmark, within one comparison "
    "([tables.md](tables.md)), and Bonferroni's within a theorem's claim ([theory.md](theory.md))."
)


@dataclass(frozen=True)
class Part:
    """What is compared, the numbers found, and what they say by RULE. aside: why the claim's verdict does
    not heed it, in a word. count: the runs, pairs or seeds (`of`) that it rests on; 0 where it is not on runs."""

    what: str
    shown: str
    outcome: str
    aside: str = ""
    count: int = 0
    of: str = "pairs"

    @property
    def text(self) -> str:
        ours = f" ({self.aside})" if self.aside else ""
        shown = f": {self.shown}" if self.shown else ""
        return f"*{said(self.outcome, [self.count], self.of)}*{ours}, {self.what}{shown}"


@dataclass(frozen=True)
class Comparison:
    """A measured mean with its interval beside its closed form. `scale`: what the width is measured against. `slack`:
    how far from the closed form counts as reaching it."""

    what: str
    closed: float
    mean: float
    low: float
    high: float
    scale: float
    slack: float = 0.0

    @property
    def reaches(self) -> bool:
        return self.low - self.slack <= self.closed <= self.high + self.slack

    @property
    def is_sharp(self) -> bool:
        return max(self.high - self.mean, self.mean - self.low) <= RESOLUTION * self.scale


class Estimate(NamedTuple):
    """What is measured, its closed form, mean, standard error and scale."""

    what: str
    closed: float
    mean: float
    error: float
    scale: float


def compare(estimates: Sequence[Estimate]) -> list[Comparison]:
    """With normal intervals that hold together."""
    z = quantile(len(estimates))
    return [
        Comparison(e.what, e.closed, e.mean, e.mean - z * e.error, e.mean + z * e.error, e.scale) for e in estimates
    ]


def quantile(comparisons: int) -> float:
    """The normal quantile of two-sided intervals, so many of which hold together at LEVEL."""
    return NormalDist().inv_cdf(1 - (1 - LEVEL) / (2 * max(1, comparisons)))


def equal(comparisons: Sequence[Comparison]) -> str:
    """The verdict on a claim that all closed forms hold, by RULE."""
    if any(not comparison.reaches for comparison in comparisons):
        return CONTRADICTED
    return SUPPORTED if comparisons and all(comparison.is_sharp for comparison in comparisons) else UNDECIDED


def larger(comparisons: Sequence[Comparison]) -> str:
    """The verdict on a claim that all means are above 0, by RULE."""
    if any(comparison.high < 0 for comparison in comparisons):
        return CONTRADICTED
    return SUPPORTED if comparisons and all(comparison.low > 0 for comparison in comparisons) else UNDECIDED


def reached(comparisons: Sequence[Comparison]) -> str:
    """How many intervals reach their closed form, in words, and how many are too wide."""
    wide = sum(not comparison.is_sharp for comparison in comparisons)
    found = f"{sum(comparison.reaches for comparison in comparisons)} of {len(comparisons)} intervals reach it"
    return f"{found}, {wide} too wide to decide" if wide else found


def order(difference: Interval | None, pairs: int) -> str:
    """What a difference says of the claim that it is above 0."""
    if difference is None or pairs < LEAST_PAIRS:
        return UNDECIDED
    if difference.low > 0:
        return SUPPORTED
    return CONTRADICTED if difference.high < 0 else UNDECIDED


def equality(found: Interval | None, pairs: int, closed: float, slack: float) -> str:
    """What a number says of the claim that it is `closed`: the theorems' rule, with an interval that decides nothing
    where a side is wider than `slack`."""
    if found is None or isnan(found.mean) or pairs < LEAST_PAIRS:
        return UNDECIDED
    low, high = (found.mean, found.mean) if isnan(found.low) else (found.low, found.high)
    return equal([Comparison("", closed, found.mean, low, high, slack / RESOLUTION, slack)])


def verdict(parts: Sequence[Part], every: bool = False) -> str:
    """What the parts that count say together. every: the claim says “all”."""
    counted = [part for part in parts if not part.aside]
    if not counted:
        return NOT_TESTABLE
    run = [part for part in counted if part.outcome != NOT_RUN]
    if not run:
        return NOT_RUN
    words = sorted({part.outcome for part in run}, key=_ORDER.index)
    if every and CONTRADICTED in words:
        words = [CONTRADICTED]
    each = [_said([part for part in run if part.outcome == word]) for word in words]
    word = each[0] if len(each) == 1 else f"{MIXED}: {', '.join(each)}"
    return word if len(run) == len(counted) else f"{word} ({len(run)} of {len(counted)} parts run)"


def _said(parts: Sequence[Part]) -> str:
    """The word of parts of one outcome, with the runs that it rests on where these are few."""
    kinds = {part.of for part in parts if part.count}
    return said(parts[0].outcome, [part.count for part in parts], kinds.pop() if len(kinds) == 1 else "runs")
