"""Patches comparisons that math-verify 0.9.0 gets wrong; a newer version may not need all patches.

Issues of huggingface/Math-Verify:

- 14, 21: math-verify rounds decimals at six places and treats differences below 1e-16 as 0. So 0.0000003 equals
  0.0000004, and 1/2^99 equals 1/2^98.
- 64: math-verify does not find sqrt(1/n) equal to 1/sqrt(n).

The patches compare rationals and decimals exactly, at any size. A decimal may be rounded only if the number has no
finite decimal, as in 0.333333 for 1/3.
"""

from itertools import product
from typing import Any, Final

from math_verify import grader
from sympy import Expr, Float, I, Integer, MatrixBase, Number, Pow, Rational, Symbol, exp, floor, log, simplify

PLACES: Final = 6
"""fewest places of a rounded decimal"""
_FEWEST_DIGITS: Final = 5
"""fewest significant digits of a rounded decimal"""
_DIGITS: Final = (60, 500)
"""digits to which irrational numbers are compared: to 60 first, and to 500 if these agree"""
_GUARD_DIGITS: Final = 20
_PRIMES: Final = (2, 3, 5, 7, 11, 13)
_SIZES: Final = (
    *(Rational(1, 17), Rational(1, 3), Rational(19, 12)),
    *(Rational(50, 7), Rational(700, 11), Rational(3000, 13)),
)
"""factors of the primes; each gives test points of another size. An expression such as ln(x - 50) is real at large
points only"""
_MOST_SYMBOLS: Final = 4

_numeric_eq = grader.sympy_numeric_eq


def numeric_eq(left: Any, right: Any, float_rounding: int, numeric_precision: int) -> bool:
    """Replaces math-verify's numeric comparison. Rationals and decimals are compared exactly, irrational numbers to
    _DIGITS digits."""
    are_matrices = isinstance(left, MatrixBase) and isinstance(right, MatrixBase)
    integers = [grader.is_atomic_or_pct_atomic(side, Integer) for side in (left, right)]
    if are_matrices or all(integers) or not isinstance(left, Expr) or not isinstance(right, Expr):
        return bool(_numeric_eq(left, right, float_rounding, numeric_precision))
    has_decimals = left.has(Float) or right.has(Float)
    left, right = (_with_imaginary_unit(grader.safe_sympy_doit(_exact(side))) for side in (left, right))
    symbols = sorted(left.free_symbols | right.free_symbols, key=str)
    if not symbols:
        return _are_equal(left, right) or (has_decimals and _are_equal_rounded(left, right))
    if len(symbols) <= _MOST_SYMBOLS and (_has_branches(left) or _has_branches(right)):
        return _are_equal_where_real(left, right, symbols)
    if not _numeric_eq(left, right, float_rounding, numeric_precision):
        return False
    # math-verify treats small differences as 0, so the sides are compared at a point too
    point = _point(symbols, _SIZES[0])
    return _are_equal(left.subs(point), right.subs(point))


class Exhausted(BaseException):
    """A comparison ran out of memory or stack; the text is the name of the exception. It is no Exception, because
    math-verify catches all of these and then counts the sides as different."""


def symbolic_eq(left: Any, right: Any) -> bool:
    """Replaces math-verify's symbolic comparison, which would drop the last digits of decimals. Raises Exhausted."""
    left, right = (_exact(side) if isinstance(side, Expr) else side for side in (left, right))
    try:
        difference = simplify(left - right)
        return bool(difference.is_zero_matrix if isinstance(difference, MatrixBase) else difference.is_zero)
    except (MemoryError, RecursionError) as error:
        raise Exhausted(type(error).__name__) from error
    except Exception:  # such as TypeError for sides that cannot be subtracted
        return False


def _exact(side: Expr) -> Expr:
    """Replace decimals by equal rationals."""
    return side.xreplace({number: Rational(str(number)) for number in side.atoms(Float) if number.is_finite})


def _with_imaginary_unit(side: Expr) -> Expr:
    """Replace the symbol i, as math-verify reads it, by the imaginary unit."""
    units = {symbol: I for symbol in side.free_symbols if str(symbol) == "i"}
    return side.subs(units) if units else side


def _has_branches(side: Expr) -> bool:
    """Whether a side has roots, powers or logarithms, which have several equal forms: sqrt(1/n) is 1/sqrt(n)."""
    powers = side.atoms(Pow, exp)
    return side.has(log) or any(not power.exp.is_integer and power.free_symbols for power in powers)


