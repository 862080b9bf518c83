"""The child process of `rtpo.rewards.grading`. It reads a `GradingRequest` from each line, and writes a verdict for it.

math-verify's own time limits are off, because they turn a slow comparison into False. Instead the kernel ends the
process by SIGPROF. The parent runs this file by its path.
"""

import json
import logging
import os
import re
import resource
import signal
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypedDict

from latex2sympy2_extended.logic import And
from math_verify import LatexExtractionConfig, parse, verify
from math_verify.grader import is_equation, safe_sympy_doit
from sympy import Eq, Expr, FiniteSet, Interval, Matrix, MatrixBase, Rational, Tuple
from sympy.core.random import seed

from rtpo.rewards.math_verify_mends import Exhausted, are_far_apart, install
from rtpo.rewards.notation import BRACED, in_latex, rewritten
from rtpo.rewards.times import equal_times_or_ratios
from rtpo.rewards.units import says_another_value, without_words

install()
MEMORY_BYTES = 1 << 30
_WHOLE_BOX = LatexExtractionConfig(boxed_match_priority=0)
"""with `first_match`, parse the whole box or nothing; by default math-verify takes a number from unreadable text"""
_TEXT = r"\\(?:text|mbox)\s*\{([^{}]*)\}"
_BASE = re.compile(r"(?:.*=)?\s*(\d[\dA-Z]*)\s*_\s*(?:\{\s*(\d+)\s*\}|(\d))\s*", re.DOTALL)
_MODULUS = re.compile(r"(.*[^\s(])\s*\(?\\p?mod\s*(?:\{\s*(\d+)\s*\}|(\d+))\s*\)?\s*", re.DOTALL)
_NOT_THE_ANSWER = re.compile(
    r"\\(?:neq?|not|notin|propto|n(?:leq?|geq?|less|gtr|leqslant|geqslant|sim|cong|mid))(?![a-zA-Z])|!=|<>"
    r"|\S\s*\\(?:to|mapsto|longmapsto|(?:x|long|hook)?rightarrow)(?![a-zA-Z])"
)
"""signs that make an answer wrong, unless the gold has one too, as in `\\neq 5` and `6 \\to 5`"""
_LIMIT = re.compile(rf"\\lim\s*_\s*{BRACED}")
"""what a limit's variable tends to, which is no other answer"""
_FOLLOWS = re.compile(
    r"(.*\S)\s*\\(?:implies|iff|(?:Long)?(?:left)?[rR]ightarrow|Long(?:left)?rightarrow)(?![a-zA-Z]).*", re.DOTALL
)
"""two statements, of which the second follows from the first"""
_RELATION = re.compile(r"[=<>]|\\(?:[gl]eq?|in)(?![a-zA-Z])")
_BOUND = re.compile(r"\s*(?:\\(?:geq?|leq?|[gl]t|[gl]eqslant)(?![a-zA-Z])|[<>])[^<>,]*")
"""a relation without a left side"""
_WORDS = re.compile(rf"\s*{_TEXT}\s*")
_OTHER_BASE = re.compile(r"\d[\dA-Z]*\s*_")
_UNIT = re.compile(r"[\d}](?:\s|\\[,;: ])*\\(?:text|mathrm)\s*\{\s*([^{}]*?)\s*\}")
_OTHER_SCALE = re.compile(
    r"(?i)%|per ?cent|pct|\\circ|degree|\\log(?!\s*_)|\\(?:arc)?(?:sin|cos|tan|cot|sec|csc)(?![a-z])(?!.*\\pi)"
)
"""what may give the sides of a true equation other numbers: percent, degrees, and logarithms without a base"""
_COORDINATE = re.compile(r"([a-vx-zA-Z])(?:_\{?(\d+)\}?)?")
"""the name of a coordinate, such as x or x_{2}. w has no fixed place, since it can stand before x or after z"""


class GradingRequest(TypedDict):
    gold: str
    answer: str
    seconds: float  # limit of CPU time


def _without_spaces(text: str) -> str:
    """Remove white space from a list with dots (1, 2, \\dots, n). Such lists are compared as text, because math-verify
    compares only their ends."""
    return re.sub(r"\s|\\[,;! ]|\\(?=[lc]?dots)|(?<=\\)[lc](?=dots)|[lc](?=dots)", "", text)


def read(text: str) -> list[object]:
    """Parse a box's content with math-verify. Returns its expressions, then the text itself."""
    options = {"extraction_mode": "first_match", "parsing_timeout": None, "raise_on_error": True}
    parsed: list[object] = parse(f"\\boxed{{{text}}}", [_WHOLE_BOX], **options)
    return parsed


def split_base_or_modulus(text: str) -> tuple[str, str]:
    """Split a number from its base, or a residue from its modulus; (text, "") if it has neither."""
    for name, pattern in (("base", _BASE), ("modulo", _MODULUS)):
        if match := pattern.fullmatch(text):
            body = match[1].replace("\\equiv", "=")
            return body, f"{name} {match[2] or match[3]}"
    return text, ""


