"""The paper's figure of ratio and KL, and what else is told over training steps: by turn, cost, zero advantages."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
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
    empty,
    lines,
    provenance,
    time_of,
    tokens_of,
)
from analysis.figures.sources import PAPER, Source, looks
from analysis.looks import MARKERS, WIDTH, Style
from analysis.paper.numbers import load_paper
from analysis.plots import Line, Panel, around, handle, scaled, sheet, spread_marks
from analysis.records import RunGroup
from analysis.tables import NOT_RUN

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
HOLLOW: dict[str, Any] = {"linestyle": "", "markersize": 7, "markerfacecolor": "none", "markeredgewidth": 1.2}
RATIO, KL = (1.0, 0.05), (0.0, 0.03)
"""what there is without mismatch, and the least span of an axis"""


def consistency(rows: Rows, source: Source) -> Figure:
    """fig:two_results: ratio and KL by data step, a column a task."""
    is_paper = source.profile == PAPER
    panels = [
        [
            Panel(
                f"{row.title}: {what}",
                lines(row, partial(curves.by_step, key=key), few=True),
                x,
                framed=[
                    *([partial(_readings, role=role, of=looks([row]))] if is_paper and not x else []),
                    around(*span),
                ],
            )
            for role, row in rows.drawn.items()
        ]
        for key, what, x, span in (("ratio_gm", "ratio", "", RATIO), ("kl_k1", "KL, nats a token", "Data step", KL))
    ]
    stated = [(Line2D([], [], marker="o", markeredgecolor="0.3", **HOLLOW), STATED)] if is_paper else []
    note = "" if is_paper else "The paper's readings, which are of other tasks and models, are left out."
    return sheet(panels, 1.75, provenance(rows, source, [note]), [*configurations(rows), *stated, *bands(rows)])


def _readings(axes: Axes, role: str, of: Mapping[str, Style]) -> None:
    """What the paper's text says of its figure, of the methods that are drawn."""
    paper = load_paper()
    for of_role, label, step, key in READINGS:
        if of_role == role and label in of:
            x, y = (one if isinstance(one, int) else paper.statement(one).value.number for one in (step, key))
            assert x is not None
            assert y is not None
            look = of[label]
            axes.plot([x], [y], marker=look.marker, markeredgecolor=look.colour, zorder=5, **HOLLOW)


def mismatch_by_turn(rows: Rows, source: Source) -> Figure:
    """The ratio, the KL and its two parts by turn, a row a task."""
    kinds: dict[str, Callable[[RunGroup], pd.DataFrame]] = {
        "ratio": lambda group: curves.ratio_of(measures.by_turn(group, measures.turn_kl)),
        "KL": partial(measures.by_turn, value=measures.turn_kl),
        "KL, context part": partial(measures.by_turn, value=curves.turn_part_kl("context")),
        "KL, engine part": partial(measures.by_turn, value=curves.turn_part_kl("engine")),
    }
    panels = []
    for row in rows.drawn.values():
        found = {what: lines(row, values, bars=True, apart=True) for what, values in kinds.items()}
        shared = around(*KL, [line.values for what, of in found.items() if what != "ratio" for line in of])
        frames = {what: around(*RATIO) if what == "ratio" else shared for what in kinds}
        panels.append(
            [Panel(f"{row.title}:\n{what}", of, "Turn k", framed=[frames[what]]) for what, of in found.items()]
        )
    note = "KL in nats a token; its panels of a row share a scale. Bars: range over seeds."
    return sheet(panels, 1.9, provenance(rows, source, [note]), configurations(rows))


def success_and_cost(rows: Rows, source: Source) -> Figure:
    """Sampled held-out success against rollouts, tokens and seconds, a row a task."""
    (tokens, a_token), (time, a_second) = tokens_of(source), time_of(source)
    cost = {
        "rollouts": ("Training rollouts", 1.0),
        "generated_tokens": (f"Generated tokens, {tokens}", a_token),
        "seconds": (f"Training {time}", a_second),
    }

    def against(group: RunGroup, key: str) -> pd.DataFrame:
        curve = measures.held_out_curve(group)
        return scaled(curve.assign(x=cost[key][1] * curve[key]), 100)

    panels = [
        [
            Panel(
                row.title,
                lines(row, partial(against, key=key)),
                label,
                SUCCESS if key == "rollouts" else "",
                [partial(Axes.set, xlim=(0, None))],
            )
            for key, (label, _) in cost.items()
        ]
        for row in rows.drawn.values()
    ]
    return sheet(panels, 2.0, provenance(rows, source, [f"Bands: {INTERVALS}.", ONE_RUN]), configurations(rows))


def ties(rows: Rows, source: Source) -> Figure:
    """Zero-advantage share by turn over training: a row a task, a column a method, a line a turn."""
    found = looks(list(rows.drawn.values()))
    turns = sorted({k for row in rows.drawn.values() for group in row.groups for k in curves.trained_turns(group)})

    def panel(title: str, group: RunGroup | None, y: str) -> Panel:
        if group is None:
            return Panel(title, [], framed=[empty(NOT_RUN)])
        made = []
        for place, k in enumerate(curves.trained_turns(group)):
            curve = scaled(curves.ties_over_training(group, k), 100)
            marks = spread_marks(len(curve), place, len(turns))
            made.append(Line(curve.assign(low=curve["mean"], high=curve["mean"]), _turn_look(k, turns), marks=marks))
        return Panel(title, made, "Training rollouts", y, [partial(Axes.set, xlim=(0, None), ylim=(-4, 104))])

    panels = [
        [
            panel(f"{row.title}:\n{_short(look)}", row.group(label), "" if column else "Zero-advantage rate, %")
            for column, (label, look) in enumerate(found.items())
        ]
        for row in rows.drawn.values()
    ]
    entries = [handle(_turn_look(k, turns), WIDTH) for k in turns]
    note = provenance(rows, source, ["Means over seeds."])
    return sheet(panels, 1.85, note, entries, columns=min(6, len(entries)))


def _turn_look(k: int, turns: Sequence[int]) -> Style:
    """Later turns are lighter, so that the order survives a copy without colours."""
    shade = 0.85 * turns.index(k) / max(1, len(turns) - 1)
    return Style(k, f"turn {k}", to_hex(colormaps["viridis"](shade)), MARKERS[k % len(MARKERS)], "-")


def _short(look: Style) -> str:
    """A title without what its panel has no room for."""
    return look.title.partition(" (")[0].removesuffix(" history")
