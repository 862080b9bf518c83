"""The figures of the theorems, one each."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.claims.rule import Comparison, compare
from analysis.looks import BLACK, BLUE, GREEN, ORANGE, PURPLE, VERMILION, Style
from analysis.looks import Line as LineStyle
from analysis.plots import Framed, Line, Panel, handle, points, sheet
from analysis.theory import claims
from analysis.theory.claims import over_runs
from analysis.theory.records import Part

SCALE = "Tables, not language models."
LOOKS = {
    "reverse_fresh": Style(0, "reverse order, fresh (RTPO)", BLUE, "o", "-"),
    "reverse_stale": Style(1, "reverse order, stale", VERMILION, "s", "--"),
    "forward_fresh": Style(2, "forward order, fresh", GREEN, "^", "-."),
}
FAMILIES = {"lock": "locks", "layered": "layers"}
SIDE_STEP = 0.2
LEAST = 200
"""returns of a state and action that is drawn"""


def order_figure(part: Part) -> Figure:
    """Success as a share of the optimum: of each MDP after a sweep, and along training by family."""
    mdps = [(family, n) for family in FAMILIES for n in sorted({x["mdp"] for x in part.of("sweep", family=family)})]
    names = [f"{FAMILIES[family]} {number}" for family, number in mdps]
    optimum = partial(Axes.axhline, y=100, color="0.3", linewidth=0.7, zorder=1)
    shares = partial(Axes.set, ylim=(0, 106))
    ticks: list[Framed] = [partial(Axes.set_xticks, ticks=range(len(mdps)), labels=names, rotation=35), optimum, shares]
    panels = [
        Panel(
            "After a sweep", [_sweep(part, variant, mdps) for variant in LOOKS], "", "Success, % of the optimum", ticks
        ),
        *(
            Panel(f"Training, {name}", [_training(part, one, family) for one in LOOKS], "Data steps", "", ticks[1:])
            for family, name in FAMILIES.items()
        ),
    ]
    return sheet([panels], 2.1, SCALE, [handle(look) for look in LOOKS.values()])


def _sweep(part: Part, variant: str, mdps: Sequence[tuple[str, int]]) -> Line:
    shares = []
    for family, number in mdps:
        lines = part.of("sweep", variant=variant, family=family, mdp=number)
        shares.append([100 * x["success"] / x["optimum"] for x in lines])
    look = LOOKS[variant]
    x = np.arange(len(mdps)) + SIDE_STEP * (look.rank - 1)
    values = points(x, map(np.mean, shares), list(map(min, shares)), list(map(max, shares)))
    return Line(values, replace(look, line=""), bars=True)


def _training(part: Part, variant: str, family: str) -> Line:
    lines = part.of("training", variant=variant, family=family)
    seeds, mdps = (sorted({x[key] for x in lines}) for key in ("seed", "mdp"))
    curves = {(x["seed"], x["mdp"]): [100 * y / x["optimum"] for _, y in x["curve"]] for x in lines}
    steps = [step for step, _ in lines[0]["curve"]]
    table = np.array([[curves[seed, mdp] for mdp in mdps] for seed in seeds])
    band = [over_runs(table[:, :, point]) for point in range(len(steps))]
    values = points(steps, [i.mean for i in band], [i.low for i in band], [i.high for i in band])
    return Line(values, LOOKS[variant], marks=())


def credit_figure(part: Part) -> Figure:
    """The factor by group size, chains' mean estimates by their state's value, and differences of errors."""
    found = compare([*claims.factors(part), *claims.factor_cells(part)])[: len(claims.factors(part))]
    sizes = [int(c.what.removeprefix("G = ")) for c in found]
    factor = [_closed(sizes, [c.closed for c in found], "(G−2)/(G−1)"), _measured(sizes, found, BLUE, "o", "measured")]
    state = []
    chains = sorted({x["chains"] for x in part.of("contamination")})
    for size, colour, marker in zip(chains, (VERMILION, PURPLE), "sD", strict=False):
        cells = [cell for x in part.of("contamination", chains=size) for cell in x["cells"]]
        x, mean, error = (np.array([cell[key] for cell in cells]) for key in ("value_above", "mean", "error"))
        ends = np.array([x.min(), x.max()])
        values, look = points(x, mean, mean - 2 * error, mean + 2 * error), _look(colour, marker)
        state.append(Line(points(ends, (1 - 1 / size) * ends), _look(colour, "", "-"), 0.8))
        state.append(Line(values, look, bars=True, label=f"chains, N = {size}"))
    siblings = partial(Axes.axhline, y=0, color=BLUE, linewidth=0.8, label="siblings, by construction")
    general, printed = (compare(claims.differences(part, closed)) for closed in ("general", "printed"))
    same = [x["siblings"] == x["chains"] for x in part.of("error")]
    diagonal = [min(c.closed for c in general), max(c.closed for c in general)]
    error_lines = [_closed(diagonal, diagonal)]
    for is_same, colour, marker, label in ((True, BLUE, "o", "n = N"), (False, ORANGE, "^", "n ≠ N")):
        here = [c for c, equal in zip(general, same, strict=True) if equal is is_same]
        error_lines.append(_measured([c.closed for c in here], here, colour, marker, label))
    off = [p for p, equal in zip(printed, same, strict=True) if not equal]
    crosses = points([p.closed for p in off], [p.mean for p in off])
    error_lines.append(Line(crosses, _look(BLACK, "X"), label="n ≠ N, printed"))
    panels = [
        Panel("E[A | S, u] / true advantage", factor, "Group size G"),
        Panel("Mean estimate in a state", state, "V(S) − mean R", framed=[siblings]),
        Panel("MSE difference, measured", error_lines, "Formula"),
    ]
    return sheet([panels], 1.9, SCALE)


def continuation_figure(part: Part) -> Figure:
    """Squared distances of returns from their exact value, and the variance of stale weights by later turns."""
    p = np.linspace(0, 1, 101)
    cells = [x for x in part.of("returns") if x["n"] >= LEAST]
    bins = claims.return_bins(part)
    found = compare(claims.return_variances(part))
    middles = [x["exact"] for x in bins]
    returns = [
        _closed(p, p * (1 - p), "p(1−p)"),
        Line(
            points([x["exact"] for x in cells], [x["square"] for x in cells]),
            _look("#99c7e0", "."),
            label=f"a state and action, {LEAST} returns or more",
        ),
        _measured(middles, found, VERMILION, "s", "bins"),
        Line(points(middles, [c.closed for c in found]), _look(BLACK, "D"), 0.0, label="mean p(1−p) of a bin"),
    ]
    lines = part.of("weights", variant="stale")
    weights = []
    for seed, marker in zip(sorted({x["seed"] for x in lines}), "^vD", strict=False):
        mine = sorted((x for x in lines if x["seed"] == seed and x["later_turns"]), key=lambda x: x["later_turns"])
        turns = [x["later_turns"] for x in mine]
        weights.append(Line(points(turns, [x["exact"] for x in mine]), _look("0.6", "", "-"), 0.8))
        weights.append(Line(points(turns, [x["variance"] for x in mine]), _look("0.45", marker)))
    over_seeds = compare(claims.weight_variances(part))
    places = [int(c.what) for c in over_seeds]
    fresh = {x["later_turns"]: x["variance"] for x in part.of("weights", variant="fresh") if x["later_turns"]}
    weights += [
        _closed(places, [c.closed for c in over_seeds], "exact, mean over seeds"),
        _measured(places, over_seeds, VERMILION, "s", "stale, measured"),
        Line(points(fresh, fresh.values()), _look(BLUE, "o"), label="fresh, measured"),
    ]
    scale = partial(Axes.set_yscale, value="symlog", linthresh=0.01), partial(Axes.set, ylim=(-0.002, None))
    panels = [
        Panel("Mean squared distance of a return from p", returns, "Exact action value p of the present policy"),
        Panel(
            "Variance of a continuation's weight",
            weights,
            "Turns after the trained one",
            framed=scale,
        ),
    ]
    return sheet([panels], 2.2, SCALE)


def _look(colour: str, marker: str, line: LineStyle = "") -> Style:
    return Style(0, "", colour, marker, line)


def _closed(x: Iterable[float], y: Iterable[float], label: str = "") -> Line:
    return Line(points(x, y), _look("0.3", "", "-"), 0.9, label=label)


def _measured(x: Iterable[float], found: Sequence[Comparison], colour: str, marker: str, label: str) -> Line:
    values = points(x, [c.mean for c in found], [c.low for c in found], [c.high for c in found])
    return Line(values, _look(colour, marker), bars=True, label=label)


FIGURES: Mapping[int, Callable[[Part], Figure]] = {1: order_figure, 2: credit_figure, 3: continuation_figure}