def verdict(gold: str, answer: str) -> str:
    """`right`, `wrong`, `unreadable answer`, `unreadable gold`, or the name of the exception that math-verify raised.
    math-verify itself would return "not equal" for an exception."""
    try:
        text, gold, answer = answer, rewritten(gold), rewritten(answer)
        if _WORDS.fullmatch(gold) and "\\" not in answer:
            answer = f"\\text{{{answer}}}"
        are_equal = equal_times_or_ratios(gold, answer)
        if are_equal is not None:
            return "right" if are_equal else "wrong"
        answer = without_words(gold, answer)
        if _excludes_or_bounds(gold, answer):
            return "wrong"
        if "dots" in gold or "dots" in answer:
            return "right" if _without_spaces(gold) == _without_spaces(answer) else "wrong"
        body, base_or_modulus = split_base_or_modulus(gold)
        golds = read(body)
        # math-verify returns only the text itself if it is not mathematics
        if all(isinstance(value, str) for value in golds):
            return "unreadable gold"
        # answers that are sets or points may have words, as in `x=1\text{ or }x=2`
        if isinstance(golds[0], Expr | Eq) and says_another_value(gold, answer):
            return "wrong"
        if base_or_modulus:
            answer, answers_base_or_modulus = split_base_or_modulus(answer)
            if answers_base_or_modulus != base_or_modulus:
                return "wrong"
        answers = read(answer)
        if not answers:
            return "unreadable answer"
        answers = [in_form_of(golds[0], value) for value in answers]
        if contradicts(golds[0], answers[0], text):
            return "wrong"
        is_right = verify(golds, answers, timeout_seconds=None, raise_on_error=True, allow_set_relation_comp=True)
        return "right" if is_right else "wrong"
    except Exhausted as error:
        return str(error)
    except Exception as error:  # the name alone: the message can be very long
        return type(error).__name__


def _excludes_or_bounds(gold: str, answer: str) -> bool:
    """Whether an answer denies its number (`\\neq 5`), derives it from another number (`6 \\implies 5`), or gives a
    bound (`> 3`) for a gold value."""
    if _NOT_THE_ANSWER.search(_LIMIT.sub("", answer)) and not _NOT_THE_ANSWER.search(_LIMIT.sub("", gold)):
        return True
    # unlike in `6 \implies 5`, the arrow in `2x=10 \implies x=5` leads to the answer
    if (derived := _FOLLOWS.fullmatch(answer)) and not _RELATION.search(derived[1]) and not _FOLLOWS.search(gold):
        return True
    return bool(_BOUND.fullmatch(answer)) and not re.search(r"[<>(\[]|\\(?:[gl]e|[gl]t|infty)", gold)


def in_form_of(gold: Any, answer: Any) -> Any:
    """The answer in the gold's form. A point becomes a row or column vector if the gold is a vector. Named coordinates
    are sorted if the gold is a point. 5 = x becomes x = 5 if the gold is not an equation."""
    if isinstance(gold, MatrixBase) and 1 in gold.shape:
        ends = answer.args[:2] if isinstance(answer, Interval) and answer.is_open else None
        entries = answer.args if isinstance(answer, Tuple) else ends
        return Matrix(*gold.shape, entries) if entries and len(entries) == len(gold) else answer
    if isinstance(gold, Tuple | Interval) and isinstance(answer, FiniteSet | Tuple):
        return _sorted_by_name(answer)
    return answer if is_equation(gold) else _with_name_first(answer)


def _with_name_first(answer: Any) -> Any:
    """Turn 5 = x into x = 5."""
    if isinstance(answer, Eq) and answer.rhs.free_symbols and not answer.lhs.free_symbols:
        return Eq(answer.rhs, answer.lhs, evaluate=False)
    return answer


def _sorted_by_name(answer: FiniteSet | Tuple) -> FiniteSet | Tuple:
    """Turn y = 3, x = 1 into the point (x = 1, y = 3), if the names follow each other, as x, y, z or x_1, x_2 do. Other
    names have no fixed order, such as n and k, or theta and phi."""
    equations = [_with_name_first(element) for element in answer.args]
    names = [_COORDINATE.fullmatch(str(each.lhs)) if isinstance(each, Eq) else None for each in equations]
    by_place = {ord(name[1]) + int(name[2] or 0): each for name, each in zip(names, equations, strict=True) if name}
    first = min(by_place, default=0)
    places = range(first, first + len(equations))
    return Tuple(*map(by_place.__getitem__, places)) if by_place.keys() == set(places) else answer


def contradicts(gold: Any, answer: Any, text: str) -> bool:
    """Whether an answer is wrong although math-verify would accept it, such as 72 = 73 for 73, or two numbers for an
    interval. text: the answer before rewriting."""
    if isinstance(gold, Interval):
        return isinstance(answer, FiniteSet) and not any(map(is_equation, answer.args))
    if is_equation(gold) or not is_equation(answer) or _has_two_units(text):
        return False
    equations = answer._unsorted_args if isinstance(answer, And) else [answer]
    sides = [tuple(map(safe_sympy_doit, equation.args)) for equation in equations if not equation.free_symbols]
    if any(left != right for left, right in sides if isinstance(left, Rational) and isinstance(right, Rational)):
        return True
    return not _OTHER_SCALE.search(in_latex(text)) and any(are_far_apart(*pair) for pair in sides)


def _has_two_units(text: str) -> bool:
    """Whether numbers are in two units, as in `1\\text{ km}=1000\\text{ m}`, or in a base, as in `2516_8=1358`."""
    return len(set(_UNIT.findall(text))) > 1 or bool(_OTHER_BASE.search(text))


def verdicts(requests: Iterable[str]) -> Iterator[str]:
    """The verdict on each line. The time limit runs only during a comparison."""
    for line in requests:
        request: GradingRequest = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])
        # sympy compares some expressions at random points, which must be the same every time
        seed(0)
        result = verdict(request["gold"], request["answer"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        yield result


def main() -> None:
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    # send the libraries' own output to stderr
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)
        print(json.dumps("ready"), file=output, flush=True)
        for result in verdicts(sys.stdin):
            print(json.dumps(result), file=output, flush=True)


if __name__ == "__main__":
    main()
