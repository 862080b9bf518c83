"""What the environments share: one tool call a reply, and an answer in `\\boxed{}`."""

import hashlib
import re
from abc import ABC, abstractmethod

from rtpo.types import Feedback, Grade, GradeOutcome, Message, Snapshot, StopReason, Task

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)

Exchange = tuple[str, str]
"""A call that could be read (empty for none) and what answered it."""
State = tuple[str, tuple[Exchange, ...], str | None]
"""The task's uid, the exchanges that the tool remembers, and the final reply's text after thinking once it is there."""


def visible_text(reply: str) -> str:
    """What a reply says after its thinking; nothing when its thinking is never closed."""
    text = reply.rpartition("</think>")[2]
    return "" if "<think>" in text else text


class OneCallEnv(ABC):
    """One problem. Each reply makes one call between the tool tags, or is final.

    A final reply is one that stopped by itself and makes no call; its answer is its last `\\boxed{}` after thinking. A
    reply with more than one call, or one that the tool cannot read, is malformed.
    """

    def __init__(self) -> None:
        self._task: Task | None = None
        self._exchanges: tuple[Exchange, ...] = ()
        self._final: str | None = None

    @abstractmethod
    async def _answer_call(self, task: Task, call: str | None) -> Feedback:
        """What follows a call; None for more than one, or one that is not closed."""

    @abstractmethod
    def _answer_cut(self) -> Feedback:
        """What follows a reply that was cut before it made a call."""

    @abstractmethod
    async def _grade_text(self, task: Task, text: str) -> Grade | None:
        """The grade of a final reply's text after thinking; None when it has no answer in a box."""

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
            return self._answer_cut()
        if not opened:
            self._final = text
            return Feedback((), done=True)
        return await self._answer_call(task, calls[0] if len(calls) == opened == 1 else None)

    def snapshot(self) -> Snapshot:
        state: State = (self._begun().uid, self._exchanges, self._final)
        return Snapshot(state=state, digest=hashlib.sha256(repr(state).encode()).hexdigest())

    def restore(self, task: Task, snapshot: Snapshot) -> None:
        uid, exchanges, final = snapshot.state
        if uid != task.uid:
            raise ValueError(f"the snapshot is of task {uid!r}, not of {task.uid!r}: restore it with its own task")
        self._task, self._exchanges, self._final = task, exchanges, final

    async def grade(self) -> Grade:
        task = self._begun()
        if self._final is None:
            return Grade(GradeOutcome.GRADED, 0.0, "no final reply")
        grade = await self._grade_text(task, self._final)
        return grade or Grade(GradeOutcome.GRADED, 0.0, "no answer in a box")

    def _begun(self) -> Task:
        if self._task is None:
            raise RuntimeError("the environment has no episode: reset or restore it first")
        return self._task
