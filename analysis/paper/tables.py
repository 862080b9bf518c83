"""The cells of the paper's tables from our records, and how each compares with the paper's number.

The verdict of a cell is by one rule: it `agrees` where the paper's number lies in our 95 % interval, its rounding
included, and is `undecided` where that interval is too wide to tell; else ours is `higher` or `lower`. A number without
an interval has `no interval`; one that is known exactly is compared as it is. What was made at another scale than the
experiment's is `not compared`. Another profile than the paper's has the same cells, of what stands in there, and
nothing printed beside them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, isnan

from analysis.paper import formulas
from analysis.paper.estimates import Estimate, evaluate
from analysis.paper.records import NOT_MEASURED, Missing, Outcome, Records, stand_in
from analysis.paper.reproduction import CellPlan, Reproduction, Source, TablePlan
from analysis.tables import NO_VALUE, NOT_RUN
from rtpo.errors import DataError

NOT_COMPARED, NO_INTERVAL, AGREES = "not compared", "no interval", "agrees"
HIGHER, LOWER, DIFFERS, UNDECIDED = "higher", "lower", "differs", "undecided"
TITLES = {"pass_at_1": "accuracy", "pass_at_4": "P@4"}
"""of quantities, in columns of a benchmark that stands in"""
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


@dataclass(frozen=True)
class Made:
    """A cell with what we have for it. not_compared: why not, whether a verdict was due or not."""

    plan: CellPlan
    outcome: Outcome
    verdict: str
    not_compared: str | None = None


@dataclass(frozen=True)
class MadeTable:
    """A table of a profile. key: its files' name."""

    key: str
    plan: TablePlan
    profile: str
    cells: tuple[Made, ...]

    @property
    def counts(self) -> Mapping[str, int]:
        """Cells that the paper prints, by verdict."""
        return Counter(made.verdict for made in self.cells if made.plan.paper is not None)

    @property
    def has_data(self) -> bool:
        return any(not isinstance(made.outcome, Missing) for made in self.cells)


def make_table(records: Records, plan: TablePlan, reproduction: Reproduction) -> MadeTable:
    """A table from a profile's records. Raises DataError."""
    is_paper = records.profile == reproduction.profile
    cells = plan.cells if is_paper else list(_standing_in(plan.cells, records.profile))
    by_key = {(one.row, one.column): one for one in cells}
    made: dict[tuple[str, str, str | None], Made] = {}
    for cell in cells:
        # lines that stood for several benchmarks are one where one stands in for all
        place = (cell.row_title, cell.column_title, None if is_paper else cell.source.label)
        made.setdefault(place, _made(records, by_key, cell))
    key = plan.key if is_paper else f"{plan.key}_{records.profile}"
    return MadeTable(key, plan, records.profile, tuple(made.values()))


def _standing_in(cells: Sequence[CellPlan], profile: str) -> Iterator[CellPlan]:
    """Cells with the benchmarks that a profile's tasks have, and nothing printed. A line that is named after a
    benchmark is named after the one that stands in; parts of a benchmark, which that one has not, are left out."""
    moved = [(cell, stand_in(cell.source, profile)) for cell in cells]
    others = [(cell, there) for cell, there in moved if there != cell.source]
    gone = {cell.row for cell, _ in others if cell.source.where}
    rows = {cell.row: str(there.benchmark) for cell, there in others if there.names == "row"}
    for cell, there in moved:
        if cell.row not in gone:
            title = cell.column_title
            if there != cell.source and there.names == "column":
                title = f"{there.benchmark} {TITLES.get(str(there.quantity), there.quantity)}"
            row_title = rows.get(cell.row, cell.row_title)
            yield replace(cell, source=there, row_title=row_title, column_title=title, paper=None)


def _made(records: Records, by_key: Mapping[tuple[str, str], CellPlan], cell: CellPlan) -> Made:
    outcome, why = _value(records, by_key, cell), cell.source.not_compared
    if why is None and cell.paper is not None and not isinstance(outcome, Missing):
        why = next((why for why in map(records.shortfall, _sources(by_key, cell)) if why is not None), None)
    return Made(cell, outcome, verdict(cell, outcome, why), why)


def _read(by_key: Mapping[tuple[str, str], CellPlan], cell: CellPlan) -> dict[str, CellPlan]:
    """The cells that a cell's formula reads, by name: columns of its row, or row.column."""
    found = {}
    for name in formulas.names(str(cell.source.formula)):
        row, _, column = name.rpartition(".")
        place = (row or cell.row, column)
        if place not in by_key:
            raise DataError(f"The formula {cell.source.formula!r} reads {name!r}: the table has no such cell.")
        found[name] = by_key[place]
    return found


def _sources(by_key: Mapping[tuple[str, str], CellPlan], cell: CellPlan) -> Iterator[Source]:
    """A cell's, or those of the cells that its formula reads."""
    if cell.source.formula is None:
        yield cell.source
        return
    for one in _read(by_key, cell).values():
        yield from _sources(by_key, one)


def _value(records: Records, by_key: Mapping[tuple[str, str], CellPlan], cell: CellPlan) -> Outcome:
    if cell.source.formula is None:
        return records.outcome(cell.source)
    parts = {name: _value(records, by_key, one) for name, one in _read(by_key, cell).items()}
    missing = next((part for part in parts.values() if isinstance(part, Missing)), None)
    found = {name: part for name, part in parts.items() if isinstance(part, Estimate)}
    return missing or evaluate(cell.source.formula, found.__getitem__)


def verdict(cell: CellPlan, outcome: Outcome, not_compared: str | None = None) -> str:
    """By the rule of the module. not_compared: why ours is not of what the paper's is."""
    if isinstance(outcome, Missing):
        return outcome.kind
    printed = cell.paper.number if cell.paper is not None else None
    if cell.paper is None or printed is None:
        return NO_VALUE
    if not_compared:
        return NOT_COMPARED
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
