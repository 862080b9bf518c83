"""The verdicts on the paper's claims (claims.yaml), for docs/results/claims.md."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from analysis import metrics
from analysis.claims.claims_file import ClaimsFile, PaperClaim, Part
from analysis.load import Frames, groups, has_runs, load
from analysis.looks import TASKS
from analysis.paper import formulas
from analysis.paper.cells import load_plans
from analysis.paper.numbers import load_paper
from analysis.paper.records import NOT_MEASURED, Missing
from analysis.paper.slips import recomputed
from analysis.paper.tables import PaperTable, committed, planned
from analysis.stats import CONTRADICTED, SUPPORTED, UNDECIDED, Interval, verdict
from analysis.tables import MINUS, NO_VALUE, NOT_RUN, cell
from analysis.theory.theorems import verdicts
from rtpo.core.names import nearest
from rtpo.errors import DataError
from rtpo.run.building import build
from rtpo.run.config import PROJECT
from rtpo.run.reading import SAFE_LOADER

RESULTS = PROJECT / "results"
FILE = Path(__file__).with_name("claims.yaml")
TOY_TASKS = ("toy_math", "toy_knowledge")
SCALES = {"paper": "Paper scale", "toy": "Toy scale", "theory": "Theory", "printed": "The paper's printed numbers"}
MIXED, NOT_TESTABLE, NOT_TESTED = "mixed", "not testable", "not tested"
ORDER = (SUPPORTED, "consistent with", CONTRADICTED, "not consistent with", UNDECIDED)
BESIDE = "beside"
"""the value of `Part.aside` for further evidence"""
TRAINING_PARTS = 5
"""parts of training, to compare the last with the first"""
Row = dict[str, Any]


def together(verdicts: Iterable[str], *, every: bool = False) -> str:
    """The verdict on a claim from those on its parts: mixed if they differ. every: the claim says "all", so one
    contradicted part contradicts it. Parts that are not run do not count."""
    words = set(verdicts)
    run = sorted(words - {NOT_RUN}, key=ORDER.index)
    if not words:
        return NOT_TESTABLE
    if every and CONTRADICTED in run:
        return CONTRADICTED
    return NOT_RUN if not run else run[0] if len(run) == 1 else f"{MIXED}: {', '.join(run)}"


@cache
def load_claims() -> ClaimsFile:
    """The claims of claims.yaml. Raises as `read_claims` does."""
    return read_claims(FILE.read_text(encoding="utf-8"))


def read_claims(text: str) -> ClaimsFile:
    """Claims from YAML. Raises ConfigError for an invalid field, and DataError for an unknown name in one."""
    source: ClaimsFile = build(ClaimsFile, yaml.load(text, SAFE_LOADER), FILE.name)
    tables, places = load_plans().tables, [each.place for each in recomputed(load_paper())]
    known = {"run": MEASUREMENTS, "table": tables, "recomputed": places}
    for key, part in ((key, part) for key, claim in source.claims.items() for part in claim.tests):
        names: list[tuple[str, str, Collection[Any]]] = [(name, getattr(part, name), known[name]) for name in known]
        if part.table in tables:
            names += [("cell", place, tables[part.table].cells.index) for place in formulas.names(part.read)]
        for what, name, choices in names:
            if name and name not in choices:
                raise DataError(f"claims.yaml, {key}: {what} {name!r} is unknown; {nearest(name, list(choices))}.")
        if not part.theorem and ", " not in part.what:
            raise DataError(f"claims.yaml, {key}: what is {part.what!r}: write 'place, measurement', with a comma.")
    return source


@cache
def parts(results: Path = RESULTS) -> pd.DataFrame:
    """One row per part of a claim and scale: claim, scale, what, aside, verdict, n (runs, or pairs of runs), mean, low,
    high, and shown (the numbers as text). Raises DataError for records that are damaged or of another schema."""
    rows = [
        {"claim": key, "scale": scale, "what": part.what, "aside": part.aside} | _judged(part, scale, results)
        for key, claim in load_claims().claims.items()
        for scale in SCALES
        for part in claim.tests
        if scale in np.atleast_1d(part.scale)
    ]
    return pd.DataFrame(rows).fillna({"shown": ""})


@cache
def _tables(results: Path) -> Mapping[str, PaperTable]:
    return committed() if results == RESULTS else planned(results)


def _judged(part: Part, scale: str, results: Path) -> Row:
    """The verdict on a part and its numbers, from the records in a folder."""
    if part.run:
        first, second = (_group(part, scale, label, results) for label in (part.labels[0], part.labels[-1]))
        pair = metrics.paired(first, second) if first and second else None
        if pair is None or not len(pair[0].runs):
            return {"verdict": NOT_RUN}
        difference, in_percent = MEASUREMENTS[part.run](*pair), part.run in IN_PERCENT
        measured = difference.runs if difference else 0  # runs without the measured quantity are left out
        return _decided(part, difference, measured, 1 if in_percent else 3, 100.0 if in_percent else 1)
    if part.theorem:
        theorem = verdicts(results / "theory").set_index("Key").loc[part.theorem]
        return {"what": theorem["Claim"], "verdict": theorem["Verdict"], "shown": theorem["Intervals"]}
    if part.recomputed:
        places = {(each.place, each.kind): each for each in recomputed(load_paper())}
        slip = places[part.recomputed, part.kind]
        return _holds(slip.agrees, f"printed {slip.printed}, recomputed {slip.recomputed}")
    return _printed(part) if scale == "printed" else _of_table(part, _tables(results)[part.table])


@cache
def _toy_groups(results: Path, task: str) -> Mapping[str, Frames]:
    folder = results / f"main_table_toy_{task}"
    return groups(load(folder)) if has_runs(folder) else {}


def _group(part: Part, scale: str, label: str, results: Path) -> Frames | None:
    """The complete runs of a configuration on a task."""
    if scale == "toy":
        return _toy_groups(results, part.task).get(label)
    records = _tables(results)["math_results"].records  # of the paper's profile, which all its tables share
    return records.condition(part.experiment, part.task).groups.get(label)


def _of_table(part: Part, table: PaperTable) -> Row:
    """A formula of our cells in a table of the paper. It is undecided if runs or panels are below the paper's scale."""
    read = table.cells.loc[formulas.names(part.read)]
    missing = [each for each in read["outcome"] if isinstance(each, Missing)]
    if missing:
        is_not_run = any(each.kind == NOT_RUN for each in missing)
        return {"verdict": NOT_RUN} if is_not_run else {"verdict": UNDECIDED, "shown": missing[0].why}
    if len(cut := read.loc[(read["why"] != "") & (read["not_compared"] == ""), "why"]):
        return {"verdict": UNDECIDED, "shown": f"{NOT_MEASURED}: {cut.iloc[0]}"}
    margin = formulas.evaluate(part.read, read["outcome"].__getitem__).interval
    return _decided(part, margin, margin.runs, 1)


