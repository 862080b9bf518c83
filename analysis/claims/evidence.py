"""What tests the paper's claims: complete runs of the paper's profile, the toy study, the records of the theorems, and
the paper's own printed numbers. Each gives parts for `rule`."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from pathlib import Path

import numpy as np

from analysis import measures
from analysis.claims.rule import BESIDE, OURS, Part, equality
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
from analysis.tables import CONTRADICTED, MINUS, NOT_RUN, ONE_SEED, SUPPORTED, UNDECIDED, number, percent
from analysis.theory.page import Verdict, verdicts
from analysis.toy_study import claims as toy
from analysis.toy_study.claims import MEASURES, mean_context_ratio, outcome
from analysis.toy_study.records import TRAINED, StudyRecords, load_study
from rtpo.harness.diagnostics import EXECUTED

TASKS = {"toy_math": "toy math", "toy_knowledge": "toy knowledge"}
ROLES = {"math": "math", "search": "search"}
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
    theory: Sequence[Verdict]
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

    def of_paper(self, role: str, label: str) -> RunGroup | None:
        """The complete runs of the main table at the paper's scale; of the airline with that role."""
        condition = self.records.condition("airline" if role == "airline" else "main_table", role)
        return condition.groups.get(label) if condition else None

    def launch(self, tables: Sequence[str]) -> str:
        """What makes the runs of tables at the paper's scale."""
        plans, profile = [self.reproduction.tables[key] for key in tables], self.reproduction.profile
        told = (self.reproduction.commands(plan.experiments, profile).removesuffix(".") for plan in plans)
        return "; ".join(dict.fromkeys(told))

    def study_command(self, labels: Sequence[str]) -> str:
        """What makes the toy study's runs of some configurations."""
        parts = [part for part in TRAINED if any(place.label in labels for place in self.study.planned[part])]
        return "; ".join(f"`python experiments/toy_study.py {part}`" for part in parts)


