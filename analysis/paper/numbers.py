"""The paper's printed numbers as data (paper.yaml)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml

from rtpo.core.names import counted, nearest
from rtpo.errors import DataError
from rtpo.run.reading import SAFE_LOADER

SOURCE = Path(__file__).with_name("paper.yaml")
TEXT = "text"
PLUS_MINUS = " ± "
T = TypeVar("T")


@dataclass(frozen=True)
class Value:
    """A number, or words, as the paper prints them."""

    printed: str  # without the unit, such as "93.33 ± 0.40" (mean and standard deviation)
    unit: str  # a key of `units`; `text` for words

    @property
    def mean_printed(self) -> str:
        """`printed` without the deviation."""
        return self.printed.partition(PLUS_MINUS)[0]

    @property
    def exact(self) -> Fraction | None:
        """The number as printed; None for words."""
        return None if self.unit == TEXT else _fraction(self.mean_printed)

    @property
    def number(self) -> float | None:
        return None if self.exact is None else float(self.exact)

    @property
    def deviation(self) -> Fraction:
        """The standard deviation, in the number's unit; 0 where the paper gives none."""
        return _fraction(self.printed.partition(PLUS_MINUS)[2] or "0")

    @property
    def decimals(self) -> int:
        """The number of decimals printed."""
        return len(self.mean_printed.partition(".")[2])


@dataclass(frozen=True, kw_only=True)
class Check:
    """A formula for the cells of some rows or columns of a table. Under `comparisons`: an order that the prose states.

    Names in a formula:

        pass_at_1                   another cell: of the same row if `columns` is set, of the same column if `rows` is
        this                        the cell itself
        ROW, COLUMN                 the keys of the cell, as in table.ROW.COLUMN
        table.row.column            any cell; a dash in the table's name is written as an underscore
        stated.key                  a number of the prose
        name.deviation              the standard deviation printed with a number
    """

    formula: str = ""
    rows: Sequence[str] = ()  # the rows that it gives; or
    columns: Sequence[str] = ()  # the columns that it gives
    only: Sequence[str] = ()  # only these columns of the rows, or these rows of the columns; default: all
    assuming: str = ""  # what the formula assumes and the paper does not state
    table: str = ""  # of an order: its table
    margin: str = ""  # of an order: a formula that must be positive in each of its `rows` or `columns`
    ties: bool = False  # whether the margin may be 0
    where: str = ""  # section
    says: str = ""  # the order in words


@dataclass(frozen=True)
class PrintedTable:
    """A table of the paper."""

    key: str  # its LaTeX label, without `tab:`
    section: str
    gist: str  # what its rows and columns are
    rows: Mapping[str, str]  # titles by key
    columns: Mapping[str, str]
    units: Mapping[str, str]  # by the key of a column, or of a row where rows differ
    cells: Mapping[tuple[str, str], Value]  # by row and column; absent where the paper gives none (null)
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Stated:
    """A number of the prose."""

    value: Value
    where: str  # section
    says: str  # what it is
    formula: str = ""  # how the paper arrives at it
    reading: str = ""  # the formula that its sentence describes, if it is not `formula`
    assuming: str = ""  # what the formula assumes and the paper does not state


@dataclass(frozen=True, eq=False)
class Paper:
    """All printed numbers and stated orders, by key."""

    tables: Mapping[str, PrintedTable]
    stated: Mapping[str, Stated]
    comparisons: Mapping[str, Check]

    def table(self, key: str) -> PrintedTable:
        """A table by its key. Raises DataError for an unknown key."""
        return _known(self.tables, key, "there is no table")

    def value(self, table: str, row: str, column: str) -> Value | None:
        """A cell, or None where the paper gives none. Raises DataError for an unknown table, row or column."""
        printed = self.table(table)
        _known(printed.rows, row, f"table {table!r} has no row")
        _known(printed.columns, column, f"table {table!r} has no column")
        return printed.cells.get((row, column))

    def statement(self, key: str) -> Stated:
        """A number of the prose. Raises DataError for an unknown key."""
        return _known(self.stated, key, "there is no stated number")


def _known(entries: Mapping[str, T], key: str, what: str) -> T:
    if key not in entries:
        raise DataError(f"In the paper's numbers {what} {key!r}; {nearest(key, entries)}.")
    return entries[key]


@cache
def load_paper() -> Paper:
    """The paper's numbers. Raises DataError for an unquoted number, an unknown unit, or a missing cell."""
    return read_paper(SOURCE.read_text(encoding="utf-8"))


def read_paper(text: str) -> Paper:
    """A paper from YAML. Raises DataError as `load_paper` does."""
    source = yaml.load(text, Loader=SAFE_LOADER)

    def value(place: str, printed: Any, unit: str) -> Value:
        if not isinstance(printed, str):
            raise DataError(f"{place} is {printed!r}: quote it, so that it stays as printed.")
        if unit not in source["units"]:
            raise DataError(f"{place} has the unit {unit!r}: no such unit; there are {', '.join(source['units'])}.")
        try:
            _ = Value(printed, unit).exact, Value(printed, unit).deviation
        except ValueError as error:
            raise DataError(f"{place} is {printed!r}: not a number; give one, or the unit {TEXT!r}.") from error
        return Value(printed, unit)

    def table(key: str, entry: Mapping[str, Any]) -> PrintedTable:
        rows, columns = entry["rows"], entry["columns"]
        titles = [{name: line["title"] for name, line in lines.items()} for lines in (rows, columns)]
        units = {name: line["unit"] for name, line in {**columns, **rows}.items() if "unit" in line}
        cells = {}
        for row, line in rows.items():
            if len(line["cells"]) != len(columns):
                raise DataError(
                    f"Table {key!r}, row {row!r} has {counted(len(line['cells']), 'cell')}, not {len(columns)}."
                )
            for column, printed in zip(columns, line["cells"], strict=True):
                if printed is not None:
                    place = f"Table {key!r}, row {row!r}, column {column!r}"
                    cells[row, column] = value(place, printed, units.get(row) or units.get(column, ""))
        checks = tuple(Check(**check) for check in entry.get("checks", ()))
        return PrintedTable(key, entry["section"], entry["gist"], titles[0], titles[1], units, cells, checks)

    def stated(key: str, value_printed: str, unit: str, **entry: str) -> Stated:
        return Stated(value=value(f"Stated number {key!r}", value_printed, unit), **entry)

    return Paper(
        {key: table(key, entry) for key, entry in source["tables"].items()},
        {key: stated(key, entry.pop("value"), **entry) for key, entry in source["stated"].items()},
        {key: Check(**entry) for key, entry in source["comparisons"].items()},
    )


def _fraction(printed: str) -> Fraction:
    thousands = 1000 if printed.endswith("k") else 1
    return thousands * Fraction(printed.replace(",", "").removesuffix("k"))
