"""Maths problems with a Python tool, in Qwen3's own tool format, and an answer in `\\boxed{}` graded by math-verify."""

import asyncio
import hashlib
import json
import re
from typing import Any

from rtpo.envs.toy import visible_text
from rtpo.rewards.grading import GRADER, MathGrader
from rtpo.tools.python import PythonLimits, PythonOutcome, run_python
from rtpo.types import Feedback, Grade, GradeOutcome, Message, Snapshot, StopReason, Task, ToolOutcome

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_BOX = "\\boxed{"
_SHAPE = '{"name": "python", "arguments": {"code": "..."}}'
_MALFORMED = Message("tool", f"Error: make one call, in JSON: {_SHAPE}")
_CUT = Message("tool", "Error: the reply was cut at its token limit.")

State = tuple[str, str | None]
"""The task's uid, and the final reply's text after thinking once there is one. The tool keeps no state."""


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


class MathEnv:
    """One problem. Each reply makes one call of the Python tool, or is final.

    A final reply is one that stopped by itself and makes no call; its answer is its last `\\boxed{}` after thinking. A
    reply with more than one call, or one that is not JSON of the tool's shape, is malformed.
    """

    def __init__(self, limits: PythonLimits | None = None, grader: MathGrader = GRADER) -> None:
        self._limits = limits or PythonLimits()
        self._grader = grader
        self._task: Task | None = None
        self._final: str | None = None

    async def reset(self, task: Task) -> tuple[Message, ...]:
        self._task, self._final = task, None
        return (Message("system", instructions(self._limits)), Message("user", task.question))

    async def step(self, reply: str, stop: StopReason) -> Feedback:
        self._begun()
        if self._final is not None:
            raise RuntimeError("the episode has ended: reset the environment before another step")
        text = visible_text(reply)
        calls, opened = _CALL.findall(text), text.count("<tool_call>")
        if stop is StopReason.LENGTH and not calls:
            return Feedback((_CUT,), done=False)
        if not opened:
            self._final = text
            return Feedback((), done=True)
        program = _program(calls[0]) if len(calls) == opened == 1 else None
        if program is None:
            return Feedback((_MALFORMED,), done=False, tool=ToolOutcome.MALFORMED)
        result = await run_python(program, self._limits)
        outcome = ToolOutcome.OK if result.outcome is PythonOutcome.OK else ToolOutcome.PROGRAM_ERROR
        return Feedback((Message("tool", result.output or "(no output)"),), done=False, tool=outcome)

    def snapshot(self) -> Snapshot:
        state: State = (self._begun().uid, self._final)
        return Snapshot(state=state, digest=hashlib.sha256(repr(state).encode()).hexdigest())

    def restore(self, task: Task, snapshot: Snapshot) -> None:
        uid, final = snapshot.state
        if uid != task.uid:
            raise ValueError(f"the snapshot is of task {uid!r}, not of {task.uid!r}: restore it with its own task")
        self._task, self._final = task, final

    async def grade(self) -> Grade:
        task = self._begun()
        if self._final is None:
            return Grade(GradeOutcome.GRADED, 0.0, "no final reply")
        answer = last_box(self._final)
        if answer is None:
            return Grade(GradeOutcome.GRADED, 0.0, "no answer in a box")
        return await asyncio.to_thread(self._grader.grade, task.answer, answer)

    def _begun(self) -> Task:
        if self._task is None:
            raise RuntimeError("the environment has no episode: reset or restore it first")
        return self._task
