"""The tables of docs/results/theory.md."""

from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path

import pandas as pd

from analysis import stats
from analysis.stats import Interval
from analysis.tables import NO_VALUE, NOT_RUN, number
from analysis.theory import comparisons
from analysis.theory.comparisons import CLAIMS, FOLDER, GRID, lines, over_runs, records, verdict
from analysis.theory.records import Missing

CONSISTENT = {stats.SUPPORTED: "consistent with", stats.CONTRADICTED: "not consistent with"}
"""Theorem 1 is about tabular Q-learning, not clipped policy gradients: no run of these can support or contradict it"""
VARIANTS = {
    "reverse_fresh": "RTPO: reverse order, fresh",
    "reverse_stale": "reverse order, stale",
    "forward_fresh": "forward order, fresh",
}
FAMILIES = {"lock": "locks", "layered": "layers"}


@cache
def verdicts(folder: Path = FOLDER) -> pd.DataFrame:
    """A row a claim; `not run` where its records are not finished. Raises DataError for damaged records."""
    rows = []
    for key, (theorem, title, compare, above) in CLAIMS.items():
        shown = word = NOT_RUN
        with suppress(Missing):
            frame = compare(folder)
            word = verdict(frame, above)
            passed = frame["low"] > 0 if above else frame["reaches"]
            shown = f"{passed.sum()} of {len(frame)} {'above 0' if above else 'reach it'}"
        rows.append((key, theorem, title, shown, CONSISTENT.get(word, word) if theorem == 1 else word))
    return pd.DataFrame(rows, columns=["Key", "Theorem", "Claim", "Intervals", "Verdict"]).astype(str)


def order(folder: Path = FOLDER) -> pd.DataFrame:
    """Theorem 1: success of learned policies."""
    rows = []
    settings = [*product(["sweep"], [*FAMILIES, None]), ("training", None)]
    for (kind, family), variant in product(settings, VARIANTS):
        read = partial(over_runs, folder, kind, variant, family=family)
        below, above = read("below"), read("above")
        row = [kind, FAMILIES.get(family or "", "both"), VARIANTS[variant]]
        row += [_percent(read(key).mean) for key in ("success", "optimum")]
        row.append(interval_text(replace(below, low=max(0.0, below.low)), 1, 100))
        row.append(NO_VALUE if variant == "reverse_fresh" else interval_text(above, 1, 100))
        rows.append([*row, *(_percent(read(key).mean) for key in ("share", "one_improvement"))])
    titles = ("Setting", "MDPs", "What is trained", "Success", "Optimum", "Below it", "RTPO above it")
    return pd.DataFrame(rows, columns=[*titles, "Optimal decisions", "One improvement"])


def factor(folder: Path = FOLDER) -> pd.DataFrame:
    """Theorem 2a, the sibling estimator."""
    return _with_cells(comparisons.factors(folder), "(G−2)/(G−1)")


def contamination(folder: Path = FOLDER) -> pd.DataFrame:
    """Theorem 2a, the trajectory estimator."""
    found = comparisons.contaminations(folder)
    variances = [x["variance"] for x in lines(2, folder, "contamination")]
    shown = _with_cells(found, "(N−1)/N")
    shown.insert(1, "σ_V", [number(variance**0.5, 3) for variance in variances])
    for title, column in (("Variance", "closed"), ("Variance measured", "mean")):
        shares = found[column].tolist()[: len(variances)]
        shown[title] = [number(share**2 * x, 4) for share, x in zip(shares, variances, strict=True)]
    return shown


def error(folder: Path = FOLDER) -> pd.DataFrame:
    """Theorem 2b: mean squared error of the trajectory estimator less that of the sibling estimator."""
    by_general, by_printed = (
        comparisons.differences(folder, closed) for closed in (comparisons.general, comparisons.printed)
    )
    places = [[f"{x[name]:.2g}" for name in GRID] for x in lines(2, folder, "error")]
    return pd.DataFrame(places, columns=["n", "N", "σ_V", "σ_A", "σ_ξ"]).assign(
        Measured=measured(by_general),
        General=_numbers(by_general["closed"]),
        **{"General reached": _yes(by_general), "Printed": _numbers(by_printed["closed"])},
        **{"Printed reached": _yes(by_printed)},
    )


