"""The paper's tables beside ours: one line a cell, with our interval and a verdict; other profiles' in tables of their
own.

The verdict of a cell is by one rule: it `agrees` where the paper's number lies in our 95 % interval, its rounding
included, and is `undecided` where that interval is too wide to tell; else ours is `higher` or `lower`. A number without
an interval has `no interval`; one that is known exactly is compared as it is. What was made at another scale than the
experiment's is `not compared`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, isnan

from analysis import since
from analysis.paper import formulas
from analysis.paper.estimates import Estimate, evaluate
from analysis.paper.numbers import TEXT
from analysis.paper.quantities import QUANTITIES
from analysis.paper.records import (
    NOT_MEASURED,
    QUESTIONS,
    Condition,
    Missing,
    Outcome,
    Records,
    stand_in,
    stand_ins,
    standing_in,
)
from analysis.paper.reproduction import CellPlan, Reproduction, Source, TablePlan
from analysis.tables import MINUS, NO_VALUE, NOT_RUN, ONE_SEED, Table, number, said
from rtpo.errors import DataError

NOT_COMPARED, NO_INTERVAL, AGREES = "not compared", "no interval", "agrees"
HIGHER, LOWER, DIFFERS, UNDECIDED = "higher", "lower", "differs", "undecided"
EXACT = "exact"
TOY = "toy"
TOY_RATE = (
    "All methods share a toy task's learning rate, which was chosen for RTPO alone; docs/results/toy_study.md has "
    "each at a rate of its own."
)
HEADER = ("Row", "Column", "Unit", "Paper", "Ours", "95 % interval", "Seeds", "Questions", "Verdict")
DECIMALS = {"points": 2, "percent": 2, "calls": 1, "questions": 1, "tokens": 1, "turns": 2, "hours": 2, "gpu_hours": 2}
ONE_DECIMAL = ("calls", "questions", "count", "points", "percent")
"""which have one at least, since ours are means"""
COUNTS = ("count", "questions", "setting")
"""units of what is printed without rounding"""
POINTS_WIDTH, RELATIVE_WIDTH = 10.0, 0.25
"""the widest half of an interval in which a number agrees: in points, and of all else a part of the paper's number"""
VERDICTS = {
    AGREES: "the paper's number lies in our 95 % interval, its rounding included (half a unit of the last printed "
    "digit; counts and settings have none); a number known exactly is the paper's",
    UNDECIDED: f"it lies there too, and half of the interval is wider than {POINTS_WIDTH:g} points, or of what is not "
    f"in points than {100 * RELATIVE_WIDTH:g} % of the paper's number",
    HIGHER: "our whole interval is above the paper's number",
    LOWER: "our whole interval is below it",
    DIFFERS: "a setting that is another than the paper's",
    NO_INTERVAL: "ours has none, such as of a single run",
    NOT_COMPARED: "ours is shown, and something else than the method differs, such as the size of a run or a panel",
    NOT_MEASURED: "the records do not have it",
    NO_VALUE: "there is nothing to compare: the paper prints none, or ours has no value",
    NOT_RUN: "there is no complete run",
}


# cells


@dataclass(frozen=True)
class Made:
    """A cell with what we have for it. not_compared: why not, whether a verdict was due or not."""

    plan: CellPlan
    outcome: Outcome
    verdict: str
    not_compared: str | None = None


@dataclass(frozen=True)
class MadeTable:
    """A table of a profile. key: its files' name. left_out: what is incomplete. launch: the command that makes runs."""

    key: str
    plan: TablePlan
    profile: str
    is_paper: bool
    cells: tuple[Made, ...]
    table: Table

    @property
    def counts(self) -> Mapping[str, int]:
        """Cells that the paper prints, by verdict."""
        return Counter(made.verdict for made in self.cells if made.plan.paper is not None)

    @property
    def has_data(self) -> bool:
        return any(not isinstance(made.outcome, Missing) for made in self.cells)


def make_table(records: Records, plan: TablePlan, reproduction: Reproduction) -> MadeTable:
    """A table from a profile's records; the paper's column is there at the paper's profile alone. Raises DataError."""
    is_paper = records.profile == reproduction.profile
    key = plan.key if is_paper else f"{plan.key}_{records.profile}"
    cells = plan.cells if is_paper else tuple(_stand_ins(plan.cells, records.profile))
    made = [_made(records, cells, cell, is_paper) for cell in cells]
    if not is_paper:
        # lines that stood for several benchmarks have become one
        first: dict[tuple[str, str, str | None], Made] = {}
        for one in made:
            first.setdefault((one.plan.row_title, one.plan.column_title, one.plan.source.label), one)
        made = list(first.values())
    table = _rendered(key, plan, records, reproduction, made, is_paper)
    return MadeTable(key, plan, records.profile, is_paper, tuple(made), table)


