"""What the paper's tables are made of here: reproduction.yaml, checked against the paper's tables.

The head of reproduction.yaml says how it is written.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from analysis.looks import title_of
from analysis.paper.numbers import Line, Paper, PaperTable, Value, load_paper
from analysis.paper.quantities import QUANTITIES, RUN_QUANTITIES
from rtpo.errors import DataError
from rtpo.run.records import SAFE_LOADER

SOURCE = Path(__file__).with_name("reproduction.yaml")
MARK = " †"
"""of a line that the paper does not have"""
KINDS = ("quantity", "formula", "setting", "not_measured")
EPISODES = ("held_out", "first_paths")
_NAME = re.compile(r"\{(\w+)\}")
Spec = Mapping[str, Any]


@dataclass(frozen=True)
class Source:
    """Where a cell's number comes from; exactly one of KINDS is given. title: of a line that the paper does not have,
    where it is not the label's. names: the line that is named after the benchmark."""

    experiment: str | None = None
    label: str | None = None
    task: str | None = None
    benchmark: str | None = None
    where: tuple[tuple[str, str], ...] = ()
    episodes: str | None = None
    part: str | None = None
    quantity: str | None = None
    formula: str | None = None
    setting: str | None = None
    not_measured: str | None = None
    not_compared: str | None = None
    title: str | None = None
    names: str | None = None


@dataclass(frozen=True)
class CellPlan:
    """A cell: its lines by key and as shown, what the paper prints (None: nothing), and its source. in_paper: whether
    the paper's table has the place."""

    row: str
    column: str
    row_title: str
    column_title: str
    unit: str
    paper: Value | None
    in_paper: bool
    source: Source


@dataclass(frozen=True)
class TablePlan:
    """A table of the paper. columns: their keys, in order. experiments: whose runs it needs, in the order of its cells.
    compared: a row, and the columns on which the others are compared with it."""

    key: str
    section: str
    gist: str
    notes: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[CellPlan, ...]
    experiments: tuple[str, ...]
    compared: tuple[str, tuple[str, ...]] | None


@dataclass(frozen=True)
class Reproduction:
    """All of it. launchers: of slurm/, by experiment. profile: of the paper's scale."""

    profile: str
    launchers: Mapping[str, str]
    tables: Mapping[str, TablePlan]

    def commands(self, experiments: Iterable[str], profile: str) -> str:
        """What makes the runs of experiments and their evaluations, with SLURM or without, in Markdown."""
        names = list(dict.fromkeys(experiments))
        chosen = "" if profile == self.profile else f"PROFILE={profile} "
        submitted = dict.fromkeys(
            f"`{chosen}sbatch slurm/{self.launchers[name]}.sh`"
            if name in self.launchers
            else f"`python experiments/launch.py submit {name} profile={profile}`"
            for name in names
        )
        here = (f"`python experiments/launch.py run {name} profile={profile}`" for name in names)
        return f"{' and '.join(submitted)}, or without SLURM {' and '.join(here)}."


@cache
def load_reproduction() -> Reproduction:
    """Raises DataError for a file that is not written as its head says."""
    return read_reproduction(SOURCE.read_text(encoding="utf-8"), load_paper())


def read_reproduction(text: str, paper: Paper) -> Reproduction:
    """A reproduction of `paper` from YAML. Raises DataError for a name that there is none of, and for a table or a cell
    of the paper that it does not say anything about."""
    given = yaml.load(text, Loader=SAFE_LOADER)
    missing = [key for key in paper.tables if key not in given["tables"]]
    if missing:
        raise DataError(f"reproduction.yaml has no table {', '.join(missing)}: say what its cells are made of.")
    tables = {key: paper.tables.get(key) or _of_prose(paper, key, spec) for key, spec in given["tables"].items()}
    return Reproduction(
        given["profile"],
        given["launchers"],
        {key: _table(table, given["tables"][key], given) for key, table in tables.items()},
    )


def _of_prose(paper: Paper, key: str, spec: Spec) -> PaperTable:
    """A table of numbers that stand in the paper's text."""
    stated = {name: paper.statement(name) for name in spec["rows"]}
    rows = {name: Line(name, one.says[:1].upper() + one.says[1:], one.value.unit) for name, one in stated.items()}
    cells = {(name, "value"): one.value for name, one in stated.items()}
    columns = {"value": Line("value", "Value", None)}
    return PaperTable(key, spec["section"], spec["gist"], columns, rows, cells, ())


def _table(table: PaperTable, spec: Spec, given: Spec) -> TablePlan:
    known = ("section", "gist", "cells", "notes", "rows", "columns", "single", "not_in_paper", "compared")
    _known(spec, known, f"Table {table.key!r}")
    cells = tuple(_cells(table, spec, given))
    experiments = dict.fromkeys(one.source.experiment for one in cells if one.source.quantity and one.source.experiment)
    _known(spec.get("notes", ()), given["notes"], f"Table {table.key!r}, note")
    notes = tuple(given["notes"][note] for note in spec.get("notes", ()))
    compared = None
    if "compared" in spec:
        ((row, columns),) = spec["compared"].items()
        compared = (row, tuple(columns))
    columns = (*table.columns, *spec.get("not_in_paper", {}).get("columns", {}))
    return TablePlan(table.key, table.section, table.gist, notes, columns, cells, tuple(experiments), compared)


