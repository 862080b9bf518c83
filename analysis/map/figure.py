"""The figure of the map: noise by turn, and the measured difference over what decides it, with the boundaries."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure

from analysis.looks import BLUE, GREEN, ORANGE, PURPLE, VERMILION, Style
from analysis.map.records import Place, Records
from analysis.plots import Framed, Line, Panel, handle, points, sheet

NOTE = (
    "Tables, not language models. (b, c) Colour: success of RTPO less that of GRPO at equal rollouts, mean over seeds; "
    "the boundaries are the closed form's. (d) Bars: 95 % t intervals over seeds."
)
SHADES = LinearSegmentedColormap.from_list("map", [VERMILION, "0.93", BLUE])
LOOKS = {
    "even": Style(0, "even decisions", GREEN, "o", ""),
    "late": Style(1, "late decisions", PURPLE, "s", ""),
    "chain": Style(2, "chains", ORANGE, "^", ""),
}
EDGE = 1.25
"""factor between neighbours that would lie on one another"""


def draw(records: Records) -> Figure:
    """Four panels."""
    measured = [place for place in records.places if place.measured["rtpo"]]
    apart = [place for place in measured if place.point.decisions != "chain"]
    chains = [place for place in measured if place.point.decisions == "chain"]
    sizes = list(dict.fromkeys(_budget(place) for place in measured))
    excess: list[Framed] = [
        partial(_coloured, places=apart, at=partial(_at_excess, sizes=sizes)),
        partial(Axes.axvline, x=1, color="black", linewidth=1.0, label="boundary (3)"),
        partial(Axes.set_xscale, value="log"),
        partial(Axes.set_yscale, value="log"),
    ]
    ends = np.array([-0.15, 0.75])
    gain = [partial(_coloured, places=chains, at=lambda place: (place.predicted["cost"], place.predicted["gain"]))]
    boundary = Line(points(ends, ends), Style(0, "", "black", "", "-"), 1.0, label="boundary: gain = cost")
    difference = [_differences(measured, name) for name in LOOKS]
    diagonal = np.array([-0.8, 0.8])
    rows = [
        [
            Panel("Noise of RTPO / of GRPO, by turn", _ratios(records), "f_k (1 − 1/N) / f*", framed=[_log_log]),
            Panel("Decisions apart", [], "Excess: mean f_k / f*", "Step size", excess),
        ],
        [
            Panel("Chains", [boundary], "Cost, predicted", "Gain, predicted", gain),
            Panel(
                "Success of RTPO − GRPO",
                [Line(points(diagonal, diagonal), Style(0, "", "0.3", "", "-"), 0.8), *difference],
                "Predicted",
                "Measured",
                [partial(Axes.set, ylim=(-1.6, 1.6))],
            ),
        ],
    ]
    return sheet(rows, 2.5, NOTE, [handle(look) for look in LOOKS.values()])


def _ratios(records: Records) -> list[Line]:
    lines = []
    for name, look in LOOKS.items():
        noise = [one for one in records.noise if one.point.decisions == name]
        if noise:
            x = np.concatenate([one.simple for one in noise])
            y = np.concatenate([one.measured["rtpo"].mean(0) / one.measured["grpo"].mean(0) for one in noise])
            lines.append(Line(points(x, y), look, 0.6))
    ends = np.array([0.02, 40])
    return [*lines, Line(points(ends, ends), Style(0, "", "0.3", "", "-"), 0.8, label="(2)")]


def _log_log(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    for line in (axes.axhline, axes.axvline):
        line(1, color="0.6", linewidth=0.6, zorder=1)


def _budget(place: Place) -> tuple[int, int]:
    """Group size, and trunks in all."""
    return place.point.group_size, place.point.trunks * place.point.steps


def _at_excess(place: Place, sizes: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Points of other budgets stand a little beside those of the same step size."""
    return place.predicted["excess"], place.point.step_size * EDGE ** sizes.index(_budget(place))


def _coloured(axes: Axes, places: Sequence[Place], at: Callable[[Place], tuple[float, float]]) -> None:
    shade = Normalize(-0.6, 0.6)
    for name, look in LOOKS.items():
        here = [place for place in places if place.point.decisions == name]
        if here:
            x, y = zip(*(at(place) for place in here), strict=True)
            colours = [place.found.mean for place in here]
            drawn = axes.scatter(x, y, c=colours, cmap=SHADES, norm=shade, marker=look.marker, s=16, zorder=3)
            drawn.set_edgecolor("0.4")
            drawn.set_linewidth(0.3)
            bar = drawn
    axes.figure.colorbar(bar, ax=axes, label="RTPO − GRPO", fraction=0.05)


def _differences(places: Sequence[Place], name: str) -> Line:
    here = [place for place in places if place.point.decisions == name]
    found = [place.found for place in here]
    ends = [[getattr(one, end) for one in found] for end in ("mean", "low", "high")]
    return Line(points([place.expected for place in here], *ends), LOOKS[name], 0.6, bars=True)
