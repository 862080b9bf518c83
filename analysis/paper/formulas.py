"""Arithmetic as a text: + - * /, integers, names and functions, of whatever kind of number its reader has."""

import ast
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from analysis.estimates import Estimate, combined, exact, mean
from rtpo.errors import DataError

T = TypeVar("T")
OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
ESTIMATES: Mapping[str, Callable[..., Estimate]] = {
    "mean": mean,
    "total": lambda *parts: combined(lambda *values: sum(values[1:], values[0]), *dict.fromkeys(parts)),
    "relative": lambda new, old: combined(lambda one, other: 100 * (one / other - 1), new, old),
}
"""mean, total: of the different ones. relative: in %"""


def evaluate(
    formula: str,
    value_of: Callable[[str], T],
    functions: Mapping[str, Callable[..., T]],
    number: Callable[[int], T],
    of_names: Mapping[str, Callable[[str], T]] = MappingProxyType({}),
) -> T:
    """The formula with `value_of` for its names, `number` for its integers, and these functions; those `of_names` take
    a name as it stands. Raises DataError for a text that is no formula, or has other parts."""

    def of(node: ast.expr) -> T:
        match node:
            case ast.Constant(value=int(given)):
                return number(given)
            case ast.Name() | ast.Attribute():
                return value_of(ast.unparse(node))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return OPERATORS[ast.Sub](number(0), of(operand))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                return OPERATORS[type(op)](of(left), of(right))
            case ast.Call(func=ast.Name(id=name), args=[ast.Name() as argument]) if name in of_names:
                return of_names[name](argument.id)
            case ast.Call(func=ast.Name(id=name), args=arguments) if name in functions:
                return functions[name](*map(of, arguments))
        known = ", ".join((*functions, *of_names))
        raise DataError(f"A formula has {ast.unparse(node)!r}: only + - * / and {known}.")

    return of(_parsed(formula))


def estimate(formula: str, value_of: Callable[[str], Estimate]) -> Estimate:
    """A formula of estimates."""
    return evaluate(formula, value_of, ESTIMATES, exact)


def names(formula: str) -> list[str]:
    """The names of a formula, once each. Raises DataError for a text that is none."""
    tree = _parsed(formula)
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    inner |= {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    found = [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute) and id(node) not in inner
    ]
    return list(dict.fromkeys(found))


def _parsed(formula: str) -> ast.expr:
    try:
        return ast.parse(formula, mode="eval").body
    except SyntaxError as error:
        raise DataError(f"The formula {formula!r} cannot be read: {error.msg}.") from error
