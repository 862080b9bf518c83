"""Maths problems with a Python tool. math-verify grades the answer."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from rtpo.core.bounds import Count
from rtpo.core.names import counted
from rtpo.data.registry import read_tasks
from rtpo.envs.base import Environment, Settings
from rtpo.envs.tool_env import ToolEnv
from rtpo.rewards.grading import GRADER, MathGrader
from rtpo.tools.python.tool import PythonSettings, PythonTool
from rtpo.types import Grade, Task


@dataclass(frozen=True)
class MathSettings(Settings):
    """Settings of the math task."""

    calls_per_reply: Count = 4  # later calls of a reply are not run
    python: PythonSettings = field(default_factory=PythonSettings)

    def problems(self, path: str) -> list[str]:
        return self.python.problems(f"{path}.python")

    def check(self) -> dict[str, Any]:
        return {"python": self.python.check()}


def limits_sentence(max_turns: int, calls_per_reply: int) -> str:
    """The system message's sentence on the episode's limits."""
    replies, calls = counted(max_turns, "reply"), counted(calls_per_reply, "call")
    return f"At most {replies}, the last with the answer, and {calls} a reply."


class MathEnv(ToolEnv):
    """One problem. The task's `answer` is a tuple of accepted expressions."""

    def __init__(self, settings: MathSettings, max_turns: int, grader: MathGrader = GRADER) -> None:
        instructions = f"Answer in \\boxed{{}}. {limits_sentence(max_turns, settings.calls_per_reply)}"
        super().__init__(instructions, [PythonTool(settings.python)], settings.calls_per_reply)
        self._grader = grader

    async def _grade_answer(self, task: Task, answer: str) -> Grade:
        return await asyncio.to_thread(self._grader.grade, task.answer, answer)


ENVIRONMENT = Environment(MathEnv, read_tasks, settings=MathSettings)
