"""Success of a study's test against rollouts, generated tokens and time, from the same runs."""

from collections.abc import Iterator
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import metrics, plots
from analysis.load import Frames
from analysis.looks import THIN, WIDTH, Style, styles
from analysis.plots import Line, Panel
from analysis.study.gains import runs_of

AXES = {
    "rollouts": ("Training rollouts", 1.0),
    "generated_tokens": ("Generated tokens, thousands", 1e-3),
    "seconds": ("Minutes of training", 1 / 60),
}
"""by cost: the axis label, and the factor to show it by"""
NOTE = (
    "Means over {} runs of each configuration, at temperature 1. Lines: paths from the tasks' starts, in training. "
    "Marks: questions of the test after training, with 95 % intervals for new seeds on the same warm starts."
)


def has_test_runs(name: str) -> bool:
    """Whether a study has finished runs of its test."""
    source = runs_of(name)
    return bool(source.places["run"].isin(source.frames.names).any())


def cost_figure(name: str, task: str) -> Figure:
    """A panel for each cost, and a line and a mark for each configuration of a study on a task."""
    source = runs_of(name)
    places = source.places[source.places["run"].isin(source.frames.names) & (source.places["task"] == task)]
    configurations = {str(label): source.frames.select(runs) for label, runs in places.groupby("label")["run"]}
    looks = styles(configurations)
    panels = [
        Panel(
            "Success, %",
            [line for label in looks for line in _lines(configurations[label], cost, looks[label])],
            AXES[cost][0],
            framed=[plots.from_zero, partial(Axes.set_xlim, left=0)],
        )
        for cost in AXES
    ]
    counts = " or ".join(map(str, sorted({len(each.names) for each in configurations.values()})))
    entries = [plots.handle(look, 2 * WIDTH) for look in looks.values()]
    return plots.sheet([panels], 2.4, NOTE.format(counts), entries)


def _lines(frames: Frames, cost: str, look: Style) -> Iterator[Line]:
    factor = AXES[cost][1]
    training = metrics.curve_over_runs(frames, "success", cost)
    yield Line(plots.points(factor * training["x"], 100 * training["mean"]), look, THIN, marks=())
    after = metrics.held_out(frames, "after", "sampled")
    success = None if after is None else metrics.success(after)
    if success is not None:
        ended = metrics.costs_of(frames.steps.groupby("run").last())[cost].mean()
        has_seeds = frames.runs["experiment"].nunique() < len(frames.names)  # else the interval is over questions alone
        bounds = (success.low, success.high) if has_seeds else (success.mean, success.mean)
        ends = ([100 * end] for end in (success.mean, *bounds))
        yield Line(plots.points([factor * ended], *ends), look, 2 * WIDTH, bars=True)