def _stand_ins(cells: Sequence[CellPlan], profile: str) -> Iterator[CellPlan]:
    """Cells with the benchmarks that a profile's tasks have. A line that is named after a benchmark is named after the
    one that stands in; parts of a benchmark, which that one does not have, are left out."""
    gone: set[str] = set()
    names: dict[str, str] = {}
    changed: list[CellPlan] = []
    for cell in cells:
        source = cell.source
        if source.composed or source.evaluate:
            continue
        there = stand_in(source, profile)
        if there == source.benchmark or there is None:
            changed.append(cell)
            continue
        if source.where:
            gone.add(cell.row)
            continue
        if source.benchmark_of == "row":
            names[cell.row] = there
        title = cell.column_title
        if source.benchmark_of == "column":
            title = f"{there} {QUANTITIES[str(standing_in(source, there).quantity)].title}"
        changed.append(replace(cell, source=standing_in(source, there), column_title=title))
    for cell in changed:
        if cell.row not in gone:
            yield replace(cell, row_title=names.get(cell.row, cell.row_title))


def _made(records: Records, cells: Sequence[CellPlan], cell: CellPlan, is_paper: bool) -> Made:
    by_key = {(one.row, one.column): one for one in cells}
    outcome = _value(records, by_key, cell)
    if not is_paper:
        return Made(replace(cell, paper=None), outcome, "")
    why = cell.source.not_compared
    if why is None and cell.paper is not None and not isinstance(outcome, Missing):
        why = next((why for why in map(records.shortfall, _sources(by_key, cell)) if why is not None), None)
    return Made(cell, outcome, verdict(cell, outcome, why), why)


def _sources(by_key: Mapping[tuple[str, str], CellPlan], cell: CellPlan) -> Iterator[Source]:
    """A cell's, or those of the cells that its formula reads."""
    if cell.source.formula is None:
        yield cell.source
        return
    for name in formulas.names(cell.source.formula):
        row, _, column = name.rpartition(".")
        yield from _sources(by_key, by_key[row or cell.row, column])


def _value(records: Records, by_key: Mapping[tuple[str, str], CellPlan], cell: CellPlan) -> Outcome:
    formula = cell.source.formula
    if formula is None:
        return records.outcome(cell.source)
    parts: dict[str, Outcome] = {}
    for name in formulas.names(formula):
        row, _, column = name.rpartition(".")
        place = (row or cell.row, column)
        if place not in by_key:
            raise DataError(f"The formula {formula!r} reads {name!r}: the table has no such cell.")
        parts[name] = _value(records, by_key, by_key[place])
    missing = [part for part in parts.values() if isinstance(part, Missing)]
    if missing:
        return missing[0]

    def value_of(name: str) -> Estimate:
        found = parts[name]
        assert isinstance(found, Estimate)
        return found

    return evaluate(formula, value_of)


def verdict(cell: CellPlan, outcome: Outcome, not_compared: str | None = None) -> str:
    """By the rule of the module. not_compared: why ours is not of what the paper's is."""
    if isinstance(outcome, Missing):
        return outcome.kind
    if cell.paper is None:
        return NO_VALUE
    if not_compared:
        return NOT_COMPARED
    printed = cell.paper.number
    if isinstance(outcome, str) or printed is None:
        raise DataError(f"{cell.row}, {cell.column} has words: say not_compared.")
    if not isfinite(outcome.value):
        return NO_VALUE
    if outcome.is_exact:
        alike = abs(outcome.value - printed) <= 1e-9 * abs(printed)
        return AGREES if alike else DIFFERS if cell.unit == "setting" else HIGHER if outcome.value > printed else LOWER
    low, high = outcome.interval
    if isnan(low):
        return NO_INTERVAL
    half = 0.0 if cell.unit in COUNTS else 0.5 * 10**-cell.paper.decimals
    if low - half <= printed <= high + half:
        widest = POINTS_WIDTH if cell.unit == "points" else RELATIVE_WIDTH * abs(printed)
        return AGREES if (high - low) / 2 <= widest else UNDECIDED
    return HIGHER if low > printed else LOWER


# text


def _rendered(
    key: str, plan: TablePlan, records: Records, reproduction: Reproduction, made: Sequence[Made], is_paper: bool
) -> Table:
    header = HEADER if is_paper else tuple(name for name in HEADER if name not in ("Paper", "Verdict"))
    rows = [_row(one, is_paper) for one in made]
    caption = f"{plan.gist} Section {plan.section} of the paper. {_profile_sentence(plan, records, is_paper)}"
    return Table(key, header, tuple(rows), caption, tuple(_notes(plan, records, reproduction, made)))


def _row(made: Made, is_paper: bool) -> tuple[str, ...]:
    cell, outcome = made.plan, made.outcome
    shown = _shown(cell, outcome)
    unit = cell.unit.replace("_", " ")
    if not is_paper:
        return (cell.row_title, cell.column_title, unit, *shown)
    printed = NO_VALUE if cell.paper is None else cell.paper.printed
    if cell.unit != TEXT:
        printed = printed.replace("-", MINUS)
    judged = made.verdict
    if isinstance(outcome, Estimate) and judged in (AGREES, UNDECIDED, HIGHER, LOWER):
        judged = said(judged, [outcome.seeds], "seeds")
    return (cell.row_title, cell.column_title, unit, printed, *shown, judged)


