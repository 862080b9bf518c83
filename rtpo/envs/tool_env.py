"""Questions with tools, in Qwen3's tool protocol, and a final reply with the answer in `\\boxed{}`."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from rtpo.tools.base import Tool
from rtpo.tools.protocol import SHAPE, Call, Malformed, parse_calls, visible_text
from rtpo.types import (
    Feedback,
    Grade,
    GradeOutcome,
    Message,
    Opening,
    Snapshot,
    StopReason,
    Task,
    ToolOutcome,
    ToolUse,
)

_BOX = "\\boxed{"
_CUT = Message("tool", "Error: the reply was cut at its token limit.")
_LONGEST_COMPLAINT = 200

Past = tuple[str, str]
"""A call that was run: its tool, and its arguments as JSON."""
State = tuple[str, tuple[Past, ...], str | None]
"""The task's uid, the calls that were run, and the final reply's visible text once it is there."""


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
            calls = tuple(call for call in calls if not (isinstance(call, Malformed) and call.is_open))
            if not calls:
                return Feedback((_CUT,), done=False)
        if not calls:
            self._final = text
            return Feedback((), done=True)
        answers = [await self._answer(call, number) for number, call in enumerate(calls)]
        messages = tuple(Message("tool", _encodable(content)) for content, _ in answers)
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
        if isinstance(call, Malformed):
            return f"Error: {call.why}. Write {SHAPE}", ToolUse("", ToolOutcome.MALFORMED)
        tool = self._tools.get(call.name)
        if tool is None:
            name = call.name[:_LONGEST_COMPLAINT]
            return f"Error: no tool {name!r}; use {', '.join(self._tools)}.", ToolUse("", ToolOutcome.MALFORMED)
        misfit = best_match(Draft202012Validator(tool.schema["function"]["parameters"]).iter_errors(call.arguments))
        if misfit is not None:
            return f"Error: {_complaint(misfit.message)}.", ToolUse(call.name, ToolOutcome.MALFORMED)
        if number >= self._calls_per_reply:
            why = f"Error: not run, at most {self._calls_per_reply} call(s) a reply."
            return why, ToolUse(call.name, ToolOutcome.REFUSED)
        earlier = [json.loads(arguments) for name, arguments in self._past if name == call.name]
        result = await tool.call(call.arguments, earlier)
        self._past = (*self._past, (call.name, json.dumps(call.arguments)))
        return result.output or "(no output)", ToolUse(call.name, result.outcome)

    def _begun(self) -> Task:
        if self._task is None:
            raise RuntimeError("the environment has no episode: reset or restore it first")
        return self._task


def _complaint(message: str) -> str:
    """A schema's complaint, which quotes what it complains of, kept short."""
    return message if len(message) <= _LONGEST_COMPLAINT else message[:_LONGEST_COMPLAINT] + " ..."


def _encodable(text: str) -> str:
    """Half of a surrogate pair, which JSON can spell and no tokenizer takes, becomes a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")
