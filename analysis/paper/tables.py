"""The paper's tables from our records: a frame of cells, the paper's layout, and the differences from one row.

The verdict on a cell (`stats.verdict`):

    agrees         our 95 % interval, widened by the paper's rounding, contains the paper's number
    undecided      the interval contains that number, but is too wide to tell
    higher, lower  the interval does not contain that number
    no interval    our number has none
    not compared   cells.yaml says why, or our runs are smaller than the experiment

Tables of other profiles show no printed numbers.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import isfinite, isnan, nan
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.paper.cells import MARK, TablePlan, load_plans
from analysis.paper.estimates import Estimate
from analysis.paper.numbers import Value, load_paper
from analysis.paper.records import Missing, Outcome, Records, tasks
from analysis.stats import CONTRADICTED, LEVEL, SAME, SUPPORTED, UNDECIDED, holm
from analysis.stats import verdict as interval_verdict
from analysis.tables import MINUS, NO_VALUE, NOT_RUN, Number, Table, of_rows
from rtpo.core.names import counted, nearest
from rtpo.errors import DataError
from rtpo.run.config import PROJECT

NOT_COMPARED, NO_INTERVAL, AGREES, HIGHER, LOWER = "not compared", "no interval", "agrees", "higher", "lower"
COMPARED = "_compared"
"""suffix of the name of a table of differences"""
COUNTS = ("count", "questions", "setting")
"""units whose printed numbers are not rounded"""
POINTS_WIDTH, RELATIVE_WIDTH = 10.0, 0.25
"""a wider half-interval is undecided: in points; for other units, as a share of the paper's number"""
DECIMALS = {"points": 2, "percent": 2, "turns": 2, "hours": 2, "gpu_hours": 2, "ratio": 3}
"""decimals of our numbers without a printed one, by unit; 1 for other units"""
ONE_DECIMAL = ("calls", "questions", "count", "points", "percent")
"""units in which our numbers have at least one decimal: they are means"""


def verdict(printed: Value | None, outcome: Outcome, why: str = "") -> str:
    """The verdict on a cell. why: the reason not to compare it, if there is one."""
    if isinstance(outcome, Missing):
        return outcome.kind
    if printed is None or printed.number is None or not isfinite(outcome.value):
        return NO_VALUE
    ours, number = outcome.interval, printed.number
    if why or isnan(ours.low):
        return NOT_COMPARED if why else NO_INTERVAL
    rounding = 0.0 if outcome.is_exact or printed.unit in COUNTS else 0.5 * 10**-printed.decimals
    width = POINTS_WIDTH if printed.unit == "points" else RELATIVE_WIDTH * abs(number)
    word = interval_verdict(ours, number, slack=max(rounding, SAME * abs(number)), width=width)
    if word == CONTRADICTED:
        return HIGHER if ours.mean > number else LOWER
    return AGREES if word == SUPPORTED else UNDECIDED


