"""The paper's numbers recomputed from each other, and those that do not agree.

Printed decimals are rounded, integers are exact. So a formula (`analysis.paper.formulas`) has a range of values: those
of all inputs that round to the printed ones. A printed number agrees if the range has a value that rounds to it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import pandas as pd

from analysis.paper import formulas
from analysis.paper.numbers import Paper, Value, load_paper
from rtpo.errors import DataError

ARITHMETIC, READING, ORDER, EXPECTATION = "arithmetic", "reading", "order", "expectation"
"""arithmetic: a number does not follow from others. reading: a number's sentence describes another number. order: a
stated order does not hold. expectation: a number does not follow from others under an assumption that the paper does
not state, so it may be right."""


@dataclass(frozen=True)
class Recomputed:
    """A printed number or a stated order, with its recomputed value."""

    kind: str  # arithmetic, reading, order or expectation
    place: str  # table.row.column, stated.key or comparisons.key.line
    where: str  # section
    printed: str
    recomputed: str
    sentence: str  # what it is, and from what it is recomputed
    agrees: bool


@cache
def recomputed(paper: Paper) -> list[Recomputed]:
    """All recomputable numbers and orders, in the paper's order. Raises DataError for an invalid formula."""
    return [*_cells(paper), *_stated(paper), *_orders(paper)]


def slips(paper: Paper) -> list[Recomputed]:
    """The numbers and orders that do not agree, in the paper's order. Raises as `recomputed` does."""
    return [each for each in recomputed(paper) if not each.agrees]


def frame(kind: str) -> pd.DataFrame:
    """The slips of a kind (`Recomputed.kind`), one per row."""
    chosen = [slip for slip in slips(load_paper()) if slip.kind == kind]
    rows = [(f"`{slip.place}`", slip.where, slip.printed, slip.recomputed, slip.sentence) for slip in chosen]
    return pd.DataFrame(rows, columns=["Place", "Section", "Printed", "Recomputed", "What, and from what"])


def _cells(paper: Paper) -> Iterator[Recomputed]:
    checks = [(table, check) for table in paper.tables.values() for check in table.checks]
    for table, check in checks:
        if check.rows:
            cells = [(row, column) for row in check.rows for column in check.only or table.columns]
        else:
            cells = [(row, column) for column in check.columns for row in check.only or table.rows]
        for row, column in cells:
            if value := table.cells.get((row, column)):
                place = f"{table.key}.{row}.{column}"
                lines = _lines(table.key, column if check.rows else row, is_column=bool(check.rows))
                span = _range(paper, check.formula.replace("ROW", row).replace("COLUMN", column), lines, place)
                says = f"{table.rows[row]}, {table.columns[column]}: `{check.formula}`{_assuming(check.assuming)}."
                kind = EXPECTATION if check.assuming else ARITHMETIC
                yield _number(kind, place, table.section, value, span, says)


def _stated(paper: Paper) -> Iterator[Recomputed]:
    for key, stated in paper.stated.items():
        place, value, formula = f"stated.{key}", stated.value, stated.formula
        if formula:
            kind, says = EXPECTATION if stated.assuming else ARITHMETIC, f"`{formula}`{_assuming(stated.assuming)}"
            yield _number(kind, place, stated.where, value, _range(paper, formula), f"{stated.says}: {says}.")
        if stated.reading:
            says = f"the sentence means `{stated.reading}`, but the printed number is `{formula}`"
            span = _range(paper, stated.reading)
            yield _number(READING, place, stated.where, value, span, f"{stated.says}: {says}.")


def _orders(paper: Paper) -> Iterator[Recomputed]:
    """Each stated order in each row or column that it is about."""
    for key, order in paper.comparisons.items():
        table = paper.table(order.table)
        for line in (*order.rows, *order.columns):
            margin, _, _ = _range(paper, order.margin, _lines(table.key, line, is_column=bool(order.columns)))
            says = f"{order.says}; {(table.columns if order.columns else table.rows)[line]}: `{order.margin}`."
            shown = f"{float(margin):+g}" if margin else "0 (a tie)"
            claimed, holds = "at least 0" if order.ties else "more than 0", margin > 0 or (order.ties and margin == 0)
            yield Recomputed(ORDER, f"comparisons.{key}.{line}", order.where, claimed, shown, says, holds)


def _lines(table: str, line: str, *, is_column: bool) -> str:
    """A template for the place of a one-word name in a formula: table.{}.line if `line` is a column, else
    table.line.{}."""
    return f"{table}.{{}}.{line}" if is_column else f"{table}.{line}.{{}}"


def _assuming(what: str) -> str:
    return f", assuming {what}" if what else ""


def _number(kind: str, place: str, where: str, value: Value, span: tuple[Fraction, ...], says: str) -> Recomputed:
    if value.exact is None:
        raise DataError(f"{place} is text: remove its formula.")
    (middle, low, high), half = span, _half_unit(value, integer=Fraction(1, 2))
    agrees = abs(middle - value.exact) <= half or (low < value.exact + half and high > value.exact - half)
    return Recomputed(kind, place, where, value.mean_printed, _formatted_as(middle, value.mean_printed), says, agrees)


def _range(paper: Paper, formula: str, lines: str = "", this: str = "") -> tuple[Fraction, Fraction, Fraction]:
    """A formula's value at the printed inputs, and its minimum and maximum over all inputs that round to them, with
    `this` fixed. Assumes that the formula is monotonic in each input over this small range. Raises DataError for a name
    without a number in the paper."""
    values = {name: _value(paper, name, lines, this) for name in formulas.names(formula)}
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


def _value(paper: Paper, name: str, lines: str, this: str) -> Value:
    """The number that a formula's name means. lines: the template (`_lines`). this: the formula's own place."""
    if name.endswith(".deviation"):
        number = _value(paper, name.removesuffix(".deviation"), lines, this)
        return Value(f"{float(number.deviation):.2f}", number.unit)
    place = this if name == "this" else name if "." in name else lines.format(name)
    match place.split("."):
        case ["stated", key]:
            value: Value | None = paper.statement(key).value
        case [table, row, column]:
            labels = {label.replace("-", "_"): label for label in paper.tables}
            value = paper.value(labels.get(table, table), row, column)
        case _:
            raise DataError(f"A formula reads {name!r}: give a line of its table, table.row.column or stated.key.")
    if value is None or value.exact is None:
        raise DataError(f"A formula reads {name!r} at {place}: the paper gives no number there.")
    return value


def _half_unit(value: Value, integer: Fraction) -> Fraction:
    """Half a unit of the last printed decimal; `integer` without decimals; 0 for a fraction such as 1/2."""
    if "/" in value.printed:
        return Fraction(0)
    return Fraction(1, 2 * 10**value.decimals) if value.decimals else integer


def _formatted_as(number: Fraction, printed: str) -> str:
    """A number in the format of a printed one: its sign, separators and decimals. Beside a printed integer, a number
    that is not whole gets one decimal."""
    decimals = len(printed.partition(".")[2]) or int(number.denominator != 1)
    scaled = int(abs(number) * 10**decimals + Fraction(1, 2))
    sign = "-" if number < 0 else "+" if printed.startswith("+") else ""
    return sign + f"{scaled / 10**decimals:{',' if ',' in printed else ''}.{decimals}f}"
