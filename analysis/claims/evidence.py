"""What tests the paper's claims: complete runs of the paper's profile, the toy study, the records of the theorems, and
the paper's own printed numbers. Each gives parts for `rule`."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import isfinite
from pathlib import Path

import numpy as np

from analysis import measures
from analysis.claims.claims import PAPER_SCALE, PRINTED, TOY, Lead, Pair, Same, Test, printed_number
from analysis.claims.claims import number as stated
from analysis.claims.rule import BESIDE, OURS, Part, equality, order
from analysis.intervals import Interval
from analysis.looks import title_of
from analysis.paper import formulas
from analysis.paper.estimates import Estimate, evaluate
from analysis.paper.numbers import Comparison, Paper, Side, load_paper
from analysis.paper.records import NOT_MEASURED, Missing, Outcome, Records
from analysis.paper.reproduction import CellPlan, Reproduction, load_reproduction
from analysis.paper.slips import ARITHMETIC, EXPECTATION, READING, recomputed
from analysis.paper.tables import Made, make_table
from analysis.records import Run, RunGroup, read_lines
from analysis.study.findings import MEASURES, finding
from analysis.study.plan import TOY_STUDY
from analysis.study.records import StudyRecords, load_study
from analysis.study.tables import mean_context_ratio
from analysis.tables import CONTRADICTED, MINUS, NOT_RUN, SUPPORTED, UNDECIDED, number, percent
from analysis.theory.page import Verdict, verdicts
from analysis.toy_study import claims as toy
from rtpo.harness.diagnostics import EXECUTED

TASKS = {"toy_math": "toy math", "toy_knowledge": "toy knowledge"}
PLACES = {PAPER_SCALE: {"math": "math", "search": "search"}, TOY: TASKS}
TIES_AT = {PAPER_SCALE: ("airline", "airline"), TOY: ("toy_math", TASKS["toy_math"])}
AIRLINE = "supp_airline_test"
BASELINES = {"grpo": "GRPO", "seeupo_flat": "SeeUPO, flattened"}
DIGITS = {"points": 1, "percent": 1, "ratio": 2}
KINDS = {ARITHMETIC: "as it comes about", READING: "as the sentence reads"}
"""of analysis.paper.slips"""
RATIO_SLACK = 0.02
"""less than how far the paper's GRPO ends from 1 in math"""
TIES_SLACK = 0.05
"""of a zero-advantage rate"""
LATE = 5
"""the last and the first of so many parts of training are compared"""
Cells = Mapping[tuple[str, str], tuple[CellPlan, Outcome]]


@dataclass(frozen=True, eq=False)
class Evidence:
    """All records, read once. theory: what they say of the theorems."""

    study: StudyRecords
    records: Records
    theory: Mapping[str, Verdict]
    paper: Paper
    reproduction: Reproduction

    @cached_property
    def _tables(self) -> dict[str, Cells]:
        return {}

    def table(self, key: str) -> Cells:
        """Our cells of a table at the paper's scale, by row and column."""
        if key not in self._tables:
            made = make_table(self.records, self.reproduction.tables[key], self.reproduction)
            self._tables[key] = {(one.plan.row, one.plan.column): (one.plan, _of_scale(one)) for one in made.cells}
        return self._tables[key]

    def group(self, scale: str, place: str, label: str) -> RunGroup | None:
        """The complete runs of a configuration: on a task of the toy study, or of a role in the paper's main table and
        on its airline."""
        if scale == TOY:
            return self.study.group(place, label)
        condition = self.records.condition("airline" if place == "airline" else "main_table", place)
        return condition.groups.get(label) if condition else None

    def launch(self, tables: Sequence[str]) -> str:
        """What makes the runs of tables at the paper's scale."""
        plans, profile = [self.reproduction.tables[key] for key in tables], self.reproduction.profile
        told = (self.reproduction.commands(plan.experiments, profile).removesuffix(".") for plan in plans)
        return "; ".join(dict.fromkeys(told))

    def study_command(self, labels: Sequence[str]) -> str:
        """What makes the toy study's runs of some configurations."""
        study = self.study
        parts = [one for one in study.study.trained if any(place.label in labels for place in study.planned[one])]
        return "; ".join(f"`python experiments/study.py toy {part}`" for part in parts)


