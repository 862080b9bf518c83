"""Episodes of an imperfect solver of a toy task, whose traces a model is warm-started on.

Each task has a demonstrator of its own, `math_demonstrator` and `knowledge_demonstrator`: what it believes, what it
replies, and how it slips. Here is the episode around it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from rtpo.envs.base import Env
from rtpo.types import Grade, Message, Opening, StopReason, Task

Belief = TypeVar("Belief")


@dataclass(frozen=True, slots=True)
class DemonstratedTurn:
    """A reply in canonical text, stop token included, and the messages that answered it (none after the last)."""

    reply: str
    feedback: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One episode of a demonstrator."""

    opening: Opening
    turns: tuple[DemonstratedTurn, ...]
    grade: Grade


async def play_out(
    task: Task,
    env: Env,
    belief: Belief,
    reply_to: Callable[[Belief], tuple[str, Belief]],
    learn: Callable[[Belief, str, str], Belief],
    max_turns: int,
) -> Demonstration:
    """One episode of `task` in `env` by a solver that begins with `belief`.

    reply_to: its reply, and what it believes once it has replied. learn: from its belief, its reply and what the tool
    answered to what it believes then.
    """
    opening = await env.reset(task)
    turns: list[DemonstratedTurn] = []
    done = False
    while not done and len(turns) < max_turns:
        reply, belief = reply_to(belief)
        feedback = await env.step(reply, StopReason.STOP)
        turns.append(DemonstratedTurn(reply, feedback.messages))
        done = feedback.done
        if not done:
            belief = learn(belief, reply, feedback.messages[0].content)
    return Demonstration(opening, tuple(turns), await env.grade())