@dataclass(frozen=True, eq=False)
class PaperTable:
    """A planned table, filled from the records of a profile."""

    name: str  # of its files
    plan: TablePlan
    records: Records
    is_paper: bool  # whether the profile has the paper's scale

    @cached_property
    def cells(self) -> pd.DataFrame:
        """The plan's cells with their `outcome`, their `verdict`, and `why` there is no number or comparison. Raises
        DataError for records that are damaged, changed, of another schema, or not comparable."""
        plan: dict[str, Any] = {str(cell.Index): cell for cell in self.plan.cells.itertuples()}
        rows, outcomes = [], self.records.outcomes(plan)
        for place, cell in plan.items():
            outcome, printed = outcomes[place], cell.paper if self.is_paper else None
            why = outcome.why if isinstance(outcome, Missing) else cell.not_compared
            if not why and printed and isinstance(outcome, Estimate):
                why = self.records.shortfall(plan, place)
            rows.append((printed, outcome, verdict(printed, outcome, why), why))
        columns = ["paper", "outcome", "verdict", "why"]
        judged = pd.DataFrame(rows, self.plan.cells.index, columns, dtype=object)
        return self.plan.cells.drop(columns="paper").join(judged)

    @property
    def estimates(self) -> "pd.Series[Any]":
        """Our numbers by place, without exact ones."""
        outcomes = self.cells["outcome"]
        return outcomes[[isinstance(each, Estimate) and not each.is_exact for each in outcomes]]

    @property
    def has_data(self) -> bool:
        return any(isinstance(outcome, Estimate) for outcome in self.cells["outcome"])

    @property
    def csv(self) -> str:
        """One line per cell, with plain numbers. Missing values are empty; the interval of an exact number is the
        number itself."""
        text: str = pd.DataFrame(map(_line, self.cells.itertuples())).to_csv(index=False, float_format="%.10g")
        return text

    @cached_property
    def layout(self) -> Table:
        """The paper's layout: each row of the paper, and ours below it."""
        titles = dict(zip(self.cells["column"], self.cells["column_title"], strict=True))
        estimates, lines = self.estimates, list[tuple[str | Number, ...]]()
        common = _seeds(estimates)
        for (_, title), row in self.cells.groupby(["row", "row_title"], sort=False):
            by_column: dict[Any, Any] = {cell.column: cell for cell in row.itertuples()}
            cells = [by_column.get(column) for column in self.plan.columns]
            if any(row["paper"]):
                lines.append((str(title), "paper", *map(_printed, cells)))
            seeds = "" if common else _seeds(estimates[estimates.index.isin(row.index)])
            ours = ["ours"] * self.is_paper + [seeds] * bool(seeds)
            shown = (_ours(cell, has_seeds=not common and not seeds) for cell in cells)
            lines.append(("" if any(row["paper"]) else str(title), ", ".join(ours), *shown))
        header = ("", "", *(titles[column] for column in self.plan.columns))
        return _with_seeds(self.name, header, lines, self._caption(), list(self._notes()), common)

    def _caption(self) -> str:
        """What the table shows. A table of toy tasks says so first, and does not have the paper's title."""
        plan, profile, whole = self.plan, self.records.profile, load_plans().profile
        if self.is_paper:
            scale = "the paper's models, tasks and budgets."
        elif tasks(profile) == tasks(whole):
            scale = "the paper's tasks; not its scale, and not to be compared with its numbers."
        else:
            roles = " and ".join(f"{tasks(profile)[role]} for {role}" for role in plan.cells["task"].unique() if role)
            table = f"the paper's table `{plan.paper}` (section {plan.section})"
            own = f" {plan.title}" if plan.profile != whole else ""
            return f"Toy stand-in for {table}, with {roles}; not to be compared with its numbers.{own}"
        return f"{plan.title} Section {plan.section} of the paper; profile {profile}: {scale}"

    def _notes(self) -> Iterator[str]:
        """The notes under the table."""
        cells = self.cells
        yield from self.plan.notes
        if self.is_paper and any(cells["benchmark"]):
            values = [load_paper().statement(f"eval_{name}").value.printed for name in ("temperature", "top_p")]
            yield "The paper's numbers are at temperature {}, top-p {}.".format(*values)
        if any(MARK in title for title in cells["row_title"] + cells["column_title"]):
            yield f"{MARK.strip()}: not in the paper's table."
        yield from _interval_notes(list(self.estimates))
        if ungraded := max((each.ungraded for each in self.estimates), default=0):
            yield f"Left out, because ungradable: up to {counted(ungraded, 'sample')} of a cell."
        for word, part in cells[(cells["why"] != "") & (cells["verdict"] != NO_VALUE)].groupby("verdict"):
            yield f"{str(word).capitalize()}: {'; '.join(part['why'].unique())}."
        if (cells["verdict"] == NOT_RUN).any():
            yield f"Not run: {load_plans().commands(self.plan.experiments, self.records.profile)}"
        places = cells.loc[cells["metric"] != "", ["experiment", "task"]].drop_duplicates()
        for place in places.itertuples(index=False) if not self.is_paper else ():
            if models := self.records.own_models(*place):
                yield f"Trained: {', '.join(models)}, on {self.records.condition(*place).task}."
        conditions = [self.records.condition(*place) for place in places.itertuples(index=False)]
        if left_out := [name for each in conditions for name in each.left_out]:
            yield f"Left out, because incomplete: {', '.join(left_out)}."

    @cached_property
    def compared(self) -> Table | None:
        """The differences between one row and each other row, paired by seed and question; None without any."""
        first, columns, estimates = self.plan.compared, self.plan.compared_on, self.estimates
        cells, own = self.cells, [f"{self.plan.compared}.{column}" for column in self.plan.compared_on]
        lines, compared = list[tuple[str | Number, ...]](), list[Estimate]()
        for row, title in dict(zip(cells["row"], cells["row_title"], strict=True)).items() if own else ():
            others = [f"{row}.{column}" for column in columns]
            if row != first and estimates.index.isin([*own, *others]).sum() == 2 * len(own):
                differences = [estimates[place] - estimates[other] for place, other in zip(own, others, strict=True)]
                lines.append((title, _seeds(differences), *_tested(differences, list(cells["unit"][own]))))
                compared += differences
        if not lines:
            return None
        header = ("Against", "Seeds", *cells["column_title"][own])
        caption = f"{cells['row_title'][own[0]]} minus each other row of `{self.name}`, paired by seed and question."
        bold = "Bold: p < 0.05 by Holm's correction over a row; with 1 seed there is no p."
        notes = (*_interval_notes(list(estimates[own])), bold)
        return _with_seeds(f"{self.name}{COMPARED}", header, lines, caption, notes, _seeds(compared))


