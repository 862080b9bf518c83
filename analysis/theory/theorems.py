"""The tables of docs/results/theory.md."""

from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import stats
from analysis.tables import NO_VALUE, NOT_RUN, Number, number, percent
from analysis.theory.comparisons import CLAIMS, FOLDER, MissingRecords, over_runs, select, verdict
from rtpo.core.names import nearest
from rtpo.errors import DataError

CONSISTENT = {stats.SUPPORTED: "consistent with", stats.CONTRADICTED: "not consistent with"}
"""Theorem 1 is about tabular Q-learning; runs of clipped policy gradients can neither support nor contradict it"""
VARIANTS = {
    "reverse_fresh": "RTPO: reverse order, fresh",
    "reverse_stale": "reverse order, stale",
    "forward_fresh": "forward order, fresh",
}
FAMILIES = {"lock": "locks", "layered": "layers"}


@cache
def verdicts(folder: Path = FOLDER) -> pd.DataFrame:
    """One row per claim; `not run` without finished records. Raises DataError for damaged records."""
    rows = []
    for key, claim in CLAIMS.items():
        intervals = word = NOT_RUN
        with suppress(MissingRecords):
            frame = claim.compare(folder)
            word = verdict(frame, claim.above)
            passed = frame["low"] > 0 if claim.above else frame["inside"]
            intervals = f"{passed.sum()} of {len(frame)} {'above 0' if claim.above else 'contain it'}"
        word = CONSISTENT.get(word, word) if claim.theorem == 1 else word
        rows.append((key, claim.theorem, claim.title, intervals, word))
    return pd.DataFrame(rows, columns=["Key", "Theorem", "Claim", "Intervals", "Verdict"]).astype(str)


def order() -> pd.DataFrame:
    """Theorem 1: success of trained policies. One improvement: success of the policy that is
    greedy to the initial action values."""
    rows = []
    settings = [*product(["sweep"], [*FAMILIES, None]), ("training", None)]
    for (kind, family), variant in product(settings, VARIANTS):
        read = partial(over_runs, FOLDER, kind, variant, family=family)
        below, above = read("below"), read("above")
        row = [kind, FAMILIES.get(family or "", "both"), VARIANTS[variant]]
        row += [_percent(read(key).mean) for key in ("success", "optimum")]
        row.append(percent(replace(below, low=max(0.0, below.low))))
        row.append(NO_VALUE if variant == "reverse_fresh" else percent(above))
        rows.append([*row, *(_percent(read(key).mean) for key in ("share", "one_improvement"))])
    titles = ("Setting", "MDPs", "What is trained", "Success", "Optimum", "Below it", "RTPO above it")
    return pd.DataFrame(rows, columns=[*titles, "Optimal decisions", "One improvement"])


def compared(*keys: str) -> pd.DataFrame:
    """The comparisons of a key of CLAIMS, or of several keys with the same measurements. Comparisons for one state have
    no row; a column counts those that hold. Raises DataError for an unknown key."""
    frames = {key: _texts(key) for key in keys}
    texts = frames[keys[0]]
    is_cell = texts["what"].str.contains("state")
    groups = texts[~is_cell]
    columns: dict[str, Any] = {"What": groups["what"], "Measured": groups["measured"]}
    for key, frame in frames.items():
        title = key.rpartition("_")[2].capitalize() if len(keys) > 1 else "Closed form"
        columns |= {title: frame.loc[~is_cell, "closed"], f"{title} inside": frame.loc[~is_cell, "inside"]}
    if is_cell.any():
        cells = [texts.loc[texts["what"].str.startswith(f"{what}, "), "inside"] for what in groups["what"]]
        columns["Cells whose interval has the closed form"] = [f"{(x == 'yes').sum()} of {len(x)}" for x in cells]
    return pd.DataFrame(columns)


def returns() -> pd.DataFrame:
    """Theorems 3a and 3b: the returns of fresh siblings by the exact action value p."""
    mean, square = _texts("theorem_3a_unbiased"), _texts("theorem_3b_variance")
    columns = {
        **{"p": mean["what"].str.removeprefix("p = "), "Mean return minus p": mean["measured"]},
        **{"0 inside": mean["inside"], "Squared distance from p": square["measured"]},
        **{"p(1−p)": square["closed"], "p(1−p) inside": square["inside"]},
    }
    return pd.DataFrame(columns)


def _texts(key: str) -> pd.DataFrame:
    """The comparisons of a claim as text: what, measured, closed, and inside (whether the interval contains closed)."""
    if key not in CLAIMS:
        raise DataError(f"no claim {key!r}; {nearest(key, CLAIMS)}.")
    frame = CLAIMS[key].compare(FOLDER)
    columns = {
        "what": frame["what"],
        "measured": [str(Number(x["mean"], x["low"], x["high"], 3)) for x in frame.to_dict("records")],
        "closed": [number(value, 3) for value in frame["closed"].tolist()],
        "inside": frame["inside"].map({True: "yes", False: "**no**"}),
    }
    return pd.DataFrame(columns)


def weights() -> pd.DataFrame:
    """Theorem 3a: the siblings that RTPO trained on, and their weights."""
    rows = []
    for variant, name in (("fresh", "before every turn"), ("stale", "none within the step")):
        weights = select(3, FOLDER, "weights", variant=variant)
        siblings, turns, newest = weights[["n", "turns", "newest"]].sum()
        row = (name, f"{siblings:,.0f}", f"{turns:,.0f}", _percent(newest / turns), f"{weights['farthest'].max():.2g}")
        rows.append(row)
    titles = ("Synchronisation", "Siblings", "Later turns", "Of the newest weights, %", "Largest gap to 1")
    return pd.DataFrame(rows, columns=titles)


def _percent(value: float) -> str:
    return number(value, 1, scale=100)
