"""What the supplement tells in tables, as figures: budget, failures, group size, synchronisation."""

from collections.abc import Callable

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import measures
from analysis.figures import curves
from analysis.figures.shared import (
    INTERVAL,
    ONE_RUN,
    SEEDS,
    Entry,
    Range,
    Rows,
    band,
    configurations,
    draw_point,
    fifths,
    finish,
    fit,
    handle,
    in_order,
    percent,
    steps,
    time_of,
    tokens_of,
    width,
)
from analysis.figures.sources import Source
from analysis.looks import BLACK, BLUE, GREEN, LINES, MARKERS, ORANGE, VERMILION, Line, Style
from analysis.paper.quantities import EARLY_TURNS
from analysis.plots import ONE_COLUMN, beside, draw_curve, letter, panels
from analysis.records import Run, RunGroup

POINTS = f"Success with {INTERVAL}s; the rest with ranges over seeds. {ONE_RUN}"
LEAST_SPAN = 0.1
"""of an axis that need not begin at 0, as a part of its greatest value"""
OUTCOMES: dict[str, tuple[str, str, Line]] = {
    "success": ("success", BLUE, "-"),
    "ended_failed": ("ended and failed", VERMILION, "--"),
    "no_signal": ("no terminal signal", BLACK, ":"),
}


def budget(rows: Rows, source: Source) -> Figure:
    """Tokens and calls a first path, and calls executed well, by fifth of the training: a row a task."""
    shown = {"tokens_each": "tokens a path", "calls_each": "calls a path", "execution": "calls executed well, %"}
    figure, axes = panels(len(rows.drawn), len(shown), height=1.9)
    for line, row in enumerate(rows.drawn.values()):
        for column, (key, what) in enumerate(shown.items()):
            panel = axes[line][column]
            for group, look, place in in_order(row):
                curve = curves.over_first_paths(group, key)
                x = curve["x"] + beside(place, len(row.groups))
                values = percent(curve) if key == "execution" else curve
                draw_curve(panel, x, values, look, range(len(curve)), width(group))
            panel.set_title(f"{letter(line * len(shown) + column)} {row.title}:\n{what}")
            fit(panel, LEAST_SPAN)
            if key == "execution":
                panel.set_ylim(top=min(101, panel.get_ylim()[1]))
            fifths(panel)
    finish(figure, rows, source, [*configurations(rows), *band(rows, SEEDS)], "Axes need not begin at 0.")
    return figure


def failures(rows: Rows, source: Source) -> Figure:
    """How RTPO's trunks end, and how many failed early, by fifth of the training: a row a task."""
    figure, axes = panels(len(rows.drawn), 2, height=1.9)
    ends, early = _outcome_looks(), _early_looks()
    for line, row in enumerate(rows.drawn.values()):
        (group,) = row.groups
        for column, (what, quantities) in enumerate((("how trunks end", ends), ("failed early", early))):
            panel = axes[line][column]
            for place, (quantity, look) in enumerate(quantities.items()):
                curve = curves.over_first_paths(group, quantity)
                x = curve["x"] + beside(place, len(quantities))
                draw_curve(panel, x, percent(curve), look, range(len(curve)))
            panel.set_title(f"{letter(2 * line + column)} {row.title}: {what}")
            # room for marks at 0
            panel.set_ylim(bottom=-0.04 * panel.get_ylim()[1])
            fifths(panel)
        axes[line][0].set_ylabel("Share of trunks, %")
    shown = [*ends.values(), *early.values()]
    entries: list[Entry] = [(handle(look, 1.1), look.title) for look in shown]
    # the fourth of the first row
    entries[len(OUTCOMES) : len(OUTCOMES)] = band(rows, SEEDS) or [(Line2D([], [], linestyle=""), "")]
    finish(figure, rows, source, entries, columns=4)
    return figure


def group_size(rows: Rows, source: Source) -> Figure:
    """Success, zero-advantage share and tokens by G, a row a task."""
    unit, a_token = tokens_of(source)
    shown = ("held-out success, %", "zero-advantage rate, %", f"generated tokens, {unit}")
    figure, axes = panels(len(rows.drawn), len(shown), height=1.7)
    for line, row in enumerate(rows.drawn.values()):
        sizes = [curves.group_size(group.first) for group in row.groups]
        for group, look, _ in in_order(row):
            tokens = curves.spread(group, lambda run: float(run.ledger["generated_tokens"]))
            of_panels = (_success(group), _times(100, curves.zero_advantage(group)), _times(a_token, tokens))
            for panel, found in zip(axes[line], of_panels, strict=True):
                draw_point(panel, curves.group_size(group.first), found, look)
        for column, (panel, what) in enumerate(zip(axes[line], shown, strict=True)):
            panel.set_title(f"{letter(line * len(shown) + column)} {row.title}: {what}")
            panel.set_xlim(min(sizes) - 0.6, max(sizes) + 0.6)
            panel.set_xticks(sizes)
            panel.set_xlabel("G")
            panel.margins(y=0.15)
    finish(figure, rows, source, configurations(rows), POINTS)
    return figure


def synchronisation(rows: Rows, source: Source) -> Figure:
    """Success against synchronisations and seconds, a row a task."""
    figure, axes = panels(len(rows.drawn), 2, height=1.9, width=ONE_COLUMN + 1)
    unit, a_second = time_of(source)
    shown: tuple[tuple[str, Callable[[Run], float]], ...] = (
        ("Synchronisations", lambda run: float(run.ledger["syncs"])),
        (f"Training {unit}", lambda run: a_second * measures.training_seconds(run)),
    )
    for line, row in enumerate(rows.drawn.values()):
        for column, (label, value) in enumerate(shown):
            panel = axes[line][column]
            for group, look, _ in in_order(row):
                mean, low, high = curves.spread(group, value)
                panel.hlines(_success(group)[0], low, high, color=look.colour, linewidth=1.0, zorder=2)
                draw_point(panel, mean, _success(group), look)
            panel.set_title(f"{letter(2 * line + column)} {row.title}")
            panel.margins(x=0.12, y=0.15)
            steps(panel, label)
        axes[line][0].set_ylabel("Held-out success, %")
    finish(figure, rows, source, configurations(rows), POINTS, columns=2)
    return figure


def _success(group: RunGroup) -> Range:
    """Of the sampled evaluation after training, in percent: mean and interval; NaN without one."""
    evaluation = measures.held_out(group, "after", "sampled")
    interval = None if evaluation is None else measures.success(evaluation)
    if interval is None:
        return float("nan"), float("nan"), float("nan")
    return _times(100, (interval.mean, interval.low, interval.high))


def _times(scale: float, values: Range) -> Range:
    mean, low, high = (scale * value for value in values)
    return mean, low, high


def _outcome_looks() -> dict[str, Style]:
    return {
        quantity: Style(place, title, colour, MARKERS[place], line)
        for place, (quantity, (title, colour, line)) in enumerate(OUTCOMES.items())
    }


def _early_looks() -> dict[str, Style]:
    colours = (BLUE, VERMILION, GREEN, ORANGE)
    return {
        f"failed_{k}": Style(
            k, f"failed within turn {k}" if k == 1 else f"failed within {k} turns", colour, marker, line
        )
        for k, colour, marker, line in zip(EARLY_TURNS, colours, MARKERS[3:], LINES, strict=False)
    }
