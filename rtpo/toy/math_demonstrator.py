"""An imperfect solver of the toy math task.

It does the two operations in turn and then answers. At each turn it may slip in one of several ways. So a model that
imitates it succeeds now and then and has something to learn.
"""

from dataclasses import dataclass, replace

import numpy as np

from rtpo.envs.base import Env
from rtpo.envs.toy.math import MODULUS, TEMPLATES, Problem, parse_question
from rtpo.toy.demonstrator import Demonstration, play_out
from rtpo.toy.recipes import Recipe
from rtpo.toy.record import WarmStart
from rtpo.toy.tokenizer import STOP
from rtpo.types import Task

LEFT_TO_RIGHT = next(index for index, template in enumerate(TEMPLATES) if template.question == "a s b * c")
"""index of the template whose questions it may misread from left to right"""
FIRST_SLIPS, SECOND_SLIPS, ANSWER_SLIPS = 0.25, 0.25, 0.17
"""rates of slips at a turn that should do the first operation, the second, or answer"""
MISREADS = 0.6
"""how often it does a sum or difference before the product to its right. Above one half, so that lowering the entropy
of a model's policy does not solve these problems."""


@dataclass(frozen=True, slots=True)
class _Belief:
    """The demonstrator's beliefs."""

    problem: Problem  # as it reads the question
    done: tuple[tuple[str, int], ...] = ()  # operations and their results
    failed: bool = False  # its last call got an error

    @property
    def next_operation(self) -> str | None:
        if not self.done:
            return self.problem.first
        return self.problem.second(self.done[0][1]) if len(self.done) == 1 else None

    @property
    def recalled(self) -> str:
        """Its last result, as restated in its thinking."""
        if not self.done:
            # naming the side first lets a small model commit to one reading before it copies numbers
            side = " right" if self.problem.starts_on_right else " left"
            return (" error again" if self.failed else " first") + side
        if self.failed:
            return " error again"
        operation, result = self.done[-1]
        return f"{operation} is {result}" + (" then" if len(self.done) == 1 else " so answer")


def _call(belief: _Belief, planned: str, called: str | None = None) -> str:
    return f"<think>{belief.recalled}{planned}</think><tool_call>{called or planned}</tool_call>{STOP}"


def _answer(belief: _Belief, number: int) -> str:
    return f"<think>{belief.recalled} {number}</think> answer\\boxed{{ {number}}}{STOP}"


def _wrong_operand(operation: str, rng: np.random.Generator) -> str:
    words = operation.split()
    words[2 * int(rng.integers(2))] = str(rng.integers(MODULUS))
    return "".join(f" {word}" for word in words)


def _wrong_operator(operation: str, rng: np.random.Generator) -> str:
    left, operator, right = operation.split()
    return f" {left} {rng.choice([other for other in '+-*' if other != operator])} {right}"


def _malformed(belief: _Belief, operation: str, rng: np.random.Generator) -> str:
    left, operator, right = operation.split()
    whole = belief.problem.question.removeprefix(" compute")
    return str(rng.choice([whole, f" {left} {right}", f" {left} {operator}", f"{operation} {operator}"]))


def _misread(problem: Problem) -> Problem:
    return replace(problem, template=TEMPLATES[problem.template].misread)


def _slip_in_call(belief: _Belief, operation: str, rng: np.random.Generator) -> tuple[str, _Belief]:
    """A wrong reply at a turn that should do an operation, and the belief after it."""
    slips = ["operand", "copy", "operator", "malformed", "malformed", "stop"]
    slip = rng.choice([*slips, "decomposition", "decomposition"] if not belief.done else [*slips, "repeat"])
    if slip == "decomposition":
        belief = replace(belief, problem=_misread(belief.problem))
        return _call(belief, belief.problem.first), belief
    if slip == "operand":
        return _call(belief, _wrong_operand(operation, rng)), belief
    if slip == "copy":
        return _call(belief, operation, _wrong_operand(operation, rng)), belief
    if slip == "operator":
        return _call(belief, _wrong_operator(operation, rng)), belief
    if slip == "malformed":
        return _call(belief, operation, _malformed(belief, operation, rng)), belief
    if slip == "repeat":
        return _call(belief, belief.done[-1][0]), belief
    return _answer(belief, belief.done[-1][1] if belief.done else int(rng.integers(MODULUS))), belief


def _slip_in_answer(belief: _Belief, rng: np.random.Generator) -> str:
    """A wrong reply at a turn that should answer."""
    (_, early), (operation, result) = belief.done
    slip = rng.choice(["number", "early result", "no box", "repeat"])
    if slip == "number":
        return _answer(belief, int(rng.integers(MODULUS)))
    if slip == "early result":
        return _answer(belief, early)
    if slip == "no box":
        return f"<think>{belief.recalled} {result}</think> answer {result}{STOP}"
    return _call(belief, operation)


def _reply(belief: _Belief, rng: np.random.Generator) -> tuple[str, _Belief]:
    operation = belief.next_operation
    if operation is None:
        slips = rng.random() < ANSWER_SLIPS
        return _slip_in_answer(belief, rng) if slips else _answer(belief, belief.done[-1][1]), belief
    if rng.random() < (SECOND_SLIPS if belief.done else FIRST_SLIPS):
        return _slip_in_call(belief, operation, rng)
    return _call(belief, operation), belief


def _learn(belief: _Belief, reply: str, content: str) -> _Belief:
    if content == " error":
        return replace(belief, failed=True)
    operation = reply.partition("<tool_call>")[2].partition("</tool_call>")[0]
    return replace(belief, done=(*belief.done[:1], (operation, int(content))), failed=False)


async def demonstrate(task: Task, env: Env, rng: np.random.Generator, max_turns: int) -> Demonstration:
    """Play one episode of `task` in `env`. The same state of `rng` gives the same episode."""
    problem = parse_question(task.question)
    if problem.template == LEFT_TO_RIGHT and rng.random() < MISREADS:
        problem = _misread(problem)
    return await play_out(task, env, _Belief(problem), lambda belief: _reply(belief, rng), _learn, max_turns)


RECIPES = {
    "math": Recipe(
        settings=WarmStart(task="toy_math", steps=1400, cycles=1, full_history=0.01),
        demonstrate=demonstrate,
        max_turns=3,
        turns=2,
    )
}
