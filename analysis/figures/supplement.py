"""What the supplement tells in tables, as figures: budget, failures, group size, synchronisation."""

from collections.abc import Callable
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import measures
from analysis.figures import curves
from analysis.figures.shared import (
    INTERVALS,
    ONE_RUN,
    SUCCESS,
    Rows,
    bands,
    configurations,
    fifths,
    fit,
    lines,
    provenance,
    time_of,
    tokens_of,
)
from analysis.figures.sources import Source
from analysis.looks import BLACK, BLUE, GREEN, LINES, MARKERS, ORANGE, VERMILION, Style
from analysis.paper.quantities import EARLY_TURNS
from analysis.plots import ONE_COLUMN, Framed, Line, Panel, beside, from_zero, handle, points, scaled, sheet
from analysis.records import Run, RunGroup

POINTS = f"Success with {INTERVALS}; the rest with ranges over seeds. {ONE_RUN}"
CUT = "Axes need not begin at 0."
LEAST_SPAN = 0.1
"""of an axis that need not begin at 0, as a part of its greatest value"""
ENDS = {
    "success": Style(0, "success", BLUE, MARKERS[0], "-"),
    "ended_failed": Style(1, "ended and failed", VERMILION, MARKERS[1], "--"),
    "no_signal": Style(2, "no terminal signal", BLACK, MARKERS[2], ":"),
}
EARLY = {
    f"failed_{k}": Style(k, f"failed within {'turn 1' if k == 1 else f'{k} turns'}", colour, marker, line)
    for k, colour, marker, line in zip(EARLY_TURNS, (BLUE, VERMILION, GREEN, ORANGE), MARKERS[3:], LINES, strict=False)
}


def budget(rows: Rows, source: Source) -> Figure:
    """Tokens and calls a first path, and calls executed well, by fifth of the training: a row a task."""
    shown: dict[str, tuple[str, float, list[Framed]]] = {
        "tokens_each": ("tokens a path", 1, []),
        "calls_each": ("calls a path", 1, []),
        "execution": ("calls executed well, %", 100, [_within_100]),
    }

    def by_fifth(group: RunGroup, key: str) -> pd.DataFrame:
        return scaled(curves.over_first_paths(group, key), shown[key][1])

    panels = [
        [
            Panel(
                f"{row.title}:\n{what}",
                lines(row, partial(by_fifth, key=key), apart=True),
                framed=[fit(LEAST_SPAN), *framed, fifths],
            )
            for key, (what, _, framed) in shown.items()
        ]
        for row in rows.drawn.values()
    ]
    return sheet(panels, 1.9, provenance(rows, source, [CUT]), [*configurations(rows), *bands(rows)])


def _within_100(axes: Axes) -> None:
    axes.set_ylim(top=min(101, axes.get_ylim()[1]))


def failures(rows: Rows, source: Source) -> Figure:
    """How RTPO's trunks end, and how many failed early, by fifth of the training: a row a task."""
    panels = []
    for row in rows.drawn.values():
        (group,) = row.groups
        of_row = []
        for what, looks, y in (("how trunks end", ENDS, "Share of trunks, %"), ("failed early", EARLY, "")):
            found = [scaled(curves.over_first_paths(group, quantity), 100) for quantity in looks]
            made = [
                Line(beside(one, place, len(looks)), look)
                for place, (one, look) in enumerate(zip(found, looks.values(), strict=True))
            ]
            of_row.append(Panel(f"{row.title}: {what}", made, y=y, framed=[from_zero, fifths]))
        panels.append(of_row)
    # the fourth of the first row
    seeds = bands(rows) or [(Line2D([], [], linestyle=""), "")]
    entries = [*(handle(look) for look in ENDS.values()), *seeds, *(handle(look) for look in EARLY.values())]
    return sheet(panels, 1.9, provenance(rows, source), entries, columns=4)


def group_size(rows: Rows, source: Source) -> Figure:
    """Success, zero-advantage share and tokens by G, a row a task."""
    unit, a_token = tokens_of(source)
    tokens = partial(curves.spread, value=lambda run: float(run.ledger["generated_tokens"]))
    shown: dict[str, tuple[Callable[[RunGroup], curves.Range], float]] = {
        "success, % (T = 1)": (_success, 100),
        "zero-advantage rate, %": (curves.zero_advantage, 100),
        f"generated tokens, {unit}": (tokens, a_token),
    }

    def by_size(group: RunGroup, what: str) -> pd.DataFrame:
        value, by = shown[what]
        return scaled(_point(curves.group_size(group.first), value(group)), by)

    panels = []
    for row in rows.drawn.values():
        sizes = [curves.group_size(group.first) for group in row.groups]
        framed: list[Framed] = [partial(Axes.set, xlim=(min(sizes) - 0.6, max(sizes) + 0.6), xticks=sizes), from_zero]
        panels.append(
            [
                Panel(f"{row.title}:\n{what}", lines(row, partial(by_size, what=what), bars=True), "G", framed=framed)
                for what in shown
            ]
        )
    return sheet(panels, 1.8, provenance(rows, source, [POINTS]), configurations(rows))


def synchronisation(rows: Rows, source: Source) -> Figure:
    """Success against synchronisations and seconds, a row a task."""
    unit, a_second = time_of(source)
    shown: dict[str, Callable[[Run], float]] = {
        "Synchronisations": lambda run: float(run.ledger["syncs"]),
        f"Training {unit}": lambda run: a_second * measures.training_seconds(run),
    }

    def against(group: RunGroup, label: str) -> pd.DataFrame:
        x, left, right = curves.spread(group, shown[label])
        return scaled(_point(x, _success(group)), 100).assign(left=left, right=right)

    panels = [
        [
            Panel(row.title, lines(row, partial(against, label=label), bars=True), label, y, [_margins])
            for label, y in zip(shown, (SUCCESS, ""), strict=True)
        ]
        for row in rows.drawn.values()
    ]
    note = provenance(rows, source, [POINTS, CUT])
    return sheet(panels, 1.9, note, configurations(rows), columns=2, width=ONE_COLUMN + 1)


def _margins(axes: Axes) -> None:
    axes.margins(x=0.12, y=0.15)


def _point(x: float, found: curves.Range) -> pd.DataFrame:
    mean, low, high = found
    return points([x], [mean], [low], [high])


def _success(group: RunGroup) -> curves.Range:
    """Of the sampled evaluation after training: mean and interval; NaN without one."""
    evaluation = measures.held_out(group, "after", "sampled")
    interval = None if evaluation is None else measures.success(evaluation)
    return (float("nan"),) * 3 if interval is None else (interval.mean, interval.low, interval.high)