def load_evidence(results: Path) -> Evidence:
    """Raises DataError for records that are damaged, changed or of another schema."""
    reproduction = load_reproduction()
    return Evidence(
        load_study(results / "toy", TOY_STUDY),
        Records(results, reproduction.profile),
        verdicts(results / "theory"),
        load_paper(),
        reproduction,
    )


def _of_scale(made: Made) -> Outcome:
    """Runs or panels that were cut down decide no claim at the paper's scale."""
    if made.not_compared is None or made.plan.source.not_compared is not None:
        return made.outcome
    return Missing(NOT_MEASURED, made.not_compared)


def many(count: int, what: str) -> str:
    """A count and what it counts."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


# the paper's scale, from the cells of its tables


def by_tables(evidence: Evidence, of: Lead | Same) -> list[Part]:
    """A lead or an equality on our own runs, a part a line."""
    if isinstance(of, Same):
        return [_of_line(evidence, of, of.column, True)]
    return [_of_line(evidence, of, line, of.by_row) for line in of.lines]


def _of_line(evidence: Evidence, of: Lead | Same, line: str, by_row: bool) -> Part:
    cells, names = evidence.table(of.table), formulas.names(of.formula)
    found = {name: cells[(name, line) if by_row else (line, name)] for name in names}
    aside, what = "", ""
    if isinstance(of, Same):
        what = of.what
    else:
        what = of.title(evidence.paper, line, found[of.others[-1]][0].row_title if of.others else "")
        aside = OURS if of.ours else ""
    lacking = [one for _, one in found.values() if isinstance(one, Missing)]
    if lacking:
        is_not_run = any(one.kind == NOT_RUN for one in lacking)
        return Part(what, "" if is_not_run else lacking[0].why, NOT_RUN if is_not_run else UNDECIDED, aside)
    margin = evaluate(
        of.formula, {name: one for name, (_, one) in found.items() if isinstance(one, Estimate)}.__getitem__
    )
    interval, seeds, unit = _interval(margin), margin.seeds, found[names[0]][0].unit
    if isinstance(of, Lead):
        shown = _estimated(interval, DIGITS.get(unit, 0), unit, margin)
        return Part(what, shown, order(interval, seeds), aside, seeds, "seeds")
    closed, slack = of.closed(evidence.paper), of.slack(evidence.paper)
    shown = _estimated(interval, 2, unit if of.formula in names else "ratio", margin)
    shown += f", claimed {number(closed, 2)} with slack {number(slack, 2)}"
    return Part(what, shown, equality(interval, seeds, closed, slack), aside, seeds, "seeds")


def _interval(found: Estimate) -> Interval | None:
    if not isfinite(found.value):
        return None
    questions = sum(count for name, count in found.units.items() if name.startswith("questions"))
    return Interval(found.value, *found.interval, found.seeds, questions, found.seeds == 1)


def _estimated(interval: Interval | None, digits: int, unit: str, found: Estimate) -> str:
    if interval is None:
        return "no value"
    mean, low, high = (number(part, digits, sign=True) for part in (interval.mean, interval.low, interval.high))
    alone = " (other seeds unknown)" if interval.alone else ""
    width = "no interval" if interval.low != interval.low else f"[{low}, {high}]{alone}"
    units: dict[str, int] = defaultdict(int)
    for name, count in found.units.items():
        units[name.partition(" ")[0]] += count
    of = "".join(f", {count:,} {name}" for name, count in units.items() if name != "runs")
    return f"{mean} {width} {unit.replace('_', ' ')}, {many(found.seeds, 'seed')}{of}"


# whole runs, at either scale

Judge = Callable[[Interval | None, int], str]


def of_runs(
    what: str,
    groups: Sequence[RunGroup | None],
    value: Callable[[Run, Run], float],
    judge: Judge = order,
    digits: int = 3,
    sign: bool = True,
) -> Part:
    """What a number of each pair of runs of one seed says; of each run, given one configuration twice."""
    first, second = groups
    if first is None or second is None:
        return Part(what, "", NOT_RUN)
    of = "runs" if first is second else "pairs"
    first, second = measures.paired(first, second)
    if not (count := len(first.runs)):
        return Part(what, "", NOT_RUN)
    found = measures.run_difference(first, second, value)
    shown = "no value"
    if found is not None:
        mean, low, high = (number(part, digits, sign=sign) for part in (found.mean, found.low, found.high))
        shown = f"{mean} [{low}, {high}]" if found.low == found.low else f"{mean} in all"
    return Part(what, f"{shown}, {many(count, of[:-1])}", judge(found, count), count=count, of=of)


def at_one(evidence: Evidence, scale: str) -> list[Part]:
    """That RTPO trains at a ratio of 1."""
    return [
        of_runs(
            f"{title}, RTPO's ratio, claimed 1 with slack {RATIO_SLACK:g}",
            2 * [evidence.group(scale, place, "rtpo")],
            # in the geometric mean over tokens and steps
            lambda run, _: float(np.exp(-measures.mean_over_steps(run, "kl_k1"))),
            lambda found, runs: equality(found, runs, 1.0, RATIO_SLACK),
            sign=False,
        )
        for place, title in PLACES[scale].items()
    ]


def below(evidence: Evidence, scale: str) -> list[Part]:
    """RTPO's context ratio above the baselines', measured as in the toy study."""
    return [
        of_runs(
            f"{role}, {title}'s ratio below RTPO's",
            [evidence.group(scale, role, one) for one in ("rtpo", label)],
            lambda one, other: mean_context_ratio(one) - mean_context_ratio(other),
        )
        for role in PLACES[scale]
        for label, title in BASELINES.items()
    ]


def rising(evidence: Evidence, scale: str) -> list[Part]:
    """The baselines' ratio of the last fifth of the steps less that of the first."""
    return [
        of_runs(
            f"{title}, {name}'s ratio, last fifth of the steps less the first",
            2 * [evidence.group(scale, place, label)],
            _gained,
            digits=4,
        )
        for place, title in PLACES[scale].items()
        for label, name in BASELINES.items()
        if scale != TOY or evidence.study.places(place, label)
    ]


