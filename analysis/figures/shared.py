"""What the paper's figures have in common: widths, axes, legends, and what stands under them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from analysis.figures.curves import FIFTHS
from analysis.figures.sources import Row, Source, looks
from analysis.looks import THICK, THIN, Style
from analysis.plots import BAND_ALPHA, by_row, draw_places, footnote, mark
from analysis.records import RunGroup

IN_PAPER = ("rtpo", "grpo", "seeupo_flat")
CONTROLS = ("grpo_exact", "seeupo")
"""beside the paper's methods, in thin lines"""
SEEDS = "range over seeds"
INTERVAL = "95 % interval over runs and questions"
ONE_RUN = "An interval of one run is over questions alone: other seeds unknown."
Entry = tuple[Artist, str]
"""of a legend"""
Range = tuple[float, float, float]
"""mean, low and high"""


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


def in_order(row: Row) -> list[tuple[RunGroup, Style, int]]:
    """The configurations of a row with their places. Thin ones come last, over what they may be equal to."""
    found = looks([row])
    listed = [(group, found[group.label], place) for place, group in enumerate(row.groups)]
    return sorted(listed, key=lambda one: one[0].label in CONTROLS)


def width(group: RunGroup) -> float:
    """Of a configuration's line."""
    return THIN if group.label in CONTROLS else THICK


def percent(curve: pd.DataFrame) -> pd.DataFrame:
    """Shares as percent."""
    return 100 * curve[["mean", "low", "high"]]


def steps(panel: Axes, label: str) -> None:
    """Whole numbers along x."""
    panel.set_xlabel(label)
    panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))


def fifths(panel: Axes) -> None:
    """The fifths of the training along x."""
    panel.set_xlim(0.7, FIFTHS + 0.3)
    panel.set_xticks(range(1, FIFTHS + 1))
    panel.set_xlabel("Fifth of the training")


def fit(panel: Axes, least: float) -> None:
    """The values along y, off the frame; `least`: the least span, as a part of the greatest value."""
    low, high = panel.dataLim.y0, panel.dataLim.y1
    if isfinite(high) and high > 0:
        span = max(high - low, least * high)
        middle = (low + high) / 2
        panel.set_ylim(middle - 0.6 * span, middle + 0.6 * span)


def tokens_of(source: Source) -> tuple[str, float]:
    """The unit of generated tokens, and how many of it a token is."""
    return ("k", 1e-3) if source.is_toy else ("M", 1e-6)


def time_of(source: Source) -> tuple[str, float]:
    """The unit of training time, and how many of it a second is."""
    return ("seconds", 1.0) if source.is_toy else ("hours", 1 / 3600)


def not_run(panel: Axes) -> None:
    """Say so in place of a panel."""
    panel.set_axis_off()
    panel.text(0.5, 0.5, "not run", transform=panel.transAxes, ha="center", color="0.35")


def draw_point(panel: Axes, x: float, found: Range, look: Style) -> None:
    """A configuration's mark with a bar."""
    draw_places(panel, pd.Series([x]), pd.DataFrame([found], columns=pd.Index(["mean", "low", "high"])), look)


def handle(look: Style, of_width: float = THICK) -> Line2D:
    """For a legend."""
    return Line2D([], [], **mark(look, of_width))


def configurations(rows: Rows) -> list[Entry]:
    """A legend's entries, the paper's methods first."""
    found = looks(list(rows.drawn.values()))
    ordered = sorted(found, key=lambda label: label in CONTROLS)
    return [(handle(found[label], THIN if label in CONTROLS else THICK), _title(label, found)) for label in ordered]


def band(rows: Rows, what: str) -> list[Entry]:
    """A legend's entry for bands; none where every configuration has one run."""
    several = any(len(group.runs) > 1 for row in rows.drawn.values() for group in row.groups)
    return [(Patch(color="0.4", alpha=2 * BAND_ALPHA, linewidth=0), what)] if several else []


def finish(
    figure: Figure, rows: Rows, source: Source, entries: Sequence[Entry], note: str = "", columns: int = 3
) -> None:
    """One legend for all panels, read row by row, and what the runs are."""
    handles, titles = zip(*by_row(entries, columns), strict=True)
    figure.legend(handles, titles, loc="outside upper center", ncols=columns)
    footnote(figure, provenance(rows, source, note))


def provenance(rows: Rows, source: Source, note: str) -> str:
    """What the runs of a figure are, and which it lacks."""
    counts = sorted({len(group.runs) for row in rows.drawn.values() for group in row.groups})
    seeds = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    sentences = (
        f"{source.title}; seeds: {seeds}.",
        "Toy-scale runs, not the paper's results." if source.is_toy else "",
        note,
        f"Not run: {', '.join(rows.missing)}." if rows.missing else "",
        f"Left out, {rows.too_short}." if rows.short else "",
    )
    return " ".join(filter(None, sentences))


def _title(label: str, found: Mapping[str, Style]) -> str:
    title = found[label].title
    return f"{title} (control)" if label in CONTROLS and "control" not in title else title
