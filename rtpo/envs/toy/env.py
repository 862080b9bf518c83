"""What the toy environments share: one call a reply to a tool that answers at once, and an answer in `\\boxed{}`."""

import re
from abc import abstractmethod
from dataclasses import replace

from rtpo.envs.episode import NO_ANSWER, AnswerEpisode, Answering
from rtpo.tools.protocol import CLOSE, OPEN, visible_text
from rtpo.types import (
    Feedback,
    Grade,
    GradeOutcome,
    Message,
    Opening,
    StopReason,
    Task,
    ToolOutcome,
    ToolUse,
)

_CALL = re.compile(f"{OPEN}(.*?){CLOSE}", re.DOTALL)
_ERROR = " error"

Exchange = tuple[str, str]
"""A call that could be read (empty for none) and what answered it."""


class ToyEnv(AnswerEpisode):
    """One problem. Each reply makes one call between the tool tags, in the words of its task, or is final.

    A final reply is one that stopped by itself and makes no call; it is right when its last `\\boxed{}` holds the
    answer. A reply with more than one call, or one that the tool cannot read, is malformed. The tool remembers what it
    was asked.
    """

    tool: str
    """its name, for the records"""

    @abstractmethod
    def _use_tool(self, task: Task, call: str, earlier: tuple[Exchange, ...]) -> str | None:
        """The tool's answer to a call; None when the call cannot be read."""

    @abstractmethod
    def _read_answer(self, boxed: str) -> int | str | None:
        """The answer a box holds; None when it holds none."""

    async def reset(self, task: Task) -> Opening:
        self._task, self._state = task, Answering(task.uid)
        return Opening((Message("user", task.question),))

    async def step(self, reply: str, stop: StopReason) -> Feedback:
        task = self._goes_on()
        text = visible_text(reply)
        calls, opened = _CALL.findall(text), text.count(OPEN)
        if stop is StopReason.LENGTH and not calls:
            return self._answer("", _ERROR)
        if not opened:
            return self._end(text)
        result = self._use_tool(task, calls[0], self._state.past) if len(calls) == opened == 1 else None
        if result is None:
            return self._answer("", _ERROR, ToolUse("", ToolOutcome.MALFORMED))
        return self._answer(calls[0], result, ToolUse(self.tool, ToolOutcome.OK))

    async def _grade_answer(self, task: Task, answer: str) -> Grade:
        read = self._read_answer(answer)
        if read is None:
            return NO_ANSWER
        return Grade(
            GradeOutcome.GRADED, float(read == task.answer), "right" if read == task.answer else "wrong answer"
        )

    def _answer(self, call: str, content: str, *uses: ToolUse) -> Feedback:
        self._state = replace(self._state, past=(*self._state.past, (call, content)))
        return Feedback((Message("tool", content),), done=False, calls=uses)
