"""The paper's numbers recomputed from one another, and those that do not agree.

A formula is arithmetic of cells (`analysis.paper.formulas`). Its inputs are rounded: a decimal stands for all numbers
that round to it, an integer for itself. A printed number agrees when some inputs give a number that rounds to it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import pandas as pd

from analysis.paper import formulas
from analysis.paper.numbers import Check, Paper, PrintedTable, Stated, Value, load_paper
from rtpo.errors import DataError

ARITHMETIC, READING, ORDER, EXPECTATION = "arithmetic", "reading", "order", "expectation"
KINDS = (ARITHMETIC, READING, ORDER, EXPECTATION)
"""other printed numbers do not give it; it is not what its sentence says; an order that does not hold; it does not
follow under an assumption that the paper does not state, and need not be wrong"""


@dataclass(frozen=True)
class Recomputed:
    """A printed number, or a stated order, beside what others give.

    `place` is table.row.column, stated.key or comparisons.key.line; `where` the paper's section.
    """

    kind: str
    place: str
    where: str
    printed: str
    recomputed: str
    sentence: str
    agrees: bool


@dataclass(frozen=True)
class _Scope:
    """Where a formula stands: at a cell of `table`. Its names are rows of the column, or without `by_row` columns."""

    paper: Paper
    table: PrintedTable | None = None
    row: str = ""
    column: str = ""
    by_row: bool = False

    def value(self, name: str) -> Value:
        """What a name of a formula stands for. Raises DataError for one that the paper does not give."""
        if name.endswith(".deviation"):
            number = self.value(name.removesuffix(".deviation"))
            return Value(f"{float(number.deviation):.2f}", number.unit)
        value: Value | None
        match [{"ROW": self.row, "COLUMN": self.column}.get(part, part) for part in name.split(".")]:
            case [table, row, column]:
                labels = {label.replace("-", "_"): label for label in self.paper.tables}
                value = self.paper.value(labels.get(table, table), row, column)
            case ["stated", key]:
                value = self.paper.statement(key).value
            case [line] if self.table is not None:
                here, other = (line, self.column) if self.by_row else (self.row, line)
                row, column = (self.row, self.column) if line == "this" else (here, other)
                value = self.paper.value(self.table.key, row, column)
            case _:
                raise DataError(f"A formula reads {name!r}: give a line of its table, table.row.column or stated.key.")
        if value is None or value.exact is None:
            place = f"{self.row!r}, {self.column!r}"
            raise DataError(f"A formula reads {name!r} at {place}: the paper gives no number there.")
        return value

    def range(self, formula: str) -> tuple[Fraction, Fraction, Fraction]:
        """A formula's value at the printed inputs, and its least and greatest over all that round to them, but for
        `this`. It rises or falls with each input throughout so small a range."""
        values = {name: self.value(name) for name in formulas.names(formula)}
        middle = {name: value.exact for name, value in values.items() if value.exact is not None}

        def at(inputs: Mapping[str, Fraction]) -> Fraction:
            value: Fraction = formulas.evaluate(formula, inputs.__getitem__)
            return value

        low, high = dict(middle), dict(middle)
        for name in middle:
            half = Fraction(0) if name == "this" else _half_unit(values[name], integer=Fraction(0))
            less, more = middle[name] - half, middle[name] + half
            rises = at({**middle, name: less}) <= at({**middle, name: more})
            low[name], high[name] = (less, more) if rises else (more, less)
        return at(middle), at(low), at(high)


@cache
def recomputed(paper: Paper) -> list[Recomputed]:
    """Everything of the paper that can be recomputed, in its order. Raises DataError for a formula that cannot be."""
    of_tables = (each for table in paper.tables.values() for each in _cells(paper, table))
    of_prose = (each for key, stated in paper.stated.items() for each in _stated(paper, key, stated))
    of_orders = (each for key, order in paper.comparisons.items() for each in _order(paper, key, order))
    return [*of_tables, *of_prose, *of_orders]


def slips(paper: Paper) -> list[Recomputed]:
    """What does not agree, in the paper's order. Raises DataError as `recomputed` does."""
    return [each for each in recomputed(paper) if not each.agrees]


