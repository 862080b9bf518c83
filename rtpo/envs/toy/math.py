"""The toy math environment: a calculator that does one operation a call, and an answer in `\\boxed{}`."""

import re

from rtpo.envs.toy.env import Exchange, ToyEnv
from rtpo.envs.toy.math_problems import PROBLEMS, calculate
from rtpo.types import Task

_OPERATION = re.compile(r"\s*([0-9]{1,2})\s+([-+*])\s+([0-9]{1,2})\s*")
_NUMBER = re.compile(r"\s*([0-9]{1,2})\s*")


class ToyMathEnv(ToyEnv):
    """A call is one operation, ` 5 * 3`; the answer is a number."""

    tool = "calculator"

    def _use_tool(self, task: Task, call: str, earlier: tuple[Exchange, ...]) -> str | None:
        operation = _OPERATION.fullmatch(call)
        if operation is None:
            return None
        left, operator, right = operation.groups()
        return f" {calculate(int(left), operator, int(right))}"

    def _read_answer(self, boxed: str) -> int | None:
        number = _NUMBER.fullmatch(boxed)
        return int(number[1]) if number else None


ENVIRONMENT = PROBLEMS.environment(ToyMathEnv)
