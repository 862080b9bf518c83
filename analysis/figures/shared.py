"""What the paper's figures have in common: which lines are thin, axes, legends, and what stands under them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite

import pandas as pd
from matplotlib.axes import Axes

from analysis.figures.curves import FIFTHS
from analysis.figures.sources import Row, Source, looks
from analysis.looks import THICK, THIN
from analysis.plots import Entry, Framed, Line, band, beside, handle, spread_marks
from analysis.records import RunGroup

IN_PAPER = ("rtpo", "grpo", "seeupo_flat")
CONTROLS = ("grpo_exact", "seeupo")
"""beside the paper's methods, in thin lines"""
OTHERS = ("rtpo_tree", "rtpo_off", "arpo_exact", "tree_grpo_exact")
"""of the toy study's core, in thin lines"""
SEEDS = "range over seeds"
INTERVALS = "95 % intervals over runs and questions"
ONE_RUN = "An interval of one run is over questions alone: other seeds unknown."
TOY_SCALE = "Toy-scale runs, not the paper's results."
SUCCESS = "Held-out success, % (T = 1)"
"""along an axis: a run's own evaluations, sampled at temperature 1"""


@dataclass(frozen=True)
class Rows:
    """drawn: by role in the paper, those with enough runs. left_out: the others that the source plans."""

    drawn: Mapping[str, Row]
    left_out: tuple[Row, ...]

    @property
    def missing(self) -> list[str]:
        """What was not run of these."""
        in_part = [*self.drawn.values(), *(row for row in self.left_out if row.short)]
        labels = [f"{label} ({row.title})" for row in in_part for label in row.missing]
        return [*labels, *(row.title for row in self.left_out if not row.short)]

    @property
    def short(self) -> list[str]:
        """The runs that have too few paths for fifths."""
        rows = (*self.drawn.values(), *self.left_out)
        return [f"{run.folder.name} ({row.title})" for row in rows for run in row.short]

    @property
    def too_short(self) -> str:
        """`short` in words; empty without any."""
        return f"fewer than {FIFTHS} graded first paths: {', '.join(self.short)}" if self.short else ""


def lines(
    row: Row, values: Callable[[RunGroup], pd.DataFrame], *, bars: bool = False, apart: bool = False, few: bool = False
) -> list[Line]:
    """The configurations of a row, thin ones last, over what they may be equal to. apart: side by side where they share
    their places. few: with few marks, each at other points."""
    found, made = looks([row]), []
    for place, group in enumerate(row.groups):
        table, of = values(group), len(row.groups)
        marks = spread_marks(len(table), place, of) if few else None
        table = beside(table, place, of) if apart else table
        made.append(Line(table, found[group.label], _width(group.label), bars, marks))
    return sorted(made, key=lambda line: line.width == THIN)


def _width(label: str) -> float:
    return THIN if label in (*CONTROLS, *OTHERS) else THICK


def fifths(axes: Axes) -> None:
    """The fifths of the training along x."""
    axes.set_xlim(0.7, FIFTHS + 0.3)
    axes.set_xticks(range(1, FIFTHS + 1))
    axes.set_xlabel("Fifth of the training")


def fit(least: float) -> Framed:
    """The values along y, off the frame; `least`: the least span, as a part of the greatest value."""
    return partial(_fit, least=least)


def _fit(axes: Axes, least: float) -> None:
    low, high = axes.dataLim.y0, axes.dataLim.y1
    if isfinite(high) and high > 0:
        span = max(high - low, least * high)
        middle = (low + high) / 2
        axes.set_ylim(middle - 0.6 * span, middle + 0.6 * span)


def tokens_of(source: Source) -> tuple[str, float]:
    """The unit of generated tokens, and how many of it a token is."""
    return ("k", 1e-3) if source.is_toy else ("M", 1e-6)


def time_of(source: Source) -> tuple[str, float]:
    """The unit of training time, and how many of it a second is."""
    return ("seconds", 1.0) if source.is_toy else ("hours", 1 / 3600)


def empty(why: str) -> Framed:
    """Says why in place of lines."""
    return partial(_empty, why=why)


def _empty(axes: Axes, why: str) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", color="0.35")


def configurations(rows: Rows) -> list[Entry]:
    """A legend's entries, the paper's methods first."""
    found = looks(list(rows.drawn.values()))
    made = []
    for label in sorted(found, key=lambda label: _width(label) == THIN):
        title = found[label].title
        named = f"{title} (control)" if label in CONTROLS and "control" not in title else title
        made.append(handle(found[label], _width(label), named))
    return made


def bands(rows: Rows) -> list[Entry]:
    """A legend's entry for ranges over seeds; none where every configuration has one run."""
    several = any(len(group.runs) > 1 for row in rows.drawn.values() for group in row.groups)
    return [band(SEEDS)] if several else []


def provenance(rows: Rows, source: Source, notes: Sequence[str] = ()) -> str:
    """What the runs of a figure are, and which it lacks."""
    counts = sorted({len(group.runs) for row in rows.drawn.values() for group in row.groups})
    seeds = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    sentences = (
        f"{source.title}; seeds: {seeds}.",
        TOY_SCALE if source.is_toy else "",
        *notes,
        f"Not run: {', '.join(rows.missing)}." if rows.missing else "",
        f"Left out, {rows.too_short}." if rows.short else "",
    )
    return " ".join(filter(None, sentences))