def _printed(part: Part) -> Row:
    """A formula of the paper's printed numbers."""

    def value(place: str) -> Fraction:
        printed = load_paper().value(part.table, *place.split("."))
        if printed is None or printed.exact is None:
            raise DataError(f"claims.yaml: the paper prints no number at {place} of {part.table}.")
        return printed.exact

    margin = formulas.evaluate(part.read, value)
    closed = Fraction(str(part.closed))
    is_close = abs(margin - closed) <= Fraction(str(part.slack or 0))
    return _holds(margin > closed if part.slack is None else is_close, f"{float(margin):+g}" if margin else "0 (a tie)")


def _holds(holds: bool, shown: str) -> Row:
    return {"verdict": SUPPORTED if holds else CONTRADICTED, "shown": shown.replace("-", MINUS)}


def _decided(part: Part, difference: Interval | None, pairs: int, digits: int, scale: float = 1.0) -> Row:
    """The verdict (`stats.verdict`) and the numbers. digits: where the part names none."""
    is_signed, digits = part.slack is None or part.closed == 0, digits if part.digits is None else part.digits
    return {
        "verdict": verdict(difference, part.closed, runs=pairs, slack=part.slack),
        "n": pairs,
        **({"mean": difference.mean, "low": difference.low, "high": difference.high} if difference else {}),
        "shown": str(cell(difference, digits, scale, sign=is_signed)),
    }