def weights(folder: Path = FOLDER) -> pd.DataFrame:
    """Theorem 3a: what RTPO trained on."""
    rows = []
    for variant, name in (("fresh", "before every turn"), ("stale", "none within the step")):
        found = lines(3, folder, "weights", variant=variant)
        siblings, turns, newest = (sum(x[key] for x in found) for key in ("n", "turns", "newest"))
        farthest = max(x["farthest"] for x in found)
        rows.append((name, f"{siblings:,.0f}", f"{turns:,.0f}", _percent(newest / turns), f"{farthest:.2g}"))
    titles = ("Synchronisation", "Siblings", "Later turns", "Of the newest weights, %", "Farthest from 1")
    return pd.DataFrame(rows, columns=titles)


def returns(folder: Path = FOLDER) -> pd.DataFrame:
    """Theorems 3a and 3b: returns of siblings."""
    bins, means, variances = (
        comparisons.return_bins(folder),
        comparisons.unbiased(folder),
        comparisons.return_variances(folder),
    )
    columns = {"p": _numbers(bins["exact"]), "Returns": _numbers(bins["n"], 0)}
    columns |= {"Return − p": measured(means), "Reaches 0": _yes(means), "p(1−p)": _numbers(variances["closed"], 4)}
    return pd.DataFrame(columns | {"Squared distance": measured(variances, 4), "Reached": _yes(variances)})


def stale(folder: Path = FOLDER) -> pd.DataFrame:
    """Theorem 3: variance of the weight of stale continuations by the turns after the trained one."""
    frame = comparisons.weight_variances(folder)
    turns = frame["what"].astype(int)
    columns = {"Later turns": frame["what"].tolist(), "Exact": _numbers(frame["closed"]), "Measured": measured(frame)}
    return pd.DataFrame(columns | {"Reached": _yes(frame), "A turn": _numbers((1 + frame["closed"]) ** (1 / turns))})


def runs(folder: Path = FOLDER) -> pd.DataFrame:
    """How the records were made."""
    manifests = [records(theorem, folder)[0] for theorem in (1, 2, 3)]
    rows = [(x["theorem"], x["started"], x["commit"][:12], number(x["cpu_seconds"], 0), x["lines"]) for x in manifests]
    return pd.DataFrame(rows, columns=["Theorem", "Started", "Commit", "Processor seconds", "Lines"]).astype(str)


def interval_text(value: Interval, digits: int, scale: float = 1) -> str:
    """A mean with its interval."""
    mean, low, high = (number(end, digits, scale) for end in (value.mean, value.low, value.high))
    return f"{mean} [{low}, {high}]"


def measured(frame: pd.DataFrame, digits: int = 3) -> list[str]:
    """The means of comparisons with their intervals."""
    ends = zip(*(_numbers(frame[name], digits) for name in ("mean", "low", "high")), strict=True)
    return [f"{mean} [{low}, {high}]" for mean, low, high in ends]


def _with_cells(frame: pd.DataFrame, closed: str) -> pd.DataFrame:
    """Comparisons of groups, each with how many means of its cells reach their closed form."""
    groups = frame[~frame["what"].str.contains("state")]
    cells = [frame.loc[frame["what"].str.startswith(f"{what}, "), "reaches"] for what in groups["what"]]
    columns = {"Group": groups["what"].tolist(), closed: _numbers(groups["closed"]), "Measured": measured(groups)}
    columns |= {"Reached": _yes(groups), "Means that reach it": [f"{x.sum()} of {len(x)}" for x in cells]}
    return pd.DataFrame(columns)


def _numbers(values: pd.Series, digits: int = 3) -> list[str]:
    return [number(float(value), digits) for value in values.tolist()]


def _yes(frame: pd.DataFrame) -> list[str]:
    return ["yes" if reaches else "**no**" for reaches in frame["reaches"]]


def _percent(value: float) -> str:
    return number(value, 1, scale=100)
