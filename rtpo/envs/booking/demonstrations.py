"""Replies for booking tasks written beforehand: right runs, wrong ones, and the agent that does nothing."""

from typing import Any

from rtpo.envs.booking.tasks import Action, Wish, wish_of
from rtpo.envs.booking.tools import TRANSFER
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
    right = [*_before(wish), *_rightly(wish)]
    return [right] * RIGHT_SHARE + [[*_before(wish), *_wrongly(wish)]]


def _before(wish: Wish) -> list[str]:
    """What is asked and read before anything is done."""
    if wish.kind == "book":
        origin, destination, day = wish.key.split(":")[2:5]
        return [_call("search", ("search_flights", {"origin": origin, "destination": destination, "date": day}))]
    read = _call("read", ("get_reservation", {"reservation_id": wish.reservation_id}))
    return [_say("which", "Which reservation is it?"), read] if wish.kind == "find" else [read]


def _rightly(wish: Wish) -> list[str]:
    if wish.writes:
        return [*(_call("allowed", write) for write in wish.writes), _say("done", " ".join(["Done.", *wish.figures]))]
    if wish.figures:
        return [_say("tell", " ".join(wish.figures))]
    if wish.kind == "name":
        return [_call("no tool", (TRANSFER, {"summary": "name"})), _say("over", "A human takes over.")]
    return [_say("forbidden", NO_OP)] * 2


def _wrongly(wish: Wish) -> list[str]:
    """A refusal of what is allowed, a wrong figure, or a write that should not be."""
    if wish.writes:
        return [_say("forbidden", NO_OP)] * 2
    if wish.figures:
        return [_say("tell", f"{wish.figures[0][:-1]}.")]
    return [_call("allowed", _breach(wish)), _say("done", "Done.")]


def _breach(wish: Wish) -> Action:
    """A write that the desk's rules forbid, or that was not asked for."""
    if wish.kind == "move":
        flight, day = wish.key.split(":")[2:4]
        return "change_flight", {"reservation_id": wish.reservation_id, "flight": flight, "date": day}
    return "cancel", {"reservation_id": wish.reservation_id}


def _say(thought: str, text: str) -> str:
    return f"<think>\n{thought}\n</think>\n\n{text}"


def _call(thought: str, action: Action) -> str:
    name, arguments = action
    return _say(thought, render_call(name, dict[str, Any](arguments)))
