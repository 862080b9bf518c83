"""The paper's figure of ratio and KL, and what else is told over training steps: by turn, cost, zero advantages."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import measures
from analysis.figures import curves
from analysis.figures.shared import (
    INTERVAL,
    ONE_RUN,
    SEEDS,
    Entry,
    Rows,
    band,
    configurations,
    finish,
    handle,
    in_order,
    not_run,
    steps,
    time_of,
    tokens_of,
    width,
)
from analysis.figures.sources import PAPER, Source, looks
from analysis.looks import MARKERS, Style
from analysis.paper.numbers import load_paper
from analysis.plots import beside, draw_curve, draw_places, letter, make_room, mark, panels, spread_marks

STATED = "stated in the paper"
READINGS = (
    ("math", "grpo", 1, "ratio_grpo_math_start"),
    ("math", "grpo", "ratio_math_steps", "ratio_grpo_math_end"),
    ("search", "grpo", 1, "ratio_knowledge_start"),
    ("search", "seeupo_flat", 1, "ratio_knowledge_start"),
    ("search", "grpo", "ratio_knowledge_steps", "ratio_grpo_knowledge_end"),
    ("search", "seeupo_flat", "ratio_knowledge_steps", "ratio_seeupo_knowledge_end"),
)
"""what the paper's text reads off its figure: role, label, step and ratio, by their keys in paper.yaml; its start is
our step 1"""


def consistency(rows: Rows, source: Source) -> Figure:
    """fig:two_results: ratio and KL by data step, a column a task."""
    figure, axes = panels(2, len(rows.drawn), height=1.75)
    for column, (role, row) in enumerate(rows.drawn.items()):
        for line, (key, what, matched, least) in enumerate(
            (("ratio_gm", "ratio", 1.0, 0.05), ("kl_k1", "KL, nats a token", 0.0, 0.03))
        ):
            panel = axes[line][column]
            for group, look, place in in_order(row):
                curve = curves.by_step(group, key)
                marks = spread_marks(len(curve), place, len(row.groups))
                draw_curve(panel, curve["x"], curve, look, marks, width(group))
            if key == "ratio_gm" and source.profile == PAPER:
                _draw_readings(panel, role, looks([row]))
            panel.set_title(f"{letter(line * len(rows.drawn) + column)} {row.title}: {what}")
            make_room(panel, matched, least)
            steps(panel, "Data step" if line else "")
    is_paper = source.profile == PAPER
    stated: list[Entry] = [(Line2D([], [], **_hollow("o", "0.3")), STATED)] if is_paper else []
    note = "" if is_paper else "The paper's readings, which are of other tasks and models, are left out."
    finish(figure, rows, source, [*configurations(rows), *stated, *band(rows, SEEDS)], note)
    return figure


def mismatch_by_turn(rows: Rows, source: Source) -> Figure:
    """The ratio, the KL and its two parts by turn, a row a task."""
    figure, axes = panels(len(rows.drawn), 4, height=1.9)
    for line, row in enumerate(rows.drawn.values()):
        for group, look, place in in_order(row):
            kinds = (measures.turn_kl, *map(curves.turn_part_kl, ("context", "engine")))
            whole, *of_parts = (measures.by_turn(group, kind) for kind in kinds)
            shift = beside(place, len(row.groups))
            for panel, values in zip(axes[line], (curves.ratio_of(whole), whole, *of_parts), strict=True):
                draw_places(panel, values["turn"] + shift, values, look, width(group))
        names = ("ratio", "KL", "KL, context part", "KL, engine part")
        for column, (panel, what) in enumerate(zip(axes[line], names, strict=True)):
            panel.set_title(f"{letter(4 * line + column)} {row.title}:\n{what}")
            make_room(panel, *((1.0, 0.05) if column == 0 else (0.0, 0.03)))
            steps(panel, "Turn k")
        shared = [panel.get_ylim() for panel in axes[line][1:]]
        for panel in axes[line][1:]:
            panel.set_ylim(min(low for low, _ in shared), max(high for _, high in shared))
    note = "KL in nats a token; its panels of a row share a scale. Bars: range over seeds."
    finish(figure, rows, source, configurations(rows), note)
    return figure


def success_and_cost(rows: Rows, source: Source) -> Figure:
    """Sampled held-out success against rollouts, tokens and seconds, a row a task."""
    (tokens, a_token), (time, a_second) = tokens_of(source), time_of(source)
    cost = {
        "rollouts": ("Training rollouts", 1.0),
        "generated_tokens": (f"Generated tokens, {tokens}", a_token),
        "seconds": (f"Training {time}", a_second),
    }
    figure, axes = panels(len(rows.drawn), len(cost), height=2.0)
    for line, row in enumerate(rows.drawn.values()):
        found = [(measures.held_out_curve(group), group, look) for group, look, _ in in_order(row)]
        for column, (key, (label, scale)) in enumerate(cost.items()):
            panel = axes[line][column]
            for curve, group, look in found:
                draw_curve(panel, scale * curve[key], 100 * curve, look, range(len(curve)), width(group))
            panel.set_title(f"{letter(line * len(cost) + column)} {row.title}")
            panel.set_xlim(left=0)
            steps(panel, label)
        axes[line][0].set_ylabel("Held-out success, %")
    finish(figure, rows, source, configurations(rows), f"Bands: {INTERVAL}s. {ONE_RUN}")
    return figure


def ties(rows: Rows, source: Source) -> Figure:
    """Zero-advantage share by turn over training: a row a task, a column a method, a line a turn."""
    found = looks(list(rows.drawn.values()))
    figure, axes = panels(len(rows.drawn), len(found), height=1.85)
    turns = sorted({k for row in rows.drawn.values() for group in row.groups for k in curves.trained_turns(group)})
    for line, row in enumerate(rows.drawn.values()):
        for column, (label, look) in enumerate(found.items()):
            panel, group = axes[line][column], row.group(label)
            panel.set_title(f"{letter(line * len(found) + column)} {row.title}:\n{_short(look)}")
            panel.set_ylim(-4, 104)
            if group is None:
                not_run(panel)
                continue
            for place, k in enumerate(curves.trained_turns(group)):
                curve = curves.ties_over_training(group, k)
                marks = list(spread_marks(len(curve), place, len(turns)))
                look = _turn_look(k, turns)
                panel.plot(curve["x"], 100 * curve["mean"], **mark(look), markevery=marks)
            panel.set_xlim(left=0)
            steps(panel, "Training rollouts")
        axes[line][0].set_ylabel("Zero-advantage rate, %")
    entries = [(handle(look, 1.1), look.title) for look in (_turn_look(k, turns) for k in turns)]
    finish(figure, rows, source, entries, "Means over seeds.", columns=min(6, len(entries)))
    return figure


def _draw_readings(panel: Axes, role: str, found: Mapping[str, Style]) -> None:
    """What the paper's text says of its figure, of the methods that are drawn."""
    paper = load_paper()
    for of_role, label, step, key in READINGS:
        if of_role == role and label in found:
            x, y = (one if isinstance(one, int) else paper.statement(one).value.number for one in (step, key))
            look = found[label]
            panel.plot(*np.array([[x], [y]], float), **_hollow(look.marker, look.colour), zorder=5)


def _hollow(marker: str, colour: str) -> dict[str, Any]:
    return {
        "marker": marker,
        "linestyle": "",
        "markersize": 7,
        "markerfacecolor": "none",
        "markeredgecolor": colour,
        "markeredgewidth": 1.2,
    }


def _turn_look(k: int, turns: Sequence[int]) -> Style:
    """Later turns are lighter, so that the order survives a copy without colours."""
    shade = 0.85 * turns.index(k) / max(1, len(turns) - 1)
    colour = to_hex(colormaps["viridis"](shade))
    return Style(k, f"turn {k}", colour, MARKERS[k % len(MARKERS)], "-")


def _short(look: Style) -> str:
    """A title without what its panel has no room for."""
    return look.title.partition(" (")[0].removesuffix(" history")
