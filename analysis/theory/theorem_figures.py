"""The figures of docs/results/theory.md, one per theorem."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.looks import BLACK, BLUE, GREEN, ORANGE, PURPLE, VERMILION, LineStyle, Style
from analysis.plots import Framed, Line, Panel, handle, points, sheet
from analysis.theory import comparisons
from analysis.theory.comparisons import FOLDER, over_seeds_and_mdps, select
from analysis.theory.theorems import FAMILIES

SCALE = "Tables, not language models."
LOOKS = {
    "reverse_fresh": Style(0, "reverse order, fresh (RTPO)", BLUE, "o", "-"),
    "reverse_stale": Style(1, "reverse order, stale", VERMILION, "s", "--"),
    "forward_fresh": Style(2, "forward order, fresh", GREEN, "^", "-."),
}
SIDE_STEP = 0.2
LEAST = 200
"""returns that a state and action needs to be drawn"""


def theory_1() -> Figure:
    """Success as a share of the optimum: after a sweep by MDP, and during training by family."""
    sweep = select(1, FOLDER, "sweep")
    sweep = sweep.assign(share=100 * sweep["success"] / sweep["optimum"])
    shares = sweep.groupby(["variant", "family", "mdp"])["share"].agg(["mean", "min", "max"])
    mdps = [(family, n) for family in FAMILIES for n in sorted(sweep.loc[sweep["family"] == family, "mdp"].unique())]
    after = []
    for variant, look in LOOKS.items():
        values = shares.loc[variant].loc[mdps]
        x = np.arange(len(mdps)) + SIDE_STEP * (look.rank - 1)
        ends = points(x, values["mean"], values["min"].tolist(), values["max"].tolist())
        after.append(Line(ends, replace(look, line=""), bars=True))
    names = [f"{FAMILIES[family]} {number}" for family, number in mdps]
    framed: list[Framed] = [
        partial(Axes.set_xticks, ticks=range(len(mdps)), labels=names, rotation=35),
        partial(Axes.axhline, y=100, color="0.3", linewidth=0.7, zorder=1),
        partial(Axes.set, ylim=(0, 106)),
    ]
    panels = [Panel("After a sweep", after, "", "Success, % of the optimum", framed)]
    for family, name in FAMILIES.items():
        curves = [_training(variant, family) for variant in LOOKS]
        panels.append(Panel(f"Training, {name}", curves, "Data steps", "", framed[1:]))
    return sheet([panels], 2.1, SCALE, [handle(look) for look in LOOKS.values()])


def _training(variant: str, family: str) -> Line:
    steps = select(1, FOLDER, "training", variant=variant, family=family).explode("curve")
    steps[["step", "success"]] = steps["curve"].tolist()
    tables = steps.assign(share=100 * steps["success"] / steps["optimum"]).pivot(
        index=["step", "seed"], columns="mdp", values="share"
    )
    band = [over_seeds_and_mdps(table.to_numpy(float)) for _, table in tables.groupby("step")]
    ends = ([getattr(interval, end) for interval in band] for end in ("mean", "low", "high"))
    return Line(points(steps["step"].unique(), *ends), LOOKS[variant], marks=())


def theory_2() -> Figure:
    """The factor by group size, the mean estimate of chains by the value of their state, and MSE differences."""
    factors = comparisons.factors(FOLDER)
    factors = factors[~factors["what"].str.contains("state")]
    groups = [int(what.removeprefix("G = ")) for what in factors["what"]]
    factor = [_closed(groups, factors["closed"], "(G−2)/(G−1)"), _measured(groups, factors, BLUE, "o", "measured")]
    state = []
    records = select(2, FOLDER, "contamination").explode("cells")
    for size, colour, marker in zip(sorted(records["chains"].unique()), (VERMILION, PURPLE), "sD", strict=True):
        cells = pd.DataFrame(records.loc[records["chains"] == size, "cells"].tolist())
        x, mean, error = (cells[key].to_numpy() for key in ("value_above", "mean", "error"))
        ends = np.array([x.min(), x.max()])
        values = points(x, mean, mean - 2 * error, mean + 2 * error)
        state.append(Line(points(ends, (1 - 1 / size) * ends), _look(colour, "", "-"), 0.8))
        state.append(Line(values, _look(colour, marker), bars=True, label=f"chains, N = {size:g}"))
    siblings = partial(Axes.axhline, y=0, color=BLUE, linewidth=0.8, label="siblings, by construction")
    panels = [
        Panel("E[A | S, u] / true advantage", factor, "Group size G"),
        Panel("Mean estimate in a state", state, "V(S) − mean R", framed=[siblings]),
        Panel("MSE difference, measured", _errors(), "Formula"),
    ]
    return sheet([panels], 1.9, SCALE)


def _errors() -> list[Line]:
    closed = comparisons.general, comparisons.printed
    general, printed = (comparisons.differences(FOLDER, formula) for formula in closed)
    grid = select(2, FOLDER, "error")
    same = (grid["siblings"] == grid["chains"]).to_numpy()
    diagonal = [general["closed"].min(), general["closed"].max()]
    crosses = points(printed.loc[~same, "closed"], printed.loc[~same, "mean"])
    return [
        _closed(diagonal, diagonal),
        _measured(general.loc[same, "closed"], general[same], BLUE, "o", "n = N"),
        _measured(general.loc[~same, "closed"], general[~same], ORANGE, "^", "n ≠ N"),
        Line(crosses, _look(BLACK, "X"), label="n ≠ N, printed"),
    ]


def theory_3() -> Figure:
    """Squared distances of returns from their exact value, and the variance of weights by the number of later turns."""
    p = np.linspace(0, 1, 101)
    cells = select(3, FOLDER, "returns")
    cells = cells[cells["n"] >= LEAST]
    middles, variances = comparisons.return_bins(FOLDER)["exact"], comparisons.return_variances(FOLDER)
    each = points(cells["exact"], cells["square"])
    returns = [
        _closed(p, p * (1 - p), "p(1−p)"),
        Line(each, _look("#99c7e0", "."), label=f"a state and action, {LEAST} returns or more"),
        _measured(middles, variances, VERMILION, "s", "bins"),
        Line(points(middles, variances["closed"]), _look(BLACK, "D"), 0.0, label="mean p(1−p) of a bin"),
    ]
    scale = partial(Axes.set_yscale, value="symlog", linthresh=0.01), partial(Axes.set, ylim=(-0.002, None))
    panels = [
        Panel("Mean squared distance of a return from p", returns, "Exact action value p of the present policy"),
        Panel("Variance of a continuation's weight", _weights(), "Turns after the trained one", framed=scale),
    ]
    return sheet([panels], 2.2, SCALE)


def _weights() -> list[Line]:
    drawn = []
    stale = select(3, FOLDER, "weights", variant="stale")
    stale = stale[stale["later_turns"] > 0].sort_values("later_turns")
    for (_, each), marker in zip(stale.groupby("seed"), "^vD", strict=True):
        drawn.append(Line(points(each["later_turns"], each["exact"]), _look("0.6", "", "-"), 0.8))
        drawn.append(Line(points(each["later_turns"], each["variance"]), _look("0.45", marker)))
    mean = comparisons.weight_variances(FOLDER)
    turns = [int(what) for what in mean["what"]]
    fresh = select(3, FOLDER, "weights", variant="fresh")
    fresh = fresh[fresh["later_turns"] > 0].drop_duplicates("later_turns", keep="last")
    return [
        *drawn,
        _closed(turns, mean["closed"], "exact, mean over seeds"),
        _measured(turns, mean, VERMILION, "s", "stale, measured"),
        Line(points(fresh["later_turns"], fresh["variance"]), _look(BLUE, "o"), label="fresh, measured"),
    ]


def _look(colour: str, marker: str, line: LineStyle = "") -> Style:
    return Style(0, "", colour, marker, line)


def _closed(x: Iterable[float], y: Iterable[float], label: str = "") -> Line:
    return Line(points(x, y), _look("0.3", "", "-"), 0.9, label=label)


def _measured(x: Iterable[float], intervals: pd.DataFrame, colour: str, marker: str, label: str) -> Line:
    low, high = intervals["low"].to_numpy(), intervals["high"].to_numpy()
    return Line(points(x, intervals["mean"], low, high), _look(colour, marker), bars=True, label=label)