def _shown(cell: CellPlan, outcome: Outcome) -> tuple[str, str, str, str]:
    """Ours, its interval, seeds, questions."""
    if isinstance(outcome, Missing):
        return (outcome.kind, NO_VALUE, NO_VALUE, NO_VALUE)
    if isinstance(outcome, str):
        return (outcome, NO_VALUE, NO_VALUE, NO_VALUE)
    sign = cell.unit == "percent" or (cell.paper is not None and cell.paper.printed.startswith(("+", "-")))
    if outcome.is_exact:
        return (_exactly(outcome.value), EXACT, NO_VALUE, NO_VALUE)
    digits = DECIMALS.get(cell.unit, 3 if cell.unit == "ratio" else 1)
    if cell.paper is not None:
        digits = max(cell.paper.decimals, 1 if cell.unit in ONE_DECIMAL else 0)
    low, high = outcome.interval
    alone = ONE_SEED if outcome.seeds == 1 else ""
    interval = NO_INTERVAL if isnan(low) else f"[{_number(low, digits, sign)}, {_number(high, digits, sign)}]{alone}"
    return (_number(outcome.value, digits, sign), interval, str(outcome.seeds), _units(outcome))


def _exactly(value: float) -> str:
    """A setting, in as few digits as it has."""
    return f"{value:,.0f}" if value == int(value) else f"{value:.4g}".replace("e-0", "e−")


def _number(value: float, digits: int, sign: bool) -> str:
    return ("∞" if value > 0 else "−∞") if abs(value) == float("inf") else number(value, digits, sign=sign)


def _units(outcome: Estimate) -> str:
    """How many questions, or else how many of what."""
    counts: Counter[str] = Counter()
    for name, count in outcome.units.items():
        counts[name.partition(" ")[0]] += count
    told = [
        f"{count:,}" if kind == QUESTIONS else f"{count:,} {kind}" for kind, count in counts.items() if kind != "runs"
    ]
    return ", ".join(told) or NO_VALUE


def _profile_sentence(plan: TablePlan, records: Records, is_paper: bool) -> str:
    if is_paper:
        return f"Profile {records.profile}: the paper's models, tasks and budgets."
    roles = dict.fromkeys(cell.source.task for cell in plan.cells if cell.source.task)
    tasks = stand_ins(records.profile)
    told = " and ".join(f"{tasks[role]} stands for {role}" for role in roles if role)
    return f"Profile {records.profile}: {told}. Not the paper's scale, and not to be compared with its numbers."


def _notes(plan: TablePlan, records: Records, reproduction: Reproduction, made: Sequence[Made]) -> Iterator[str]:
    if records.profile == reproduction.profile:
        yield from plan.notes
    if records.profile == TOY:
        yield TOY_RATE
    if any(not one.plan.in_paper for one in made):
        yield "†: not in the paper's table."
    numbers = [one.outcome for one in made if isinstance(one.outcome, Estimate) and not one.outcome.is_exact]
    if numbers:
        yield (
            "Intervals: 95 %, t intervals over seeds, widened by what other questions (prompts, steps) would change "
            "and never narrower than over these alone; Wilson's where all answers are alike, and in a mean or "
            "difference such a share counts as certain."
        )
    runs = [run for one in _conditions(plan, records) for group in one.groups.values() for run in group.runs]
    if records.profile == TOY and runs:
        yield since.note(runs)
    ungraded = sum({id(one): one.ungraded for one in numbers}.values())
    if ungraded:
        yield f"{ungraded:,} samples, counted in each cell, could not be graded and are left out."
    reasons = [one for one in made if isinstance(one.outcome, Missing) and one.outcome.kind == NOT_MEASURED]
    for why in dict.fromkeys(one.outcome.why for one in reasons if isinstance(one.outcome, Missing)):
        yield f"Not measured: {why}."
    if any(one.verdict == NOT_COMPARED for one in made):
        whys = dict.fromkeys(one.not_compared for one in made if one.verdict == NOT_COMPARED)
        yield f"Not compared: {'; '.join(str(why) for why in whys)}."
    if any(isinstance(one.outcome, Missing) and one.outcome.kind == NOT_RUN for one in made):
        yield f"Not run: {reproduction.commands(plan.experiments, records.profile)}"
    conditions = list(_conditions(plan, records))
    if left_out := [folder for condition in conditions for folder in condition.left_out]:
        yield f"Left out, because incomplete: {', '.join(left_out)}."
    if not_final := [folder for condition in conditions for folder in condition.not_final]:
        yield f"Left out, because not of the trained policy: {', '.join(not_final)}."


def _conditions(plan: TablePlan, records: Records) -> Iterator[Condition]:
    """Those that a table asks for and that were started."""
    places = dict.fromkeys(
        (cell.source.experiment, cell.source.task)
        for cell in plan.cells
        if cell.source.experiment and cell.source.task and not cell.source.composed
    )
    for experiment, task in places:
        condition = records.condition(str(experiment), str(task))
        if condition is not None:
            yield condition
