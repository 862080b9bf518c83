"""What each cell of the paper's tables is made of here: cells.yaml beside this file, whose head says how it is written.

Cells are a frame with a row an entry of `cells`, by place (row.column), with the columns FIELDS ("" where the entry has
none), row_title, column_title, unit, and what the paper prints there as a `Value`, or None.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from analysis.paper import formulas
from analysis.paper.metrics import UNITS
from analysis.paper.numbers import Paper, PrintedTable, load_paper
from rtpo.core.names import nearest
from rtpo.errors import DataError
from rtpo.run.config import PROJECT
from rtpo.run.reading import SAFE_LOADER

SOURCE = Path(__file__).with_name("cells.yaml")
MARK = " †"
"""after the title of a line that the paper's table does not have"""
KINDS = ("metric", "formula", "setting", "not_measured")
FIELDS = (
    *("row", "column", "experiment", "task", "label", "benchmark", "where", "episodes", "part"),
    *(*KINDS, "not_compared", "stated"),
)
EPISODES = ("held_out", "held_out_paper", "first_paths")
ENTRY = (
    "section",
    "title",
    "profile",
    "paper",
    "notes",
    "rows",
    "columns",
    "compared",
    "compared_on",
    "evaluated_by",
    "cells",
)
"""fields of a table"""
BENCHMARKS = tuple(sorted(path.stem for path in (PROJECT / "configs" / "benchmarks").glob("*.yaml")))


@dataclass(frozen=True, eq=False)
class TablePlan:
    """A table of a profile's runs. columns: keys in order. compared: a row, and the columns on which the
    others are compared with it. evaluated_by: experiments that evaluate runs of another's."""

    name: str
    profile: str
    section: str
    title: str
    notes: Sequence[str]
    cells: pd.DataFrame
    columns: Sequence[str]
    compared: str
    compared_on: Sequence[str]
    evaluated_by: Sequence[str] = ()

    @property
    def experiments(self) -> list[str]:
        """Whose runs, or evaluations, it needs."""
        return [*self.cells.loc[self.cells["metric"] != "", "experiment"].unique(), *self.evaluated_by]


@dataclass(frozen=True, eq=False)
class TablePlans:
    """All tables, by name. profile: the paper's. launchers: of slurm/, by experiment."""

    profile: str
    launchers: Mapping[str, str]
    tables: Mapping[str, TablePlan]

    def commands(self, experiments: Iterable[str], profile: str) -> str:
        """What makes the runs of experiments and their evaluations, with SLURM or without, in Markdown."""
        chosen = "" if profile == self.profile else f"PROFILE={profile} "
        submitted = dict.fromkeys(f"`{chosen}sbatch slurm/{self.launchers[name]}.sh`" for name in experiments)
        here = (f"`python experiments/launch.py run {name} profile={profile}`" for name in experiments)
        return f"{' and '.join(submitted)}, or without SLURM {' and '.join(here)}."


@cache
def load_plans() -> TablePlans:
    """Raises DataError for a file that is not written as its head says."""
    return read_plans(SOURCE.read_text(encoding="utf-8"), load_paper())


def read_plans(text: str, paper: Paper) -> TablePlans:
    """Tables from YAML. Raises DataError, naming the table and the cell, for a name that there is none of, and for a
    number that the paper prints and no cell stands for."""
    source = yaml.load(text, Loader=SAFE_LOADER)
    _check("cells.yaml: table", paper.tables, source["tables"])
    tables = {key: _plan(key, entry, source, paper) for key, entry in source["tables"].items()}
    return TablePlans(source["profile"], source["launchers"], tables)


def reads(cell: Any) -> dict[str, str]:
    """The places that a cell's formula reads, by their names there: columns of its row, or row.column."""
    names = formulas.names(cell.formula) if cell.formula else ()
    return {name: name if "." in name else f"{cell.row}.{name}" for name in names}


def _plan(key: str, entry: Mapping[str, Any], source: Mapping[str, Any], paper: Paper) -> TablePlan:
    what, notes = f"cells.yaml, table {key!r}", entry.get("notes", ())
    _check(f"{what}: field", entry, ENTRY)
    _check(f"{what}: note", notes, source["notes"])
    _check(f"{what}: evaluated_by", entry.get("evaluated_by", ()), source["launchers"])
    printed = paper.tables.get(key)
    lines = paper.table(entry["paper"]) if "paper" in entry else printed
    if not lines and (missing := {"section", "title"} - entry.keys()):
        raise DataError(f"{what} is none of the paper's: it needs {' and '.join(sorted(missing))}.")
    lines = lines or PrintedTable("", entry["section"], entry["title"], {}, {}, {}, {})
    names = {"experiment": source["launchers"], "metric": UNITS, "episodes": EPISODES, "benchmark": BENCHMARKS}
    names |= {"row": {**lines.rows, **entry.get("rows", {})}, "column": {**lines.columns, **entry.get("columns", {})}}
    rows = {f"{line['row']}.{line['column']}": line for line in entry["cells"]}
    for row, column in printed.cells if printed else ():
        if f"{row}.{column}" not in rows:
            raise DataError(f"{what} has no cell {row}.{column}, where the paper prints a number: say what ours is.")
    own = paper if "paper" not in entry else None
    rows = {place: _cell(line, names, lines, own, f"{what}, {place}") for place, line in rows.items()}
    cells = pd.DataFrame.from_dict(rows, orient="index", dtype=object)
    for cell in cells.itertuples():
        _check(f"{what}, {cell.Index}, formula {cell.formula!r}: cell", reads(cell).values(), rows)
    compared = entry.get("compared", ""), entry.get("compared_on", ())
    texts, profile = [source["notes"][note] for note in notes], entry.get("profile", source["profile"])
    order = {**(printed.columns if printed else {}), **dict.fromkeys(cells["column"])}
    columns = [column for column in order if (cells["column"] == column).any()]
    evaluated_by = entry.get("evaluated_by", ())
    return TablePlan(key, profile, lines.section, lines.gist, texts, cells, columns, *compared, evaluated_by)


def _cell(line: Any, names: Mapping[str, Any], lines: PrintedTable, paper: Paper | None, what: str) -> dict[str, Any]:
    """A row of the frame. paper: None for a table of another scale, beside which nothing is printed."""
    row, column = line["row"], line["column"]
    _check(f"{what}: field", line, FIELDS)
    if len(line.keys() & KINDS) != 1:
        raise DataError(f"{what} needs one of {', '.join(KINDS)}.")
    stated = paper.statement(line["stated"]) if paper and "stated" in line else None
    for name in (names.keys() - {"row"} if stated else names) & line.keys():
        _check(f"{what}: {name}", [line[name]], names[name])
    unit = stated.value.unit if stated else lines.units.get(row) or lines.units.get(column)
    ours = UNITS.get(line.get("metric", ""))
    if ours and unit not in (None, ours):
        raise DataError(f"{what} is in {unit} and the metric {line['metric']!r} in {ours}: choose another.")
    return {
        **dict.fromkeys(FIELDS, ""),
        **line,
        "row_title": stated.says[:1].upper() + stated.says[1:] if stated else names["row"][row],
        "column_title": names["column"][column],
        "unit": ours or unit or "points",
        "paper": stated.value if stated else lines.cells.get((row, column)) if paper else None,
    }


def _check(what: str, names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise DataError(f"{what} {name!r} is unknown; {nearest(name, known)}.")
