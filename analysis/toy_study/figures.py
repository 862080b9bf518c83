"""The toy study's figures, of its core: held-out success against what it cost, ratio and KL, and ties."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from analysis import measures
from analysis.looks import Style, styles
from analysis.plots import (
    Files,
    beside,
    by_row,
    draw_curve,
    draw_places,
    every_format,
    footnote,
    make_room,
    mark,
    panels,
    save,
)
from analysis.records import RunGroup
from analysis.toy_study.records import StudyRecords

LEGEND_COLUMNS = 3
NAMES = {"toy_math": "Toy math", "toy_knowledge": "Toy knowledge"}
PROGRESS_LABELS = {
    "rollouts": ("Training rollouts", 1.0),
    "generated_tokens": ("Generated tokens, k", 1e-3),
    "seconds": ("Training seconds", 1.0),
}


def success_figure(records: StudyRecords) -> Figure:
    """Sampled held-out success against rollouts, tokens and seconds, a row a task."""
    core, tasks = _core(records)
    figure, axes = panels(len(tasks), len(PROGRESS_LABELS), height=2.15)
    for row, task in enumerate(tasks):
        curves = [(measures.held_out_curve(group), look) for group, look in core[task]]
        for column, (key, (label, scale)) in enumerate(PROGRESS_LABELS.items()):
            panel = axes[row][column]
            for curve, look in curves:
                draw_curve(panel, scale * curve[key], 100 * curve, look, marks=range(len(curve)))
            panel.set_title(f"({chr(97 + row * len(PROGRESS_LABELS) + column)}) {NAMES[task]}")
            panel.set_xlabel(label)
            panel.set_xlim(left=0)
            panel.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes[row][0].set_ylabel("Held-out success, %")
    _finish(figure, core, "Bands: 95 % intervals over runs and questions.")
    return figure


def mismatch_figure(records: StudyRecords) -> Figure:
    """Ratio and KL against rollouts and by turn, a row a task."""
    core, tasks = _core(records)
    figure, axes = panels(len(tasks), 4, height=2.05)
    for row, task in enumerate(tasks):
        for place, (group, look) in enumerate(core[task]):
            for column, key in ((0, "ratio_gm"), (1, "kl_k1")):
                curve = measures.curve_over_runs(group, key)
                every = max(1, len(curve) // 4)
                marks = range(place * every // len(core[task]), len(curve), every)
                # later curves are thinner, so that equal curves show each other
                draw_curve(axes[row][column], curve["rollouts"], curve, look, marks, width=max(0.9, 2.2 - 0.2 * place))
            kl = measures.by_turn(group, measures.turn_kl)
            ratio = pd.DataFrame({"mean": np.exp(-kl["mean"]), "low": np.exp(-kl["high"]), "high": np.exp(-kl["low"])})
            shift = beside(place, len(core[task]))
            draw_places(axes[row][2], kl["turn"] + shift, ratio, look)
            draw_places(axes[row][3], kl["turn"] + shift, kl, look)
        for column, (what, matched, least) in enumerate(2 * (("ratio", 1.0, 0.05), ("KL", 0.0, 0.03))):
            panel = axes[row][column]
            panel.set_title(f"({chr(97 + 4 * row + column)}) {NAMES[task]}: {what}")
            make_room(panel, matched, least)
            panel.set_xlabel("Training rollouts" if column < 2 else "Turn k")
            panel.xaxis.set_major_locator(MaxNLocator(3 if column < 2 else 6, integer=True))
    _finish(figure, core, "KL in nats a token. Means over runs, and their range.")
    return figure


def ties_figure(records: StudyRecords) -> Figure:
    """Zero-advantage share by turn, a panel a task."""
    core, tasks = _core(records)
    figure, axes = panels(1, len(tasks), height=2.4)
    for column, task in enumerate(tasks):
        panel = axes[0][column]
        for place, (group, look) in enumerate(core[task]):
            share = 100 * measures.by_turn(group, measures.turn_zero_advantage)
            shift = beside(place, len(core[task]))
            draw_places(panel, share["turn"] / 100 + shift, share, look)
        panel.set_title(f"({chr(97 + column)}) {NAMES[task]}")
        panel.set_xlabel("Turn k")
        panel.set_ylim(-4, 104)
        panel.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes[0][0].set_ylabel("Groups with advantages all 0, %")
    _finish(figure, core, "Means over runs, and their range.")
    return figure


@dataclass(frozen=True)
class StudyFigure:
    """How a figure is drawn, what it shows in a few words, and its caption."""

    drawn: Callable[[StudyRecords], Figure]
    summary: str
    caption: str


FIGURES: Mapping[str, StudyFigure] = {
    "success": StudyFigure(
        success_figure,
        "Held-out success against rollouts, tokens and seconds.",
        "Sampled held-out success of the core configurations against training rollouts, generated tokens and training "
        "seconds. A run's success on each question, its tokens and its seconds are interpolated linearly between its "
        "evaluations to common rollouts, from 0 to where the configuration's first run ends; tokens and seconds are "
        "means over runs. Bands are 95 % intervals at these points, over questions and over the runs of each warm "
        "start.",
    ),
    "mismatch": StudyFigure(
        mismatch_figure,
        "Training over rollout probability and KL by rollouts and by turn.",
        "Training over rollout probability (geometric mean a token) and KL (k1, nats a token), by training rollouts "
        "and by turn. Both are measured before each update and hold all of the difference: contexts, and weights that "
        "have moved since they sampled. A turn's value is the mean over the updates that train it, then over steps; "
        "ranges are over runs.",
    ),
    "ties": StudyFigure(
        ties_figure,
        "Share of groups without an advantage by turn.",
        "Share of groups whose advantages are all 0, by the turn they train: means over updates and steps, ranges over "
        "runs. Groups differ in size between algorithms.",
    ),
}


def draw(records: StudyRecords, name: str, files: Files) -> None:
    """Draw a figure into `files`, each with its metadata."""
    save(lambda: FIGURES[name].drawn(records), files)


def save_figures(records: StudyRecords, output: Path) -> list[Path]:
    """Draw every figure in every format and return the files; none without runs of the core."""
    if not has_figures(records):
        return []
    made: list[Path] = []
    for name in FIGURES:
        files = every_format(output, f"toy_study_{name}")
        draw(records, name, files)
        made += files
    return made


def has_figures(records: StudyRecords) -> bool:
    return any(records.of_part("core", task) for task in records.tasks)


_Core = Mapping[str, Sequence[tuple[RunGroup, Style]]]


def _core(records: StudyRecords) -> tuple[_Core, list[str]]:
    """The core's configurations with their looks, by task; the tasks that have some."""
    groups = {task: records.of_part("core", task) for task in records.tasks}
    looks = styles(group.label for found in groups.values() for group in found)
    core = {task: [(group, looks[group.label]) for group in found] for task, found in groups.items() if found}
    return core, list(core)


def _finish(figure: Figure, core: _Core, what: str) -> None:
    """One legend for all panels, read row by row, and what the runs are."""
    looks = {look.title: look for found in core.values() for _, look in found}
    ordered = sorted(looks.values(), key=lambda look: look.rank)
    shown = by_row(ordered, LEGEND_COLUMNS)
    handles = [Line2D([], [], **mark(look)) for look in shown]
    figure.legend(handles, [look.title for look in shown], loc="outside upper center", ncols=LEGEND_COLUMNS)
    counts = sorted({len(group.runs) for found in core.values() for group, _ in found})
    runs = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    footnote(
        figure,
        f"toy_study; runs a configuration: {runs}. Toy-scale runs, not the paper's results. {what}",
    )
