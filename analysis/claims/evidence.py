"""Where the evidence for the paper's claims comes from: complete runs of the paper's profile, the toy study, the
records of the theorems, and the paper's own printed numbers. Each source gives parts for `claim_rule`."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from pathlib import Path

import numpy as np

from analysis.claims.rule import BESIDE, OURS, Part, equality, order
from analysis.claims.toy import CONTRADICTED, SUPPORTED, UNDECIDED
from analysis.intervals import Interval
from analysis.paper import formulas
from analysis.paper.estimates import Estimate, combined, evaluate
from analysis.paper.numbers import Comparison, Paper, PaperTable, Side, load_paper
from analysis.paper.reproduction import CellPlan, Reproduction, load_reproduction
from analysis.paper.slips import ARITHMETIC, EXPECTATION, READING, recomputed
from analysis.paper.tables import NOT_MEASURED, Made, Missing, Outcome, Records, make_table
from analysis.records import RunGroup
from analysis.tables import NOT_RUN, ONE_SEED, number
from analysis.theory.page import Verdict, verdicts
from analysis.toy_study.records import TRAINED, StudyRecords, load_study

PAPER_SCALE, TOY, THEORY, PRINTED = "paper scale", "toy", "tables of theory", "the paper's printed numbers"
TASKS = {"toy_math": "toy math", "toy_knowledge": "toy knowledge"}
DIGITS = {"points": 1, "percent": 1, "ratio": 2}
KINDS = {ARITHMETIC: "as it comes about", READING: "as the sentence reads"}
"""of paper_slips"""
Cells = Mapping[tuple[str, str], tuple[CellPlan, Outcome]]


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
        """The margin in the words of paper.yaml."""
        if not self.others:
            return self.one
        many = f"({', '.join(self.others)})"
        best = self.others[0] if len(self.others) == 1 else f"{'min' if self.lower else 'max'}{many}"
        return f"{best} - {self.one}" if self.lower else f"{self.one} - {best}"


@dataclass(frozen=True)
class Same:
    """That a formula of a table's rows, in `column`, is `closed`, up to `slack`."""

    what: str
    table: str
    column: str
    formula: str
    closed: Callable[[Paper], float]
    slack: Callable[[Paper], float]


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

    def group(self, role: str, label: str) -> RunGroup | None:
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


# the paper's scale, from the cells of its tables


def led(evidence: Evidence, lead: Lead) -> list[Part]:
    """A lead on our own runs, a part a line."""
    cells, parts = evidence.table(lead.table), []
    for line in lead.lines:
        places = [(name, line) if lead.by_row else (line, name) for name in (lead.one, *lead.others)]
        outcomes = [cells[place][1] for place in places]
        what, unit = _title(evidence.paper, lead, line, cells[places[-1]][0]), cells[places[0]][0].unit
        parts.append(_estimated(what, unit, outcomes, lambda *found: _margin(lead, found), OURS if lead.ours else ""))
    return parts


def _title(paper: Paper, lead: Lead, line: str, last: CellPlan | None = None) -> str:
    """A line's name, and what it is against where that is one thing alone."""
    table = paper.table(lead.table)
    title = table.lines("columns" if lead.by_row else "rows")[line].title
    if len(lead.others) != 1:
        return title
    return f"{title}, against {last.row_title if last else table.rows[lead.others[0]].title}"


def _margin(lead: Lead, parts: Sequence[Estimate]) -> Estimate:
    if not lead.others:
        return parts[0]
    if lead.lower:
        return combined(lambda one, *others: np.minimum.reduce(np.broadcast_arrays(*others)) - one, *parts)
    return combined(lambda one, *others: one - np.maximum.reduce(np.broadcast_arrays(*others)), *parts)


def _estimated(what: str, unit: str, outcomes: Sequence[Outcome], margin: Callable[..., Estimate], aside: str) -> Part:
    missing = _missing(what, outcomes, aside)
    if missing is not None:
        return missing
    found = margin(*outcomes)
    interval = _interval(found)
    shown, said = _shown(interval, DIGITS.get(unit, 0), unit, found), order(interval, found.seeds)
    return Part(what, shown, said, aside, found.seeds, "seeds")


def _of_scale(made: Made) -> Outcome:
    """Runs or panels that were cut down decide no claim at the paper's scale."""
    if made.not_compared is None or made.plan.source.not_compared is not None:
        return made.outcome
    return Missing(NOT_MEASURED, made.not_compared)


