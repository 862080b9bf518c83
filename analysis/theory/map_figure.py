"""The map's figure in docs/results/theory.md: noise by turn, and measured differences over predicted quantities."""

from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure

from analysis.looks import GREEN, ORANGE, PURPLE, Style
from analysis.plots import Framed, Line, Panel, handle, points, sheet
from analysis.theory.map import noise, places

NOTE = (
    "Tables, not language models. (b, c) Colour: success of RTPO less that of GRPO at equal rollouts, mean over seeds; "
    "the boundaries are the closed form's. (d) Bars: 95 % t intervals over seeds."
)
SHADES = LinearSegmentedColormap.from_list("map", ["#FFC994", "#B5A9A4", "#003C78"])
"""from light to dark, so that signs also differ in grey"""
LOOKS = {
    "even": Style(0, "even decisions", GREEN, "o", ""),
    "late": Style(1, "late decisions", PURPLE, "s", ""),
    "chain": Style(2, "chains", ORANGE, "^", ""),
}
EDGE = 1.25
"""a factor that separates points with different budgets at the same place"""


def draw() -> Figure:
    """The figure, with four panels."""
    frame, turns = places(), noise()
    budgets = pd.factorize(pd.MultiIndex.from_arrays([frame["group_size"], frame["trunks"] * frame["steps"]]))[0]
    apart = frame["decisions"] != "chain"
    excess: list[Framed] = [
        partial(_coloured, frame=frame[apart], x=frame["excess"], y=32 / frame["steps"] * EDGE**budgets),
        partial(Axes.axvline, x=1, color="black", linewidth=1.0, label="boundary (3)"),
        _log_log,
    ]
    gain = partial(_coloured, frame=frame[~apart], x=frame["cost"], y=frame["gain"])
    boundary = _diagonal(-0.15, 0.75, "black", "boundary: gain = cost", 1.0)
    limits = partial(Axes.set, ylim=(-1.6, 1.6))
    noises: list[Line] = []
    differences = [_diagonal(-0.8, 0.8, "0.3")]
    for name, look in LOOKS.items():
        part = turns[turns["decisions"] == name]
        noises.append(Line(points(part["simple"], part["rtpo_noise"] / part["grpo_noise"]), look, 0.6))
        part = frame[frame["decisions"] == name]
        values = points(part["expected"], part["mean"], list(part["low"]), list(part["high"]))
        differences.append(Line(values, look, 0.6, bars=True))
    noises.append(_diagonal(0.02, 40, "0.3", "(2)"))
    rows = [
        [
            Panel("Noise of RTPO / of GRPO, by turn", noises, "f_k (1 − 1/N) / f*", framed=[_log_log, _ones]),
            Panel("Decisions apart", [], "Excess: mean f_k / f*", "Step size", excess),
        ],
        [
            Panel("Chains", [boundary], "Cost, predicted", "Gain, predicted", [gain]),
            Panel("Success of RTPO − GRPO", differences, "Predicted", "Measured", [limits]),
        ],
    ]
    return sheet(rows, 2.5, NOTE, [handle(look) for look in LOOKS.values()])


def _diagonal(low: float, high: float, colour: str, label: str = "", width: float = 0.8) -> Line:
    return Line(points([low, high], [low, high]), Style(0, "", colour, "", "-"), width, label=label)


def _log_log(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")


def _ones(axes: Axes) -> None:
    for line in (axes.axhline, axes.axvline):
        line(1, color="0.6", linewidth=0.6, zorder=1)


def _coloured(axes: Axes, frame: pd.DataFrame, x: "pd.Series[float]", y: "pd.Series[float]") -> None:
    looks: dict[str, Any] = {"cmap": SHADES, "norm": Normalize(-0.6, 0.6), "edgecolors": "0.4", "linewidths": 0.3}
    for name, part in frame.groupby("decisions"):
        place, marker = (x[part.index], y[part.index]), LOOKS[str(name)].marker
        drawn = axes.scatter(*place, c=part["mean"], marker=marker, s=16, zorder=3, **looks)
    axes.figure.colorbar(drawn, ax=axes, label="RTPO − GRPO", fraction=0.05)
