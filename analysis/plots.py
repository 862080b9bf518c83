"""The parts of every figure: panels of lines with bands, bars and marks in one style, and their files."""

import hashlib
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from PIL import Image

from analysis.looks import WIDTH, Style

STYLE = Path(__file__).with_name("style.mplstyle")
NUMBERS = "Numbers"
"""the text chunk of a PNG with the checksum of its numbers"""
TOY_SCALE = "Toy-scale runs, not the paper's results."
TWO_COLUMNS = 7.2
"""inches"""
BAND_ALPHA = 0.1
NOTE_WIDTH = 144
"""letters in a line of the note under a figure"""
MARK_SIZES = {"*": 7.0, "P": 5.2, "X": 5.2}
MARK_SIZE = 4.2
MARKS = 4
"""the approximate number of marks on a curve"""
SIDE_STEP = 0.05
"""the gap between marks that share an x, in units of x"""
Entry = tuple[Artist, str]
"""an entry of a legend"""
Framed = Callable[[Axes], object]
"""a function that changes a panel after its lines are drawn: it sets limits, or adds marks"""


@dataclass(frozen=True, eq=False)
class Line:
    """A curve with a band, or with bars."""

    values: pd.DataFrame  # x, mean, low, high
    look: Style
    width: float = WIDTH
    bars: bool = False  # instead of a band; a single point always has a bar
    marks: Sequence[int] | None = None  # positions of marked points; None: all
    label: str = ""  # in the panel's own legend

    def draw(self, axes: Axes) -> None:
        x, mean, low, high = (self.values[name] for name in ("x", "mean", "low", "high"))
        if self.bars or len(x) == 1:
            axes.vlines(x, low, high, color=self.look.colour, linewidth=1.0, zorder=2)
        elif (low < high).any():
            axes.fill_between(x, low, high, color=self.look.colour, alpha=BAND_ALPHA, linewidth=0, zorder=2)
        marks = None if self.marks is None else list(self.marks)
        axes.plot(x, mean, **mark(self.look, self.width), markevery=marks, label=self.label, zorder=3)


@dataclass(frozen=True, eq=False)
class Panel:
    """A panel of a figure, with a legend if a line has a label."""

    title: str
    lines: Sequence[Line]
    x: str = ""  # axis label
    y: str = ""
    framed: Sequence[Framed] = ()  # called in this order after the lines

    def draw(self, axes: Axes) -> None:
        axes.set_xlabel(self.x)
        axes.set_ylabel(self.y)
        for line in self.lines:
            line.draw(axes)
        for frame in self.framed:
            frame(axes)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(handlelength=1.8)


def sheet(
    rows: Sequence[Sequence[Panel]], height: float, note: str, entries: Sequence[Entry] = (), *, columns: int = 3
) -> Figure:
    """A figure of lettered panels, with a legend above (at most `columns` wide) and a note on the runs below. `height`
    of a row is in inches; all rows have the same number of panels."""
    figure = Figure(figsize=(TWO_COLUMNS, height * len(rows) + 0.7))
    all_axes = figure.subplots(len(rows), len(rows[0]), squeeze=False).flat
    for letter, axes, panel in zip(ascii_lowercase, all_axes, chain(*rows), strict=False):
        axes.xaxis.set_major_locator(MaxNLocator(5 if len(rows[0]) < 4 else 3, integer=True, min_n_ticks=3))
        panel.draw(axes)
        axes.set_title(f"({letter}) {panel.title}")
    if entries:
        add_legend(figure, entries, columns)
    figure.supxlabel(textwrap.fill(note, NOTE_WIDTH, break_on_hyphens=False), fontsize=6.5, color="0.35")
    return figure


def add_legend(figure: Figure, entries: Sequence[Entry], columns: int) -> None:
    """Add a legend above the figure, read row by row, in fewer columns if it would be wider than the figure."""
    # matplotlib fills columns
    handles, titles = zip(*(entry for column in range(columns) for entry in entries[column::columns]), strict=True)
    legend = figure.legend(handles, titles, loc="outside upper center", ncols=columns)
    if columns > 1 and legend.get_window_extent().width > figure.bbox.width:
        legend.remove()
        add_legend(figure, entries, columns - 1)


def save(draw: Callable[[], Figure], files: Sequence[Path]) -> list[Path]:
    """Draw a figure in the project's style into `files`, PDF or PNG by their suffix; returns them.

    The same records give the same bytes. A PNG holds the checksum of its numbers.
    """
    with matplotlib.style.context(STYLE):
        figure = draw()
        png: dict[str, Any] = {"Software": None, NUMBERS: numbers(figure)}
        pdf: dict[str, Any] = dict.fromkeys(("CreationDate", "Creator", "Producer"))
        for path in files:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, metadata=png if path.suffix == ".png" else pdf)
    return list(files)


