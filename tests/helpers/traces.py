"""Traces for the byte-level model: for a task, what a policy that solves it replies, and what ones that slip do.

Each is a list of replies, one a turn, without stop tokens. Whether one succeeds is for its environment to say.
"""

from collections.abc import Callable
from dataclasses import dataclass

from rtpo.errors import DataError
from rtpo.tools.protocol import render_call
from rtpo.types import Task

RIGHT_SHARE = 3
"""right traces to each of a task's wrong ones"""

Trace = list[str]


@dataclass(frozen=True, slots=True)
class Step:
    """A call of a right trace, and one in its place that is of no use."""

    thought: str
    call: str
    slip: str


def math_traces(task: Task) -> list[Trace]:
    """Right: compute each annotation, then answer. Raises DataError for a task without annotations."""
    annotations = task.meta.get("annotations", ())
    if not annotations:
        raise DataError(f"task {task.uid} has no annotations like <<48/2=24>>: choose other problems.")
    steps = [
        Step(expression, *(render_call("python", {"code": code}) for code in (expression, f"{expression}+1")))
        for expression, _ in annotations
    ]
    return traces(steps, task.answer[0])


def search_traces(task: Task) -> list[Trace]:
    """Right: search for the question as it stands, then answer."""
    calls = (render_call("search", {"query": query}) for query in (task.question, "weather"))
    return traces([Step("search", *calls)], task.answer[0])


def traces(steps: list[Step], answer: str) -> list[Trace]:
    """Right ones, and a wrong one for each turn that can go wrong: a call of no use, or the answer, and then a wrong
    answer."""
    calls = [reply(step.thought, step.call) for step in steps]
    right, wrong = (reply(f"answer {text}", f"\\boxed{{{text}}}") for text in (answer, f"{answer}1"))
    slips = [[*calls[:k], reply(f"not {step.thought}", step.slip), wrong] for k, step in enumerate(steps)]
    return [[*calls, right]] * RIGHT_SHARE + [[*calls, wrong], *slips]


def reply(thought: str, text: str) -> str:
    return f"<think>\n{thought}\n</think>\n\n{text}"


TRACES: dict[str, Callable[[Task], list[Trace]]] = {
    "math": math_traces,
    "search": search_traces,
}
"""by environment"""
