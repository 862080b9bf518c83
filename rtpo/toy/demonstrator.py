"""Plays episodes of a demonstrator, an imperfect solver of a task. A model is warm-started on these episodes.

Each task's `*_demonstrator` module defines what its solver believes, replies and gets wrong.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from rtpo.envs.base import Env
from rtpo.types import Grade, Message, Opening, StopReason, Task

Belief = TypeVar("Belief")


@dataclass(frozen=True, slots=True)
class DemonstratedTurn:
    """A reply, and the messages that answer it (none after the last reply). A toy task's reply has its stop token."""

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
    """Play one episode of `task` in `env` by a solver that begins with `belief`.

    reply_to: belief -> (reply, belief after it). learn: (belief, reply, the tool's answer) -> belief after the answer.
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
