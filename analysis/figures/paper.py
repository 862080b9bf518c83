"""The paper's figure of ratio and KL, the same by turn, and success against cost (docs/results/figures.md).

Each figure shows the main table's runs of one profile.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import metrics, plots
from analysis.load import Frames, experiment, groups, has_runs
from analysis.looks import TASKS, THICK, THIN, styles
from analysis.paper.numbers import load_paper
from analysis.plots import TOY_SCALE, Entry, Line, Panel
from rtpo.errors import DataError


class Reading(NamedTuple):
    """A ratio that the paper's text states. Keys are of paper.yaml."""

    task: str
    label: str
    step_key: str  # of the data step; empty at the start of training, which is our step 1
    ratio_key: str


PAPER = "a100x8"
"""the profile of the paper's machine and models"""
IN_PAPER = ("rtpo", "grpo", "seeupo_flat")
CONTROLS = ("grpo_exact", "seeupo")
FURTHER_LABELS = ("arpo", "tree_grpo")
"""further labels, drawn as thin lines, like controls"""
RATIO, KL = (1.0, 0.05), (0.0, 0.03)
"""the value without mismatch, and the smallest span of the y axis"""
READINGS = (
    Reading("math_paper", "grpo", "", "ratio_grpo_math_start"),
    Reading("math_paper", "grpo", "ratio_math_steps", "ratio_grpo_math_end"),
    Reading("search_paper", "grpo", "", "ratio_knowledge_start"),
    Reading("search_paper", "seeupo_flat", "", "ratio_knowledge_start"),
    Reading("search_paper", "grpo", "ratio_knowledge_steps", "ratio_grpo_knowledge_end"),
    Reading("search_paper", "seeupo_flat", "ratio_knowledge_steps", "ratio_seeupo_knowledge_end"),
)
SUCCESS = "Held-out success, % (T = 1)"
HOLLOW: dict[str, Any] = {"linestyle": "", "markersize": 7, "markerfacecolor": "none", "markeredgewidth": 1.2}
Row = Mapping[str, Frames]
"""the runs of one task, by label"""


@dataclass(frozen=True)
class Source:
    """The main table's runs of a profile. Only these share a figure."""

    profile: str
    command: str  # makes the runs
    tasks: Mapping[str, Row]  # tasks with runs

    def rows(self, *others: str) -> dict[str, Row]:
        """By task, the runs of the paper's methods, the controls and `others`, in the order of legends."""
        labels = {*IN_PAPER, *CONTROLS, *others}
        chosen = {task: {label: row[label] for label in styles({*row} & labels)} for task, row in self.tasks.items()}
        return {task: row for task, row in chosen.items() if row}


def profiles(results: Path) -> tuple[list[Source], list[str]]:
    """The main table of the paper's profile, and of each other profile with finished runs. Also one sentence per task
    that is left out because its records have a fault."""
    by_profile, faults = dict[str, dict[str, Row]]({PAPER: {}}), []
    for folder in sorted(results.glob("main_table_*_*")):
        _, _, profile, task = folder.name.split("_", 3)
        try:
            if has_runs(folder):
                by_profile.setdefault(profile, {})[task] = _row(experiment(results, folder.name))
        except DataError as error:
            faults.append(str(error))
    command = "python experiments/launch.py run main_table profile="
    sources = [Source(name, f"{command}{name}", _in_order(rows)) for name, rows in by_profile.items()]
    return sources, faults


def _row(frames: Frames) -> Row:
    """The configurations in figures. Raises DataError as `groups` does."""
    shown = (*IN_PAPER, *CONTROLS, *FURTHER_LABELS)
    return groups(frames.select(frames.runs["run"][frames.runs["label"].isin(shown)]))


def _in_order(rows: Mapping[str, Row]) -> dict[str, Row]:
    return {task: rows[task] for task in TASKS if task in rows}


def consistency(source: Source) -> Figure:
    """fig:two_results: ratio and KL by data step, one column per task. A task whose runs have a single step is left
    out; raises DataError if all have."""
    rows, is_paper = source.rows(), source.profile == PAPER

    def panel(task: str, row: Row, column: str, what: str, span: tuple[float, float]) -> Panel:
        readings = [partial(_readings, task=task, row=row)] if is_paper and column == "ratio" else []
        # at the complete data steps where all runs have a value
        lines = _lines(row, lambda frames: metrics.spread(metrics.whole_steps(frames)[column].unstack("run")), few=True)
        x = "Data step" if column == "kl" else ""
        return Panel(f"{TASKS[task]}: {what}", lines, x, framed=[*readings, plots.around(*span)])

    kinds = (("ratio", "ratio", RATIO), ("kl", "KL, nats a token", KL))
    columns = {task: [panel(task, row, *kind) for kind in kinds] for task, row in rows.items()}
    rows = {task: rows[task] for task in rows if any(len(line.values) > 1 for line in columns[task][0].lines)}
    if not rows:
        raise DataError(f"{', '.join(columns)}: a single data step gives no curve to draw.")
    panels = [list(row) for row in zip(*(columns[task] for task in rows), strict=True)]
    stated = [(Line2D([], [], marker="o", markeredgecolor="0.3", **HOLLOW), "stated in the paper")] if is_paper else []
    bands = [plots.band()] if max(_seeds(rows)) > 1 else []
    return plots.sheet(panels, 1.75, _about(source, rows), [*_legend(rows), *stated, *bands])