def _ratio_gain(group: Frames) -> "pd.Series[float]":
    """The ratio in the last fifth of the steps minus that in the first fifth, by run."""

    def gain(values: "pd.Series[float]") -> float:
        size = max(1, len(values) // TRAINING_PARTS)
        return float(values.iloc[-size:].mean() - values.iloc[:size].mean()) if len(values) > 1 else float("nan")

    return metrics.training_curve(group)["ratio"].dropna().groupby("run").agg(gain).reindex(group.names)


def _ties_beyond(three: Frames, four: Frames) -> Interval | None:
    """The zero-advantage rate at G = 4 minus its prediction from G = 3, in a run's first update, where both policies
    are the same. The rates are 1 - 3 E[p(1-p)] and 1 - 2 E[p(1-p)]."""
    small, large = (
        group.steps.drop_duplicates("run").set_index("run")["ties"].reindex(group.names).to_numpy(float)
        for group in (three, four)
    )
    return metrics.run_interval(three, large - (1 - 1.5 * (1 - small)))


def _success(first: Frames, second: Frames) -> Interval | None:
    """Held-out success at temperature 1 after training, the first minus the second."""
    ours, theirs = (metrics.held_out(group, "after", "sampled") for group in (first, second))
    return None if ours is None or theirs is None else metrics.difference(theirs, ours)


def _less(value: Callable[[Frames], "pd.Series[float]"], first: Frames, second: Frames) -> Interval | None:
    """The mean of the first's value minus the second's, by paired run."""
    return metrics.run_interval(first, value(first).to_numpy() - value(second).to_numpy())


def _more(column: str, first: Frames, second: Frames) -> Interval | None:
    """What the first's runs used more than the second's, as a share of the second's."""
    return metrics.run_interval(first, first.runs[column].to_numpy(float) / second.runs[column].to_numpy(float) - 1)


def _calls(group: Frames) -> "pd.Series[float]":
    """Calls that a tool ran per held-out episode after training, by run."""
    answers = group.answers.query("when == 'after' and mode == 'sampled'")
    return answers["executed"].astype(float).groupby(answers["run"]).mean().reindex(group.names)


MEASUREMENTS: Mapping[str, Callable[[Frames, Frames], Interval | None]] = {
    # the geometric mean over tokens and steps
    "ratio": lambda first, _: metrics.run_interval(first, np.exp(-metrics.mean_over_steps(first, "kl"))),
    "context_ratio": partial(_less, metrics.context_ratio),
    "ratio_gain": lambda first, _: metrics.run_interval(first, _ratio_gain(first)),
    "ties_beyond": _ties_beyond,
    "calls": partial(_less, _calls),
    "less_kl": partial(_less, lambda group: metrics.mean_over_steps(group, "kl")),
    "success": _success,
    "more_seconds": partial(_more, "training_seconds"),
    "more_tokens": partial(_more, "generated_tokens"),
}
"""numbers by name, from two groups of paired runs; for a part with one label, both groups are the same"""


IN_PERCENT = ("success", "more_seconds", "more_tokens")
"""numbers that are shown in points or percent"""


# tables of docs/results/claims.md


def overview() -> pd.DataFrame:
    """One row per claim, with a verdict at each scale."""
    evidence, rows = parts(RESULTS), []
    for key, claim in load_claims().claims.items():
        cells = [claim.title]
        for scale in SCALES:
            chosen = evidence[(evidence["claim"] == key) & (evidence["scale"] == scale)]
            counted = chosen.loc[chosen["aside"] == "", "verdict"]
            is_tested = len(chosen) or (claim.untestable and scale == "theory")
            word = NOT_TESTED if claim.untested and scale == "theory" else NO_VALUE
            cells.append(together(counted, every=claim.every) if is_tested else word)
        rows.append(cells)
    return pd.DataFrame(rows, columns=["Claim", *SCALES.values()])


def toy_evidence() -> pd.DataFrame:
    """The numbers of the toy main table, with one column per task."""
    tasks, rows = [TASKS[task] for task in TOY_TASKS], []
    for claim, what, evidence in _evidence("toy"):
        shown = dict(zip(evidence["name"], evidence["shown"], strict=True))
        counts = " / ".join(dict.fromkeys(f"{count:.0f}" for count in evidence["n"]))
        cells = (shown.get(task.lower(), NO_VALUE) for task in tasks)
        rows.append((claim.title, what, *cells, counts, together(evidence["verdict"])))
    return pd.DataFrame(rows, columns=["Claim", "What", *tasks, "Runs or pairs", "Verdict"])


def printed_evidence() -> pd.DataFrame:
    """The evidence in printed numbers, one row per claim and measurement."""
    rows = []
    for claim, what, evidence in _evidence("printed"):
        shown = "; ".join(f"{name}: {number}" for name, number in zip(evidence["name"], evidence["shown"], strict=True))
        rows.append((claim.title, what, shown, together(evidence["verdict"], every=claim.every)))
    return pd.DataFrame(rows, columns=["Claim", "What", "Estimate", "Verdict"])


def _evidence(scale: str) -> Iterator[tuple[PaperClaim, str, pd.DataFrame]]:
    """Each claim and measurement at a scale, with the parts that count and were run. The text of `what` before its
    first comma, such as the task, is the part's `name`; the rest is the measurement."""
    evidence = parts(RESULTS)
    chosen = evidence[(evidence["scale"] == scale) & (evidence["aside"] != BESIDE) & (evidence["verdict"] != NOT_RUN)]
    words = chosen["what"].str.split(", ", n=1, expand=True)
    named = chosen.join(words.set_axis(["name", "rest"], axis="columns"), how="inner")
    for (key, what), lines in named.groupby(["claim", "rest"], sort=False):
        yield load_claims().claims[str(key)], str(what), lines
