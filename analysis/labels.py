"""How configuration labels look: their order, names, colours, markers and lines, the same in every table and figure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

TITLES = {
    "rtpo": "RTPO",
    "grpo": "GRPO, flattened history (the paper's contexts)",
    "grpo_exact": "GRPO, exact contexts (control)",
}

Line = Literal["-", "--", "-.", ":"] | tuple[float, tuple[float, ...]]

# Okabe and Ito's palette, without its yellow, which vanishes on paper
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES: tuple[Line, ...] = ("-", (0, (4, 1.5)), (0, (2, 2)), "-.", ":", (0, (5, 1, 1, 1, 1, 1)))


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

    The labels of TITLES come first and always look the same; others follow by name, with what comes next.
    """
    present = set(labels)
    order = [*TITLES, *sorted(present - TITLES.keys())]
    return {label: _style(rank, label) for rank, label in enumerate(order) if label in present}


def _style(rank: int, label: str) -> Style:
    return Style(
        rank=rank,
        title=TITLES.get(label, label),
        colour=COLOURS[rank % len(COLOURS)],
        marker=MARKERS[rank % len(MARKERS)],
        line=LINES[rank % len(LINES)],
    )