def _with_seeds(
    name: str,
    header: Sequence[str],
    lines: Sequence[Sequence[str | Number]],
    caption: str,
    notes: Sequence[str],
    shared_seeds: str,
) -> Table:
    """A table with the number of seeds in its second column. shared_seeds: the number that all rows share, such as
    "3 seeds", or ""; if they share it, the caption states it instead."""
    if shared_seeds:
        caption = f"{caption} Our means are over {shared_seeds}."
        if all(line[1] in ("", shared_seeds) for line in lines):
            rows = [(line[0], *line[2:]) for line in lines]
            return of_rows(name, (header[0], *header[2:]), rows, caption, notes)
    return of_rows(name, header, lines, caption, notes, label_columns=2)


def _printed(cell: Any) -> str:
    if not cell or not cell.paper:
        return ""
    text: str = cell.paper.printed
    return text if cell.paper.number is None else text.replace("-", MINUS)


def _ours(cell: Any, has_seeds: bool) -> str | Number:
    """Our cell of the layout. has_seeds: whether it states its own number of seeds."""
    if cell is None:
        return ""
    if isinstance(cell.outcome, Missing):
        return str(cell.outcome.kind)
    ours, word = cell.outcome.interval, cell.verdict if cell.paper and cell.verdict != NO_VALUE else ""
    if cell.outcome.is_exact:
        return f"{ours.mean:,.6g}" + (f" ({word})" if word else "")
    digits, sign = DECIMALS.get(cell.unit, 1), cell.unit == "percent"
    if cell.paper:
        digits = max(cell.paper.decimals, int(cell.unit in ONE_DECIMAL))
        sign = sign or cell.paper.printed.startswith(("+", "-"))
    note = ", ".join(filter(None, [word, counted(cell.outcome.seeds, "seed") if has_seeds else ""]))
    return Number(ours.mean, ours.low, ours.high, digits, sign=sign, note=note)


def _seeds(estimates: Iterable[Estimate]) -> str:
    """The number of seeds of all estimates, in words; "" if they differ."""
    counts = {each.seeds for each in estimates}
    return counted(counts.pop(), "seed") if len(counts) == 1 else ""


