"""The paper's claims (claims.yaml) with what was found of each: the tables of docs/results/claims.md, and of the toy
study's claims."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from analysis import metrics
from analysis.load import Frames
from analysis.looks import TASKS, title_of
from analysis.paper import formulas
from analysis.paper.cells import load_plans
from analysis.paper.numbers import load_paper
from analysis.paper.records import NOT_MEASURED, Missing
from analysis.paper.slips import recomputed
from analysis.paper.tables import PaperTable, committed, planned
from analysis.stats import CONTRADICTED, SUPPORTED, UNDECIDED, Interval, verdict
from analysis.study.results import MEASURES, RESULTS, StudyResults, compare, less, of_study
from analysis.tables import MINUS, NO_VALUE, NOT_RUN, cell
from analysis.theory.theorems import verdicts
from rtpo.core.names import nearest
from rtpo.errors import DataError
from rtpo.run.reading import SAFE_LOADER

FILE = Path(__file__).with_name("claims.yaml")
SCALES = {"paper": "Paper scale", "toy": "Toy scale", "theory": "Theory", "printed": "The paper's printed numbers"}
MIXED, NOT_TESTABLE, NOT_TESTED = "mixed", "not testable", "not tested"
ORDER = (SUPPORTED, "consistent with", CONTRADICTED, "not consistent with", UNDECIDED)
BESIDE = "beside"
"""`aside` of a number beside the one that counts"""
LATE = 5
"""the last and the first of so many parts of training are compared"""
FIELDS = (
    *("scale", "what", "aside", "closed", "slack", "digits", "experiment", "task", "run", "labels", "pair", "measure"),
    *("reverse", "table", "read", "theorem", "recomputed", "kind"),
)
Part = Mapping[str, Any]
Row = dict[str, Any]


def together(verdicts: Iterable[str], *, every: bool = False) -> str:
    """What the verdicts of a claim's parts say: mixed where they differ; with `every`, of a claim that says "all", one
    that contradicts it is enough. Parts that are not run say nothing."""
    words = set(verdicts)
    run = sorted(words - {NOT_RUN}, key=ORDER.index)
    if not words:
        return NOT_TESTABLE
    if every and CONTRADICTED in run:
        return CONTRADICTED
    return NOT_RUN if not run else run[0] if len(run) == 1 else f"{MIXED}: {', '.join(run)}"


@cache
def load_claims() -> Mapping[str, Any]:
    """claims.yaml. Raises DataError for a field, or a name in one, that is unknown."""
    return read_claims(FILE.read_text(encoding="utf-8"))


def read_claims(text: str) -> Mapping[str, Any]:
    """Claims from YAML. Raises DataError as `load_claims` does."""
    source: Mapping[str, Any] = yaml.load(text, SAFE_LOADER)
    tables, places = load_plans().tables, [each.place for each in recomputed(load_paper())]
    known = {"run": RUNS, "table": tables, "recomputed": places, "measure": ("success", *MEASURES)}
    for key, part in ((key, part) for key, claim in source["claims"].items() for part in claim.get("tests", ())):
        names: list[tuple[str, Any, Collection[Any]]] = [("field", name, FIELDS) for name in part]
        names += [(name, part[name], known[name]) for name in part.keys() & known]
        if part.get("table") in tables:
            names += [("cell", place, tables[part["table"]].cells.index) for place in formulas.names(part["read"])]
        for what, name, choices in names:
            if name not in choices:
                raise DataError(f"claims.yaml, {key}: {what} {name!r} is unknown; {nearest(name, list(choices))}.")
    return source


@cache
def parts(results: Path = RESULTS) -> pd.DataFrame:
    """A row a part of every claim: claim, scale, what, aside, whether it is a claim of the toy study too (`own`),
    verdict, n (runs, or pairs of runs), mean, low, high, and the numbers as shown. Raises DataError for records that
    are damaged, changed or of another schema."""
    own = [(claim["pair"], claim["measure"]) for claim in study_claims()]
    rows = [
        {
            **{"claim": key, "scale": scale, "what": part.get("what", ""), "aside": part.get("aside", "")},
            **{"own": (part.get("pair"), part.get("measure")) in own, **row},
        }
        for key, claim in load_claims()["claims"].items()
        for scale in SCALES
        for part in claim.get("tests", ())
        if scale in np.atleast_1d(part["scale"])
        for row in _judged(part, scale, results)
    ]
    return pd.DataFrame(rows).fillna({"shown": ""})


@cache
def _tables(results: Path) -> Mapping[str, PaperTable]:
    return committed() if results == RESULTS else planned(results)


def _judged(part: Part, scale: str, results: Path) -> Iterator[Row]:
    """What the records under a folder say of a part: rows with the verdict and the numbers."""
    if "pair" in part:
        yield from _of_pair(part, of_study("toy", results))
    elif "run" in part:
        groups = [_group(part, scale, label, results) for label in part["labels"]]
        pair = metrics.paired(groups[0], groups[-1]) if groups[0] and groups[-1] else None
        if pair is None or not len(pair[0].runs):
            yield {"verdict": NOT_RUN}
        else:
            yield _decided(part, RUNS[part["run"]](*pair), len(pair[0].runs), part.get("digits", 3))
    elif "theorem" in part:
        theorem = verdicts(results / "theory").set_index("Key").loc[part["theorem"]]
        yield {"what": theorem["Claim"], "verdict": theorem["Verdict"], "shown": theorem["Intervals"]}
    elif "recomputed" in part:
        places = {(each.place, each.kind): each for each in recomputed(load_paper())}
        slip = places[part["recomputed"], part["kind"]]
        yield _holds(slip.agrees, f"printed {slip.printed}, recomputed {slip.recomputed}")
    else:
        yield _printed(part) if scale == "printed" else _of_table(part, _tables(results)[part["table"]])


def _group(part: Part, scale: str, label: str, results: Path) -> Frames | None:
    """The complete runs of a configuration on a task."""
    if scale == "toy":
        return of_study("toy", results).groups.get((part["task"], label, False))
    records = _tables(results)["math_results"].records  # of the paper's profile, which all its tables share
    return records.condition(part["experiment"], part["task"]).groups.get(label)


def _of_table(part: Part, table: PaperTable) -> Row:
    """A formula of our cells of a table of the paper. Runs or panels that were cut down decide nothing."""
    read = table.cells.loc[formulas.names(part["read"])]
    missing = [each for each in read["outcome"] if isinstance(each, Missing)]
    if missing:
        is_not_run = any(each.kind == NOT_RUN for each in missing)
        return {"verdict": NOT_RUN} if is_not_run else {"verdict": UNDECIDED, "shown": missing[0].why}
    if len(cut := read.loc[(read["why"] != "") & (read["not_compared"] == ""), "why"]):
        return {"verdict": UNDECIDED, "shown": f"{NOT_MEASURED}: {cut.iloc[0]}"}
    margin = formulas.evaluate(part["read"], read["outcome"].__getitem__).interval
    return _decided(part, margin, margin.runs, part.get("digits", 1))


def _printed(part: Part) -> Row:
    """A formula of the paper's printed numbers."""

    def value(place: str) -> Fraction:
        printed = load_paper().value(part["table"], *place.split("."))
        if printed is None or printed.exact is None:
            raise DataError(f"claims.yaml: the paper prints no number at {place} of {part['table']}.")
        return printed.exact

    margin = formulas.evaluate(part["read"], value)
    is_close = abs(margin - Fraction(str(part.get("closed", 0)))) <= Fraction(str(part.get("slack", 0)))
    return _holds(is_close if "slack" in part else margin > 0, f"{float(margin):+g}" if margin else "0 (a tie)")


