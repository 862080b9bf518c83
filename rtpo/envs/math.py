"""Maths problems with a Python tool, in Qwen3's own tool format, and an answer in `\\boxed{}` graded by math-verify."""

import asyncio
import json
from typing import Any

from rtpo.envs.one_call import OneCallEnv
from rtpo.rewards.grading import GRADER, MathGrader
from rtpo.tools.python import PythonLimits, PythonOutcome, run_python
from rtpo.types import Feedback, Grade, Message, Task, ToolOutcome

_BOX = "\\boxed{"
_SHAPE = '{"name": "python", "arguments": {"code": "..."}}'
_MALFORMED = Message("tool", f"Error: make one call, in JSON: {_SHAPE}")
_CUT = Message("tool", "Error: the reply was cut at its token limit.")


def instructions(limits: PythonLimits) -> str:
    """The system message: the tool, its limits, and how to answer."""
    return (
        f"Answer in \\boxed{{}}. To run Python ({limits.cpu_seconds} s, no files, nothing kept):\n"
        f"<tool_call>\n{_SHAPE}\n</tool_call>"
    )


def python_call(code: str) -> str:
    """A call as the policy is to write it."""
    return f"<tool_call>\n{json.dumps({'name': 'python', 'arguments': {'code': code}})}\n</tool_call>"


def last_box(text: str) -> str | None:
    """What the last `\\boxed{}` holds, up to its matching brace; None without a closed one. Escaped braces do not
    count."""
    start = text.rfind(_BOX)
    if start < 0:
        return None
    start += len(_BOX)
    depth, place = 1, start
    while place < len(text):
        character = text[place]
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[start:place]
        place += 2 if character == "\\" else 1
    return None


def _program(call: str) -> str | None:
    """The program of a call's JSON; None where it is not a call of the tool."""
    try:
        fields: Any = json.loads(call)
    except (json.JSONDecodeError, RecursionError):
        return None
    if not isinstance(fields, dict) or fields.get("name") != "python" or not isinstance(fields.get("arguments"), dict):
        return None
    code = fields["arguments"].get("code")
    return code if isinstance(code, str) else None


class MathEnv(OneCallEnv):
    """One problem. A call is JSON of the Python tool's shape. The tool remembers nothing."""

    def __init__(self, limits: PythonLimits | None = None, grader: MathGrader = GRADER) -> None:
        super().__init__()
        self._limits = limits or PythonLimits()
        self._grader = grader

    async def reset(self, task: Task) -> tuple[Message, ...]:
        return (Message("system", instructions(self._limits)), *await super().reset(task))

    async def _answer_call(self, task: Task, call: str | None) -> Feedback:
        program = None if call is None else _program(call)
        if program is None:
            return Feedback((_MALFORMED,), done=False, tool=ToolOutcome.MALFORMED)
        result = await run_python(program, self._limits)
        outcome = ToolOutcome.OK if result.outcome is PythonOutcome.OK else ToolOutcome.PROGRAM_ERROR
        return Feedback((Message("tool", result.output or "(no output)"),), done=False, tool=outcome)

    def _answer_cut(self) -> Feedback:
        return Feedback((_CUT,), done=False)

    async def _grade_text(self, task: Task, text: str) -> Grade | None:
        answer = last_box(text)
        return None if answer is None else await asyncio.to_thread(self._grader.grade, task.answer, answer)
