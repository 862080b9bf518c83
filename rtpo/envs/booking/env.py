"""The booking desk: a dialogue with a scripted user and tools that change a database (docs/run/tasks.md)."""

import json
import re
from dataclasses import dataclass, replace

from rtpo.core.json_text import encodable
from rtpo.envs.base import Environment
from rtpo.envs.booking import world
from rtpo.envs.booking.world import Record, ToolError, wish_of
from rtpo.envs.episode import Episode, text_and_calls
from rtpo.tools.protocol import CUT, Call, Malformed, refusal
from rtpo.types import Feedback, Grade, GradeOutcome, Message, Opening, StopReason, Task, ToolOutcome, ToolUse


@dataclass(frozen=True, slots=True)
class State:
    """An episode's state."""

    uid: str  # the task's
    changed: tuple[Record, ...] = ()  # records that differ from the base database
    said: tuple[str, ...] = ()  # the agent's messages to the user, in order
    wrote: bool = False  # a call has written to the database
    ended: bool = False  # the user has ended the dialogue


def tells(figure: str, message: str) -> bool:
    """Whether a message has a whole number as a number of its own, as in $1,100.00 for 1100. Digits of another number
    or of a key, such as 21100 and R11005, do not count."""
    digits = re.sub(r"(?<=\d)(?=(?:\d{3})+$)", ",?", figure)
    return bool(re.search(rf"(?<!\d)(?<!\d[.,]){digits}(?!,?\d)(?!\.\d*[1-9])", message))


class BookingEnv(Episode[State]):
    """One dialogue, which the user ends. A reply makes one call, or is a message to the user.

    The user does not see text beside a call. An invalid or second call is not run: its answer says what is wrong. The
    reward is 1 if the user ended the dialogue, the agent told the user every figure of the task, and the database
    equals a fresh one after the gold writes; else 0.
    """

    async def reset(self, task: Task) -> Opening:
        self._task, self._state = task, State(task.uid)
        messages = (Message("system", world.POLICY), Message("user", task.question))
        return Opening(messages, tuple(json.dumps(world.TOOLS[name].schema) for name in wish_of(task).tools))

    async def step(self, reply: str, stop: StopReason) -> Feedback:
        task = self._active_task()
        parsed = text_and_calls(reply, stop)
        if parsed is None:
            return Feedback((CUT,), done=False)
        text, calls = parsed
        if not calls:
            return self._tell(task, text)
        answers = [self._answer(task, call, number) for number, call in enumerate(calls)]
        messages = tuple(Message("tool", encodable(content)) for content, _ in answers)
        return Feedback(messages, done=False, calls=tuple(use for _, use in answers))

    async def grade(self) -> Grade:
        wish = wish_of(self._current_task())
        if not self._state.ended:
            return Grade(GradeOutcome.GRADED, 0.0, "the user has not ended the dialogue")
        if self._state.changed != world.gold(wish.key).changed:
            return Grade(GradeOutcome.GRADED, 0.0, "the database is not what it should be")
        if missing := [figure for figure in wish.figures if not any(tells(figure, text) for text in self._state.said)]:
            return Grade(GradeOutcome.GRADED, 0.0, f"the user was not told {', '.join(missing)}")
        return Grade(GradeOutcome.GRADED, 1.0)

    def _tell(self, task: Task, text: str) -> Feedback:
        said = (*self._state.said, text)
        answer = world.answer(wish_of(task), said, wrote=self._state.wrote)
        ends = world.STOP in answer
        self._state = replace(self._state, said=said, ended=ends)
        return Feedback(() if ends else (Message("user", answer),), done=ends)

    def _answer(self, task: Task, call: Call | Malformed, number: int) -> tuple[str, ToolUse]:
        """The text that answers the reply's call `number` (from 0), and the call's outcome."""
        schemas = {name: world.TOOLS[name].schema for name in wish_of(task).tools}
        refused = refusal(call, schemas, number, limit=1)
        if refused is not None:
            return refused
        assert isinstance(call, Call)
        tool = world.TOOLS[call.name]
        try:
            database, output = tool.run(world.Database(self._state.changed), call.arguments)
        except ToolError as error:
            return f"Error: {error}.", ToolUse(call.name, ToolOutcome.PROGRAM_ERROR)
        wrote = self._state.wrote or tool.writes
        self._state = replace(self._state, changed=database.changed, wrote=wrote)
        return output, ToolUse(call.name, ToolOutcome.OK)


ENVIRONMENT = Environment(lambda settings, max_turns: BookingEnv(), world.read_tasks, world.generate, world.split_key)