def _holds(holds: bool, shown: str) -> Row:
    return {"verdict": SUPPORTED if holds else CONTRADICTED, "shown": shown.replace("-", MINUS)}


def _decided(part: Part, difference: Interval | None, pairs: int, digits: int, scale: float = 1.0) -> Row:
    """By the rule, with the numbers."""
    return {
        "verdict": verdict(difference, part.get("closed", 0.0), runs=pairs, slack=part.get("slack")),
        "n": pairs,
        **({"mean": difference.mean, "low": difference.low, "high": difference.high} if difference else {}),
        "shown": str(cell(difference, digits, scale, sign="slack" not in part or part["closed"] == 0)),
    }


def _ratio_gain(group: Frames) -> "pd.Series[float]":
    """The ratio of the last fifth of the steps less that of the first, by run."""

    def gain(values: "pd.Series[float]") -> float:
        size = max(1, len(values) // LATE)
        return float(values.iloc[-size:].mean() - values.iloc[:size].mean()) if len(values) > 1 else float("nan")

    return metrics.training_curve(group)["ratio"].dropna().groupby("run").agg(gain).reindex(group.names)


def _ties_beyond(three: Frames, four: Frames) -> Interval | None:
    """The zero-advantage rate at G = 4, 1 - 3 E[p(1-p)], less what that at G = 3, 1 - 2 E[p(1-p)], gives for it, in the
    first data step, before which both have the same weights."""
    small, large = (
        metrics.training_curve(group)["ties"].groupby("run").first().reindex(group.names).to_numpy()
        for group in (three, four)
    )
    return metrics.run_interval(three, large - (1 - 1.5 * (1 - small)))


def _calls(group: Frames) -> "pd.Series[float]":
    """Calls that a tool ran, a held-out episode after training, by run."""
    answers = group.answers.query("when == 'after' and mode == 'sampled'")
    return answers["executed"].astype(float).groupby(answers["run"]).mean().reindex(group.names)


RUNS: Mapping[str, Callable[[Frames, Frames], Interval | None]] = {
    # in the geometric mean over tokens and steps
    "ratio": lambda first, _: metrics.run_interval(first, np.exp(-metrics.mean_over_steps(first, "kl"))),
    "context_ratio": partial(less, metrics.context_ratio),
    "ratio_gain": lambda first, _: metrics.run_interval(first, _ratio_gain(first)),
    "ties_beyond": _ties_beyond,
    "calls": partial(less, _calls),
    "less_kl": partial(less, lambda group: metrics.mean_over_steps(group, "kl")),
}
"""numbers of pairs of runs; of one label both are the same runs"""


def _of_pair(part: Part, study: StudyResults) -> Iterator[Row]:
    """A pair of configurations on each task of the study that plans both; of success at other decodings, and at one
    rate for all, beside it."""
    first, second = part["pair"]
    for title, (measure, is_common) in study.measures(part["measure"]).items():
        what = part.get("what", f"{title_of(first)} minus {title_of(second)}, {MEASURES[measure][0]}")
        what += ", one rate for all" * is_common
        aside = part.get("aside", "") if title == "Verdict" else BESIDE
        for task in study.tasks:
            outcome = compare(study, task, first, second, measure, is_common=is_common)
            if outcome is None:
                continue
            shown = outcome.interval
            if part.get("reverse") and shown is not None:
                shown = replace(shown, mean=-shown.mean, low=-shown.high, high=-shown.low)
            row = {"verdict": NOT_RUN} if outcome.verdict == NOT_RUN else _decided(part, shown, outcome.pairs, 1, 100)
            yield {"what": f"{TASKS[task].lower()}, {what}", "aside": aside, **row}


def study_claims() -> Sequence[Mapping[str, Any]]:
    """The toy study's claims: text, source, pair and measure of each."""
    claims: Sequence[Mapping[str, Any]] = load_claims()["study"]
    return claims


# tables of docs/results/claims.md


def overview() -> pd.DataFrame:
    """A row a claim, a verdict a scale."""
    evidence, rows = parts(RESULTS), []
    for key, claim in load_claims()["claims"].items():
        cells = [claim["title"]]
        for scale in SCALES:
            chosen = evidence[(evidence["claim"] == key) & (evidence["scale"] == scale)]
            counted = chosen.loc[chosen["aside"] == "", "verdict"]
            is_tested = len(chosen) or ("untestable" in claim and scale == "theory")
            word = NOT_TESTED if "untested" in claim and scale == "theory" else NO_VALUE
            cells.append(together(counted, every=claim.get("every", False)) if is_tested else word)
        rows.append(cells)
    return pd.DataFrame(rows, columns=["Claim", *SCALES.values()])


def toy_evidence() -> pd.DataFrame:
    """The toy study's numbers that are not among its own claims, a column a task."""
    tasks, rows = [TASKS[task] for task in of_study("toy").tasks], []
    for claim, what, evidence in _evidence("toy"):
        shown = dict(zip(evidence["name"], evidence["shown"], strict=True))
        counts = " / ".join(dict.fromkeys(f"{count:.0f}" for count in evidence["n"]))
        cells = (shown.get(task.lower(), NO_VALUE) for task in tasks)
        rows.append((claim["title"], what, *cells, counts, together(evidence["verdict"])))
    return pd.DataFrame(rows, columns=["Claim", "What", *tasks, "Runs or pairs", "Verdict"])


def printed_evidence() -> pd.DataFrame:
    """The printed numbers, a row for all of a claim that are of one kind."""
    rows = []
    for claim, what, evidence in _evidence("printed"):
        shown = "; ".join(f"{name}: {number}" for name, number in zip(evidence["name"], evidence["shown"], strict=True))
        rows.append((claim["title"], what, shown, together(evidence["verdict"], every=claim.get("every", False))))
    return pd.DataFrame(rows, columns=["Claim", "What", "Estimate", "Verdict"])


def _evidence(scale: str) -> Iterator[tuple[Mapping[str, Any], str, pd.DataFrame]]:
    """A claim, what was measured of it, and the parts of a scale that count and were run. Each has a `name`, such as
    its task: what stands before the first comma of `what`."""
    evidence = parts(RESULTS)
    chosen = evidence[(evidence["scale"] == scale) & (evidence["aside"] != BESIDE) & (evidence["verdict"] != NOT_RUN)]
    words = chosen.loc[~chosen["own"], "what"].str.split(", ", n=1, expand=True)
    named = chosen.join(words.set_axis(["name", "rest"], axis="columns"), how="inner")
    for (key, what), lines in named.groupby(["claim", "rest"], sort=False):
        yield load_claims()["claims"][key], str(what), lines
