"""Arithmetic of estimates, as a text: + - * /, integers, names, mean(...) and relative(new, old)."""

import ast
from collections.abc import Callable, Mapping

from analysis.estimates import Estimate, combined, exact, mean
from rtpo.errors import DataError

OPERATORS: Mapping[type, Callable[[Estimate, Estimate], Estimate]] = {
    ast.Add: Estimate.__add__,
    ast.Sub: Estimate.__sub__,
    ast.Mult: Estimate.__mul__,
    ast.Div: Estimate.__truediv__,
}
FUNCTIONS: Mapping[str, Callable[..., Estimate]] = {
    "mean": mean,
    "total": lambda *parts: combined(lambda *values: sum(values[1:], values[0]), *dict.fromkeys(parts)),
    "relative": lambda new, old: combined(lambda one, other: 100 * (one / other - 1), new, old),
}
"""mean, total: of the different ones. relative: in %"""


def evaluate(formula: str, value_of: Callable[[str], Estimate]) -> Estimate:
    """The formula with `value_of` for its names. Raises DataError for a text that is none, or has other parts."""
    return _evaluate(_parsed(formula), value_of)


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


def _evaluate(node: ast.expr, value_of: Callable[[str], Estimate]) -> Estimate:
    match node:
        case ast.Constant(value=int(number)):
            return exact(number)
        case ast.Name() | ast.Attribute():
            return value_of(ast.unparse(node))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_evaluate(left, value_of), _evaluate(right, value_of))
        case ast.Call(func=ast.Name(id=name), args=arguments) if name in FUNCTIONS:
            return FUNCTIONS[name](*(_evaluate(argument, value_of) for argument in arguments))
    raise DataError(f"A formula has {ast.unparse(node)!r}: only + - * / and {', '.join(FUNCTIONS)}.")