def load_evidence(results: Path) -> Evidence:
    """Raises DataError for records that are damaged, changed or of another schema."""
    reproduction = load_reproduction()
    return Evidence(
        load_study(results / "toy"),
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


@dataclass(frozen=True)
class Lead:
    """That line `one` is above the best of `others` on each of `lines` of the other side of the paper's table; below
    the least of them where `lower`; above 0 without others. ours: not the paper's claim."""

    table: str
    lines: tuple[str, ...]
    one: str
    others: tuple[str, ...] = ()
    lower: bool = False
    by_row: bool = True
    ours: bool = False

    @property
    def formula(self) -> str:
        """The margin."""
        if not self.others:
            return self.one
        many_of = f"({', '.join(self.others)})"
        best = self.others[0] if len(self.others) == 1 else f"{'min' if self.lower else 'max'}{many_of}"
        return f"{best} - {self.one}" if self.lower else f"{self.one} - {best}"

    def title(self, paper: Paper, line: str, other: str = "") -> str:
        """A line's name, and what it is against where that is one thing alone. other: in our table's words."""
        table = paper.table(self.table)
        title = table.lines("columns" if self.by_row else "rows")[line].title
        if len(self.others) != 1:
            return title
        return f"{title}, against {other or table.rows[self.others[0]].title}"


@dataclass(frozen=True)
class Same:
    """That a formula of a table's rows, in `column`, is `closed`, up to `slack`."""

    what: str
    table: str
    column: str
    formula: str
    closed: Callable[[Paper], float]
    slack: Callable[[Paper], float]


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
        return Part(what, shown, outcome(interval, seeds), aside, seeds, "seeds")
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
    width = "no interval" if interval.low != interval.low else f"[{low}, {high}]{ONE_SEED if interval.alone else ''}"
    units: dict[str, int] = defaultdict(int)
    for name, count in found.units.items():
        units[name.partition(" ")[0]] += count
    of = "".join(f", {count:,} {name}" for name, count in units.items() if name != "runs")
    return f"{mean} {width} {unit.replace('_', ' ')}, {many(found.seeds, 'seed')}{of}"


# whole runs, at either scale

Groups = Callable[[Evidence, str, str], RunGroup | None]
"""the runs of a configuration, given a place and its label"""
Judge = Callable[[Interval | None, int], str]


def paper_group(evidence: Evidence, place: str, label: str) -> RunGroup | None:
    return evidence.of_paper(place, label)


def study_group(evidence: Evidence, place: str, label: str) -> RunGroup | None:
    return evidence.study.group(place, label)


def of_runs(
    what: str, group: RunGroup | None, value: Callable[[Run], float], judge: Judge, digits: int, sign: bool = False
) -> Part:
    """What a number of each run says."""
    if group is None:
        return Part(what, "", NOT_RUN)
    found, runs = measures.run_difference(group, group, lambda run, _: value(run)), len(group.runs)
    return Part(what, _plain(found, digits, sign, many(runs, "run")), judge(found, runs), count=runs, of="runs")


def of_pairs(
    what: str,
    groups: Sequence[RunGroup | None],
    value: Callable[[Run, Run], float],
    judge: Judge = outcome,
) -> Part:
    """What a number of each pair of runs of one seed says."""
    first, second = groups
    if first is None or second is None:
        return Part(what, "", NOT_RUN)
    first, second = measures.paired(first, second)
    if not first.runs:
        return Part(what, "", NOT_RUN)
    found, pairs = measures.run_difference(first, second, value), len(first.runs)
    return Part(what, _plain(found, 3, True, many(pairs, "pair")), judge(found, pairs), count=pairs)


def _plain(found: Interval | None, digits: int, sign: bool, runs: str) -> str:
    if found is None:
        return f"no value, {runs}"
    mean, low, high = (number(part, digits, sign=sign) for part in (found.mean, found.low, found.high))
    return f"{mean} [{low}, {high}], {runs}" if found.low == found.low else f"{mean} in all, {runs}"


def at_one(evidence: Evidence, groups: Groups, places: Mapping[str, str]) -> list[Part]:
    """That RTPO trains at a ratio of 1."""
    return [
        of_runs(
            f"{title}, RTPO's ratio, claimed 1 with slack {RATIO_SLACK:g}",
            groups(evidence, place, "rtpo"),
            # in the geometric mean over tokens and steps
            lambda run: float(np.exp(-measures.mean_over_steps(run, "kl_k1"))),
            lambda found, runs: equality(found, runs, 1.0, RATIO_SLACK),
            3,
        )
        for place, title in places.items()
    ]


def below(evidence: Evidence) -> list[Part]:
    """RTPO's context ratio above the baselines' at the paper's scale, measured as in the toy study."""
    return [
        of_pairs(
            f"{role}, {title}'s ratio below RTPO's",
            [evidence.of_paper(role, one) for one in ("rtpo", label)],
            lambda one, other: mean_context_ratio(one) - mean_context_ratio(other),
        )
        for role in ROLES
        for label, title in BASELINES.items()
    ]


def rising(evidence: Evidence, groups: Groups, places: Mapping[str, str]) -> list[Part]:
    """The baselines' ratio of the last fifth of the steps less that of the first."""
    return [
        of_runs(
            f"{title}, {name}'s ratio, last fifth of the steps less the first",
            groups(evidence, place, label),
            _gained,
            outcome,
            4,
            sign=True,
        )
        for place, title in places.items()
        for label, name in BASELINES.items()
        if groups is not study_group or evidence.study.places(place, label)
    ]


def _gained(run: Run) -> float:
    values = measures.training_curve(run)["ratio_gm"].dropna().to_numpy()
    part = max(1, len(values) // LATE)
    return float(values[-part:].mean() - values[:part].mean()) if len(values) > 1 else float("nan")


def ties(evidence: Evidence, groups: Groups, place: str, title: str) -> list[Part]:
    """That the zero-advantage rates of G = 3 and of G = 4 are 1 - 2 E[p(1-p)] and 1 - 3 E[p(1-p)] of one p, in the
    first data step, before which both have the same weights."""

    def beyond(three: Run, four: Run) -> float:
        small, large = (float(measures.training_curve(run)["zero_advantage"].iloc[0]) for run in (three, four))
        return large - (1 - 1.5 * (1 - small))

    what = (
        f"{title}, rate at G = 4 less what 1 − 2p(1−p) at G = 3 gives for 1 − 3p(1−p), first step, claimed 0 with "
        f"slack {TIES_SLACK:g}"
    )
    both = [groups(evidence, place, label) for label in ("rtpo", "rtpo_g4")]
    return [of_pairs(what, both, beyond, lambda found, pairs: equality(found, pairs, 0.0, TIES_SLACK))]


# the toy study


def study_pair(
    first: str, second: str, measure: str = "success", *, ours: bool = False, turned: str = ""
) -> Callable[[Evidence], list[Part]]:
    """The toy study's finding on two configurations, a part a task on which it plans both. `turned`: the claim is that
    the first does worse, in these words."""
    aside = OURS if ours else ""
    compared = turned or f"{title_of(first)} less {title_of(second)}, {MEASURES[measure][0]}"

    def parts(evidence: Evidence) -> list[Part]:
        made = []
        for task, title in TASKS.items():
            found = toy.finding(evidence.study, task, toy.Claim("", toy.PAPER, first, second, measure))
            if found is None:
                continue
            what = f"{title}, {compared}"
            if found.outcome == NOT_RUN:
                made.append(Part(what, "", NOT_RUN, aside))
                continue
            difference = found.difference
            if turned and difference is not None:
                difference = replace(difference, mean=-difference.mean, low=-difference.high, high=-difference.low)
            each = f"{found.pairs} of {found.planned} planned pairs ({_places(evidence, task, first, second)})"
            if measure == "success" and difference is not None:
                each += f", {difference.questions} questions"
            shown = f"{percent(difference, sign=True)}, {each}"
            made.append(Part(what, shown, outcome(difference, found.pairs), aside, found.pairs))
        return made

    return parts


def _places(evidence: Evidence, task: str, *labels: str) -> str:
    planned = [{(one.experiment, one.seed) for one in evidence.study.places(task, label)} for label in labels]
    starts, seeds = ({place[i] for place in planned[0] & planned[1]} for i in (0, 1))
    return f"{many(len(seeds), 'seed')} × {many(len(starts), 'warm start')}"


def study_calls(evidence: Evidence) -> list[Part]:
    """RTPO's calls an episode against the baselines'."""
    return [
        of_pairs(
            f"{TASKS[task]}, calls an episode, {claim} than {BASELINES[other]}",
            [study_group(evidence, task, label) for label in ("rtpo", other)],
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


def printed_leads(evidence: Evidence, leads: Sequence[Lead]) -> list[Part]:
    """Leads on the paper's printed numbers, a part a line."""
    paper, parts = evidence.paper, []
    bare = {key: replace(table, checks=()) for key, table in paper.tables.items()}
    for lead in leads:
        side: Side = "columns" if lead.by_row else "rows"
        one = Comparison("lead", "", "", lead.table, side, lead.lines, lead.formula)
        alone = replace(paper, tables=bare, stated={}, comparisons={"lead": one})
        for line, found in zip(lead.lines, recomputed(alone), strict=True):
            parts.append(printed_part(lead.title(paper, line), found.recomputed, found.agrees))
    return parts


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


def printed_ties(evidence: Evidence) -> list[Part]:
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
