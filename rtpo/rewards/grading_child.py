"""What runs in a child process of `rtpo.rewards.grading`: a line of JSON in, with `gold`, `answer` and the limit in
`seconds` of CPU time; a verdict out.

math-verify works in this process's main thread, with its own clocks off: they turn a comparison that takes too long
into False. The kernel's clock ends the process instead, by SIGPROF. Run by its path.
"""

import json
import logging
import os
import re
import resource
import signal
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from latex2sympy2_extended.logic import And
from math_verify import parse, verify
from math_verify.grader import is_equation
from sympy import Eq, FiniteSet, Interval, Matrix, MatrixBase, Rational, Tuple
from sympy.core.random import seed

from rtpo.rewards.math_verify_mends import install
from rtpo.rewards.notation import rewritten, without_words
from rtpo.rewards.times import equal_times

install()
MEMORY_BYTES = 1 << 30
_TEXT = r"\\(?:text|mbox)\s*\{([^{}]*)\}"
_BASE = re.compile(r"(?:.*=)?\s*(\d[\dA-Z]*)\s*_\s*(?:\{\s*(\d+)\s*\}|(\d))\s*", re.DOTALL)
_MODULUS = re.compile(r"(.*[^\s(])\s*\(?\\p?mod\s*(?:\{\s*(\d+)\s*\}|(\d+))\s*\)?\s*", re.DOTALL)
_OTHERWISE = re.compile(r"\\(?:neq?|not|to|rightarrow)(?![a-zA-Z])")
"""what says of a number that it is not the answer, or not yet"""
_BOUND = re.compile(r"\s*(?:\\(?:geq?|leq?|[gl]t|[gl]eqslant)(?![a-zA-Z])|[<>])[^<>,]*")
"""a relation with one side"""
_WORDS = re.compile(rf"\s*{_TEXT}\s*")


def _unspaced(text: str) -> str:
    """A list with dots, to compare as it is written: math-verify reads its ends alone."""
    return re.sub(r"\s|\\[,;! ]|\\(?=[lc]?dots)|(?<=\\)[lc](?=dots)|[lc](?=dots)", "", text)


def read(text: str) -> list[object]:
    """What math-verify makes of a box with `text` in it: expressions, and its own text last."""
    parsed: list[object] = parse(f"\\boxed{{{text}}}", parsing_timeout=None, raise_on_error=True)
    return parsed


def parted(text: str) -> tuple[str, str]:
    """A number and its base, or a residue and its modulus; the text itself and nothing where it has neither."""
    for name, pattern in (("base", _BASE), ("modulo", _MODULUS)):
        if match := pattern.fullmatch(text):
            body = match[1].replace("\\equiv", "=")
            return body, f"{name} {match[2] or match[3]}"
    return text, ""


def verdict(gold: str, answer: str) -> str:
    """`right`, `wrong`, `unreadable answer`, `unreadable gold`, or the name of what math-verify raised, of which it
    would make "not equal" by itself."""
    try:
        gold, answer = rewritten(gold), rewritten(answer)
        if _WORDS.fullmatch(gold) and "\\" not in answer:
            answer = f"\\text{{{answer}}}"
        is_one_time = equal_times(gold, answer)
        if is_one_time is not None:
            return "right" if is_one_time else "wrong"
        answer = without_words(gold, answer)
        if _says_otherwise(gold, answer):
            return "wrong"
        if "dots" in gold and "dots" in answer:
            return "right" if _unspaced(gold) == _unspaced(answer) else "wrong"
        body, kind = parted(gold)
        golds = read(body)
        # what is not mathematics comes back as its own text alone
        if all(isinstance(value, str) for value in golds):
            return "unreadable gold"
        if kind:
            answer, answers_kind = parted(answer)
            if answers_kind != kind:
                return "wrong"
        answers = read(answer)
        if not answers:
            return "unreadable answer"
        answers = [as_asked(golds[0], value) for value in answers]
        if "_" not in answer and contradicts(golds[0], answers[0]):
            return "wrong"
        is_right = verify(golds, answers, timeout_seconds=None, raise_on_error=True, allow_set_relation_comp=True)
        return "right" if is_right else "wrong"
    except Exception as error:  # its text can be without end
        return type(error).__name__


def _says_otherwise(gold: str, answer: str) -> bool:
    """Whether an answer only names what the gold is not, or bounds a gold that is no set of numbers."""
    if _OTHERWISE.search(answer) and not _OTHERWISE.search(gold):
        return True
    return bool(_BOUND.fullmatch(answer)) and not re.search(r"[<>(\[]|\\(?:[gl]e|[gl]t|infty)", gold)


def as_asked(gold: Any, answer: Any) -> Any:
    """A point as the column or row that the gold is, and 5 = x as x = 5 for a gold that is no equation."""
    if isinstance(gold, MatrixBase) and 1 in gold.shape:
        ends = answer.args[:2] if isinstance(answer, Interval) and answer.is_open else None
        entries = answer.args if isinstance(answer, Tuple) else ends
        return Matrix(*gold.shape, entries) if entries and len(entries) == len(gold) else answer
    if isinstance(answer, Eq) and not is_equation(gold) and answer.rhs.free_symbols and not answer.lhs.free_symbols:
        return Eq(answer.rhs, answer.lhs, evaluate=False)
    return answer


def contradicts(gold: Any, answer: Any) -> bool:
    """Whether an answer that math-verify would take for the gold is none: 72 = 73 for 73, and a list of two numbers for
    an interval."""
    if isinstance(gold, Interval):
        return isinstance(answer, FiniteSet) and not any(map(is_equation, answer.args))
    if is_equation(gold) or not is_equation(answer):
        return False
    equations = answer._unsorted_args if isinstance(answer, And) else [answer]
    sides = ([side.doit() for side in equation.args] for equation in equations)
    return any(left != right for left, right in sides if isinstance(left, Rational) and isinstance(right, Rational))


def verdicts(requests: Iterable[str]) -> Iterator[str]:
    """The verdict of each line, under a clock that is off between them."""
    for request in requests:
        asked = json.loads(request)
        signal.setitimer(signal.ITIMER_PROF, asked["seconds"])
        # sympy compares some expressions at random points
        seed(0)
        answer = verdict(asked["gold"], asked["answer"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        yield answer


def main() -> None:
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    # whatever a library prints goes to stderr
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        print(json.dumps("ready"), file=answers, flush=True)
        for answer in verdicts(sys.stdin):
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
