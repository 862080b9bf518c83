"""The figure of docs/results/when.md: what each configuration of the studies gains over exact GRPO, by task."""

from collections.abc import Mapping
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.looks import TASKS, styles, title_of
from analysis.stats import Interval
from analysis.study.gains import gains
from analysis.study.predictions import CONTROL, PREDICTED, read_predictions
from rtpo.run.config import PROJECT

STUDIES = ("textworld", "turns")
"""a study is shown once its predictions are written, with the comparisons that have enough pairs to be judged"""
WIDTH = 5.5
"""inches"""
SHADE = "0.85"
"""the grey of a predicted range"""
Range = tuple[float, float]


def gain_figure() -> Figure:
    """A panel for each task and a row for each configuration, the largest gain on top."""
    begun = [name for name in STUDIES if (PROJECT / "results" / name / PREDICTED).exists()]
    tasks = [(name, task) for name in begun for task in dict.fromkeys(each.task for each in gains(name))]
    rows = {place: row for place in tasks if (row := gains_over_control(*place))}
    heights = [len(row) + 0.5 for row in rows.values()]
    figure = Figure(figsize=(WIDTH, 0.19 * sum(heights) + 1.2))
    panels = figure.subplots(len(rows), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    for axes, ((name, task), shown) in zip(panels, rows.items(), strict=True):
        draw_gains(axes, shown, predicted_over_control(name, task))
        axes.set_title(TASKS[task])
    note = "Success at temperature 1 gained over exact GRPO with one mini-batch, points (grey: predicted)."
    figure.supxlabel(f"{note}\nSmall models and small budgets: not the paper's results.", fontsize=6.5)
    return figure


def gains_over_control(name: str, task: str) -> dict[str, Interval]:
    """The gain over exact GRPO by configuration of a study, where it is judged. A comparison in which exact GRPO comes
    first counts with the opposite sign."""
    shown = {}
    for each, gain in gains(name).items():
        if not gain.is_judged:
            continue
        value = gain.same_starts
        if (each.task, each.against) == (task, CONTROL):
            shown[each.configuration] = value
        elif (each.task, each.configuration) == (task, CONTROL):
            shown[each.against] = replace(value, mean=-value.mean, low=-value.high, high=-value.low)
    return shown


def predicted_over_control(name: str, task: str) -> dict[str, Range]:
    """What was predicted of these gains, in the family."""
    predicted = {}
    for each in read_predictions(PROJECT / "results" / name):
        if (each.comparison.task, each.comparison.against) == (task, CONTROL):
            predicted[each.comparison.configuration] = (each.low, each.high)
        elif (each.comparison.task, each.comparison.configuration) == (task, CONTROL):
            predicted[each.comparison.against] = (-each.high, -each.low)
    return predicted


def draw_gains(axes: Axes, measured: Mapping[str, Interval], predicted: Mapping[str, Range]) -> None:
    """Mean and 95 % interval of each configuration, in points, over a grey bar with its predicted range."""
    shown = sorted(measured, key=lambda label: measured[label].mean)
    looks = styles(measured)
    for row, label in enumerate(shown):
        gain, look = measured[label], looks[label]
        if label in predicted:
            low, high = predicted[label]
            axes.barh(row, 100 * (high - low), left=100 * low, height=0.7, color=SHADE)
        axes.hlines(row, 100 * gain.low, 100 * gain.high, color=look.colour, linewidth=1.2)
        axes.plot(100 * gain.mean, row, marker=look.marker, color=look.colour, linestyle="")
    axes.axvline(0, color="0.5", linewidth=0.7)
    axes.use_sticky_edges = False  # otherwise a bar may end at the frame
    axes.set_yticks(range(len(shown)), [title_of(label) for label in shown])
    axes.set_ylim(-0.6, len(shown) - 0.4)