def every_format(folder: Path, stem: str) -> list[Path]:
    """The files of a figure, PDF and PNG."""
    return [folder / f"{stem}.pdf", folder / f"{stem}.png"]


def is_stale(png: Path, draw: Callable[[], Figure]) -> bool:
    """Whether a PNG is missing or its numbers differ from those of the figure."""
    if not png.exists():
        return True
    with matplotlib.style.context(STYLE), Image.open(png) as image:
        return bool(image.info.get(NUMBERS) != numbers(draw()))


def numbers(figure: Figure) -> str:
    """A checksum of a figure's points, to six digits, and of the note under it."""
    arrays = [line.get_xydata() for axes in figure.axes for line in axes.lines]
    drawn = [collection for axes in figure.axes for collection in axes.collections]
    arrays += [path.vertices for each in drawn for path in each.get_paths()]
    patches = [patch for axes in figure.axes for patch in axes.patches]
    arrays += [patch.get_path().transformed(patch.get_patch_transform()).vertices for patch in patches]
    arrays += [marks for each in drawn for marks in (each.get_offsets(), each.get_array()) if marks is not None]
    points = (np.asarray(array, float).ravel() + 0.0 for array in arrays)
    text = "\n".join(" ".join(f"{value:.6g}" for value in array) for array in points)
    return hashlib.sha256(f"{text}\n{figure.get_supxlabel()}".encode()).hexdigest()


def mark(look: Style, width: float = WIDTH) -> dict[str, Any]:
    """Matplotlib's settings for a configuration's line and marks."""
    return {
        "color": look.colour,
        "linestyle": look.line,
        "linewidth": width,
        "marker": look.marker,
        "markersize": MARK_SIZES.get(look.marker, MARK_SIZE) * min(1.0, 0.5 + width / 2),
        "markeredgecolor": "white",
        "markeredgewidth": 0.3,
    }


def handle(look: Style, width: float = WIDTH, title: str = "") -> Entry:
    """The legend entry of a configuration."""
    return Line2D([], [], **mark(look, width)), title or look.title


def band() -> Entry:
    """The legend entry of bands."""
    return Patch(color="0.4", alpha=2 * BAND_ALPHA, linewidth=0), "range over seeds"


def points(x: Iterable[float], mean: Iterable[float], low: Any = None, high: Any = None) -> pd.DataFrame:
    """The values of a `Line`; `low` and `high` default to the mean."""
    table = pd.DataFrame({"x": list(x), "mean": list(mean)}, dtype=float)
    return table.assign(low=table["mean"] if low is None else low, high=table["mean"] if high is None else high)


def scaled(values: pd.DataFrame, unit: float) -> pd.DataFrame:
    """Values with mean, low and high multiplied by `unit`."""
    return values.assign(**{name: unit * values[name] for name in ("mean", "low", "high")})


def shifted(values: pd.DataFrame, place: int, curves: int) -> pd.DataFrame:
    """Values moved along x, so that the marks of several curves stand side by side."""
    return values.assign(x=values["x"] + SIDE_STEP * (place - (curves - 1) / 2))


def spread_marks(points: int, place: int, curves: int) -> range:
    """Positions of about MARKS marks on a curve of so many points, staggered between several curves."""
    every = max(1, points // MARKS)
    return range(min(place * every // curves, max(points - 1, 0)), points, every)


def around(matched: float, least: float) -> Framed:
    """Draws a line at `matched`, the value without mismatch, and makes the y axis span at least `least`."""

    def make_room(axes: Axes) -> None:
        axes.axhline(matched, color="0.6", linewidth=0.6, zorder=1)
        low, high = min(axes.dataLim.y0, matched), max(axes.dataLim.y1, matched)
        missing = max(0.0, least - (high - low)) / 2
        margin = 0.08 * max(least, high - low)
        axes.set_ylim(low - missing - margin, high + missing + margin)

    return make_room


def from_zero(axes: Axes) -> None:
    """Start the y axis at 0, with room for marks at both ends."""
    top = axes.dataLim.y1
    axes.set_ylim(-0.05 * top, 1.07 * top)


def from_left(axes: Axes) -> None:
    """Start the x axis at 0, with room for marks at both ends."""
    right = max(axes.dataLim.x1, 1.0)
    axes.set_xlim(-0.03 * right, 1.05 * right)


def no_curve(axes: Axes) -> None:
    """Write "no curve" in place of lines: nothing is recorded, or a single point."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, "no curve", transform=axes.transAxes, ha="center", color="0.35")
