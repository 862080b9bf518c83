"""Base class of the toy environments: at most one tool call per reply, and a final answer in `\\boxed{}`."""

import re
from abc import abstractmethod
from dataclasses import replace

from rtpo.core.names import counted
from rtpo.envs.episode import NO_ANSWER, AnswerEpisode, Answering
from rtpo.envs.toy.luck import Lucky, ToySettings, heads
from rtpo.errors import ConfigError
from rtpo.tools.protocol import CLOSE, OPEN, visible_text
from rtpo.types import Feedback, Grade, GradeOutcome, Message, Opening, StopReason, Task, ToolOutcome, ToolUse

_CALL = re.compile(f"{OPEN}(.*?){CLOSE}", re.DOTALL)
_ERROR = " error"
WITHOUT_LUCK = ToySettings()

Exchange = tuple[str, str]
"""a call and its answer; the call is empty if the reply did not have exactly one readable call"""


class ToyEnv(AnswerEpisode):
    """One problem. A reply makes one call between the tool tags, in the task's own syntax, or is final.

    A final reply is complete and makes no call. It is right if its last `\\boxed{}` holds the answer. A reply with
    several calls, or with a call that the tool cannot read, is malformed. Raises ConfigError if the settings toss a
    coin after a turn that episodes do not have.
    """

    tool: str
    """the tool's name in records"""

    @abstractmethod
    def _use_tool(self, task: Task, call: str, earlier: tuple[Exchange, ...]) -> str | None:
        """The tool's answer to a call; None if the call is unreadable. earlier: the episode's calls before it."""

    @abstractmethod
    def _read_answer(self, boxed: str) -> int | str | None:
        """The answer in a box; None if the box holds no answer."""

    def __init__(self, settings: ToySettings = WITHOUT_LUCK, max_turns: int | None = None) -> None:
        super().__init__()
        self._luck = settings.luck
        if max_turns is not None and any(turn >= max_turns for turn in self._luck.turns):
            raise ConfigError(
                f"task.settings.luck.turns is {list(self._luck.turns)} and the task has {counted(max_turns, 'turn')}: "
                f"use 0 to {max_turns - 1}."
            )

    async def reset(self, task: Task) -> Opening:
        has_luck = self._luck.turns and self.path_seed is not None
        self._task, self._state = task, Lucky(task.uid) if has_luck else Answering(task.uid)
        return Opening((Message("user", task.question),))

    async def step(self, reply: str, stop: StopReason) -> Feedback:
        task, turn = self._active_task(), len(self._state.past)
        feedback = self._answer_reply(task, reply, stop)
        if isinstance(self._state, Lucky) and turn in self._luck.turns:
            assert self.path_seed is not None
            coin = self._luck.toss(self.path_seed, turn)
            self._state = replace(self._state, coins=(*self._state.coins, coin))
        return feedback

    def _answer_reply(self, task: Task, reply: str, stop: StopReason) -> Feedback:
        text = visible_text(reply)
        calls, open_tags = _CALL.findall(text), text.count(OPEN)
        if stop is StopReason.LENGTH and not calls:
            return self._answer("", _ERROR)
        if not open_tags:
            return self._end(text)
        result = self._use_tool(task, calls[0], self._state.past) if len(calls) == open_tags == 1 else None
        if result is None:
            return self._answer("", _ERROR, ToolUse("", ToolOutcome.MALFORMED))
        return self._answer(calls[0], result, ToolUse(self.tool, ToolOutcome.OK))

    async def _grade_answer(self, task: Task, answer: str) -> Grade:
        parsed = self._read_answer(answer)
        if parsed is None:
            return NO_ANSWER
        is_right = parsed == task.answer
        return Grade(GradeOutcome.GRADED, float(is_right), "right" if is_right else "wrong answer")

    async def grade(self) -> Grade:
        grade = await self._grade()
        if not isinstance(self._state, Lucky) or grade.reward is None:
            return grade
        coins = self._state.coins
        detail = f"{grade.detail}; heads {heads(coins)} of {len(coins)}"
        return replace(grade, reward=self._luck.reward(grade.reward, coins), detail=detail)

    async def _grade(self) -> Grade:
        return await super().grade()

    def _answer(self, call: str, content: str, *uses: ToolUse) -> Feedback:
        self._state = replace(self._state, past=(*self._state.past, (call, content)))
        return Feedback((Message("tool", content),), done=False, calls=uses)
