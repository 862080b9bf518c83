"""Questions with tools, in Qwen3's tool protocol, and a final reply with the answer in `\\boxed{}`."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence

from rtpo.rewards.boxes import last_box
from rtpo.tools.base import Tool
from rtpo.tools.protocol import CUT, Call, Malformed, encodable, parse_calls, refusal, visible_text, whole_calls
from rtpo.types import (
    Feedback,
    Grade,
    GradeOutcome,
    Message,
    Opening,
    Snapshot,
    StopReason,
    Task,
    ToolUse,
)

Past = tuple[str, str]
"""A call that was run: its tool, and its arguments as JSON."""
State = tuple[str, tuple[Past, ...], str | None]
"""The task's uid, the calls that were run, and the final reply's visible text once it is there."""


class ToolEnv(ABC):
    """One question. A reply makes one or more calls, each answered in order, or is final.

    A final reply is one that stopped by itself and makes no call. What cannot be read as a call, names no tool, does
    not fit its schema or is one call too many is answered with what is wrong; nothing of it is run.

    instructions: the system message. calls_per_reply: calls run in one reply; the policy must be told of it there.
    """

    def __init__(self, instructions: str, tools: Sequence[Tool], calls_per_reply: int) -> None:
        self._instructions = instructions
        self._tools = {str(tool.schema["function"]["name"]): tool for tool in tools}
        self._calls_per_reply = calls_per_reply
        self._task: Task | None = None
        self._past: tuple[Past, ...] = ()
        self._final: str | None = None

    @abstractmethod
    async def _grade_answer(self, task: Task, answer: str) -> Grade:
        """The grade of what the box holds."""

    async def reset(self, task: Task) -> Opening:
        self._task, self._past, self._final = task, (), None
        messages = (Message("system", self._instructions), Message("user", task.question))
        return Opening(messages, tuple(json.dumps(tool.schema) for tool in self._tools.values()))

    async def step(self, reply: str, stop: StopReason) -> Feedback:
        self._begun()
        if self._final is not None:
            raise RuntimeError("the episode has ended: reset the environment before another step")
        text = visible_text(reply)
        calls = parse_calls(text)
        if stop is StopReason.LENGTH:
            calls = whole_calls(calls)
            if not calls:
                return Feedback((CUT,), done=False)
        if not calls:
            self._final = text
            return Feedback((), done=True)
        answers = [await self._answer(call, number) for number, call in enumerate(calls)]
        messages = tuple(Message("tool", encodable(content)) for content, _ in answers)
        return Feedback(messages, done=False, calls=tuple(use for _, use in answers))

    def snapshot(self) -> Snapshot:
        state: State = (self._begun().uid, self._past, self._final)
        return Snapshot(state=state, digest=hashlib.sha256(repr(state).encode()).hexdigest())

    def restore(self, task: Task, snapshot: Snapshot) -> None:
        uid, past, final = snapshot.state
        if uid != task.uid:
            raise ValueError(f"the snapshot is of task {uid!r}, not of {task.uid!r}: restore it with its own task")
        self._task, self._past, self._final = task, past, final

    async def grade(self) -> Grade:
        task = self._begun()
        if self._final is None:
            return Grade(GradeOutcome.GRADED, 0.0, "no final reply")
        answer = last_box(self._final)
        if answer is None:
            return Grade(GradeOutcome.GRADED, 0.0, "no answer in a box")
        return await self._grade_answer(task, answer)

    async def _answer(self, call: Call | Malformed, number: int) -> tuple[str, ToolUse]:
        """What the policy is told of the reply's call `number`, and what became of it."""
        schemas = {name: tool.schema for name, tool in self._tools.items()}
        refused = refusal(call, schemas, number, self._calls_per_reply)
        if refused is not None:
            return refused
        assert isinstance(call, Call)
        earlier = [json.loads(arguments) for name, arguments in self._past if name == call.name]
        result = await self._tools[call.name].call(call.arguments, earlier)
        self._past = (*self._past, (call.name, json.dumps(call.arguments)))
        return result.output or "(no output)", ToolUse(call.name, result.outcome)

    def _begun(self) -> Task:
        if self._task is None:
            raise RuntimeError("the environment has no episode: reset or restore it first")
        return self._task