def frame(kind: str) -> pd.DataFrame:
    """The slips of one of KINDS, a row each."""
    found = [slip for slip in slips(load_paper()) if slip.kind == kind]
    rows = [(f"`{slip.place}`", slip.where, slip.printed, slip.recomputed, slip.sentence) for slip in found]
    return pd.DataFrame(rows, columns=["Place", "Section", "Printed", "Recomputed", "What, and from what"])


def _cells(paper: Paper, table: PrintedTable) -> Iterator[Recomputed]:
    for check in table.checks:
        by_row = bool(check.rows)
        others = check.only or tuple(table.columns if by_row else table.rows)
        for target, other in ((target, other) for target in (*check.rows, *check.columns) for other in others):
            row, column = (target, other) if by_row else (other, target)
            value = table.cells.get((row, column))
            if value is not None:
                says = f"{table.rows[row]}, {table.columns[column]}: `{check.formula}`"
                says += f", assuming {check.assuming}." if check.assuming else "."
                kind, place = EXPECTATION if check.assuming else ARITHMETIC, f"{table.key}.{row}.{column}"
                scope = _Scope(paper, table, row, column, by_row)
                yield _number(scope, kind, place, table.section, value, check.formula, says)


def _stated(paper: Paper, key: str, stated: Stated) -> Iterator[Recomputed]:
    scope, place, value = _Scope(paper), f"stated.{key}", stated.value
    if stated.formula:
        says = f"{stated.says}: `{stated.formula}`" + (f", assuming {stated.assuming}." if stated.assuming else ".")
        kind = EXPECTATION if stated.assuming else ARITHMETIC
        yield _number(scope, kind, place, stated.where, value, stated.formula, says)
    if stated.reading:
        says = f"{stated.says}: the sentence means `{stated.reading}`, but the printed number is `{stated.formula}`."
        yield _number(scope, READING, place, stated.where, value, stated.reading, says)


def _number(scope: _Scope, kind: str, place: str, where: str, value: Value, formula: str, says: str) -> Recomputed:
    printed = value.exact
    if printed is None:
        raise DataError(f"{place} is words: a formula cannot give it.")
    middle, low, high = scope.range(formula)
    half = _half_unit(value, integer=Fraction(1, 2))
    agrees = abs(middle - printed) <= half or (low < printed + half and high > printed - half)
    return Recomputed(kind, place, where, value.mean_printed, _like(middle, value.mean_printed), says, agrees)


def _order(paper: Paper, key: str, order: Check) -> Iterator[Recomputed]:
    """A stated order, line by line."""
    table, by_row = paper.table(order.table), bool(order.columns)
    for line in (*order.rows, *order.columns):
        scope = _Scope(paper, table, "" if by_row else line, line if by_row else "", by_row)
        margin, _, _ = scope.range(order.margin)
        says = f"{order.says}; {(table.columns if by_row else table.rows)[line]}: `{order.margin}`."
        claimed, shown = "at least 0" if order.ties else "more than 0", f"{float(margin):+g}" if margin else "0 (a tie)"
        holds = margin > 0 or (order.ties and margin == 0)
        yield Recomputed(ORDER, f"comparisons.{key}.{line}", order.where, claimed, shown, says, holds)


def _half_unit(value: Value, integer: Fraction) -> Fraction:
    """Half a unit of the last decimal; `integer` for one without decimals; 0 for a printed fraction."""
    if "/" in value.printed:
        return Fraction(0)
    return Fraction(1, 2 * 10**value.decimals) if value.decimals else integer


def _like(number: Fraction, printed: str) -> str:
    """A number with the sign, separators and decimals of one that is printed; one decimal where that is whole."""
    decimals = len(printed.partition(".")[2]) or int(number.denominator != 1)
    scaled = int(abs(number) * 10**decimals + Fraction(1, 2))
    sign = "-" if number < 0 else "+" if printed.startswith("+") else ""
    return sign + f"{scaled / 10**decimals:{',' if ',' in printed else ''}.{decimals}f}"
