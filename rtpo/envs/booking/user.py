"""The scripted user of the booking desk: a function of the wish and of what the agent has said and done.

It states its wish, answers questions, believes what it is told, insists once when it is refused, and ends the dialogue.
"""

import re
from collections.abc import Sequence

from rtpo.envs.booking.tasks import Wish

STOP = "###STOP###"
"""in what ends the dialogue"""
MOST_MESSAGES = 8
"""messages of the agent that the user reads before it gives up"""

_DIGIT = re.compile(r"\d")
_ABOUT_WHICH = re.compile(r"\b(reservation|booking|which)\b", re.IGNORECASE)


def answer(wish: Wish, heard: Sequence[str], *, wrote: bool) -> str:
    """The user's answer to the last of the messages it has heard. wrote: whether the agent has changed anything."""
    last = heard[-1]
    if len(heard) >= MOST_MESSAGES:
        return STOP
    if "?" in last:
        is_known = wish.kind != "book" and _ABOUT_WHICH.search(last)
        return f"It is {wish.about[0]}." if is_known else f"Yes. I am {wish.user}."
    if (wrote or wish.kind == "paid") and (not wish.figures or _DIGIT.search(last)):
        return f"Thanks. {STOP}"
    if any("?" not in message for message in heard[:-1]):
        return f"Then leave it. {STOP}"
    return "Please do check again."
