"""The scripted user of the booking desk: a function of the wish and of what the agent has said and done.

It states its wish, answers questions, believes what it is told, insists once when it is refused, and ends the dialogue.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rtpo.envs.booking.tasks import Wish

STOP, TRANSFERRED = "###STOP###", "###TRANSFER###"
MOST_MESSAGES = 8
"""messages of the agent that the user reads before it gives up"""

_DIGIT = re.compile(r"\d")
_ABOUT_WHICH = re.compile(r"\b(reservation|booking|which)\b", re.IGNORECASE)
_ABOUT_WHOM = re.compile(r"\b(user|name|who|account)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Said:
    """What the user says, and whether it ends the dialogue with it."""

    text: str
    ends: bool


def answer(wish: Wish, heard: Sequence[str], *, wrote: bool, transferred: bool) -> Said:
    """The user's answer to the last of the messages it has heard.

    wrote: whether the agent has changed anything. transferred: whether it has handed the user over.
    """
    last = heard[-1]
    if transferred:
        return Said(TRANSFERRED, ends=True)
    if len(heard) >= MOST_MESSAGES:
        return Said(STOP, ends=True)
    if "?" in last:
        return Said(_reply(wish, last), ends=False)
    if (wrote or not _wants_something_done(wish)) and (not wish.figures or _DIGIT.search(last)):
        return Said(f"Thanks. {STOP}", ends=True)
    if any("?" not in message for message in heard[:-1]):
        return Said(f"Then leave it. {STOP}", ends=True)
    return Said("Please do check again.", ends=False)


def _wants_something_done(wish: Wish) -> bool:
    return wish.kind != "paid"


def _reply(wish: Wish, question: str) -> str:
    """Answers to what a question is about, as far as the wish has them; else yes."""
    answers = []
    if wish.reservation_id is not None and _ABOUT_WHICH.search(question):
        answers.append(f"It is {wish.reservation_id}.")
    if _ABOUT_WHOM.search(question):
        answers.append(f"I am {wish.user_id}.")
    return " ".join(answers) or "Yes."
