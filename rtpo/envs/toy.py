"""What the toy environments share: one tool call a reply, and an answer in `\\boxed{}`."""

import hashlib
import re
from abc import ABC, abstractmethod

from rtpo.types import Feedback, Grade, GradeOutcome, Message, Snapshot, StopReason, Task, ToolOutcome

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_ERROR = " error"

Exchange = tuple[str, str]
"""A call that could be read (empty for none) and what answered it."""
State = tuple[str, tuple[Exchange, ...], str | None]
"""The task's uid, the exchanges so far, and the final reply's text after thinking once there is one."""


def visible_text(reply: str) -> str:
    """What a reply says after its thinking; nothing when its thinking is never closed."""
    text = reply.rpartition("</think>")[2]
    return "" if "<think>" in text else text


def _digest(state: State) -> str:
    return hashlib.sha256(repr(state).encode()).hexdigest()


class ToyEnv(ABC):
    """One problem. Each reply makes one call between the tool tags, or is final.

    A final reply is one that stopped by itself and makes no call; it is right when the last `\\boxed{}` after its
    thinking holds the answer. A reply with more than one call, or one that the tool cannot read, is malformed.
    """

    def __init__(self) -> None:
        self._task: Task | None = None
        self._exchanges: tuple[Exchange, ...] = ()
        self._final: str | None = None

    @abstractmethod
    def _use_tool(self, task: Task, call: str, earlier: tuple[Exchange, ...]) -> str | None:
        """The tool's answer to a call; None when the call cannot be read."""

    @abstractmethod
    def _read_answer(self, boxed: str) -> int | str | None:
        """The answer a box holds; None when it holds none."""

    async def reset(self, task: Task) -> tuple[Message, ...]:
        self._task, self._exchanges, self._final = task, (), None
        return (Message("user", task.question),)

    async def step(self, reply: str, stop: StopReason) -> Feedback:
        task = self._begun()
        if self._final is not None:
            raise RuntimeError("the episode has ended: reset the environment before another step")
        text = visible_text(reply)
        calls, opened = _CALL.findall(text), text.count("<tool_call>")
        if stop is StopReason.LENGTH and not calls:
            return self._answer("", _ERROR, None)
        if not opened:
            self._final = text
            return Feedback(messages=(), done=True)
        result = self._use_tool(task, calls[0], self._exchanges) if len(calls) == opened == 1 else None
        if result is None:
            return self._answer("", _ERROR, ToolOutcome.MALFORMED)
        return self._answer(calls[0], result, ToolOutcome.OK)

    def snapshot(self) -> Snapshot:
        state: State = (self._begun().uid, self._exchanges, self._final)
        return Snapshot(state=state, digest=_digest(state))

    def restore(self, task: Task, snapshot: Snapshot) -> None:
        uid, exchanges, final = snapshot.state
        if uid != task.uid:
            raise ValueError(f"the snapshot is of task {uid!r}, not of {task.uid!r}: restore it with its own task")
        self._task, self._exchanges, self._final = task, exchanges, final

    async def grade(self) -> Grade:
        task = self._begun()
        if self._final is None:
            return Grade(GradeOutcome.GRADED, 0.0, "no final reply")
        boxes = _BOXED.findall(self._final)
        answer = self._read_answer(boxes[-1]) if boxes else None
        if answer is None:
            return Grade(GradeOutcome.GRADED, 0.0, "no answer in a box")
        right = answer == task.answer
        return Grade(GradeOutcome.GRADED, float(right), "right" if right else "wrong answer")

    def _begun(self) -> Task:
        if self._task is None:
            raise RuntimeError("the environment has no episode: reset or restore it first")
        return self._task

    def _answer(self, call: str, content: str, tool: ToolOutcome | None) -> Feedback:
        self._exchanges = (*self._exchanges, (call, content))
        return Feedback(messages=(Message("tool", content),), done=False, tool=tool)
