"""What the records of each theorem are compared with: closed forms from the settings and exact values they hold."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.claims.rule import Comparison, Estimate, compare
from analysis.intervals import Interval, interval
from analysis.theory.records import Part

SLACK = 0.02
"""of success: how far below the optimum still counts as reaching it after a finite training (Theorem 1)"""
ROUNDING = 1e-6
"""how far from 1 a weight may be that single precision makes"""
BINS = 8
"""of about as many returns each, by the exact chance of success (Theorem 3)"""


# Theorem 1


def order_table(part: Part, kind: str, variant: str, key: str, family: str | None = None) -> npt.NDArray[np.float64]:
    """A number of each run, [seeds, MDPs]. key: one of the lines', `below` the optimum, or `agreeing_share`."""
    lines = pd.DataFrame([x for x in part.of(kind, variant=variant) if family in (None, x["family"])])
    lines["below"] = lines["optimum"] - lines["success"]
    lines["agreeing_share"] = lines["agreeing"] / lines["decisions"]
    return lines.pivot(index="seed", columns=["family", "mdp"], values=key).sort_index(axis=1).to_numpy(np.float64)


def over_runs(values: npt.NDArray[np.float64]) -> Interval:
    """Mean and interval over seeds and MDPs; a point where all are alike."""
    found = interval(values)
    return found if found.low == found.low else replace(found, low=found.mean, high=found.mean)


def to_optimum(part: Part, kind: str = "sweep") -> list[Comparison]:
    """RTPO's success below the optimum, which it cannot be above, against 0."""
    found = over_runs(order_table(part, kind, "reverse_fresh", "below"))
    return [Comparison("below the optimum", 0.0, found.mean, max(0.0, found.low), found.high, 1.0, SLACK)]


def ablation(part: Part, variant: str, kind: str = "sweep") -> list[Comparison]:
    """By how much RTPO's success is above a variant's, paired by MDP and seed."""
    difference = order_table(part, kind, "reverse_fresh", "success") - order_table(part, kind, variant, "success")
    found = over_runs(difference)
    return [Comparison(f"above {variant}", 0.0, found.mean, found.low, found.high, 1.0)]


# Theorem 2


def shrinkage(group_size: int) -> float:
    """(G-2)/(G-1), Theorem 2a."""
    return (group_size - 2) / (group_size - 1)


def factors(part: Part) -> list[Estimate]:
    """The factor of each group size, over MDPs by their precision."""
    sizes = sorted({x["group_size"] for x in part.of("factor")})
    found = []
    for size in sizes:
        lines = part.of("factor", group_size=size)
        weights = np.array([x["error"] ** -2 for x in lines])
        mean = float(weights @ [x["factor"] for x in lines] / weights.sum())
        found.append(Estimate(f"G = {size}", shrinkage(size), mean, float(weights.sum() ** -0.5), 1.0))
    return found


def factor_cells(part: Part) -> list[Estimate]:
    """The mean estimate of each state and action, against the factor times its true advantage."""
    return [
        Estimate(
            f"G = {x['group_size']}, MDP {x['mdp']}, state {cell['state']}, action {cell['action']}",
            *(shrinkage(x["group_size"]) * cell["advantage"], cell["mean"], cell["error"], 1.0),
        )
        for x in part.of("factor")
        for cell in x["cells"]
    ]


def contamination(part: Part) -> list[Estimate]:
    """The slope of a chain's estimate on its state's value, against (N-1)/N."""
    return [
        Estimate(f"N = {x['chains']}, MDP {x['mdp']}", 1 - 1 / x["chains"], x["slope"], x["error"], 1.0)
        for x in part.of("contamination")
    ]


def contamination_cells(part: Part) -> list[Estimate]:
    """The mean estimate of the chains in each state, against (N-1)/N (V(S) - mean R)."""
    return [
        Estimate(
            f"N = {x['chains']}, MDP {x['mdp']}, state {cell['state']}",
            *((1 - 1 / x["chains"]) * cell["value_above"], cell["mean"], cell["error"], 1.0),
        )
        for x in part.of("contamination")
        for cell in x["cells"]
    ]


def general_difference(siblings: int, chains: int, sigma_v: float, sigma_a: float, sigma_xi: float) -> float:
    """MSE of the trajectory estimator less that of the sibling estimator, for any two group sizes: a group of m makes
    an error of sigma_A^2 / m + (m-1)/m sigma_xi^2, and a trajectory's (N-1)/N sigma_V^2 besides."""
    by_siblings, by_chains = 1 / siblings, 1 / chains
    return (1 - by_chains) * sigma_v**2 + (by_chains - by_siblings) * (sigma_a**2 - sigma_xi**2)


