"""Curves of runs over their training: the configurations of one experiment side by side, and one run on a sheet."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import measures
from analysis.evaluation import HELD_OUT, decoded
from analysis.figures.shared import ONE_RUN, SEEDS, TOY_SCALE, empty
from analysis.looks import COLOURS, LINES, MARKERS, THIN, WIDTH, Style, styles, title_of
from analysis.measures import SECONDS
from analysis.plots import Line, Panel, around, band, every_format, from_zero, handle, save, scaled, sheet, spread_marks
from analysis.records import Run, RunGroup, complete_groups, is_finished, load_begun
from rtpo.errors import DataError
from rtpo.run.records import RunFolder

APART = 0.012
"""between the held-out marks of one place, as a share of the rollouts"""
RATIO, KL = (1.0, 0.1), (0.0, 0.05)
"""what there is without mismatch, and the least span of an axis"""
X = "Training rollouts"
BEGAN = (
    "A step's values stand at the rollouts that trained the weights it began with. A last step of fewer tasks than the "
    "others is left out."
)


def training_figure(groups: Sequence[RunGroup]) -> Figure:
    """Success, ratio and KL against rollouts, one curve a configuration."""
    looks = styles(group.label for group in groups)

    def over(key: str, place: int, group: RunGroup) -> Line:
        curve = measures.curve_over_runs(group, key)
        # later curves are thinner and their marks elsewhere, so that equal curves show each other
        width = max(1.0, 2.2 - 0.6 * place)
        return Line(curve, looks[group.label], width, marks=spread_marks(len(curve), place, len(groups)))

    placed = list(enumerate(groups))
    success = [line for place, group in placed for line in success_lines(group, looks[group.label], place, len(groups))]
    panels = [
        Panel("Success, %", success, X, framed=[from_zero]),
        *(
            Panel(title, [over(key, *one) for one in placed], X, framed=[around(*span)])
            for title, key, span in (
                ("Ratio, training / rollout", "ratio_gm", RATIO),
                ("KL (k1), nats a token", "kl_k1", KL),
            )
        ),
    ]
    entries = [
        *(handle(look, 2 * WIDTH) for look in looks.values()),
        (Line2D([], [], color="0.4", linewidth=THIN), "(a) training batches"),
        (Line2D([], [], color="0.4", linestyle="", marker="o"), "(a) held-out, 95 % interval"),
        *([band(SEEDS)] if any(len(group.runs) > 1 for group in groups) else []),
    ]
    return sheet([panels], 2.4, _provenance(groups), entries)


def success_lines(group: RunGroup, look: Style, place: int = 0, of: int = 1) -> list[Line]:
    """Of training batches, in thin lines, and held out, as marks; in percent."""
    training = scaled(measures.curve_over_runs(group, "success"), 100)
    held_out = scaled(measures.held_out_curve(group), 100)
    shift = APART * (place - (of - 1) / 2) * held_out["rollouts"].max()
    marked = Style(look.rank, look.title, look.colour, look.marker, "")
    return [
        Line(training, look, THIN, marks=() if len(training) > 1 else None),
        Line(held_out.assign(x=held_out["rollouts"] + shift), marked, 2 * WIDTH, bars=True),
    ]


def _provenance(groups: Sequence[RunGroup]) -> str:
    profiles = sorted({group.first.profile for group in groups})
    seeds = " or ".join(str(count) for count in sorted({len(group.runs) for group in groups}))
    sentences = [
        f"{groups[0].first.manifest['experiment']}; profile {', '.join(profiles)}; seeds: {seeds}.",
        *([TOY_SCALE] if "toy" in profiles else []),
        f"{decoding(groups)} Marks are set side by side.",
        *([ONE_RUN] if any(len(group.runs) == 1 for group in groups) else []),
    ]
    return f"{' '.join(sentences)}\n{BEGAN}"


def decoding(groups: Sequence[RunGroup]) -> str:
    """How success was sampled."""
    given = (run.config.get("sampling") for group in groups for run in group.runs)
    training = " or ".join(sorted({decoded(one) if one else "an unknown temperature" for one in given}))
    return f"Training: sampled at {training}; held out: at {HELD_OUT}."


def draw_training(results: Path, experiment: str, output: Path) -> list[Path]:
    """The training figure in every format; returns the files. Raises DataError as `analysis.records` does."""
    groups = complete_groups(results, experiment)
    files = every_format(output, f"{experiment}_training")
    save(partial(training_figure, groups), files)
    return list(files)


# one run


def run_figure(run: Run) -> Figure:
    """Success, reward, ratio, KL, entropy, lengths, ties and seconds by phase against rollouts."""
    group = RunGroup(run.label, (run,))

    def line(key: str, place: int = 0, label: str = "", by: float = 1.0) -> Line:
        curve = scaled(measures.curve_over_runs(group, key), by)
        return Line(curve, _look(place), marks=spread_marks(len(curve), place, 2), label=label)

    training, held_out = success_lines(group, _look(0))
    success = [replace(training, label="training"), replace(held_out, label="held out")]
    kl = [line("kl_k1", 0, "all of it"), line("context_kl_k1", 1, "by the context")]
    lengths = [line("rollout_tokens", 0, "of a path"), line("turn_tokens", 1, "of a turn")]
    ties = [line("zero_advantage", by=100)]
    phases = list(enumerate(_phases(run)))
    seconds = [line(f"{SECONDS}{phase}", place) for place, phase in phases]
    panels = [
        Panel("Success, %", success, framed=[from_zero]),
        Panel("Mean reward", [line("mean_reward")]),
        Panel("Ratio, train / rollout", [line("ratio_gm")], framed=[around(*RATIO)]),
        Panel("KL (k1), nats", kl, framed=[around(*KL)]),
        Panel("Entropy, nats", [line("entropy")], X, framed=[from_zero]),
        Panel("Tokens sampled", lengths, X, framed=[from_zero]),
        Panel("Zero advantages, %", ties, X, framed=[partial(Axes.set, ylim=(-4, 104))]),
        Panel("Seconds a step", seconds, X, framed=[from_zero]),
    ]
    used = run.steps[-1]["rollouts"]
    alike = partial(Axes.set, xlim=(-0.04 * used, 1.04 * used))
    shown = [
        replace(panel, framed=[*(panel.framed if _is_known(panel) else [empty("not recorded")]), alike])
        for panel in panels
    ]
    entries = [handle(_look(place), title=f"(h) {phase}") for place, phase in phases]
    return sheet([shown[:4], shown[4:]], 2.2, _of_run(run), entries, columns=len(entries))


def _is_known(panel: Panel) -> bool:
    return any(len(line.values) for line in panel.lines)


def _look(place: int) -> Style:
    return Style(place, "", COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)], LINES[place % len(LINES)])


def _phases(run: Run) -> list[str]:
    """Those that took time, the longest first."""
    total = run.steps[-1]["seconds"]
    return sorted((phase for phase, seconds in total.items() if seconds > 0), key=lambda phase: -total[phase])


def _of_run(run: Run) -> str:
    used, budget = RunFolder(run.folder).charged(run.steps), run.config["budget"]["rollouts"]
    state = "finished" if is_finished(run.folder) else "not finished"
    scale = f" {TOY_SCALE}" if run.profile == "toy" else ""
    return (
        f"{run.folder.parent.name}/{run.folder.name}; {title_of(run.label)}; profile {run.profile}; {state}: "
        f"{len(run.steps)} steps, {used:,} of {budget:,} rollouts.{scale}\n{decoding([RunGroup(run.label, (run,))])} "
        f"Bars: 95 % intervals over questions. KL and entropy: a token.\n{BEGAN}"
    )


def draw_run(folder: Path, output: Path) -> list[Path]:
    """The sheet of a run, finished or not, in every format; returns the files. Raises DataError for a folder that is
    none, and for a run without a step."""
    run = load_begun(folder)
    if not run.steps:
        raise DataError(f"{folder} has no finished step yet: there is nothing to draw.")
    files = every_format(output, f"{run.folder.parent.name}_{run.folder.name}")
    save(partial(run_figure, run), files)
    return list(files)
