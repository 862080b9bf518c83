"""Formulas as text: + - * /, whole numbers, names such as row.column, and FUNCTIONS."""

import ast
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache, reduce
from typing import Any

from rtpo.errors import DataError

TEXT = cache(ast.unparse)
"""the text of a part of a formula"""
NAME = re.compile(r"\b[A-Za-z_]\w*(?:\.\w+)*(?!\w*\()")
OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def total(*values: Any) -> Any:
    return reduce(operator.add, values)


def nearest(value: Fraction, whole: Fraction) -> Fraction:
    """The multiple of 1/whole nearest to value."""
    return Fraction(round(value * whole)) / whole


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "total": total,
    "mean": lambda *values: total(*values) / len(values),
    "share": lambda part, whole: part / whole * 100,
    "relative": lambda new, old: (new / old - 1) * 100,
    "nearest": nearest,
    "count": lambda points, whole: Fraction(round(points * whole / 100)),
    "grid": lambda points, whole: nearest(points / 100, whole) * 100,
}
"""share, relative: in percent. count: `points` percent of `whole`, rounded to a whole number. grid: that whole number
in percent of `whole`. nearest, count and grid take exact numbers only."""


def evaluate(formula: str, value_of: Callable[[str], Any]) -> Any:
    """The value of a formula; `value_of` gives the value of each name. Raises DataError for an invalid formula."""

    def value(node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=int(number)):
                return Fraction(number)
            case ast.Name() | ast.Attribute():
                return value_of(TEXT(node))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return value(operand) * -1
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                return OPERATORS[type(op)](value(left), value(right))
            case ast.Call(func=ast.Name(id=name), args=arguments) if name in FUNCTIONS:
                return FUNCTIONS[name](*map(value, arguments))
        raise DataError(f"A formula has {ast.unparse(node)!r}: only + - * / and {', '.join(FUNCTIONS)}.")

    return value(_parsed(formula))


@cache
def names(formula: str) -> list[str]:
    """The names in a formula, each once. Raises DataError for an invalid formula."""
    return list(dict.fromkeys(NAME.findall(ast.unparse(_parsed(formula)))))


@cache
def _parsed(formula: str) -> ast.expr:
    try:
        return ast.parse(formula, mode="eval").body
    except SyntaxError as error:
        raise DataError(f"The formula {formula!r} cannot be read: {error.msg}.") from error
