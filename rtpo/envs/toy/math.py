"""The toy math task: two operations modulo 100, in four templates that differ in the order of the operations.

The tool is a calculator that does one operation per call.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from operator import add, mul, sub

import numpy as np

from rtpo.envs.toy.env import Exchange, ToyEnv
from rtpo.envs.toy.problems import Problems
from rtpo.types import Task

MODULUS = 100
OPERATIONS: dict[str, Callable[[int, int], int]] = {"+": add, "-": sub, "*": mul}


@dataclass(frozen=True, slots=True)
class Template:
    """A question over a, b, c and the sign s, and the two operations that solve it; r is the first one's result."""

    question: str
    first: str
    second: str
    misread: int  # index of the template that a solver computes if it does the wrong operation first


TEMPLATES = (
    Template("a s b * c", first="b * c", second="a s r", misread=2),
    Template("a * b s c", first="a * b", second="r s c", misread=3),
    Template("( a s b ) * c", first="a s b", second="r * c", misread=0),
    Template("a * ( b s c )", first="b s c", second="a * r", misread=1),
)
SIGNS = ("+", "-")
_OPERATION = re.compile(r"\s*[0-9]{1,2}\s+[-+*]\s+[0-9]{1,2}\s*")
_NUMBER = re.compile(r"\s*([0-9]{1,2})\s*")
_PATTERNS = tuple(
    re.compile(
        " compute "
        + re.escape(template.question)
        .replace("a", r"(?P<a>\d{1,2})")
        .replace("b", r"(?P<b>\d{1,2})")
        .replace("s", r"(?P<s>[+-])")
        .replace("c", r"(?P<c>\d{1,2})")
    )
    for template in TEMPLATES
)


def evaluate(operation: str) -> int:
    """The value, modulo 100, of an operation such as ` 5 * 3`."""
    left, operator, right = operation.split()
    return OPERATIONS[operator](int(left), int(right)) % MODULUS


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: a template with its numbers and sign."""

    template: int
    a: int
    b: int
    c: int
    sign: str

    def fill(self, pattern: str, result: int | None = None) -> str:
        """A template's text with this problem's numbers, in canonical form. result: the value of r."""
        values = {"a": str(self.a), "b": str(self.b), "c": str(self.c), "s": self.sign, "r": str(result)}
        return "".join(f" {values.get(word, word)}" for word in pattern.split())

    @property
    def question(self) -> str:
        return " compute" + self.fill(TEMPLATES[self.template].question)

    @property
    def first(self) -> str:
        return self.fill(TEMPLATES[self.template].first)

    def second(self, result: int) -> str:
        return self.fill(TEMPLATES[self.template].second, result)

    @property
    def answer(self) -> int:
        return evaluate(self.second(evaluate(self.first)))

    @property
    def starts_on_right(self) -> bool:
        """Whether the right-hand operation comes first."""
        return "a" not in TEMPLATES[self.template].first.split()

    @property
    def key(self) -> str:
        """The problem without spaces, for uids."""
        return self.fill(TEMPLATES[self.template].question).replace(" ", "")


def _read(question: str) -> Problem | None:
    for index, pattern in enumerate(_PATTERNS):
        if match := pattern.fullmatch(question):
            return Problem(index, int(match["a"]), int(match["b"]), int(match["c"]), match["s"])
    return None


def _draw(rng: np.random.Generator) -> Problem:
    a, b, c = (int(number) for number in rng.integers(2, MODULUS, size=3))
    return Problem(int(rng.integers(len(TEMPLATES))), a, b, c, SIGNS[rng.integers(len(SIGNS))])


PROBLEMS = Problems("toy_math", " compute 12 + 5 * 3", "numbers from 0 to 99", _read, _draw)
problems, parse_question, read_problems = PROBLEMS.generate, PROBLEMS.parse, PROBLEMS.read_file


class ToyMathEnv(ToyEnv):
    """A call is one operation, such as ` 5 * 3`; the answer is a number."""

    tool = "calculator"

    def _use_tool(self, task: Task, call: str, earlier: tuple[Exchange, ...]) -> str | None:
        return f" {evaluate(call)}" if _OPERATION.fullmatch(call) else None

    def _read_answer(self, boxed: str) -> int | None:
        number = _NUMBER.fullmatch(boxed)
        return int(number[1]) if number else None


ENVIRONMENT = PROBLEMS.environment(ToyMathEnv)
