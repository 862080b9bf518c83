"""Curves of runs over their training: the configurations of an experiment side by side, and one run on a sheet."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import metrics, plots
from analysis.load import Frames, experiment, groups, load_run
from analysis.looks import THIN, WIDTH, Style, look_by_rank, styles, title_of
from analysis.plots import TOY_SCALE, Line, Panel
from rtpo.core.names import counted
from rtpo.errors import DataError

MARK_GAP = 0.012
"""the gap between the held-out marks of two configurations, as a share of the rollouts"""
RATIO, KL = (1.0, 0.1), (0.0, 0.05)
"""the value without mismatch, and the smallest span of the y axis"""
X, SUCCESS = "Training rollouts", "Success, %"
STEP_NOTE = "A step stands at the rollouts used before it; a last step with fewer tasks is left out."


def training_figure(configurations: Mapping[str, Frames]) -> Figure:
    """Success, ratio and KL against rollouts, one curve per configuration. Raises DataError without a curve."""
    looks, count = styles(configurations), len(configurations)

    def line(column: str, place: int, label: str, frames: Frames) -> Line:
        curve = metrics.curve_over_runs(frames, column)
        # later curves are thinner, with staggered marks, so that equal curves stay visible
        marks = plots.spread_marks(len(curve), place, count)
        return Line(curve, looks[label], max(1.0, 2.2 - 0.6 * place), marks=marks)

    ranked = [(place, *each) for place, each in enumerate(configurations.items())]
    success = [_success_lines(frames, looks[label], place, count) for place, label, frames in ranked]
    panels = [
        Panel(SUCCESS, [*chain(*success)], X, framed=[plots.from_zero]),
        Panel("Ratio, training / rollout", [line("ratio", *each) for each in ranked], X, framed=[plots.around(*RATIO)]),
        Panel("KL (k1), nats a token", [line("kl", *each) for each in ranked], X, framed=[plots.around(*KL)]),
    ]
    panels = [panel for panel in panels if any(len(line.values) > 1 for line in panel.lines)]
    if not panels:
        names = ", ".join(name for frames in configurations.values() for name in frames.names)
        raise DataError(f"{names}: a single step, without an evaluation before training, gives no curve to draw.")
    success_entries = [
        (Line2D([], [], color="0.4", linewidth=THIN), "(a) training batches"),
        (Line2D([], [], color="0.4", linestyle="", marker="o"), "(a) held-out, 95 % interval"),
    ]
    entries = [
        *(plots.handle(looks[label], 2 * WIDTH) for label in configurations),
        *(success_entries if panels[0].title == SUCCESS else []),
        *([plots.band()] if any(len(frames.runs) > 1 for frames in configurations.values()) else []),
    ]
    seeds = " or ".join(map(str, sorted({len(frames.runs) for frames in configurations.values()})))
    first = next(iter(configurations.values())).runs.iloc[0]
    bands = " Bands of one seed: 95 % intervals over a batch." if seeds.split()[0] == "1" else ""
    runs = f"{first['experiment']}; profile {first['profile']}; seeds: {seeds}.{bands}"
    return plots.sheet([panels], 2.4, f"{runs} {_scale(first['profile'])}{STEP_NOTE}", entries)


def _success_lines(frames: Frames, look: Style, place: int = 0, count: int = 1) -> list[Line]:
    """Success in percent: of training batches as a thin line, and held out as marks with intervals."""
    training = plots.scaled(metrics.training_success(frames), 100)
    held_out = plots.scaled(metrics.held_out_curve(frames), 100)
    shift = MARK_GAP * (place - (count - 1) / 2) * held_out["rollouts"].max()
    return [
        Line(training, look, THIN, marks=() if len(training) > 1 else None),
        Line(held_out.assign(x=held_out["rollouts"] + shift), replace(look, line=""), 2 * WIDTH, bars=True),
    ]


def _scale(profile: str) -> str:
    return f"{TOY_SCALE} " if profile == "toy" else ""


def draw_training(results: Path, name: str, output: Path) -> list[Path]:
    """The training figure of an experiment in every format; returns the files. Raises DataError without runs."""
    figure = partial(training_figure, groups(experiment(results, name)))
    return plots.save(figure, plots.every_format(output, f"{name}_training"))


def run_figure(frames: Frames) -> Figure:
    """One run: success, reward, ratio, KL, entropy, lengths, ties and seconds by phase against rollouts."""

    def line(column: str, place: int = 0, label: str = "", unit: float = 1.0) -> Line:
        curve = plots.scaled(metrics.curve_over_runs(frames, column), unit)
        return Line(curve, _look(place), marks=plots.spread_marks(len(curve), place, 2), label=label)

    training, held_out = _success_lines(frames, _look(0))
    success = [replace(training, label="training"), replace(held_out, label="held out")]
    tokens = [line("rollout_tokens", 0, "a path"), line("turn_tokens", 1, "a turn")]
    seconds = metrics.training_curve(frames).filter(regex="^seconds_").sum().sort_values(ascending=False)
    phases = {name: place for place, name in enumerate(seconds[seconds > 0].index)}
    zero, used = [plots.from_zero], frames.runs["rollouts"].iloc[0]
    panels = [
        Panel("Success, %", success, framed=zero),
        Panel("Mean reward", [line("mean_reward")]),
        Panel("Ratio, train / rollout", [line("ratio")], framed=[plots.around(*RATIO)]),
        Panel("KL (k1), nats", [line("kl", 0, "all"), line("kl_context", 1, "context")], framed=[plots.around(*KL)]),
        Panel("Entropy, nats", [line("entropy")], X, framed=zero),
        Panel("Tokens sampled", tokens, X, framed=zero),
        Panel("Zero advantages, %", [line("ties", unit=100)], X, framed=[partial(Axes.set, ylim=(-4, 104))]),
        Panel("Seconds a step", [line(phase, place) for phase, place in phases.items()], X, framed=zero),
    ]
    same_range = partial(Axes.set, xlim=(-0.04 * used, 1.04 * used))
    shown = []
    for panel in panels:
        if not any(len(line.values) > 1 for line in panel.lines):
            panel = replace(panel, lines=(), framed=[plots.no_curve])
        shown.append(replace(panel, framed=[*panel.framed, same_range]))
    drawn = phases if shown[-1].lines else {}
    entries = [plots.handle(_look(place), title=f"(h) {phase[8:]}") for phase, place in drawn.items()]
    return plots.sheet([shown[:4], shown[4:]], 2.2, _note(frames), entries, columns=max(1, len(entries)))


def _note(frames: Frames) -> str:
    run, budget = frames.runs.iloc[0], frames.config["budget"]["rollouts"]
    state = "finished" if run["is_finished"] else "not finished"
    return (
        f"{run['run']}; {title_of(run['label'])}; profile {run['profile']}; {state}: {counted(run['steps'], 'step')}, "
        f"{run['rollouts']:,} of {counted(budget, 'rollout')}. {_scale(run['profile'])}Bars: 95 % intervals over "
        f"questions. KL and entropy: a token. {STEP_NOTE}"
    )


def _look(place: int) -> Style:
    return Style(place, "", *look_by_rank(place))


def draw_run(folder: Path, output: Path) -> list[Path]:
    """The sheet of a run, finished or not, in every format; returns the files. Raises DataError for a folder without a
    run, and for a run without a step."""
    frames = load_run(folder, finished=False)
    if not len(frames.steps):
        raise DataError(f"{folder} has no finished step yet: there is nothing to draw.")
    return plots.save(partial(run_figure, frames), plots.every_format(output, frames.names[0].replace("/", "_")))