def _readings(axes: Axes, task: str, row: Row) -> None:
    """Draw the ratios of READINGS for the methods in the panel."""
    for reading in READINGS:
        if reading.task == task and reading.label in row:
            keys = (reading.step_key, reading.ratio_key)
            values = (load_paper().statement(key).value.number if key else 1.0 for key in keys)
            x, y = map(float, filter(None, values))
            look = styles([reading.label])[reading.label]
            axes.plot([x], [y], marker=look.marker, markeredgecolor=look.colour, zorder=5, **HOLLOW)


def mismatch_by_turn(source: Source) -> Figure:
    """The ratio and the engine's part of the KL, by turn, one row per task."""
    rows, panels = source.rows(), []
    for task, row in rows.items():
        ratio = _lines(row, _ratio_by_turn, apart=True)
        engine = _lines(row, partial(metrics.by_turn, key="kl_engine"), apart=True)
        first = Panel(f"{TASKS[task]}: ratio", ratio, "Turn k", framed=[plots.around(*RATIO)])
        panels.append([first, Panel(f"{TASKS[task]}: KL, engine part", engine, "Turn k", framed=[plots.around(*KL)])])
    note = "The ratio is exp(−KL), and KL is its context part and its engine part, nats a token."
    note += " Bars: range over seeds."
    return plots.sheet(panels, 1.9, _about(source, rows, note), _legend(rows))


def _ratio_by_turn(frames: Frames) -> pd.DataFrame:
    # the largest KL is the lowest ratio
    kl = metrics.by_turn(frames, "kl").rename(columns={"low": "high", "high": "low"})
    return kl.assign(**{name: np.exp(-kl[name]) for name in ("mean", "low", "high")})


def success(source: Source) -> Figure:
    """Sampled held-out success against tokens and seconds, one row per task. Runs have equal budgets of rollouts."""
    rows, panels = source.rows(*FURTHER_LABELS), []
    tokens, seconds = (("k", 1e-3), ("seconds", 1.0)) if source.profile == "toy" else (("M", 1e-6), ("hours", 1 / 3600))

    def against(frames: Frames, used: str, unit: float) -> pd.DataFrame:
        curve = metrics.held_out_curve(frames)
        return plots.scaled(curve.assign(x=unit * curve[used]), 100)

    def panel(task: str, row: Row, used: str, unit: float, x: str, y: str = "") -> Panel:
        return Panel(TASKS[task], _lines(row, partial(against, used=used, unit=unit)), x, y, framed=[plots.from_left])

    for task, row in rows.items():
        first = panel(task, row, "generated_tokens", tokens[1], f"Generated tokens, {tokens[0]}", SUCCESS)
        panels.append([first, panel(task, row, "seconds", seconds[1], f"Training {seconds[0]}")])
    note = "Bands and bars: 95 % intervals over runs and questions; of one run over questions alone."
    return plots.sheet(panels, 2.0, _about(source, rows, note), _legend(rows))


FIGURES: Mapping[str, Callable[[Source], Figure]] = {
    "consistency": consistency,
    "mismatch_by_turn": mismatch_by_turn,
    "success": success,
}


def _lines(row: Row, values: Callable[[Frames], pd.DataFrame], *, apart: bool = False, few: bool = False) -> list[Line]:
    """A line per configuration, thin lines last, so that they stay visible on equal curves. apart: bars side by side.
    few: few marks, staggered between lines."""
    looks, lines = styles(row), []
    for place, (label, frames) in enumerate(row.items()):
        table = values(frames)
        marks = plots.spread_marks(len(table), place, len(row)) if few else None
        table = plots.shifted(table, place, len(row)) if apart else table
        lines.append(Line(table, looks[label], _width(label), apart, marks))
    return sorted(lines, key=lambda line: line.width == THIN)


def _width(label: str) -> float:
    return THICK if label in IN_PAPER else THIN


def _legend(rows: Mapping[str, Row]) -> list[Entry]:
    """The legend entries, the paper's methods first."""
    looks = styles(label for row in rows.values() for label in row)
    return [plots.handle(looks[label], _width(label)) for label in sorted(looks, key=_width, reverse=True)]


def _seeds(rows: Mapping[str, Row]) -> list[int]:
    return sorted({len(frames.runs) for row in rows.values() for frames in row.values()})


def _about(source: Source, rows: Mapping[str, Row], *notes: str) -> str:
    """The note on a figure's runs, and on the paper's methods without runs."""
    seeds = " or ".join(map(str, _seeds(rows)))
    scale = [TOY_SCALE] if source.profile == "toy" else []
    missing = [f"{label} ({TASKS[task]})" for task, row in rows.items() for label in IN_PAPER if label not in row]
    absent = [f"Not run: {', '.join(missing)}."] if missing else []
    return " ".join((f"Profile {source.profile}; seeds: {seeds}.", *scale, *notes, *absent))
