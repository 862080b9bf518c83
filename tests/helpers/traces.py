"""Traces for the byte-level model: for a task, what a policy that solves it replies, and what ones that slip do.

Each is a list of replies, one a turn, without stop tokens. Whether one succeeds is for its environment to say.
"""

from collections.abc import Callable
from dataclasses import dataclass

from rtpo.envs.booking.world import Action, Wish, wish_of
from rtpo.errors import DataError
from rtpo.tools.protocol import render_call
from rtpo.types import Task

RIGHT_SHARE = 3
"""right traces to each of a task's wrong ones"""

NO_OP = "I cannot do that."
"""all that a booking agent that does nothing ever says"""

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


def booking_traces(task: Task) -> list[Trace]:
    """Right ones, whose reward is 1, and a wrong one, whose reward is 0. None has more than four turns."""
    wish = wish_of(task)
    refused = [reply("forbidden", NO_OP)] * 2
    if wish.writes:
        done = reply("done", " ".join(["Done.", *wish.figures]))
        right, wrong = [*(_call("allowed", write) for write in wish.writes), done], refused
    elif wish.figures:
        right, wrong = ([reply("tell", figure)] for figure in (wish.figures[0], f"{wish.figures[0][:-1]}."))
    else:
        right, wrong = refused, [_call("allowed", ("cancel", {"reservation": wish.about[0]})), reply("done", "Done.")]
    before = _before(wish)
    return [[*before, *right]] * RIGHT_SHARE + [[*before, *wrong]]


def _before(wish: Wish) -> Trace:
    """What is asked and read before anything is done."""
    if wish.kind == "book":
        route = dict(zip(("origin", "destination", "date"), wish.about, strict=True))
        return [_call("search", ("search_flights", route))]
    read = _call("read", ("get_reservation", {"reservation": wish.about[0]}))
    return [reply("which", "Which reservation is it?"), read] if wish.kind == "find" else [read]


def _call(thought: str, action: Action) -> str:
    name, arguments = action
    return reply(thought, render_call(name, dict(arguments)))


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
    "booking": booking_traces,
    "math": math_traces,
    "search": search_traces,
}
"""by environment"""