def printed_difference(chains: int, sigma_v: float) -> float:
    """The leading term that the paper prints, (G-1)/G sigma_V^2 with G trajectories."""
    return (1 - 1 / chains) * sigma_v**2


def differences(part: Part, closed: str) -> list[Estimate]:
    """MSE differences of the grid, against the `general` formula, the `printed` one or `zero`. Scale: the sum of both
    errors."""
    found = []
    for x in part.of("error"):
        n, chains, sigmas = x["siblings"], x["chains"], (x["sigma_v"], x["sigma_a"], x["sigma_xi"])
        forms = {
            "general": general_difference(n, chains, *sigmas),
            "printed": printed_difference(chains, sigmas[0]),
            "zero": 0.0,
        }
        of_chains, of_siblings = x["of_chains"], x["of_siblings"]
        found.append(
            Estimate(
                f"n = {n}, N = {chains}, σ = {', '.join(f'{sigma:.2g}' for sigma in sigmas)}",
                forms[closed],
                of_chains["mean"] - of_siblings["mean"],
                float(np.hypot(of_chains["error"], of_siblings["error"])),
                of_chains["mean"] + of_siblings["mean"],
            )
        )
    return found


# Theorem 3


def unit_weights(part: Part) -> list[Comparison]:
    """With a synchronisation before every turn: the share of later turns that the newest weights sampled, and the
    weight farthest from 1. No sampling error: each is of every sibling trained on."""
    lines = part.of("weights", variant="fresh")
    newest = sum(x["newest"] for x in lines) / max(1, sum(x["turns"] for x in lines))
    farthest = 1 + max(x["farthest"] for x in lines)
    return [
        Comparison("later turns of the newest version", 1.0, newest, newest, newest, 1.0),
        Comparison("weight farthest from 1", 1.0, farthest, farthest, farthest, 1.0, ROUNDING),
    ]


def return_bins(part: Part) -> list[dict[str, float]]:
    """Returns by state and action, pooled into BINS of about as many each by the exact value p: their number, mean p,
    mean return less p, mean p(1-p), mean squared distance of a return from p, and standard errors."""
    cells = sorted(part.of("returns"), key=lambda x: x["exact"])
    counts = np.array([x["n"] for x in cells], np.float64)
    middle = np.cumsum(counts) - counts / 2
    place = np.minimum((middle / counts.sum() * BINS).astype(int), BINS - 1)
    return [_pooled([cells[i] for i in np.flatnonzero(place == number)]) for number in np.unique(place)]


def _pooled(cells: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    n, p = (np.array([x[key] for x in cells], np.float64) for key in ("n", "exact"))
    share = n / n.sum()
    error, square_error = (
        float(np.sqrt(share**2 @ np.array([x[key] for x in cells]) ** 2)) for key in ("error", "square_error")
    )
    return {
        "n": float(n.sum()),
        "error": error,
        "square_error": square_error,
        "exact": float(share @ p),
        "above": float(share @ (np.array([x["mean"] for x in cells]) - p)),
        "closed": float(share @ (p * (1 - p))),
        "square": float(share @ np.array([x["square"] for x in cells])),
    }


def unbiased(part: Part) -> list[Estimate]:
    """Mean return less the exact action value of the present policy, against 0."""
    return [Estimate(f"p = {x['exact']:.2f}", 0.0, x["above"], x["error"], 1.0) for x in return_bins(part)]


def return_variances(part: Part) -> list[Estimate]:
    """Mean squared distance from the exact action value p, against p(1-p). Scale: the largest variance there is."""
    return [
        Estimate(f"p = {x['exact']:.2f}", x["closed"], x["square"], x["square_error"], 0.25) for x in return_bins(part)
    ]


def weight_variances(part: Part) -> list[Estimate]:
    """The stale weight's variance by the number of later turns, over seeds, against its exact mean over them. Scale:
    the weight's exact second moment."""
    found = []
    for turns in sorted({x["later_turns"] for x in part.of("weights", variant="stale")} - {0}):
        lines = part.of("weights", variant="stale", later_turns=turns)
        exact, mean = (float(np.mean([x[key] for x in lines])) for key in ("exact", "variance"))
        error = float(np.sqrt(sum(x["error"] ** 2 for x in lines)) / len(lines))
        found.append(Estimate(f"{turns}", exact, mean, error, 1 + exact))
    return found


def growth(part: Part) -> list[Comparison]:
    """By how much the variance with all later turns is above that with one."""
    first, *_, last = weight_variances(part)
    error = float(np.hypot(first.error, last.error))
    return compare([Estimate("growth", 0.0, last.mean - first.mean, error, last.scale)])
