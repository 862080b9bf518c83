"""What the toy environments share: a tool that answers at once, and an answer compared as it stands."""

import re
from abc import abstractmethod

from rtpo.envs.one_call import Exchange, OneCallEnv
from rtpo.types import Feedback, Grade, GradeOutcome, Message, Task, ToolOutcome

_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_ERROR = " error"


class ToyEnv(OneCallEnv):
    """One problem. A final reply is right when the last `\\boxed{}` after its thinking holds the answer. The tool
    remembers what it was asked."""

    @abstractmethod
    def _use_tool(self, task: Task, call: str, earlier: tuple[Exchange, ...]) -> str | None:
        """The tool's answer to a call; None when the call cannot be read."""

    @abstractmethod
    def _read_answer(self, boxed: str) -> int | str | None:
        """The answer a box holds; None when it holds none."""

    async def _answer_call(self, task: Task, call: str | None) -> Feedback:
        result = None if call is None else self._use_tool(task, call, self._exchanges)
        if call is None or result is None:
            return self._answer("", _ERROR, ToolOutcome.MALFORMED)
        return self._answer(call, result, ToolOutcome.OK)

    def _answer_cut(self) -> Feedback:
        return self._answer("", _ERROR, None)

    async def _grade_text(self, task: Task, text: str) -> Grade | None:
        boxes = _BOXED.findall(text)
        answer = self._read_answer(boxes[-1]) if boxes else None
        if answer is None:
            return None
        right = answer == task.answer
        return Grade(GradeOutcome.GRADED, float(right), "right" if right else "wrong answer")

    def _answer(self, call: str, content: str, tool: ToolOutcome | None) -> Feedback:
        self._exchanges = (*self._exchanges, (call, content))
        return Feedback((Message("tool", content),), done=False, tool=tool)
