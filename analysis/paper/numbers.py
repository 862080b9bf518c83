"""The paper's numbers as data: paper.yaml beside this file, whose head says how it is written."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from rtpo.errors import DataError
from rtpo.run.records import SAFE_LOADER

SOURCE = Path(__file__).with_name("paper.yaml")
TEXT = "text"
PLUS_MINUS = " ± "
Side = Literal["rows", "columns"]
T = TypeVar("T")


@dataclass(frozen=True)
class Value:
    """A number, or words where the unit is `text`. `printed` is what the paper prints, without the unit."""

    printed: str
    unit: str

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
        """The number; None for words."""
        return None if self.exact is None else float(self.exact)

    @property
    def deviation(self) -> Fraction | None:
        """The standard deviation, in the number's unit; None where the paper gives none."""
        _, sign, deviation = self.printed.partition(PLUS_MINUS)
        return _fraction(deviation) if sign else None

    @property
    def decimals(self) -> int:
        """How many are printed."""
        return len(self.mean_printed.partition(".")[2])


@dataclass(frozen=True)
class Line:
    """A row or a column; a unit stands with one of the two."""

    key: str
    title: str
    unit: str | None


@dataclass(frozen=True)
class Check:
    """How cells follow from others: those of `targets`, which are lines of `side`, on the lines `only` of the other."""

    side: Side
    targets: tuple[str, ...]
    only: tuple[str, ...]
    formula: str
    assuming: str | None


@dataclass(frozen=True)
class PaperTable:
    """A table. `cells` has what the paper gives, by row and column."""

    key: str
    section: str
    gist: str
    columns: Mapping[str, Line]
    rows: Mapping[str, Line]
    cells: Mapping[tuple[str, str], Value]
    checks: tuple[Check, ...]

    def lines(self, side: Side) -> Mapping[str, Line]:
        return self.rows if side == "rows" else self.columns

    def value(self, row: str, column: str) -> Value | None:
        """A cell; None where the paper gives none. Raises DataError for an unknown row or column."""
        _known(self.rows, row, f"table {self.key!r} has no row")
        _known(self.columns, column, f"table {self.key!r} has no column")
        return self.cells.get((row, column))


@dataclass(frozen=True)
class Stated:
    """A number of the prose. `formula` is how it comes about, `reading` what its sentence says it is."""

    key: str
    value: Value
    where: str
    says: str
    formula: str | None = None
    reading: str | None = None
    assuming: str | None = None


@dataclass(frozen=True)
class Comparison:
    """An order the prose states: `margin` is more than 0, with `ties` at least 0, for each of `lines`."""

    key: str
    where: str
    says: str
    table: str
    side: Side
    lines: tuple[str, ...]
    margin: str
    ties: bool = False


@dataclass(frozen=True)
class Paper:
    """All of it, each by its key. `units` says what a unit's name means."""

    units: Mapping[str, str]
    tables: Mapping[str, PaperTable]
    stated: Mapping[str, Stated]
    comparisons: Mapping[str, Comparison]

    def table(self, key: str) -> PaperTable:
        """A table by its LaTeX label, without `tab:`. Raises DataError for an unknown one."""
        return _known(self.tables, key, "there is no table")

    def value(self, table: str, row: str, column: str) -> Value | None:
        """A cell; None where the paper gives none. Raises DataError for an unknown table, row or column."""
        return self.table(table).value(row, column)

    def statement(self, key: str) -> Stated:
        """A number of the prose. Raises DataError for an unknown one."""
        return _known(self.stated, key, "there is no stated number")


@cache
def load_paper() -> Paper:
    """The paper's numbers. Raises DataError for a file that is not written as its head says."""
    return read_paper(SOURCE.read_text(encoding="utf-8"))


def read_paper(text: str) -> Paper:
    """A paper from YAML. Raises DataError as `load_paper` does."""
    source = yaml.load(text, Loader=SAFE_LOADER)
    units = source["units"]
    return Paper(
        units,
        {key: _table(key, table, units) for key, table in source["tables"].items()},
        {key: _stated(key, dict(stated), units) for key, stated in source["stated"].items()},
        {key: _comparison(key, dict(given)) for key, given in source["comparisons"].items()},
    )


def _table(key: str, source: Mapping[str, Any], units: Collection[str]) -> PaperTable:
    columns, rows = ({name: _line(name, line) for name, line in source[side].items()} for side in ("columns", "rows"))
    cells: dict[tuple[str, str], Value] = {}
    for row in rows.values():
        given = source["rows"][row.key]["cells"]
        if len(given) != len(columns):
            raise DataError(f"Table {key!r}, row {row.key!r} has {len(given)} cells and {len(columns)} columns.")
        for column, cell in zip(columns.values(), given, strict=True):
            if cell is not None:
                place = f"Table {key!r}, row {row.key!r}, column {column.key!r}"
                cells[row.key, column.key] = _value(place, cell, row.unit or column.unit, units)
    return PaperTable(
        key, source["section"], source["gist"], columns, rows, cells, tuple(map(_check, source.get("checks", ())))
    )


def _line(key: str, source: Mapping[str, Any]) -> Line:
    return Line(key, source["title"], source.get("unit"))


def _value(place: str, printed: Any, unit: str | None, units: Collection[str]) -> Value:
    if not isinstance(printed, str):
        raise DataError(f"{place} is {printed!r}: quote it, so that it stays as printed.")
    if unit is None or unit not in units:
        raise DataError(f"{place} has the unit {unit!r}: no such unit; there are {', '.join(units)}.")
    value = Value(printed, unit)
    try:
        _ = value.exact, value.deviation
    except ValueError as error:
        raise DataError(f"{place} is {printed!r}: not a number; give one, or the unit {TEXT!r}.") from error
    return value


def _fraction(printed: str) -> Fraction:
    thousands = 1000 if printed.endswith("k") else 1
    return thousands * Fraction(printed.replace(",", "").removesuffix("k"))


def _check(source: Mapping[str, Any]) -> Check:
    side = _side(source)
    return Check(side, tuple(source[side]), tuple(source.get("only", ())), source["formula"], source.get("assuming"))


def _side(source: Mapping[str, Any]) -> Side:
    return "rows" if "rows" in source else "columns"


def _stated(key: str, source: dict[str, Any], units: Collection[str]) -> Stated:
    value = _value(f"Stated number {key!r}", source.pop("value"), source.pop("unit"), units)
    return Stated(key, value, **source)


def _comparison(key: str, source: dict[str, Any]) -> Comparison:
    side = _side(source)
    return Comparison(key, side=side, lines=tuple(source.pop(side)), **source)


def _known(known: Mapping[str, T], key: str, what: str) -> T:
    if key not in known:
        raise DataError(f"In the paper's numbers {what} {key!r}; there are {', '.join(known)}.")
    return known[key]
