"""Draw figures from run records.

    python analysis/make_figures.py                          every figure of the paper that has complete runs
    python analysis/make_figures.py --figure consistency     one of them
    python analysis/make_figures.py --experiment quickstart  the training curves of one experiment
    python analysis/make_figures.py --page                   docs/results/figures.md; --check tells whether it is stale

What was not run is printed with the command that would.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rtpo.run.command import Parser, command, folder

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from analysis import measures
from analysis.figures import page as figure_page
from analysis.figures.paper_figures import FIGURES
from analysis.intervals import Interval
from analysis.labels import Style, styles
from analysis.plots import METADATA, Files, by_row, footnote, make_room, save
from analysis.records import RunGroup, complete_groups
from rtpo.run.config import PROJECT

MARKS_PER_CURVE = 6
LEGEND_COLUMNS = 3
BAND_ALPHA = 0.15
SIDE_STEP = 0.012
"""between held-out marks of one place, as a share of the rollouts"""


def training_figure(groups: Sequence[RunGroup]) -> Figure:
    """Success, ratio and KL against rollouts, one curve a configuration."""
    looks = styles(group.label for group in groups)
    figure = Figure(figsize=(7.2, 3.1))
    success, ratio, kl = figure.subplots(1, 3)
    for place, group in enumerate(groups):
        look = looks[group.label]
        _draw_success(success, group, look, shift=place - (len(groups) - 1) / 2)
        _draw_mismatch(ratio, group, "ratio_gm", look, place, len(groups))
        _draw_mismatch(kl, group, "kl_k1", look, place, len(groups))
    success.set_ylim(bottom=0)
    make_room(ratio, 1.0, least=0.1)
    make_room(kl, 0.0, least=0.05)
    for axes, title in (
        (success, "(a) Success, %"),
        (ratio, "(b) Ratio, training / rollout"),
        (kl, "(c) KL (k1), nats a token"),
    ):
        axes.set_title(title)
        axes.set_xlabel("Training rollouts")
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    _draw_legend(figure, success, groups, looks)
    footnote(figure, _provenance(groups))
    return figure


def _draw_success(axes: Axes, group: RunGroup, style: Style, shift: float) -> None:
    curve = measures.curve_over_runs(group, "success")
    axes.plot(
        curve["rollouts"], 100 * curve["mean"], color=style.colour, linestyle=style.line, linewidth=0.7, alpha=0.8
    )
    _draw_band(axes, group, curve["rollouts"], 100 * curve["low"], 100 * curve["high"], style)
    end = measures.mean_over_runs(group, lambda run: run.ledger["rollouts"])
    for when, rollouts in (("before", 0.0), ("after", end)):
        evaluation = measures.held_out(group, when, "sampled")
        interval = None if evaluation is None else measures.success(evaluation)
        if interval is not None:
            # beside each other where configurations share a place
            _draw_interval(axes, rollouts + SIDE_STEP * end * shift, interval, style.colour, style.marker)


def _draw_mismatch(axes: Axes, group: RunGroup, key: str, style: Style, place: int, of: int) -> None:
    curve = measures.curve_over_runs(group, key)
    every = max(1, len(curve) // MARKS_PER_CURVE)
    _draw_band(axes, group, curve["rollouts"], curve["low"], curve["high"], style)
    # later curves are thinner and their marks elsewhere, so that equal curves show each other
    axes.plot(
        curve["rollouts"],
        curve["mean"],
        color=style.colour,
        linestyle=style.line,
        linewidth=max(1.0, 2.6 - 0.7 * place),
        marker=style.marker,
        markeredgecolor="white",
        markeredgewidth=0.4,
        markevery=(place * every // of, every),
        zorder=3,
    )


def _draw_band(axes: Axes, group: RunGroup, x: pd.Series, low: pd.Series, high: pd.Series, style: Style) -> None:
    if len(group.runs) > 1:
        axes.fill_between(x, low, high, color=style.colour, alpha=BAND_ALPHA, linewidth=0, zorder=2)


def _draw_interval(axes: Axes, x: float, success: Interval, colour: str, marker: str) -> ErrorbarContainer:
    return axes.errorbar(
        [x],
        [100 * success.mean],
        yerr=[[100 * (success.mean - success.low)], [100 * (success.high - success.mean)]],
        color=colour,
        marker=marker,
        linestyle="",
        markersize=6,
        markeredgecolor="white",
        markeredgewidth=0.5,
        capsize=2,
        elinewidth=1,
        zorder=4,
    )


def _draw_legend(figure: Figure, success: Axes, groups: Sequence[RunGroup], looks: Mapping[str, Style]) -> None:
    """One legend for all panels, read row by row."""
    entries: list[tuple[Artist | ErrorbarContainer, str]] = [
        (Line2D([], [], color=style.colour, linestyle=style.line, marker=style.marker), style.title)
        for style in looks.values()
    ]
    nowhere = Interval(float("nan"), float("nan"), float("nan"), 0, 0)
    entries.append((Line2D([], [], color="0.4", linewidth=0.7), "(a) training batches"))
    entries.append((_draw_interval(success, 0.0, nowhere, "0.4", "o"), "(a) held-out, 95 % interval"))
    if any(len(group.runs) > 1 for group in groups):
        entries.append((Patch(color="0.4", alpha=BAND_ALPHA, linewidth=0), "range over seeds"))
    handles, titles = zip(*by_row(entries, LEGEND_COLUMNS), strict=True)
    figure.legend(handles, titles, loc="outside upper center", ncols=LEGEND_COLUMNS)


def _provenance(groups: Sequence[RunGroup]) -> str:
    experiment = groups[0].first.manifest["experiment"]
    profiles = sorted({group.first.profile for group in groups})
    seeds = " or ".join(str(count) for count in sorted({len(group.runs) for group in groups}))
    sentences = [f"{experiment}; profile {', '.join(profiles)}; seeds: {seeds}."]
    if "toy" in profiles:
        sentences.append("Toy-scale runs, not the paper's results.")
    sentences.append("Held-out: marks set side by side.")
    if any(len(group.runs) == 1 for group in groups):
        sentences.append("With 1 seed intervals are over questions alone, other seeds unknown.")
    where = "A step's training success, ratio and KL stand at the rollouts that trained the weights it began with."
    return f"{' '.join(sentences)}\n{where}"


def save_figure(groups: Sequence[RunGroup], files: Files) -> None:
    """Draw the figure of these configurations into `files`, each with its metadata."""
    save(lambda: training_figure(groups), files)


def make_figures(results: Path, experiment: str, output: Path) -> list[Path]:
    """Draw every figure of an experiment and return the files. Raises DataError as `analysis.records` does."""
    groups = complete_groups(results, experiment)
    files = {output / f"{experiment}_training.{suffix}": metadata for suffix, metadata in METADATA.items()}
    save_figure(groups, files)
    return list(files)


def make_paper_figures(results: Path, names: Sequence[str], output: Path) -> tuple[list[Path], list[str]]:
    """Draw these figures of the paper as far as they have runs; returns the files, and what was not run with the
    commands that would. Raises DataError as `analysis.records` does."""
    found = figure_page.drawings(results, names)
    return figure_page.save_figures(found, output), [line for drawing in found if (line := drawing.not_run())]


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(__doc__)
    parser.add_argument("--results", type=folder, default="results", help="folder of the run records")
    parser.add_argument("--output", type=Path, help="folder of the figures (default: figures/ under --results)")
    parser.add_argument(
        "--project", type=folder, default=str(PROJECT), help="folder of docs/ and results/ for the next two"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--experiment", help="the training curves of this folder under --results instead")
    what.add_argument("--figure", choices=FIGURES, help="one figure of the paper; fails where nothing of it was run")
    what.add_argument("--page", action="store_true", help="write docs/results/figures.md and its pictures")
    what.add_argument("--check", action="store_true", help="write nothing; fail when one of these is stale")
    given = parser.parse_args(arguments)
    output = given.output or given.results / "figures"
    if given.check:
        return _check(given.project)
    missing: list[str] = []
    if given.page:
        files = figure_page.save_page(given.project)
    elif given.experiment:
        files = make_figures(given.results, given.experiment, output)
    else:
        names = [given.figure] if given.figure else list(FIGURES)
        files, missing = make_paper_figures(given.results, names, output)
    is_failed = bool(given.figure and not files)
    for line in (*files, *missing):
        print(line, file=sys.stderr if is_failed else sys.stdout)
    return int(is_failed)


def _check(project: Path) -> int:
    old = figure_page.stale(project)
    for path in old:
        print(f"{path} is not what the records give: {figure_page.COMMAND} --page", file=sys.stderr)
    return int(bool(old))


if __name__ == "__main__":
    sys.exit(main())
