"""The closed forms of the paper's theorems, compared with measurements on finite MDPs.

A claim is a frame with one row per comparison:
    what                what is measured
    closed              the closed form
    mean, low, high     the measurement; the intervals of a claim hold jointly at 95 % (Bonferroni)
    slack               a tolerance around the closed form
    scale               a half-interval wider than RESOLUTION times this is undecided
    inside              whether the interval, widened by the slack, contains the closed form

A claim of equality is supported if all intervals contain their closed forms and none is too wide. A claim of an
inequality is supported if all intervals lie above their closed forms.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis import stats
from analysis.stats import Interval
from rtpo.core.files import sha256
from rtpo.errors import DataError
from rtpo.run.config import PROJECT
from rtpo.run.reading import json_object, read_manifest

FOLDER = PROJECT / "results" / "theory"
SCHEMA = 1
KEYS = ("theorem", "settings", "started", "wall_seconds", "cpu_seconds", "commit", "dirty", "lines", "sha256")
RESOLUTION = 0.1
"""the widest half-interval that decides, relative to the comparison's scale"""
SLACK = 0.02
"""how far success may stay below the optimum after finite training (Theorem 1)"""
ROUNDING = 1e-6
"""the rounding of a weight of 1 in single precision"""
BINS = 8
"""bins of returns by the exact chance of success, of about equal size (Theorem 3)"""
Row = tuple[str, float, float, float, float]
"""what is measured, and the four columns that `compared` or `points` names"""


class MissingRecords(DataError):
    """Records that do not exist or are incomplete."""


@cache
def records(theorem: int, folder: Path = FOLDER) -> tuple[Mapping[str, Any], pd.DataFrame]:
    """The manifest theorem_<n>.json, and a row for each line of theorem_<n>.jsonl. Raises MissingRecords, naming the
    command that makes them, for missing records, and DataError for damaged ones or those of another theorem."""
    manifest, lines = folder / f"theorem_{theorem}.json", folder / f"theorem_{theorem}.jsonl"
    for path in (manifest, lines):
        if not path.exists():
            raise MissingRecords(f"{path} does not exist: python experiments/theory.py {theorem} makes it.")
    described = read_manifest(manifest, SCHEMA, KEYS)
    if sha256(lines) != described["sha256"]:
        raise DataError(f"{lines} is not the file that its manifest describes: restore it.")
    if described["theorem"] != theorem:
        raise DataError(f"{manifest} is of theorem {described['theorem']}: restore it.")
    return described, pd.DataFrame([json_object(line, str(lines), ()) for line in lines.read_bytes().splitlines()])


@cache
def select(theorem: int, folder: Path, kind: str, **values: object) -> pd.DataFrame:
    """The lines of a theorem's records with this `kind` and these values."""
    frame = records(theorem, folder)[1]
    for name, value in {"kind": kind, **values}.items():
        frame = frame[frame[name] == value]
    return frame.dropna(axis="columns", how="all").infer_objects()


# comparisons


def compared(rows: Iterable[Row]) -> pd.DataFrame:
    """The comparisons of estimates (what, closed form, mean, standard error, scale), with joint normal intervals."""
    frame = pd.DataFrame(list(rows), columns=["what", "closed", "mean", "error", "scale"])
    half = stats.normal(len(frame)) * frame["error"]
    return with_inside(frame.assign(low=frame["mean"] - half, high=frame["mean"] + half, slack=0.0))


