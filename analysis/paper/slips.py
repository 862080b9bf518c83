"""The paper's numbers recomputed from one another, and those that do not agree.

A formula is arithmetic of cells and FUNCTIONS. Its inputs are rounded: a decimal stands for all numbers that round to
it, an integer for itself. A printed number agrees when some inputs give a number that rounds to it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from analysis.paper import formulas
from analysis.paper.numbers import PLUS_MINUS, Comparison, Paper, PaperTable, Stated, Value
from rtpo.errors import DataError

ARITHMETIC, READING, ORDER, EXPECTATION = "arithmetic", "reading", "order", "expectation"
KINDS = {
    ARITHMETIC: "The printed number is not what other printed numbers give.",
    READING: "The printed number is not what its sentence says it is.",
    ORDER: "A number that is said to be larger or smaller is not; printed is what was said of the margin.",
    EXPECTATION: "The printed number is not what the others give under an assumption that the paper does not state; "
    "it need not be wrong.",
}
HUNDRED = Fraction(100)


def nearest(value: Fraction, whole: Fraction) -> Fraction:
    """The multiple of 1/whole nearest to value."""
    return Fraction(round(value * whole)) / whole


FUNCTIONS: Mapping[str, Callable[..., Fraction]] = {
    "min": min,
    "max": max,
    "mean": lambda *values: sum(values, Fraction(0)) / len(values),
    "share": lambda part, whole: HUNDRED * part / whole,
    "relative": lambda new, old: HUNDRED * (new / old - 1),
    "nearest": nearest,
    "count": lambda points, whole: Fraction(round(points * whole / HUNDRED)),
    "grid": lambda points, whole: HUNDRED * nearest(points / HUNDRED, whole),
}
"""share, relative: in %. count: of `whole`, from points of 100. grid: the nearest points of 100 that a count gives"""


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
    table: PaperTable | None = None
    row: str = ""
    column: str = ""
    by_row: bool = False

    def value(self, name: str) -> Value:
        """What a name of a formula stands for. Raises DataError for one that the paper does not give."""
        if name.endswith(".deviation"):
            number = self.value(name.removesuffix(".deviation"))
            return Value(number.printed.partition(PLUS_MINUS)[2] or "0", number.unit)
        parts = [{"ROW": self.row, "COLUMN": self.column}.get(part, part) for part in name.split(".")]
        value: Value | None
        if len(parts) == 3:
            labels = {label.replace("-", "_"): label for label in self.paper.tables}
            value = self.paper.value(labels.get(parts[0], parts[0]), parts[1], parts[2])
        elif len(parts) == 2 and parts[0] == "stated":
            value = self.paper.statement(parts[1]).value
        elif len(parts) == 1 and self.table is not None:
            here = parts[0]
            row, column = (here, self.column) if self.by_row else (self.row, here)
            value = self.table.value(self.row, self.column) if here == "this" else self.table.value(row, column)
        else:
            raise DataError(f"A formula reads {name!r}: give a line of its table, table.row.column or stated.key.")
        if value is None or value.exact is None:
            raise DataError(
                f"A formula reads {name!r} at {self.row!r}, {self.column!r}: the paper gives no number there."
            )
        return value


def recomputed(paper: Paper) -> list[Recomputed]:
    """Everything of the paper that can be recomputed, in its order. Raises DataError for a formula that cannot be."""
    found: list[Recomputed] = []
    for table in paper.tables.values():
        found.extend(_cells(paper, table))
    for stated in paper.stated.values():
        found.extend(_stated(paper, stated))
    for comparison in paper.comparisons.values():
        found.extend(_compared(paper, comparison))
    return found


def slips(paper: Paper) -> list[Recomputed]:
    """What does not agree, in the paper's order. Raises DataError as `recomputed` does."""
    return [each for each in recomputed(paper) if not each.agrees]


def _cells(paper: Paper, table: PaperTable) -> Iterator[Recomputed]:
    for check in table.checks:
        by_row = check.side == "rows"
        for target in check.targets:
            for other in check.only or tuple(table.lines("columns" if by_row else "rows")):
                row, column = (target, other) if by_row else (other, target)
                value = table.value(row, column)
                if value is not None:
                    scope = _Scope(paper, table, row, column, by_row)
                    place, title = (
                        f"{table.key}.{row}.{column}",
                        f"{table.rows[row].title}, {table.columns[column].title}",
                    )
                    yield _number(scope, value, check.formula, check.assuming, place, table.section, title)