def _missing(what: str, outcomes: Sequence[Outcome], aside: str = "") -> Part | None:
    """A part without a number, where one of the outcomes has none."""
    lacking = [one for one in outcomes if isinstance(one, Missing)]
    if not lacking:
        return None
    if any(one.kind == NOT_RUN for one in lacking):
        return Part(what, "", NOT_RUN, aside)
    return Part(what, lacking[0].why, UNDECIDED, aside)


def same(evidence: Evidence, claim: Same) -> list[Part]:
    """An equality on our own runs."""
    cells = evidence.table(claim.table)
    names = formulas.names(claim.formula)
    outcomes = {name: cells[name, claim.column][1] for name in names}
    missing = _missing(claim.what, list(outcomes.values()))
    if missing is not None:
        return [missing]

    def value_of(name: str) -> Estimate:
        found = outcomes[name]
        assert isinstance(found, Estimate)
        return found

    found = evaluate(claim.formula, value_of)
    closed, slack, interval = claim.closed(evidence.paper), claim.slack(evidence.paper), _interval(found)
    unit = cells[names[0], claim.column][0].unit if claim.formula in names else "ratio"
    shown = f"{_shown(interval, 2, unit, found)}, claimed {number(closed, 2)} with slack {number(slack, 2)}"
    said = equality(interval, found.seeds, closed, slack)
    return [Part(claim.what, shown, said, count=found.seeds, of="seeds")]


def _interval(found: Estimate) -> Interval | None:
    if not isfinite(found.value):
        return None
    questions = sum(count for name, count in found.units.items() if name.startswith("questions"))
    return Interval(found.value, *found.interval, found.seeds, questions, found.seeds == 1)


def _shown(interval: Interval | None, digits: int, unit: str, found: Estimate) -> str:
    if interval is None:
        return "no value"
    mean, low, high = (number(part, digits, sign=True) for part in (interval.mean, interval.low, interval.high))
    width = "no interval" if interval.low != interval.low else f"[{low}, {high}]{ONE_SEED if interval.alone else ''}"
    units: dict[str, int] = defaultdict(int)
    for name, count in found.units.items():
        units[name.partition(" ")[0]] += count
    of = "".join(f", {count:,} {name}" for name, count in units.items() if name != "runs")
    return f"{mean} {width} {unit.replace('_', ' ')}, {many(found.seeds, 'seed')}{of}"


def many(count: int, what: str) -> str:
    """A count and what it counts."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


# the paper's own numbers


def printed_leads(evidence: Evidence, leads: Sequence[Lead]) -> list[Part]:
    """Leads on the paper's printed numbers, a part a line."""
    parts = []
    for lead in leads:
        side: Side = "columns" if lead.by_row else "rows"
        one = Comparison("lead", "", "", lead.table, side, lead.lines, lead.formula)
        alone = replace(evidence.paper, tables=_without_checks(evidence.paper), stated={}, comparisons={"lead": one})
        for line, found in zip(lead.lines, recomputed(alone), strict=True):
            what = _title(evidence.paper, lead, line)
            parts.append(Part(what, found.recomputed.replace("-", "−"), _printed(found.agrees)))
    return parts


def _without_checks(paper: Paper) -> dict[str, PaperTable]:
    return {key: replace(table, checks=()) for key, table in paper.tables.items()}


def printed_statements(evidence: Evidence, keys: Sequence[str], kinds: Mapping[str, bool]) -> list[Part]:
    """Numbers of the prose against the tables. kinds: of paper_slips, and whether each counts."""
    places = {f"stated.{key}" for key in keys}
    return [
        Part(
            f"{evidence.paper.statement(one.place.partition('.')[2]).says}, {KINDS[one.kind]}",
            f"printed {one.printed}, recomputed {one.recomputed}".replace("-", "−"),
            _printed(one.agrees),
            "" if kinds[one.kind] else BESIDE,
        )
        for one in recomputed(evidence.paper)
        if one.place in places and one.kind in kinds
    ]


def _printed(agrees: bool) -> str:
    return SUPPORTED if agrees else CONTRADICTED


def printed_ties(evidence: Evidence) -> list[Part]:
    """The printed zero-advantage rate at G = 4 beside what that at G = 3 would give with the same policy."""
    return [
        Part(
            "rate at G = 4, expected from that at G = 3",
            f"printed {one.printed}, expected {one.recomputed} points",
            _printed(one.agrees),
            BESIDE,
        )
        for one in recomputed(evidence.paper)
        if one.kind == EXPECTATION and one.place == "supp_group_sensitivity.g4.zero_advantage"
    ]