def _cells(table: PaperTable, spec: Spec, given: Spec) -> Iterator[CellPlan]:
    of_all, more, single = spec.get("cells", {}), spec.get("not_in_paper", {}), spec.get("single", {})
    rows = {**_matched(spec.get("rows", {}), table.rows), **more.get("rows", {})}
    columns = {**_matched(spec.get("columns", {}), table.columns), **more.get("columns", {})}
    unused = set(single)
    for row, of_row in rows.items():
        for column, of_column in columns.items():
            place, what = f"{row}.{column}", f"Table {table.key!r}, {row}.{column}"
            alone = next((pattern for pattern in single if fnmatchcase(place, pattern)), "")
            unused.discard(alone)
            merged: dict[str, Any] = {}
            for level in (of_all, of_row, of_column, single.get(alone, {})):
                kept = {key: one for key, one in merged.items() if key not in KINDS or not {*KINDS} & {*level}}
                merged = kept | level
            paper, in_paper = table.cells.get((row, column)), row in table.rows and column in table.columns
            if not {*KINDS} & {*merged}:
                if paper is not None:
                    raise DataError(f"{what}: nothing is said of it; give it one of {', '.join(KINDS)}.")
                continue
            source = _source(merged, {"row": row, "column": column}, what, given)
            if source.benchmark is not None:
                by_row = "benchmark" in of_row or "{row}" in str(of_all.get("benchmark"))
                by_column = "benchmark" in of_column or "{column}" in str(of_all.get("benchmark"))
                source = replace(source, names="row" if by_row else "column" if by_column else None)
            titles = _title(table.rows, row, of_row, source), _title(table.columns, column, of_column, source)
            yield CellPlan(row, column, *titles, _unit(table, row, column, source, what), paper, in_paper, source)
    if unused:
        raise DataError(f"Table {table.key!r}, single: no cell is {', '.join(sorted(unused))}.")


def _matched(given: Spec, lines: Mapping[str, Line]) -> dict[str, Spec]:
    """What each of the paper's lines is given, by the first key or pattern of keys that it matches."""
    found: dict[str, Spec] = {key: {} for key in lines}
    unused = set(given)
    for key in lines:
        for pattern, spec in given.items():
            if match := re.fullmatch(_NAME.sub(r"(?P<\1>.+)", pattern), key):
                found[key] = {**spec, **match.groupdict()}
                unused.discard(pattern)
                break
    if unused:
        raise DataError(f"The paper's table has no line {', '.join(sorted(unused))}; there are {', '.join(lines)}.")
    return found


def _source(merged: Spec, keys: Mapping[str, str], what: str, given: Spec) -> Source:
    _known(merged, [one.name for one in fields(Source)], what)
    filled: dict[str, Any] = {
        key: _NAME.sub(lambda match: keys[match[1]], value) if isinstance(value, str) else value
        for key, value in merged.items()
    }
    if "where" in filled:
        filled["where"] = tuple(filled["where"].items())
    if (benchmark := filled.get("benchmark")) is not None:
        _known([benchmark], given["benchmarks"], f"{what}, benchmark")
        filled["task"] = given["benchmarks"][benchmark]
    for key, known in (("quantity", [*QUANTITIES, *RUN_QUANTITIES]), ("episodes", EPISODES)):
        _known([filled[key]] if key in filled else [], known, f"{what}, {key}")
    _known([filled["experiment"]] if "experiment" in filled else [], given["launchers"], f"{what}, experiment")
    return Source(**filled)


def _unit(table: PaperTable, row: str, column: str, source: Source, what: str) -> str:
    """Of the paper's lines, or else of our quantity, with which it must agree."""
    lines = [line for line in (table.rows.get(row), table.columns.get(column)) if line is not None]
    paper = next((line.unit for line in lines if line.unit is not None), None)
    quantity = QUANTITIES.get(source.quantity or "") or RUN_QUANTITIES.get(source.quantity or "")
    if quantity is not None and paper not in (None, quantity.unit):
        raise DataError(
            f"{what} is in {paper} and the quantity {source.quantity!r} in {quantity.unit}: choose another."
        )
    return quantity.unit if quantity is not None else paper or "points"


def _title(lines: Mapping[str, Line], key: str, given: Spec, source: Source) -> str:
    if key in lines:
        return lines[key].title
    return (given.get("title") or title_of(str(source.label))) + MARK


def _known(given: Collection[str], known: Collection[str], what: str) -> None:
    unknown = [name for name in given if name not in known]
    if unknown:
        raise DataError(f"{what}: there is no {', '.join(map(repr, unknown))}; there are {', '.join(known)}.")
