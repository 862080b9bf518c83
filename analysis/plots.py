"""What all figures share: the style, how a configuration is drawn, legends, and files that name their records."""

import hashlib
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import matplotlib.style
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from analysis.looks import WIDTH, Style
from rtpo.run import archives

STYLE = Path(__file__).with_name("style.mplstyle")
METADATA = {"pdf": {"CreationDate": None, "Creator": None, "Producer": None}, "png": {"Software": None}}
"""none of what would differ between two drawings of the same records"""
RECORDS = "Records"
"""the text chunk of a figure that holds the checksum of the records it was drawn from"""
TWO_COLUMNS, ONE_COLUMN = 7.2, 3.5
"""inches"""
BAND_ALPHA = 0.1
LETTERS_AN_INCH = 20
"""of the lines under a figure"""
MARK_SIZES = {"*": 7.0, "P": 5.2, "X": 5.2}
MARK_SIZE = 4.2
SIDE_STEP = 0.05
"""between the marks of one place, as a share of the distance between places"""
Entry = TypeVar("Entry")
Files = Mapping[Path, Mapping[str, str | None]]
"""each with its metadata"""


def save(drawn: Callable[[], Figure], files: Files) -> None:
    """Draw a figure in the project's style into `files`."""
    with matplotlib.style.context(STYLE):
        figure = drawn()
        for path, metadata in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, metadata=dict(metadata))


def every_format(folder: Path, stem: str) -> Files:
    """The files of a figure, with their metadata."""
    return {folder / f"{stem}.{suffix}": metadata for suffix, metadata in METADATA.items()}


def png_from(checksum: str | None) -> dict[str, str | None]:
    """The metadata of a PNG drawn from records of this checksum."""
    return {**METADATA["png"], RECORDS: checksum}


def records_checksum(manifests: Sequence[Path]) -> str | None:
    """Of runs' manifests, which hold the checksums of their files; None without runs."""
    lines = [f"{hashlib.sha256(archives.read(path)).hexdigest()} {path.parent.name}\n" for path in manifests]
    return hashlib.sha256("".join(lines).encode()).hexdigest() if lines else None


def drawn_from(figure: Path) -> str | None:
    """The checksum of the records that a PNG was drawn from; None without one."""
    if not figure.exists():
        return None
    with Image.open(figure) as image:
        return image.info.get(RECORDS)


def panels(rows: int, columns: int, height: float, width: float = TWO_COLUMNS) -> tuple[Figure, list[list[Axes]]]:
    """A figure with room above for a legend; `height` of a row and `width` of all are in inches."""
    figure = Figure(figsize=(width, height * rows + 0.7))
    return figure, figure.subplots(rows, columns, squeeze=False).tolist()


def letter(place: int) -> str:
    """(a) for 0."""
    return f"({chr(97 + place)})"


def mark(look: Style, width: float = WIDTH) -> dict[str, Any]:
    """How matplotlib draws a configuration's line and marks."""
    return {
        "color": look.colour,
        "linestyle": look.line,
        "linewidth": width,
        "marker": look.marker,
        "markersize": MARK_SIZES.get(look.marker, MARK_SIZE) * min(1.0, 0.5 + width / 2),
        "markeredgecolor": "white",
        "markeredgewidth": 0.3,
    }


def draw_curve(
    axes: Axes, x: pd.Series, curve: pd.DataFrame, look: Style, marks: Iterable[int], width: float = WIDTH
) -> None:
    """`mean` of a curve with marks at these points, and a band from `low` to `high`."""
    axes.fill_between(x, curve["low"], curve["high"], color=look.colour, alpha=BAND_ALPHA, linewidth=0, zorder=2)
    axes.plot(x, curve["mean"], **mark(look, width), markevery=list(marks), zorder=3)


def draw_places(axes: Axes, x: pd.Series, values: pd.DataFrame, look: Style, width: float = WIDTH) -> None:
    """`mean` at each place, and a bar from `low` to `high`."""
    axes.vlines(x, values["low"], values["high"], color=look.colour, linewidth=1.0, zorder=2)
    axes.plot(x, values["mean"], **mark(look, width), zorder=3)


def beside(place: int, of: int) -> float:
    """How far to move the marks of one of several configurations, so that they stand side by side."""
    return SIDE_STEP * (place - (of - 1) / 2)


def spread_marks(points: int, place: int, of: int, marks: int = 4) -> range:
    """About so many of a curve's points, other ones for each of several curves."""
    every = max(1, points // marks)
    return range(min(place * every // of, max(points - 1, 0)), points, every)


def make_room(axes: Axes, matched: float, least: float) -> None:
    """Mark the value without mismatch, keep it off the frame, and span at least `least`."""
    axes.axhline(matched, color="0.6", linewidth=0.6, zorder=1)
    low, high = min(axes.dataLim.y0, matched), max(axes.dataLim.y1, matched)
    missing = max(0.0, least - (high - low)) / 2
    margin = 0.08 * max(least, high - low)
    axes.set_ylim(low - missing - margin, high + missing + margin)


def by_row(entries: Sequence[Entry], columns: int) -> list[Entry]:
    """Entries of a legend in the order in which matplotlib, which fills columns, shows them row by row."""
    return [entry for column in range(columns) for entry in entries[column::columns]]


def footnote(figure: Figure, text: str) -> None:
    """What the runs are, under the panels, in lines that the figure has room for."""
    letters = int(LETTERS_AN_INCH * figure.get_figwidth())
    lines = [textwrap.fill(line, letters, break_on_hyphens=False) for line in text.splitlines()]
    figure.supxlabel("\n".join(lines), fontsize=6.5, color="0.35")
