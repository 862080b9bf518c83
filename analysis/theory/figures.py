"""The figures of the theorems, one each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.looks import BLACK, BLUE, GREEN, ORANGE, PURPLE, VERMILION
from analysis.plots import BAND_ALPHA, METADATA, TWO_COLUMNS, Files, footnote, png_from, save
from analysis.theory import claims
from analysis.theory.claims import over_runs
from analysis.theory.records import Comparison, Part, compare

SCALE = "Tables, not language models."
LOOKS = {
    "reverse_fresh": ("reverse order, fresh (RTPO)", BLUE, "o", "-"),
    "reverse_stale": ("reverse order, stale", VERMILION, "s", "--"),
    "forward_fresh": ("forward order, fresh", GREEN, "^", "-."),
}
FAMILIES = {"lock": "locks", "layered": "layers"}
SIDE_STEP = 0.2


def order_figure(part: Part) -> Figure:
    """Success as a share of the optimum: of each MDP after a sweep, and along training by family."""
    figure = Figure(figsize=(TWO_COLUMNS, 2.7))
    sweep, *curves = figure.subplots(1, 3, width_ratios=(1.5, 1, 1))
    mdps = [(family, n) for family in FAMILIES for n in sorted({x["mdp"] for x in part.of("sweep", family=family)})]
    for place, (variant, (title, colour, marker, _)) in enumerate(LOOKS.items()):
        for at, (family, number) in enumerate(mdps):
            lines = part.of("sweep", variant=variant, family=family, mdp=number)
            shares = [100 * x["success"] / x["optimum"] for x in lines]
            x = at + SIDE_STEP * (place - 1)
            sweep.vlines(x, min(shares), max(shares), color=colour, linewidth=1)
            sweep.plot(x, np.mean(shares), color=colour, marker=marker, linestyle="", markeredgecolor="white")
        sweep.plot([], [], color=colour, marker=marker, linestyle="", label=title)
    sweep.set_xticks(range(len(mdps)), [f"{FAMILIES[family]} {number}" for family, number in mdps], rotation=35)
    sweep.set_title("(a) After a sweep")
    sweep.set_ylabel("Success, % of the optimum")
    for axes, family, letter in zip(curves, FAMILIES, "bc", strict=True):
        for variant, (_, colour, _, line) in LOOKS.items():
            _draw_curve(axes, part, variant, family, colour, line)
        axes.set_title(f"({letter}) Training, {FAMILIES[family]}")
        axes.set_xlabel("Data steps")
    for axes in (sweep, *curves):
        axes.axhline(100, color="0.3", linewidth=0.7, zorder=1)
        axes.set_ylim(0, 106)
    figure.legend(*sweep.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    footnote(figure, SCALE)
    return figure


def _draw_curve(axes: Axes, part: Part, variant: str, family: str, colour: str, line: str) -> None:
    lines = part.of("training", variant=variant, family=family)
    seeds, mdps = (sorted({x[key] for x in lines}) for key in ("seed", "mdp"))
    curves = {(x["seed"], x["mdp"]): [100 * y / x["optimum"] for _, y in x["curve"]] for x in lines}
    steps = [step for step, _ in lines[0]["curve"]]
    table = np.array([[curves[seed, mdp] for mdp in mdps] for seed in seeds])
    band = [over_runs(table[:, :, point]) for point in range(len(steps))]
    axes.fill_between(steps, [i.low for i in band], [i.high for i in band], color=colour, alpha=BAND_ALPHA, linewidth=0)
    axes.plot(steps, [i.mean for i in band], color=colour, linestyle=line)


def credit_figure(part: Part) -> Figure:
    """The factor by group size, chains' mean estimates by their state's value, and differences of errors."""
    figure = Figure(figsize=(TWO_COLUMNS, 2.6))
    factor, state, error = figure.subplots(1, 3)
    found = compare([*claims.factors(part), *claims.factor_cells(part)])[: len(claims.factors(part))]
    sizes = [int(c.what.removeprefix("G = ")) for c in found]
    _draw_closed(factor, sizes, [c.closed for c in found], "(G−2)/(G−1)")
    _draw_measured(factor, sizes, found, BLUE, "o", "measured")
    factor.set_title("(a) E[A | S, u] / true advantage")
    factor.set_xlabel("Group size G")
    factor.legend(loc="lower right")
    chains = sorted({x["chains"] for x in part.of("contamination")})
    for size, colour, marker in zip(chains, (VERMILION, PURPLE), "sD", strict=False):
        cells = [cell for x in part.of("contamination", chains=size) for cell in x["cells"]]
        values = np.array([cell["value_above"] for cell in cells])
        ends = np.array([values.min(), values.max()])
        state.plot(ends, (1 - 1 / size) * ends, color=colour, linewidth=0.8)
        state.errorbar(
            values,
            [cell["mean"] for cell in cells],
            yerr=[2 * cell["error"] for cell in cells],
            color=colour,
            marker=marker,
            linestyle="",
            markersize=4,
            markeredgecolor="white",
            label=f"chains, N = {size}",
        )
    state.axhline(0, color=BLUE, linewidth=0.8, label="siblings, by construction")
    state.set_title("(b) Mean estimate in a state")
    state.set_xlabel("V(S) − mean R")
    state.legend(loc="upper left")
    general, printed = (compare(claims.differences(part, closed)) for closed in ("general", "printed"))
    same = [x["siblings"] == x["chains"] for x in part.of("error")]
    for is_same, colour, marker, label in ((True, BLUE, "o", "n = N"), (False, ORANGE, "^", "n ≠ N")):
        here = [c for c, equal in zip(general, same, strict=True) if equal is is_same]
        _draw_measured(error, [c.closed for c in here], here, colour, marker, label)
    off = [(p.closed, p.mean) for p, equal in zip(printed, same, strict=True) if not equal]
    error.plot(*zip(*off, strict=True), color=BLACK, marker="x", linestyle="", markersize=4, label="n ≠ N, printed")
    diagonal = [min(c.closed for c in general), max(c.closed for c in general)]
    error.plot(diagonal, diagonal, color="0.4", linewidth=0.8, zorder=1)
    error.set_title("(c) MSE difference, measured")
    error.set_xlabel("Formula")
    error.legend(loc="upper left")
    footnote(figure, SCALE)
    return figure


def continuation_figure(part: Part) -> Figure:
    """Squared distances of returns from their exact value, and the variance of stale weights by later turns."""
    figure = Figure(figsize=(TWO_COLUMNS, 2.7))
    returns, weights = figure.subplots(1, 2)
    p = np.linspace(0, 1, 101)
    returns.plot(p, p * (1 - p), color="0.4", linewidth=0.8, label="p(1−p)")
    cells = [x for x in part.of("returns") if x["n"] >= LEAST]
    returns.plot(
        [x["exact"] for x in cells],
        [x["square"] for x in cells],
        **{"color": BLUE, "marker": ".", "linestyle": "", "markersize": 3, "alpha": 0.4},
        label=f"a state and action, {LEAST} returns or more",
    )
    bins = claims.return_bins(part)
    found = compare(claims.return_variances(part))
    middles = [x["exact"] for x in bins]
    _draw_measured(returns, middles, found, VERMILION, "s", "bins")
    returns.plot(
        middles,
        [c.closed for c in found],
        **{"color": BLACK, "marker": "_", "linestyle": "", "markersize": 9, "zorder": 5},
        label="mean p(1−p) of a bin",
    )
    returns.set_title("(a) Mean squared distance of a return from p")
    returns.set_xlabel("Exact action value p of the present policy")
    returns.legend(loc="lower center")
    lines = part.of("weights", variant="stale")
    for seed, marker in zip(sorted({x["seed"] for x in lines}), "^vD", strict=False):
        mine = sorted((x for x in lines if x["seed"] == seed and x["later_turns"]), key=lambda x: x["later_turns"])
        turns = [x["later_turns"] for x in mine]
        weights.plot(turns, [x["exact"] for x in mine], color="0.6", linewidth=0.8)
        weights.plot(turns, [x["variance"] for x in mine], color="0.45", marker=marker, linestyle="", markersize=3.5)
    over_seeds = compare(claims.weight_variances(part))
    places = [int(c.what) for c in over_seeds]
    _draw_closed(weights, places, [c.closed for c in over_seeds], "exact, mean over seeds")
    _draw_measured(weights, places, over_seeds, VERMILION, "s", "stale, measured")
    fresh = {x["later_turns"]: x["variance"] for x in part.of("weights", variant="fresh") if x["later_turns"]}
    weights.plot(list(fresh), list(fresh.values()), color=BLUE, marker="o", linestyle="", label="fresh, measured")
    weights.set_title("(b) Variance of a continuation's weight")
    weights.set_xlabel("Turns after the trained one")
    weights.set_yscale("symlog", linthresh=0.01)
    weights.set_ylim(bottom=-0.002)
    weights.xaxis.set_major_locator(MaxNLocator(integer=True))
    weights.legend(loc="center right")
    footnote(figure, SCALE)
    return figure


LEAST = 200
"""returns of a state and action that is drawn"""


def _draw_closed(axes: Axes, x: list[int], y: list[float], label: str) -> None:
    axes.plot(x, y, color="0.3", linewidth=0.9, label=label, zorder=1)


def _draw_measured(
    axes: Axes, x: list[int] | list[float], found: list[Comparison], colour: str, marker: str, label: str
) -> None:
    axes.errorbar(
        x,
        [c.mean for c in found],
        yerr=[[c.mean - c.low for c in found], [c.high - c.mean for c in found]],
        color=colour,
        marker=marker,
        linestyle="",
        markersize=4,
        markeredgecolor="white",
        markeredgewidth=0.4,
        capsize=2,
        elinewidth=1,
        label=label,
    )


@dataclass(frozen=True)
class TheoryFigure:
    """How a figure is drawn, what it shows in a few words, and its caption."""

    drawn: Callable[[Part], Figure]
    summary: str
    caption: str


FIGURES: Mapping[int, TheoryFigure] = {
    1: TheoryFigure(
        order_figure,
        "Success against the optimum after a sweep and along training.",
        "Success as a share of the optimum of backward induction. (a) After a sweep: means over seeds and their range. "
        "(b, c) Along training in small steps: means and 95 % intervals over seeds and MDPs.",
    ),
    2: TheoryFigure(
        credit_figure,
        "The factor by group size, the contamination by state, and differences of errors.",
        "(a) The sibling estimator's factor. (b) Mean estimate of the chains that are in a state, against how far its "
        "value is above the mean return, with bars of two standard errors; lines are (N−1)/N times it. (c) Measured "
        "difference of mean squared errors against the general formula, and for unequal sizes against the printed "
        "leading term too; on the diagonal they are equal. Bars in (a) and (c) are the intervals of the tables.",
    ),
    3: TheoryFigure(
        continuation_figure,
        "Variance of returns against p(1−p), and of weights against the number of later turns.",
        "(a) Squared distance of siblings' returns from the exact action value p of the policy that they are trained "
        "from. The mean p(1−p) of a bin lies below the curve where the bin is wide. (b) Variance of the weight of a "
        "continuation, logarithmic above 0.01: grey marks are seeds and grey lines their exact values. Bars are the "
        "intervals of the tables.",
    ),
}


def draw(part: Part, theorem: int, project: Path, records: str | None) -> list[Path]:
    """Draw a theorem's figure into docs/ and results/figures/; returns the files. `records`: the checksum kept in the
    image."""
    files: Files = {
        project / "docs" / "results" / f"theory_{theorem}.png": png_from(records),
        project / "results" / "figures" / f"theory_{theorem}.pdf": METADATA["pdf"],
    }
    save(lambda: FIGURES[theorem].drawn(part), files)
    return list(files)
