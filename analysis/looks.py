"""How configuration labels look: their order, names, colours, markers, lines and their widths, the same in every
table and figure: those of looks.yaml, and of other labels what comes next. Fonts, axes and grid: style.mplstyle."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

Line = Literal["-", "--", "-.", ":", ""] | tuple[float, tuple[float, ...]]

WIDTH = 1.1
"""of a configuration's line, in points"""
THICK, THIN = 1.5, 0.8
"""in the paper's figures: of its methods, and of controls"""


def _line(line: Any) -> Line:
    """As matplotlib has it."""
    return (line[0], tuple(line[1:])) if isinstance(line, list) else line


_FILE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_bytes())
TITLES: dict[str, str] = _FILE["titles"]
TASKS: dict[str, str] = _FILE["tasks"]
PALETTE: dict[str, str] = _FILE["palette"]
BLUE, VERMILION, GREEN, PURPLE, SKY, ORANGE, BLACK = COLOURS = list(PALETTE.values())
MARKERS: list[str] = _FILE["markers"]
LINES: list[Line] = list(map(_line, _FILE["lines"]))
LOOKS: dict[str, tuple[str, str, Line]] = {
    label: (PALETTE[colour], marker, _line(line)) for label, (colour, marker, line) in _FILE["looks"].items()
}


@dataclass(frozen=True)
class Style:
    """A label as it is shown. `rank` is its place in the order; `line` is a matplotlib line style."""

    rank: int
    title: str
    colour: str
    marker: str
    line: Line


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """The style of each label, in the order of rows and legends.

    The labels of TITLES come first; others follow by name, numbers by size. Colour and marker are the method's
    (`method_of`); labels of one method differ in their lines. Fields that several labels all name alike
    (`rtpo.run.naming`) are in none of their titles.
    """
    present = set(labels)
    order = [*TITLES, *sorted(present - TITLES.keys(), key=by_number)]
    methods = [*TITLES, *sorted({*map(method_of, present)} - TITLES.keys(), key=by_number)]
    shared = set.intersection(*({*label.split(",")[1:]} for label in present)) if len(present) > 1 else set()
    shown: dict[str, Style] = {}
    for rank, label in enumerate(order):
        if label in present:
            method = method_of(label)
            colour, marker, line = LOOKS.get(method, look_at(methods.index(method)))
            taken = {each.line for each in shown.values() if (each.colour, each.marker) == (colour, marker)}
            line = next((other for other in (line, *LINES) if other not in taken), line)
            shown[label] = Style(rank, title_of(label, shared), colour, marker, line)
    return shown


def method_of(label: str) -> str:
    """The method that a label is a configuration of: without the fields that it names, and the nearest that has a look
    of its own."""
    label = label.partition(",")[0]
    while label not in LOOKS and (base := base_of(label)) is not None:
        label = base
    return label


def base_of(label: str) -> str | None:
    """The configuration that a label says what is changed of: the longest of TITLES that it begins with."""
    return max((base for base in TITLES if label.startswith(f"{base}_")), key=len, default=None)


def title_of(label: str, left_out: Collection[str] = ()) -> str:
    """A label in words, the fields that it names as they are, but for those that are left out."""
    label, *fields = label.split(",")
    title, base = TITLES.get(label, label), base_of(label)
    if label not in TITLES and base is not None:
        title = f"{TITLES[base]}, {label.removeprefix(base).replace('_', ' ').strip()}"
    return ", ".join([title, *(field for field in fields if field not in left_out)])


def by_number(label: str) -> list[str | float]:
    """A key by which texts are in order, numbers in them by size."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", label)
    return [float(part) if place % 2 else part for place, part in enumerate(parts)]


def look_at(rank: int) -> tuple[str, str, Line]:
    """Colour, marker and line by rank alone: with 7 colours and 8 markers no two of 56 ranks look the same."""
    return COLOURS[rank % len(COLOURS)], MARKERS[rank % len(MARKERS)], LINES[rank % len(LINES)]
