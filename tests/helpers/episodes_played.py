"""Episodes of an environment by replies that are given."""

import asyncio

from rtpo.envs.base import Env
from rtpo.types import Feedback, Grade, StopReason, Task


def play(env: Env, task: Task, *replies: str, stop: StopReason = StopReason.STOP) -> tuple[list[Feedback], Grade]:
    """The feedback to each reply, up to the end of the episode, and the grade then."""

    async def whole() -> tuple[list[Feedback], Grade]:
        await env.reset(task)
        heard: list[Feedback] = []
        for reply in replies:
            heard.append(await env.step(reply, stop))
            if heard[-1].done:
                break
        return heard, await env.grade()

    return asyncio.run(whole())
