"""What our number in each cell of the paper's tables comes from (cells.yaml).

A cell's place is row.column, such as rtpo.pass_at_1. The cells of a table are a frame, indexed by place, with the
columns of `PlannedCell`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from analysis.paper import formulas
from analysis.paper.metrics import UNITS
from analysis.paper.numbers import Paper, PrintedTable, Value, load_paper
from rtpo.core.names import nearest
from rtpo.errors import DataError
from rtpo.run.building import build
from rtpo.run.config import PROJECT
from rtpo.run.reading import SAFE_LOADER

SOURCE = Path(__file__).with_name("cells.yaml")
MARK = " †"
"""ends the title of a row or column that the paper's table does not have"""
KINDS = ("metric", "formula", "setting", "not_measured")
EPISODES = ("held_out", "held_out_paper", "first_paths")
"""after training at temperature 1; after training at the paper's decoding; training paths that began at a task"""
BENCHMARKS = tuple(sorted(path.stem for path in (PROJECT / "configs" / "benchmarks").glob("*.yaml")))


@dataclass(frozen=True)
class CellEntry:
    """A cell of cells.yaml. One of KINDS is given, and says where our number comes from."""

    row: str
    column: str
    metric: str = ""  # a key of metrics.yaml, over the episodes that the fields below choose
    formula: str = ""  # of other cells: a column of the same row, or row.column
    setting: str = ""  # a field of the launchers', of configs/evaluate.yaml after `evaluate.`, or rollouts_per_prompt
    not_measured: str = ""  # why there is no number
    experiment: str = ""  # the runs are results/<experiment>_<profile>_<task>/<label>-seed<seed>/
    task: str = ""  # a role in the paper, such as math; `launch.tasks` of the profile has the task of each role
    label: str = ""
    benchmark: str = ""  # which evaluation of the runs
    where: dict[str, str] = field(default_factory=dict)  # only questions with these values in their `meta`
    episodes: str = ""  # one of EPISODES, where there is no benchmark
    part: str = ""  # only this fifth of the graded episodes, 1 to 5, in the order of training
    not_compared: str = ""  # why our number gets no verdict
    stated: str = ""  # the key of a number in the paper's prose, shown instead of a printed cell


@dataclass(frozen=True, kw_only=True)
class PlannedCell(CellEntry):
    """A cell with what the paper says about it."""

    row_title: str
    column_title: str
    unit: str  # a unit of paper.yaml
    paper: Value | None  # the printed number


@dataclass(frozen=True)
class TableEntry:
    """A table of cells.yaml. Its key is that of a table of the paper, or a new one."""

    cells: tuple[CellEntry, ...]
    rows: dict[str, str] = field(default_factory=dict)  # titles of rows that the paper's table lacks
    columns: dict[str, str] = field(default_factory=dict)  # titles of columns that the paper's table lacks
    notes: tuple[str, ...] = ()  # keys of the file's `notes`
    profile: str = ""  # of the runs; default: the file's
    paper: str = ""  # the paper's table that gives the titles; default: that of the same key
    section: str = ""  # the nearest section of the paper; needed if the paper has no such table
    title: str = ""  # needed if the paper has no such table, and for runs on other tasks than the paper's
    compared: str = ""  # the row from which every other row is subtracted, in a second table
    compared_on: tuple[str, ...] = ()  # the columns of that table
    evaluated_by: tuple[str, ...] = ()  # further experiments to run: they evaluate runs of other experiments


@dataclass(frozen=True)
class CellsFile:
    """The file cells.yaml."""

    profile: str  # of the paper's scale
    launchers: dict[str, str]  # script of slurm/, by experiment
    notes: dict[str, str]
    tables: dict[str, TableEntry]


@dataclass(frozen=True, eq=False)
class TablePlan:
    """A table as planned, without records."""

    name: str
    profile: str
    section: str
    title: str
    notes: Sequence[str]
    cells: pd.DataFrame
    columns: Sequence[str]  # keys, in order
    compared: str  # a row, as in TableEntry
    compared_on: Sequence[str]
    paper: str  # the paper's table with this layout; "" without one
    evaluated_by: Sequence[str] = ()

    @property
    def experiments(self) -> list[str]:
        """The experiments whose runs or evaluations the table needs."""
        return [*self.cells.loc[self.cells["metric"] != "", "experiment"].unique(), *self.evaluated_by]


@dataclass(frozen=True, eq=False)
class TablePlans:
    """All tables, by name."""

    profile: str  # of the paper's scale
    launchers: Mapping[str, str]  # script of slurm/, by experiment
    tables: Mapping[str, TablePlan]

    def commands(self, experiments: Iterable[str], profile: str) -> str:
        """The commands that run and evaluate experiments, with and without SLURM, in Markdown."""
        chosen = "" if profile == self.profile else f"PROFILE={profile} "
        submitted = dict.fromkeys(f"`{chosen}sbatch slurm/{self.launchers[name]}.sh`" for name in experiments)
        here = (f"`python experiments/launch.py run {name} profile={profile}`" for name in experiments)
        return f"{' and '.join(submitted)}, or without SLURM {' and '.join(here)}."


