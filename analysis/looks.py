"""The order, name, colour, marker and line of each configuration label, the same in all tables and figures.

looks.yaml has the titles, in order, and the looks of some methods. Other methods take colour, marker and line by rank.
Fonts, axes and grid are in style.mplstyle.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

from rtpo.core.names import nearest
from rtpo.errors import ConfigError
from rtpo.run.building import build

FILE = Path(__file__).with_suffix(".yaml")
LineStyle = Literal["-", "--", "-.", ":", ""] | tuple[float, tuple[float, ...]]
"""matplotlib's: a name, or an offset and the lengths of dashes and gaps in points"""

WIDTH = 1.1
"""line width in points"""
THICK, THIN = 1.5, 0.8
"""line widths in the paper's figures: its methods, and controls"""


@dataclass(frozen=True)
class LooksFile:
    """The fields of looks.yaml. A label is a configuration's, such as grpo_exact."""

    titles: dict[str, str]  # name by label, in the order of rows and legends
    notes: dict[str, str]  # sentence by label, printed under each table with a run of this label
    tasks: dict[str, str]  # name by task, or by setting of a task
    palette: dict[str, str]  # hexadecimal code by colour: Okabe and Ito's, without yellow, which vanishes on paper
    own_colours: dict[str, str]  # further colours, used in `looks` alone
    markers: list[str]  # matplotlib's; labels without a look take them in turn
    lines: list[LineStyle]  # labels without a look take them in turn
    looks: dict[str, tuple[str, str, LineStyle]]  # colour, marker and line by label


def read_looks(text: str | bytes) -> LooksFile:
    """Looks from YAML. Raises ConfigError, naming the field, for an unknown, missing or invalid one."""
    file: LooksFile = build(LooksFile, yaml.safe_load(text), FILE.name)
    colours = file.palette | file.own_colours
    for label, (colour, *_) in file.looks.items():
        if colour not in colours:
            raise ConfigError(f"{FILE.name}.looks.{label} has the colour {colour!r}: {nearest(colour, colours)}.")
    return file


_FILE = read_looks(FILE.read_bytes())
TITLES, NOTES, TASKS = _FILE.titles, _FILE.notes, _FILE.tasks
BLUE, VERMILION, GREEN, PURPLE, SKY, ORANGE, BLACK = COLOURS = list(_FILE.palette.values())
MARKERS, LINES = _FILE.markers, _FILE.lines
LOOKS = {
    label: ((_FILE.palette | _FILE.own_colours)[colour], marker, line)
    for label, (colour, marker, line) in _FILE.looks.items()
}


@dataclass(frozen=True)
class Style:
    """The look of a label."""

    rank: int  # its place in the order of rows and legends
    title: str
    colour: str
    marker: str
    line: LineStyle


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """The style of each label, in the order of rows and legends.

    The labels of TITLES come first. All other labels follow by name, with numbers by size. Labels of one method
    (`method_of`) share colour and marker, and differ in their lines, until LINES are used up. A field that all labels
    set to the same value (`rtpo.run.naming`) is left out of their titles.
    """
    present = set(labels)
    order = [*TITLES, *sorted(present - TITLES.keys(), key=by_number)]
    methods = [*TITLES, *sorted({*map(method_of, present)} - TITLES.keys(), key=by_number)]
    shared = set.intersection(*({*label.split(",")[1:]} for label in present)) if len(present) > 1 else set()
    shown: dict[str, Style] = {}
    for rank, label in enumerate(order):
        if label in present:
            method = method_of(label)
            colour, marker, line = LOOKS.get(method, look_by_rank(methods.index(method)))
            used_lines = {each.line for each in shown.values() if (each.colour, each.marker) == (colour, marker)}
            line = next((other for other in (line, *LINES) if other not in used_lines), line)
            shown[label] = Style(rank, title_of(label, shared), colour, marker, line)
    return shown


def method_of(label: str) -> str:
    """The method that gives a label its look. Candidates are the label without its fields, its base (`base_of`), the
    base's base, and so on. The first with a look in LOOKS counts; without any, the last candidate."""
    label = label.partition(",")[0]
    while label not in LOOKS and (base := base_of(label)) is not None:
        label = base
    return label


def base_of(label: str) -> str | None:
    """The configuration that a label changes, such as rtpo for rtpo_g5: the longest label of TITLES that begins it."""
    return max((base for base in TITLES if label.startswith(f"{base}_")), key=len, default=None)


def title_of(label: str, left_out: Collection[str] = ()) -> str:
    """A label in words, followed by the fields that it sets, except those in `left_out`."""
    label, *fields = label.split(",")
    title, base = TITLES.get(label, label), base_of(label)
    if label not in TITLES and base is not None:
        title = f"{TITLES[base]}, {label.removeprefix(base).replace('_', ' ').strip()}"
    return ", ".join([title, *(field for field in fields if field not in left_out)])


def by_number(label: str) -> list[str | float]:
    """A sort key that orders the numbers in texts by size."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", label)
    return [float(part) if place % 2 else part for place, part in enumerate(parts)]


def look_by_rank(rank: int) -> tuple[str, str, LineStyle]:
    """Colour, marker and line by rank alone. With 7 colours and 8 markers, any 56 successive ranks look different."""
    return COLOURS[rank % len(COLOURS)], MARKERS[rank % len(MARKERS)], LINES[rank % len(LINES)]