def _are_equal_where_real(left: Expr, right: Expr, symbols: list[Symbol]) -> bool:
    """Whether both sides agree at test points of each sign and size. Points where a side, or a root, power or logarithm
    in it, is not real are skipped, unless a side contains i. At least two points must remain."""
    is_complex = left.has(I) or right.has(I)
    parts = (left, right, *left.atoms(Pow, log), *right.atoms(Pow, log))
    compared = 0
    for size, *signs in product(_SIZES, *[(1, -1)] * len(symbols)):
        magnitudes = _point(symbols, size).items()
        point = {symbol: sign * value for sign, (symbol, value) in zip(signs, magnitudes, strict=True)}
        values = [part.subs(point).evalf() for part in parts]
        if not all(value.is_number and value.is_finite for value in values):
            continue
        if is_complex or all(value.is_extended_real for value in values):
            compared += 1
            if not _are_equal(left.subs(point), right.subs(point)):
                return False
    return compared > 1


def _point(symbols: list[Symbol], size: Rational) -> dict[Symbol, Rational]:
    return {symbol: (_PRIMES[place % len(_PRIMES)] + place) * size for place, symbol in enumerate(symbols)}


def _are_equal(left: Expr, right: Expr) -> bool:
    """Whether two numbers without decimals are equal."""
    if left == right:
        return True
    if isinstance(left, Rational) and isinstance(right, Rational):
        return False
    # few digits suffice for most numbers that differ; cos(10^-30) differs from 1 only in later digits
    return all(_agree(left, right, digits) for digits in _DIGITS)


def _agree(left: Expr, right: Expr, digits: int) -> bool:
    values = [side.evalf(digits + _GUARD_DIGITS, maxn=4 * digits) for side in (left, right)]
    if not all(value.is_number and value.is_finite for value in values):
        return False
    size = max(map(abs, values))
    return bool(abs(values[0] - values[1]) <= size * Rational(1, 10**digits))


def _are_equal_rounded(left: Expr, right: Expr) -> bool:
    """Whether both sides agree in their real and imaginary parts. Parts agree if they are equal, or if one is the other
    as a rounded decimal."""
    parts = zip(left.as_real_imag(), right.as_real_imag(), strict=True)
    return all(_are_equal(part, other) or _is_rounded(part, other) or _is_rounded(other, part) for part, other in parts)


def _is_rounded(decimal: Expr, value: Expr) -> bool:
    """Whether `decimal` is `value` rounded to the decimal's last place, and `value` has no finite decimal. `decimal`
    needs PLACES places and _FEWEST_DIGITS digits."""
    places = _places(decimal)
    if places is None or places < PLACES or _places(value) is not None or not value.is_extended_real:
        return False
    scaled = decimal * 10**places
    nearest = value if isinstance(value, Rational) else value.evalf(places + _DIGITS[0])
    is_near = nearest.is_Number and nearest.is_finite and floor(nearest * 10**places + Rational(1, 2)) == scaled
    return bool(is_near) and len(str(abs(scaled))) >= _FEWEST_DIGITS


def are_far_apart(left: Any, right: Any) -> bool:
    """Whether two numbers differ by more than people round: by over 1 %, and by one or more in a decimal's last place.
    False for complex numbers, and for what is no number."""
    exact = [_exact(side) if isinstance(side, Expr) else side for side in (left, right)]
    values = [side if isinstance(side, Rational) or not isinstance(side, Expr) else side.evalf() for side in exact]
    if not all(isinstance(value, Number) and value.is_finite for value in values):
        return False
    difference = abs(values[0] - values[1])
    places = [_places(number) for side, number in zip((left, right), exact, strict=True) if isinstance(side, Float)]
    is_rounded = any(count is not None and difference < Rational(1, 10**count) for count in places)
    return not is_rounded and bool(difference > max(map(abs, values)) / 100)


def _places(number: Expr) -> int | None:
    """The number of places of a number's decimal; None if the decimal is not finite."""
    if not isinstance(number, Rational):
        return None
    counts, rest = [], int(number.q)
    for prime in (2, 5):
        count = 0
        while rest % prime == 0:
            rest, count = rest // prime, count + 1
        counts.append(count)
    return max(counts) if rest == 1 else None


def install() -> None:
    """Patch math-verify in this process. The patches also cover elements of sets, matrix entries and interval ends."""
    grader.sympy_numeric_eq = numeric_eq
    grader.sympy_symbolic_eq = symbolic_eq