def with_inside(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with its column `inside`."""
    return frame.assign(inside=frame["closed"].between(frame["low"] - frame["slack"], frame["high"] + frame["slack"]))


def verdict(frame: pd.DataFrame, above: bool) -> str:
    """The verdict on a claim of equality, or, with `above`, of an inequality."""
    verdicts = []
    for row in frame.to_dict("records"):
        interval = Interval(row["mean"], row["low"], row["high"], 0, 0)
        slack = None if above else row["slack"]
        verdicts.append(stats.verdict(interval, row["closed"], slack=slack, width=RESOLUTION * row["scale"]))
    return stats.verdict_on_all(verdicts)


def over_runs(folder: Path, kind: str, variant: str, key: str, family: str | None = None) -> Interval:
    """Mean and interval over seeds and MDPs of a number per run. key: a field of the records; or `below`, optimum minus
    success; `above`, success of RTPO (`reverse_fresh`) minus the variant's; `share`, the share of optimal decisions."""
    frame = select(1, folder, kind)
    frame = frame if family is None else frame[frame["family"] == family]
    below, share = frame["optimum"] - frame["success"], frame["agreeing"] / frame["decisions"]
    values = frame.assign(below=below, share=share, above=frame["success"]).pivot(
        index="seed", columns=["variant", "family", "mdp"], values=key
    )
    numbers = values["reverse_fresh"] - values[variant] if key == "above" else values[variant]
    return over_seeds_and_mdps(numbers.to_numpy(np.float64))


def over_seeds_and_mdps(values: npt.NDArray[np.float64]) -> Interval:
    """The interval of a table [seeds, MDPs]; its width is 0 for equal values."""
    interval = stats.interval(values)
    return interval if interval.low == interval.low else replace(interval, low=interval.mean, high=interval.mean)


def optimum(folder: Path, kind: str = "sweep") -> pd.DataFrame:
    """Theorem 1: optimum minus RTPO's success, which is at least 0, compared with 0."""
    below = over_runs(folder, kind, "reverse_fresh", "below")
    return points([("below the optimum", below.mean, max(0.0, below.low), below.high, SLACK)], closed=0.0)


def ablation(folder: Path, variant: str, kind: str = "sweep") -> pd.DataFrame:
    """Theorem 1: RTPO's success minus a variant's, paired by MDP and seed."""
    above = over_runs(folder, kind, variant, "above")
    return points([(f"above {variant}", above.mean, above.low, above.high, 0.0)], closed=0.0)


def points(rows: Sequence[Row], closed: float) -> pd.DataFrame:
    """Comparisons of rows (what, mean, low, high, slack) with one closed form."""
    frame = pd.DataFrame(rows, columns=["what", "mean", "low", "high", "slack"])
    return with_inside(frame.assign(closed=closed, scale=1.0))


def shrinkage(group_size: int) -> float:
    """(G-2)/(G-1), Theorem 2a."""
    return (group_size - 2) / (group_size - 1)


def general(siblings: int, chains: int, sigma_v: float, sigma_a: float, sigma_xi: float) -> float:
    """MSE of the trajectory estimator minus that of the sibling estimator, for any two group sizes. The error of a
    group of m is sigma_A^2 / m + (m-1)/m sigma_xi^2; trajectories add (N-1)/N sigma_V^2."""
    by_siblings, by_chains = 1 / siblings, 1 / chains
    return (1 - by_chains) * sigma_v**2 + (by_chains - by_siblings) * (sigma_a**2 - sigma_xi**2)


def printed(siblings: int, chains: int, sigma_v: float, sigma_a: float, sigma_xi: float) -> float:
    """The leading term that the paper prints, (N-1)/N sigma_V^2 with N trajectories."""
    return (1 - 1 / chains) * sigma_v**2


def no_difference(siblings: int, chains: int, sigma_v: float, sigma_a: float, sigma_xi: float) -> float:
    """No difference: the bound of the paper's inequality."""
    return 0.0


def factors(folder: Path) -> pd.DataFrame:
    """Theorem 2a: the factor of each group size, a precision-weighted mean over MDPs; then the mean estimate of each
    state and action."""
    records = select(2, folder, "factor")
    rows: list[Row] = []
    for size in sorted(records["group_size"].unique()):
        same = records[records["group_size"] == size]
        weights = same["error"] ** -2.0
        mean = float(np.average(same["factor"], weights=weights))
        rows.append((f"G = {size:g}", shrinkage(size), mean, float(weights.sum() ** -0.5), 1.0))
    for row in records.to_dict("records"):
        for cell in row["cells"]:
            what = f"G = {row['group_size']:g}, MDP {row['mdp']:g}, state {cell['state']}, action {cell['action']}"
            closed = shrinkage(row["group_size"]) * cell["advantage"]
            rows.append((what, closed, cell["mean"], cell["error"], 1.0))
    return compared(rows)


def contaminations(folder: Path) -> pd.DataFrame:
    """Theorem 2a: the slope of a chain's estimate on the value of its state; then the mean estimate of each state,
    which the closed form puts at (N-1)/N (V(S) - mean R)."""
    slopes: list[Row] = []
    cells: list[Row] = []
    for row in select(2, folder, "contamination").to_dict("records"):
        name, share = f"N = {row['chains']:g}, MDP {row['mdp']:g}", 1 - 1 / row["chains"]
        slopes.append((name, share, row["slope"], row["error"], 1.0))
        for cell in row["cells"]:
            cells.append(
                (f"{name}, state {cell['state']}", share * cell["value_above"], cell["mean"], cell["error"], 1.0)
            )
    return compared([*slopes, *cells])


def differences(folder: Path, closed: Callable[..., float]) -> pd.DataFrame:
    """Theorem 2b: the MSE of chains minus that of siblings, compared with a formula. Scale: the sum of the two MSEs."""
    rows: list[Row] = []
    for row in select(2, folder, "error").to_dict("records"):
        n, chains, *sigmas = (row[name] for name in ("siblings", "chains", "sigma_v", "sigma_a", "sigma_xi"))
        what = f"n = {n:g}, N = {chains:g}, σ = {', '.join(f'{sigma:.2g}' for sigma in sigmas)}"
        chain, sibling = row["of_chains"], row["of_siblings"]
        difference, error = chain["mean"] - sibling["mean"], float(np.hypot(chain["error"], sibling["error"]))
        rows.append((what, closed(n, chains, *sigmas), difference, error, chain["mean"] + sibling["mean"]))
    return compared(rows)


def unit_weights(folder: Path) -> pd.DataFrame:
    """Theorem 3a: the share of later turns that the newest policy sampled, and the weight farthest from 1."""
    frame = select(3, folder, "weights", variant="fresh")
    newest, farthest = frame["newest"].sum() / max(1, frame["turns"].sum()), 1 + frame["farthest"].max()
    rows = [("later turns of the newest version", newest, 0.0), ("weight farthest from 1", farthest, ROUNDING)]
    return points([(what, x, x, x, slack) for what, x, slack in rows], closed=1.0)


def return_bins(folder: Path) -> pd.DataFrame:
    """The returns in BINS by their exact action value p, a row per bin. `n` is their number. Their means: `exact` (p),
    `above` (return minus p), `closed` (p(1-p)), `square` (squared distance from p), with errors of above and square."""
    cells = select(3, folder, "returns").sort_values("exact", kind="stable")
    middle = cells["n"].cumsum() - cells["n"] / 2
    place = np.minimum((middle / cells["n"].sum() * BINS).astype(int), BINS - 1)
    share = cells["n"] / cells["n"].groupby(place).transform("sum")
    sums = cells.assign(above=cells["mean"] - cells["exact"], closed=cells["exact"] * (1 - cells["exact"]))
    means = sums[["exact", "above", "closed", "square"]].mul(share, axis=0).groupby(place).sum()
    errors = cells[["error", "square_error"]].mul(share, axis=0).pow(2).groupby(place).sum().pow(0.5)
    return means.join(errors).assign(n=cells["n"].groupby(place).sum())


def unbiased(folder: Path) -> pd.DataFrame:
    """Theorem 3a: mean return minus the exact action value of the current policy, compared with 0."""
    bins = return_bins(folder).to_dict("records")
    return compared((f"p = {row['exact']:.2f}", 0.0, row["above"], row["error"], 1.0) for row in bins)


def return_variances(folder: Path) -> pd.DataFrame:
    """Theorem 3b: mean squared distance of a return from p, compared with p(1-p). Scale: the largest variance."""
    bins = return_bins(folder).to_dict("records")
    return compared(
        (f"p = {row['exact']:.2f}", row["closed"], row["square"], row["square_error"], 0.25) for row in bins
    )


def weight_variances(folder: Path) -> pd.DataFrame:
    """Theorem 3: the variance of stale weights by the number of later turns, a mean over seeds, compared with the mean
    of the exact variances. Scale: the exact second moment of a weight."""
    weights = select(3, folder, "weights", variant="stale")
    rows: list[Row] = []
    for turns in sorted({*weights["later_turns"]} - {0}):
        same = weights[weights["later_turns"] == turns]
        exact, mean, error = same["exact"].mean(), same["variance"].mean(), (same["error"] ** 2).sum() ** 0.5
        rows.append((f"{turns:.0f}", exact, mean, error / len(same), 1 + exact))
    return compared(rows)


def growth(folder: Path) -> pd.DataFrame:
    """Theorem 3: the variance of stale weights with the most later turns minus that with one."""
    first, *_, last = weight_variances(folder).to_dict("records")
    error = float(np.hypot(first["error"], last["error"]))
    return compared([("growth", 0.0, last["mean"] - first["mean"], error, last["scale"])])


class Claim(NamedTuple):
    """A claim of a theorem."""

    theorem: int
    title: str
    compare: Callable[[Path], pd.DataFrame]  # its comparisons, from the folder of the records
    above: bool  # whether it is an inequality


CLAIMS: dict[str, Claim] = {
    "theorem_1": Claim(1, "Reverse order on fresh continuations reaches the optimum", optimum, False),
    "theorem_1_order": Claim(
        1, "Success falls without reverse order", partial(ablation, variant="forward_fresh"), True
    ),
    "theorem_1_fresh": Claim(1, "Success falls without freshness", partial(ablation, variant="reverse_stale"), True),
    "theorem_2a_factor": Claim(2, "E[A | S, u] is (G−2)/(G−1) of the true advantage", factors, False),
    "theorem_2a_contamination": Claim(2, "A trajectory's advantage contains (N−1)/N (V(S) − R)", contaminations, False),
    "theorem_2b_general": Claim(
        2, "The MSE difference is the general formula", partial(differences, closed=general), False
    ),
    "theorem_2b_printed": Claim(
        2, "The MSE difference is the printed formula", partial(differences, closed=printed), False
    ),
    "theorem_2b_lower": Claim(
        2,
        "Siblings have the lower MSE where σ_V > 0",
        partial(differences, closed=no_difference),
        True,
    ),
    "theorem_3a_weights": Claim(3, "The weights of continuations sampled anew are 1", unit_weights, False),
    "theorem_3a_unbiased": Claim(3, "A sibling's return is on average the present action value p", unbiased, False),
    "theorem_3b_variance": Claim(3, "The variance of that return is p(1−p)", return_variances, False),
    "theorem_3_stale_variance": Claim(
        3, "A stale weight's variance equals the exact variance", weight_variances, False
    ),
    "theorem_3_growth": Claim(3, "That variance grows with the later turns", growth, True),
}
