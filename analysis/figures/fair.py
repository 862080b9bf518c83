"""The figure of docs/results/when.md: what each method gains over exact GRPO on the three walks."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from analysis.fair import WALKS, Compared, of_study
from analysis.looks import styles, title_of
from analysis.plots import ONE_COLUMN, TOY_SCALE

AGAINST = "grpo_exact"
PREDICTED = "0.85"
"""the grey of a predicted range"""


def gain_figure() -> Figure:
    """Of the study's runs."""
    return drawn(of_study()[1])


def drawn(estimates: Sequence[Compared]) -> Figure:
    """A row a method, the largest gain first: mean and 95 % interval in points, on a bar of what was predicted."""
    shown = [each for each in estimates if each.of.against == AGAINST and each.of.tasks == WALKS]
    shown.sort(key=lambda each: each.here.mean)
    looks = styles(each.of.configuration for each in shown)
    figure = Figure(figsize=(ONE_COLUMN, 0.26 * len(shown) + 1.1))
    axes = figure.subplots()
    for row, each in enumerate(shown):
        look = looks[each.of.configuration]
        axes.barh(row, 100 * (each.of.high - each.of.low), left=100 * each.of.low, height=0.7, color=PREDICTED)
        axes.hlines(row, 100 * each.here.low, 100 * each.here.high, color=look.colour, linewidth=1.2)
        axes.plot(100 * each.here.mean, row, marker=look.marker, color=look.colour, linestyle="")
    axes.axvline(0, color="0.5", linewidth=0.7)
    axes.set_yticks(range(len(shown)), [title_of(each.of.configuration) for each in shown])
    figure.suptitle("RTPO gains at its best, not at the paper's proportions", fontsize=7)
    figure.supxlabel(f"Gain over exact GRPO, points (grey: predicted).\n{TOY_SCALE}", fontsize=6.5)
    return figure
