"""The toy math environment: a calculator that does one operation a call, and an answer in `\\boxed{}`."""

import hashlib
import re

from rtpo.toy.math_problems import calculate
from rtpo.types import Feedback, Grade, GradeOutcome, Message, Snapshot, StopReason, Task, ToolOutcome

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_OPERATION = re.compile(r"\s*([0-9]{1,2})\s+([-+*])\s+([0-9]{1,2})\s*")
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_NUMBER = re.compile(r"\s*([0-9]{1,2})\s*")
_ERROR = Message("tool", " error")

State = tuple[str, tuple[str, ...], str | None]
"""The task's uid, the tool results so far, and the final reply's text after thinking once there is one."""


def visible_text(reply: str) -> str:
    """What a reply says after its thinking; nothing when its thinking is never closed."""
    text = reply.rpartition("</think>")[2]
    return "" if "<think>" in text else text


def _digest(state: State) -> str:
    return hashlib.sha256(repr(state).encode()).hexdigest()


class ToyMathEnv:
    """One problem. Each reply makes one call, ` 5 * 3` between the tool tags, or is final.

    A final reply is one that stopped by itself and makes no call; it is right when the last `\\boxed{}` after its
    thinking holds the answer. A reply with more than one call, or one that is no operation, is malformed.
    """

    def __init__(self) -> None:
        self._task: Task | None = None
        self._results: tuple[str, ...] = ()
        self._final: str | None = None

    async def reset(self, task: Task) -> tuple[Message, ...]:
        self._task, self._results, self._final = task, (), None
        return (Message("user", task.question),)

    async def step(self, reply: str, stop: StopReason) -> Feedback:
        self._begun()
        if self._final is not None:
            raise RuntimeError("the episode has ended: reset the environment before another step")
        text = visible_text(reply)
        calls, opened = _CALL.findall(text), text.count("<tool_call>")
        if stop is StopReason.LENGTH and not calls:
            return self._answer(_ERROR, None)
        if not opened:
            self._final = text
            return Feedback(messages=(), done=True)
        operation = _OPERATION.fullmatch(calls[0]) if len(calls) == opened == 1 else None
        if operation is None:
            return self._answer(_ERROR, ToolOutcome.MALFORMED)
        left, operator, right = operation.groups()
        return self._answer(Message("tool", f" {calculate(int(left), operator, int(right))}"), ToolOutcome.OK)

    def snapshot(self) -> Snapshot:
        state: State = (self._begun().uid, self._results, self._final)
        return Snapshot(state=state, digest=_digest(state))

    def restore(self, task: Task, snapshot: Snapshot) -> None:
        uid, results, final = snapshot.state
        if uid != task.uid:
            raise ValueError(f"the snapshot is of task {uid!r}, not of {task.uid!r}: restore it with its own task")
        self._task, self._results, self._final = task, results, final

    async def grade(self) -> Grade:
        task = self._begun()
        if self._final is None:
            return Grade(GradeOutcome.GRADED, 0.0, "no final reply")
        boxes = _BOXED.findall(self._final)
        number = _NUMBER.fullmatch(boxes[-1]) if boxes else None
        if number is None:
            return Grade(GradeOutcome.GRADED, 0.0, "no number in a box")
        right = int(number[1]) == task.answer
        return Grade(GradeOutcome.GRADED, float(right), "right" if right else "wrong number")

    def _begun(self) -> Task:
        if self._task is None:
            raise RuntimeError("the environment has no episode: reset or restore it first")
        return self._task

    def _answer(self, message: Message, tool: ToolOutcome | None) -> Feedback:
        self._results = (*self._results, message.content)
        return Feedback(messages=(message,), done=False, tool=tool)
