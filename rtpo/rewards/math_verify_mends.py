"""Patches comparisons that math-verify 0.9.0 gets wrong; a newer version may not need all patches.

Issues of huggingface/Math-Verify:

- 14, 21: it rounds decimals at six places and treats differences below 1e-16 as 0, so 0.0000003 equals 0.0000004 and
  1/2^99 equals 1/2^98.
- 64: it does not find sqrt(1/n) equal to 1/sqrt(n).
"""

from decimal import Decimal
from itertools import product
from typing import Any, Final

from math_verify import grader
from sympy import Expr, Float, I, Integer, MatrixBase, Pow, Rational, Symbol, exp, log

PLACES: Final = 6
"""decimals are compared to this many places, or significant digits below 0.1"""
_FEWEST_DIGITS: Final = 5
_FLOAT_DIGITS: Final = 15
_DIGITS: Final = 60
_TOLERANCE: Final = Rational(1, 10**40)
_PRIMES: Final = (2, 3, 5, 7, 11, 13)
_DIVISORS: Final = (17, 3)
"""primes are divided by these, so that test points differ in size"""
_MOST_SYMBOLS: Final = 4

_numeric_eq = grader.sympy_numeric_eq


def numeric_eq(left: Any, right: Any, float_rounding: int, numeric_precision: int) -> bool:
    """Replaces math-verify's numeric comparison. Rationals are compared exactly, decimals to PLACES, and other values
    with a relative tolerance."""
    are_matrices = isinstance(left, MatrixBase) and isinstance(right, MatrixBase)
    integers = [grader.is_atomic_or_pct_atomic(side, Integer) for side in (left, right)]
    if are_matrices or all(integers) or not isinstance(left, Expr) or not isinstance(right, Expr):
        return bool(_numeric_eq(left, right, float_rounding, numeric_precision))
    left, right = grader.safe_sympy_doit(left), grader.safe_sympy_doit(right)
    left, right = (_with_imaginary_unit(side) for side in (left, right))
    symbols = sorted(left.free_symbols | right.free_symbols, key=str)
    if not symbols:
        return _are_equal(left, right)
    if len(symbols) <= _MOST_SYMBOLS and (_has_branches(left) or _has_branches(right)):
        return _are_equal_where_real(left, right, symbols)
    if not _numeric_eq(left, right, float_rounding, numeric_precision):
        return False
    # math-verify treats small differences as 0: compare at a point too
    point = _point(symbols, 17)
    return _are_equal(left.subs(point), right.subs(point))


def _with_imaginary_unit(side: Expr) -> Expr:
    """Replace the symbol i, as math-verify reads it, by the imaginary unit."""
    units = {symbol: I for symbol in side.free_symbols if str(symbol) == "i"}
    return side.subs(units) if units else side


def _has_branches(side: Expr) -> bool:
    """Whether a side has roots, powers or logarithms, which have several equal forms: sqrt(1/n) is 1/sqrt(n)."""
    powers = side.atoms(Pow, exp)
    return side.has(log) or any(not power.exp.is_integer and power.free_symbols for power in powers)


def _are_equal_where_real(left: Expr, right: Expr, symbols: list[Symbol]) -> bool:
    """Whether both sides agree at test points of each sign and two sizes. Points where a side is not real are skipped,
    unless a side contains i. Two points must be left."""
    is_complex = left.has(I) or right.has(I)
    compared = 0
    for divisor in _DIVISORS:
        for signs in product((1, -1), repeat=len(symbols)):
            point = {
                symbol: sign * value
                for sign, (symbol, value) in zip(signs, _point(symbols, divisor).items(), strict=True)
            }
            sides_at_point = left.subs(point), right.subs(point)
            values = [end.evalf() for end in sides_at_point]
            if not all(value.is_number and value.is_finite for value in values):
                continue
            if is_complex or all(value.is_extended_real for value in values):
                compared += 1
                if not _are_equal(*sides_at_point):
                    return False
    return compared > 1


def _point(symbols: list[Symbol], divisor: int) -> dict[Symbol, Rational]:
    return {symbol: Rational(_PRIMES[place % len(_PRIMES)] + place, divisor) for place, symbol in enumerate(symbols)}


def _are_equal(left: Expr, right: Expr) -> bool:
    if left == right:
        return True
    if isinstance(left, Rational) and isinstance(right, Rational):
        return False
    if left.has(Float) or right.has(Float):
        return _are_equal_decimals(left, right)
    values = left.evalf(_DIGITS), right.evalf(_DIGITS)
    if not all(value.is_number and value.is_finite for value in values):
        return False
    return bool(abs(values[0] - values[1]) <= _TOLERANCE * max(abs(values[0]), abs(values[1])))


def _are_equal_decimals(left: Expr, right: Expr) -> bool:
    """Compare decimals, rounded to PLACES places, or to as many significant digits below 0.1.

    A side with at least five digits and six places is taken as already rounded: its last place counts.
    """
    values = [side.evalf() for side in (left, right)]
    if not all(value.is_extended_real for value in values):
        parts = zip(left.as_real_imag(), right.as_real_imag(), strict=True)
        return all(part.is_real and other.is_real and _are_equal(part, other) for part, other in parts)
    if not all(value.is_Float or value.is_Rational for value in values):
        return False
    decimals = [Decimal(str(value.evalf())) for value in values]
    size = max(map(abs, decimals))
    if size == 0:
        return True
    places = min(max(PLACES, PLACES - 1 - size.adjusted()), _FLOAT_DIGITS - 1 - size.adjusted())
    for side, decimal in zip((left, right), decimals, strict=True):
        written = decimal.normalize().as_tuple()
        assert isinstance(written.exponent, int)
        if isinstance(side, Float) and -written.exponent >= PLACES and len(written.digits) >= _FEWEST_DIGITS:
            places = min(places, -written.exponent)
    return round(decimals[0], places) == round(decimals[1], places)


def install() -> None:
    """Patch math-verify in this process. The patch also covers elements of sets, matrix entries and interval ends."""
    grader.sympy_numeric_eq = numeric_eq