def _gained(run: Run, _: Run) -> float:
    values = measures.training_curve(run)["ratio_gm"].dropna().to_numpy()
    part = max(1, len(values) // LATE)
    return float(values[-part:].mean() - values[:part].mean()) if len(values) > 1 else float("nan")


def ties(evidence: Evidence, scale: str) -> list[Part]:
    """That the zero-advantage rates of G = 3 and of G = 4 are 1 - 2 E[p(1-p)] and 1 - 3 E[p(1-p)] of one p, in the
    first data step, before which both have the same weights."""

    def beyond(three: Run, four: Run) -> float:
        small, large = (float(measures.training_curve(run)["zero_advantage"].iloc[0]) for run in (three, four))
        return large - (1 - 1.5 * (1 - small))

    place, title = TIES_AT[scale]
    what = (
        f"{title}, rate at G = 4 less what 1 − 2p(1−p) at G = 3 gives for 1 − 3p(1−p), first step, claimed 0 with "
        f"slack {TIES_SLACK:g}"
    )
    both = [evidence.group(scale, place, label) for label in ("rtpo", "rtpo_g4")]
    return [of_runs(what, both, beyond, lambda found, pairs: equality(found, pairs, 0.0, TIES_SLACK))]


# the toy study


def study_pair(evidence: Evidence, pair: Pair) -> list[Part]:
    """The toy study's finding on two configurations, a part a task on which it plans both; of success beside it those
    at other decodings, and at one learning rate for all."""
    one = toy.Claim("", toy.PAPER, pair.first, pair.second, pair.measure)
    own, *others = toy.settings(evidence.study)
    made = []
    for at, task in product([own, *others] if pair.measure == toy.SUCCESS else [own], TASKS):
        measure = MEASURES[at.measure(one)][0]
        compared = pair.turned or f"{title_of(pair.first)} less {title_of(pair.second)}, {measure}"
        aside = BESIDE if at != own else OURS if pair.ours else ""
        rate = ", one rate for all" if at.is_common else ""
        what, labels = f"{TASKS[task]}, {compared}{rate}", (pair.first, pair.second)
        found = finding(evidence.study, task, labels, at.measure(one), is_common=at.is_common)
        if found is None:
            continue
        if found.outcome == NOT_RUN:
            made.append(Part(what, "", NOT_RUN, aside))
            continue
        difference = found.difference
        if pair.turned and difference is not None:
            difference = replace(difference, mean=-difference.mean, low=-difference.high, high=-difference.low)
        places = _places(evidence, task, at.is_common, pair.first, pair.second)
        each = f"{found.pairs} of {found.planned} planned pairs ({places})"
        if pair.measure == toy.SUCCESS and difference is not None:
            each += f", {difference.questions} questions"
        shown = f"{percent(difference, sign=True)}, {each}"
        made.append(Part(what, shown, order(difference, found.pairs), aside, found.pairs))
    return made


def _places(evidence: Evidence, task: str, is_common: bool, *labels: str) -> str:
    planned = [
        {(one.experiment, one.seed) for one in evidence.study.places(task, label, is_common=is_common)}
        for label in labels
    ]
    starts, seeds = ({place[i] for place in planned[0] & planned[1]} for i in (0, 1))
    return f"{many(len(seeds), 'seed')} × {many(len(starts), 'warm start')}"


def calls(evidence: Evidence, scale: str) -> list[Part]:
    """RTPO's calls an episode against the baselines'."""
    return [
        of_runs(
            f"{TASKS[task]}, calls an episode, {claim} than {BASELINES[other]}",
            [evidence.group(scale, task, label) for label in ("rtpo", other)],
            lambda one, two, sign=sign: sign * (_calls_each(one) - _calls_each(two)),  # type: ignore[misc]
        )
        for task, sign, claim in (("toy_math", -1, "fewer"), ("toy_knowledge", 1, "more"))
        for other in BASELINES
        if evidence.study.places(task, other)
    ]


def _calls_each(run: Run) -> float:
    """Calls that a tool ran, a held-out episode after training. Raises DataError for damaged records."""
    lines = read_lines(run.folder / "evaluations.jsonl", run.manifest["files"], ("when", "mode", "tools"))
    chosen = [line for line in lines if (line["when"], line["mode"]) == ("after", "sampled")]
    names = {outcome.value for outcome in EXECUTED}
    ran = [sum(count for name, count in line["tools"].items() if name in names) for line in chosen]
    return float(np.mean(ran)) if ran else float("nan")


# the paper's own numbers


def printed_tables(evidence: Evidence, of: Lead | Same) -> list[Part]:
    """A lead or an equality on the paper's printed numbers, a part a line."""
    paper = evidence.paper
    if isinstance(of, Same):
        cell, slack = f"{of.table}.{of.formula}.{of.column}", of.slack(paper)
        shown = f"{printed_number(paper, cell)} points, slack {slack:.2f}"
        return [printed_part(of.what, shown, abs(stated(paper, cell) - of.closed(paper)) <= slack)]
    bare = {key: replace(table, checks=()) for key, table in paper.tables.items()}
    side: Side = "columns" if of.by_row else "rows"
    one = Comparison("lead", "", "", of.table, side, of.lines, of.formula)
    found = recomputed(replace(paper, tables=bare, stated={}, comparisons={"lead": one}))
    return [
        printed_part(of.title(paper, line), margin.recomputed, margin.agrees)
        for line, margin in zip(of.lines, found, strict=True)
    ]


def printed_statements(evidence: Evidence, keys: Sequence[str], kinds: Mapping[str, bool]) -> list[Part]:
    """Numbers of the prose against the tables. kinds: of analysis.paper.slips, and whether each counts."""
    places = {f"stated.{key}" for key in keys}
    return [
        printed_part(
            f"{evidence.paper.statement(one.place.partition('.')[2]).says}, {KINDS[one.kind]}",
            f"printed {one.printed}, recomputed {one.recomputed}",
            one.agrees,
            "" if kinds[one.kind] else BESIDE,
        )
        for one in recomputed(evidence.paper)
        if one.place in places and one.kind in kinds
    ]


def printed_ties(evidence: Evidence, scale: str) -> list[Part]:
    """The printed zero-advantage rate at G = 4 beside what that at G = 3 would give with the same policy."""
    return [
        printed_part(
            "rate at G = 4, expected from that at G = 3",
            f"printed {one.printed}, expected {one.recomputed} points",
            one.agrees,
            BESIDE,
        )
        for one in recomputed(evidence.paper)
        if one.kind == EXPECTATION and one.place == "supp_group_sensitivity.g4.zero_advantage"
    ]


def printed_part(what: str, shown: str, agrees: bool, aside: str = "") -> Part:
    return Part(what, shown.replace("-", MINUS), SUPPORTED if agrees else CONTRADICTED, aside)


# all of them

RUNS: Mapping[str, Callable[[Evidence, str], list[Part]]] = {
    one.__name__: one for one in (at_one, below, rising, ties, calls, printed_ties)
}
"""by their names in claims.yaml, given the scale"""


def parts(evidence: Evidence, test: Test) -> list[Part]:
    """What a test says, a part a thing that it compares."""
    of_tables = printed_tables if test.scale == PRINTED else by_tables
    found = [
        *(of_tables(evidence, one) for one in test.tables),
        *(RUNS[name](evidence, test.scale) for name in test.runs),
        *(study_pair(evidence, pair) for pair in test.pairs),
        printed_statements(evidence, test.statements, {ARITHMETIC: True}),
        printed_statements(evidence, test.sentences, {ARITHMETIC: False, READING: True}),
    ]
    of_theorems = [
        replace(one.part, aside=OURS if key in test.ours else "")
        for key, one in evidence.theory.items()
        if key.startswith(test.theorems)
    ]
    return [part for made in (*found, of_theorems) for part in made]


def note(evidence: Evidence, test: Test) -> str:
    """A test's note; {no_op} stands for what an agent earns that does nothing."""
    return test.note.replace("{no_op}", _no_op(evidence))


def _no_op(evidence: Evidence) -> str:
    told = [note for note in evidence.reproduction.tables[AIRLINE].notes if "oing nothing" in note]
    sentences = [sentence for note in told for sentence in note.split(". ") if "oing nothing" in sentence]
    return (
        f"{' '.join(sentences) or 'What doing nothing earns is `unknown`.'} `python "
        "experiments/maintenance/airline_no_op.py FOLDER` counts that in the official task files, which are not in "
        "this repository."
    )


def command(evidence: Evidence, test: Test) -> str:
    """What makes a test's records, or shows the numbers that it reads."""
    if test.scale == PAPER_SCALE:
        return evidence.launch(test.needs)
    if test.scale == TOY:
        return evidence.study_command(test.needs)
    if test.scale == PRINTED:
        return "`python -m analysis.paper`"
    given = dict.fromkeys(one.command for key, one in evidence.theory.items() if key.startswith(test.theorems))
    return "; ".join(f"`{one}`" for one in given)