def _stated(paper: Paper, stated: Stated) -> Iterator[Recomputed]:
    scope, place = _Scope(paper), f"stated.{stated.key}"
    if stated.formula is not None:
        yield _number(scope, stated.value, stated.formula, stated.assuming, place, stated.where, stated.says)
    if stated.reading is not None:
        found = _number(scope, stated.value, stated.reading, None, place, stated.where, stated.says)
        sentence = f"{stated.says}: the sentence reads as `{stated.reading}`, the number is `{stated.formula}`."
        yield Recomputed(READING, place, stated.where, found.printed, found.recomputed, sentence, found.agrees)


def _number(
    scope: _Scope, value: Value, formula: str, assuming: str | None, place: str, where: str, says: str
) -> Recomputed:
    printed = value.exact
    if printed is None:
        raise DataError(f"{place} is words: a formula cannot give it.")
    middle, low, high = _range(formula, scope)
    half = _half_unit(value, integer=Fraction(1, 2))
    agrees = abs(middle - printed) <= half or (low < printed + half and high > printed - half)
    sentence = f"{says}: `{formula}`" + (f", assuming {assuming}." if assuming else ".")
    kind = EXPECTATION if assuming else ARITHMETIC
    return Recomputed(kind, place, where, value.mean_printed, _like(middle, value.mean_printed), sentence, agrees)


def _compared(paper: Paper, comparison: Comparison) -> Iterator[Recomputed]:
    table = paper.table(comparison.table)
    for line in comparison.lines:
        title = table.lines(comparison.side)[line].title
        by_row = comparison.side == "columns"
        scope = _Scope(paper, table, "" if by_row else line, line if by_row else "", by_row)
        margin, _, _ = _range(comparison.margin, scope)
        said = "at least 0" if comparison.ties else "more than 0"
        yield Recomputed(
            ORDER,
            f"comparisons.{comparison.key}.{line}",
            comparison.where,
            said,
            f"{float(margin):+g}" if margin else "0 (a tie)",
            f"{comparison.says}; {title}: `{comparison.margin}`.",
            margin > 0 or (comparison.ties and margin == 0),
        )


def _range(formula: str, scope: _Scope) -> tuple[Fraction, Fraction, Fraction]:
    """A formula's value at the printed inputs, and its least and greatest over all that round to them, but for `this`.

    It rises or falls with each input throughout so small a range.
    """
    values = {name: scope.value(name) for name in formulas.names(formula)}
    middle = {name: value.exact for name, value in values.items() if value.exact is not None}
    half = {name: _half_unit(value, integer=Fraction(0)) for name, value in values.items()} | {"this": Fraction(0)}

    def at(inputs: Mapping[str, Fraction]) -> Fraction:
        return formulas.evaluate(formula, inputs.__getitem__, Fraction, FUNCTIONS)

    low, high = dict(middle), dict(middle)
    for name in middle:
        less, more = middle[name] - half[name], middle[name] + half[name]
        rises = at({**middle, name: less}) <= at({**middle, name: more})
        low[name], high[name] = (less, more) if rises else (more, less)
    return at(middle), at(low), at(high)


def _half_unit(value: Value, integer: Fraction) -> Fraction:
    """Half a unit of the last decimal; `integer` for one without decimals; 0 for a printed fraction."""
    if "/" in value.printed:
        return Fraction(0)
    return Fraction(1, 2 * 10**value.decimals) if value.decimals else integer


def _like(number: Fraction, printed: str) -> str:
    """A number with the sign, separators and decimals of one that is printed; one decimal where that is whole."""
    decimals = len(printed.partition(".")[2])
    if not decimals and number.denominator != 1:
        decimals = 1
    scaled = int(abs(number) * 10**decimals + Fraction(1, 2))
    sign = "-" if number < 0 else "+" if printed.startswith("+") else ""
    return sign + f"{scaled / 10**decimals:{',' if ',' in printed else ''}.{decimals}f}"