def _tested(differences: Sequence[Estimate], units: Sequence[str]) -> Iterator[Number]:
    """A row of differences, bold where p < 0.05 by Holm's correction over the row."""
    known = {place: each.p_value for place, each in enumerate(differences) if not isnan(each.p_value)}
    adjusted = dict(zip(known, holm(list(known.values())), strict=True))
    is_mixed = not _seeds(differences)
    for place, (each, unit) in enumerate(zip(differences, units, strict=True)):
        ours, is_bold = each.interval, adjusted.get(place, 1.0) < 1 - LEVEL
        note = counted(each.seeds, "seed") if is_mixed else ""
        yield Number(ours.mean, ours.low, ours.high, DECIMALS.get(unit, 1), sign=True, note=note, is_bold=is_bold)


def _interval_notes(estimates: Sequence[Estimate]) -> Iterator[str]:
    """Notes on the decoding of our numbers, and on their intervals."""
    if decodings := dict.fromkeys(text for each in estimates for text in each.decoding):
        yield f"Ours are at {' and '.join(decodings)}."
    if estimates:
        alone = "; those of 1 seed say nothing about other seeds" if any(each.seeds == 1 for each in estimates) else ""
        yield f"Brackets: 95 % intervals (docs/results/metrics.md){alone}."


def _line(cell: Any) -> dict[str, Any]:
    """A line of the CSV."""
    ours = cell.outcome if isinstance(cell.outcome, Estimate) else Estimate(nan)
    return {
        "row": cell.row_title.removesuffix(MARK),
        "column": cell.column_title.removesuffix(MARK),
        "unit": cell.unit,
        **{"value": ours.value, "low": ours.interval.low, "high": ours.interval.high},
        **{"n": ours.counts.total() or None, "of": " and ".join(ours.counts), "seeds": ours.seeds or None},
        "decoding": " and ".join(ours.decoding),
        **{"paper": cell.paper and cell.paper.number, "printed": cell.paper and cell.paper.printed},
        **{"verdict": cell.verdict.replace(NO_VALUE, ""), "why": cell.why},
    }


# all tables


def planned(results: Path) -> dict[str, PaperTable]:
    """Every table of every profile, by name. The paper's profile comes first; other names end in _<profile>.

    A profile has the tables of cells.yaml that name it. Profiles other than the paper's also have the paper's tables.
    Of these, tables with benchmarks need the paper's tasks.
    """
    plans, tables = load_plans(), {}
    profiles = sorted(path.stem for path in (PROJECT / "configs" / "profile").glob("*.yaml"))
    for profile in sorted(profiles, key=lambda name: name != plans.profile):
        records, has_tasks = Records(results, profile), tasks(profile) == tasks(plans.profile)
        for key, plan in plans.tables.items():
            name = key if plan.profile == profile else f"{key}_{profile}"
            is_shared = plan.profile == plans.profile and name not in plans.tables and bool(plan.experiments)
            if plan.profile == profile or (is_shared and (has_tasks or not any(plan.cells["benchmark"]))):
                tables[name] = PaperTable(name, plan, records, profile == plans.profile)
    return tables


@cache
def committed() -> dict[str, PaperTable]:
    """The tables of the project's own records."""
    return planned(PROJECT / "results")


def all_tables(results: Path) -> tuple[list[PaperTable], list[str]]:
    """The tables of the paper's profile, and those of other profiles with complete runs. Also one sentence per fault of
    damaged, changed or incomparable records; tables that need these records are left out."""
    tables, faults = [], []
    for each in planned(results).values():
        try:
            if each.is_paper or (each.records.has_runs(each.plan.experiments) and each.has_data):
                _ = each.layout, each.compared  # they read all records that the table needs
                tables.append(each)
        except DataError as error:
            faults.append(str(error))
    return tables, list(dict.fromkeys(faults))


def named(results: Path, name: str) -> PaperTable:
    """A table by its name. Raises DataError for an unknown name. For a table without data, the error has the commands
    that make its runs."""
    tables = planned(results)
    if name not in tables:
        raise DataError(f"There is no table {name!r}; {nearest(name, tables)}.")
    table = tables[name]
    if not table.has_data:
        commands = load_plans().commands(table.plan.experiments, table.records.profile)
        raise DataError(f"The table {name} has no complete run: {commands}")
    return table
