"""The figure of docs/results/when.md: what each method gains over exact GRPO on the three walks."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from analysis.fair import WALKS, Comparison, estimates
from analysis.looks import styles, title_of
from analysis.plots import ONE_COLUMN, TOY_SCALE

AGAINST = "grpo_exact"
PREDICTED = "0.85"
"""the grey of a predicted range"""


def gain_figure() -> Figure:
    """The figure of the study's runs."""
    return draw_gains(estimates())


def draw_gains(estimated: Sequence[Comparison]) -> Figure:
    """One row per method, the largest gain on top: mean and 95 % interval in points, over a grey bar with the predicted
    range."""
    chosen = [each for each in estimated if each.against == AGAINST and each.tasks == WALKS]
    shown = sorted(((each, each.fixed_starts) for each in chosen if each.fixed_starts), key=lambda pair: pair[1].mean)
    looks = styles(each.configuration for each, _ in shown)
    figure = Figure(figsize=(ONE_COLUMN, 0.26 * len(shown) + 1.1))
    axes = figure.subplots()
    for row, (each, gain) in enumerate(shown):
        look = looks[each.configuration]
        axes.barh(row, 100 * (each.high - each.low), left=100 * each.low, height=0.7, color=PREDICTED)
        axes.hlines(row, 100 * gain.low, 100 * gain.high, color=look.colour, linewidth=1.2)
        axes.plot(100 * gain.mean, row, marker=look.marker, color=look.colour, linestyle="")
    axes.axvline(0, color="0.5", linewidth=0.7)
    axes.set_yticks(range(len(shown)), [title_of(each.configuration) for each, _ in shown])
    figure.suptitle("Three toy walks, each method at one searched rate", fontsize=7)
    note = "Success at T = 0.6 gained over exact GRPO, points (grey: predicted).\n"
    note += "Exact GRPO has one mini-batch, and RTPO at its best four.\n"
    figure.supxlabel(f"{note}{TOY_SCALE}", fontsize=6.5)
    return figure
