"""Arithmetic as a text: + - * /, whole numbers, names such as row.column, and functions."""

import ast
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from rtpo.errors import DataError

T = TypeVar("T")
OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def evaluate(
    formula: str,
    value_of: Callable[[str], T],
    whole: Callable[[int], T],
    functions: Mapping[str, Callable[..., T]],
) -> T:
    """The formula with `value_of` for its names and `whole` for its numbers. Raises DataError for a text that is none,
    or has other parts."""

    def value(node: ast.expr) -> T:
        match node:
            case ast.Constant(value=int(number)):
                return whole(number)
            case ast.Name() | ast.Attribute():
                return value_of(ast.unparse(node))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                negative: T = operator.sub(whole(0), value(operand))
                return negative
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                result: T = OPERATORS[type(op)](value(left), value(right))
                return result
            case ast.Call(func=ast.Name(id=name), args=arguments) if name in functions:
                return functions[name](*map(value, arguments))
        raise DataError(f"A formula has {ast.unparse(node)!r}: only + - * / and {', '.join(functions)}.")

    return value(_parsed(formula))


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


@cache
def _parsed(formula: str) -> ast.expr:
    try:
        return ast.parse(formula, mode="eval").body
    except SyntaxError as error:
        raise DataError(f"The formula {formula!r} cannot be read: {error.msg}.") from error
