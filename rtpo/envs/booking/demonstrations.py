"""Replies for booking tasks written beforehand: right runs, wrong ones, and the agent that does nothing."""

from typing import Any

from rtpo.envs.booking.tasks import Action, Wish, wish_of
from rtpo.tools.protocol import render_call
from rtpo.types import Task

RIGHT_SHARE = 3
"""right runs to each of a task's wrong ones"""
NO_OP = "I cannot do that."
"""all that the agent that does nothing ever says"""


def scripts(task: Task) -> list[list[str]]:
    """A task's runs as lists of replies, without stop tokens: right ones, whose reward is 1, and one wrong one, whose
    reward is 0. None has more than four turns."""
    wish = wish_of(task)
    refused = [_say("forbidden", NO_OP)] * 2
    if wish.writes:
        done = _say("done", " ".join(["Done.", *wish.figures]))
        right, wrong = [*(_call("allowed", write) for write in wish.writes), done], refused
    elif wish.figures:
        right, wrong = ([_say("tell", figure)] for figure in (wish.figures[0], f"{wish.figures[0][:-1]}."))
    else:
        right, wrong = refused, [_call("allowed", ("cancel", {"reservation": wish.about[0]})), _say("done", "Done.")]
    before = _before(wish)
    return [[*before, *right]] * RIGHT_SHARE + [[*before, *wrong]]


def _before(wish: Wish) -> list[str]:
    """What is asked and read before anything is done."""
    if wish.kind == "book":
        route = dict(zip(("origin", "destination", "date"), wish.about, strict=True))
        return [_call("search", ("search_flights", route))]
    read = _call("read", ("get_reservation", {"reservation": wish.about[0]}))
    return [_say("which", "Which reservation is it?"), read] if wish.kind == "find" else [read]


def _say(thought: str, text: str) -> str:
    return f"<think>\n{thought}\n</think>\n\n{text}"


def _call(thought: str, action: Action) -> str:
    name, arguments = action
    return _say(thought, render_call(name, dict[str, Any](arguments)))