@cache
def load_plans() -> TablePlans:
    """The tables of cells.yaml. Raises as `read_plans` does."""
    return read_plans(SOURCE.read_text(encoding="utf-8"), load_paper())


def read_plans(text: str, paper: Paper) -> TablePlans:
    """Tables from YAML. Raises ConfigError for an invalid field. Raises DataError, naming the table and the cell, for
    an unknown name, and for a number of the paper without a cell."""
    source: CellsFile = build(CellsFile, yaml.load(text, Loader=SAFE_LOADER), SOURCE.name)
    _check("cells.yaml: table", paper.tables, source.tables)
    tables = {key: _plan(key, entry, source, paper) for key, entry in source.tables.items()}
    return TablePlans(source.profile, source.launchers, tables)


def formula_inputs(cell: Any) -> dict[str, str]:
    """The place of each name in a cell's formula: a column of the same row, or a place itself."""
    names = formulas.names(cell.formula) if cell.formula else ()
    return {name: name if "." in name else f"{cell.row}.{name}" for name in names}


def _plan(key: str, entry: TableEntry, source: CellsFile, paper: Paper) -> TablePlan:
    what, notes = f"cells.yaml, table {key!r}", entry.notes
    _check(f"{what}: note", notes, source.notes)
    _check(f"{what}: evaluated_by", entry.evaluated_by, source.launchers)
    printed = paper.tables.get(key)
    paper_table = paper.table(entry.paper) if entry.paper else printed
    if not paper_table and not (entry.section and entry.title):
        raise DataError(f"{what} is not a table of the paper: it needs section and title.")
    if entry.paper and not entry.title:
        raise DataError(
            f"{what} has the layout of the paper's {entry.paper}: give it a title that says what its rows are."
        )
    paper_table = paper_table or PrintedTable("", entry.section, entry.title, {}, {}, {}, {})
    names = {"experiment": source.launchers, "metric": UNITS, "episodes": EPISODES, "benchmark": BENCHMARKS}
    names |= {"row": {**paper_table.rows, **entry.rows}, "column": {**paper_table.columns, **entry.columns}}
    ours = {f"{cell.row}.{cell.column}": cell for cell in entry.cells}
    for row, column in printed.cells if printed else ():
        if f"{row}.{column}" not in ours:
            raise DataError(f"{what} has no cell {row}.{column}, where the paper prints a number: say what ours is.")
    numbers = None if entry.paper else paper
    planned = {place: _cell(cell, names, paper_table, numbers, f"{what}, {place}") for place, cell in ours.items()}
    cells = pd.DataFrame.from_dict({place: vars(cell) for place, cell in planned.items()}, "index", object)
    for cell in cells.itertuples():
        _check(f"{what}, {cell.Index}, formula {cell.formula!r}: cell", formula_inputs(cell).values(), planned)
    texts, profile = [source.notes[note] for note in notes], entry.profile or source.profile
    order = {**(printed.columns if printed else {}), **dict.fromkeys(cells["column"])}
    columns, compared = [column for column in order if (cells["column"] == column).any()], entry.compared
    about = paper_table.section, entry.title or paper_table.gist, texts
    paper_key = entry.paper or (key if printed else "")
    return TablePlan(key, profile, *about, cells, columns, compared, entry.compared_on, paper_key, entry.evaluated_by)


def _cell(
    cell: CellEntry, names: Mapping[str, Any], paper_table: PrintedTable, paper: Paper | None, what: str
) -> PlannedCell:
    """A cell with its titles and printed number. paper: None for a table at another scale, which shows no printed
    numbers."""
    row, column, metric = cell.row, cell.column, cell.metric
    if sum(bool(getattr(cell, kind)) for kind in KINDS) != 1:
        raise DataError(f"{what} needs one of {', '.join(KINDS)}.")
    stated = paper.statement(cell.stated) if paper and cell.stated else None
    for name in names.keys() - {"row"} if stated else names:
        _check(f"{what}: {name}", filter(None, [getattr(cell, name)]), names[name])
    unit = stated.value.unit if stated else paper_table.units.get(row) or paper_table.units.get(column)
    ours = UNITS.get(metric)
    if ours and unit not in (None, ours):
        raise DataError(f"{what} is in {unit} and the metric {metric!r} in {ours}: choose another.")
    return PlannedCell(
        **vars(cell),
        row_title=stated.says[:1].upper() + stated.says[1:] if stated else names["row"][row],
        column_title=names["column"][column],
        unit=ours or unit or "points",
        paper=stated.value if stated else paper_table.cells.get((row, column)) if paper else None,
    )


def _check(what: str, names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise DataError(f"{what} {name!r} is unknown; {nearest(name, known)}.")
