"""The booking desk: a dialogue with a scripted user, and tools that change a database (docs/run/booking.md)."""

import hashlib
import json
from dataclasses import dataclass, replace

from rtpo.envs.base import Environment
from rtpo.envs.booking.database import Database, Record, base
from rtpo.envs.booking.tasks import POLICY, generate, gold, read_tasks, split_key, wish_of
from rtpo.envs.booking.tools import TOOLS, TRANSFER, ToolError
from rtpo.envs.booking.user import answer
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
    ToolOutcome,
    ToolUse,
)


@dataclass(frozen=True, slots=True)
class State:
    """An episode without its base.

    uid: the task's. changed: the records that differ from the base's. said: the agent's messages to the user, in
    order. answers: the user's, one to each. wrote, transferred: whether a call wrote to the database, or handed the
    user over. ended: whether the user has ended the dialogue.
    """

    uid: str
    changed: tuple[Record, ...] = ()
    said: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    wrote: bool = False
    transferred: bool = False
    ended: bool = False


class BookingEnv:
    """One dialogue. A reply makes one call, or is a message to the user.

    The text beside a call is not shown to the user. What cannot be read as a call, names no tool of the task, does not
    fit its schema or is a second call is answered with what is wrong and not run. The episode ends when the user ends
    it. The reward is 1 if the database then is what the gold writes make of a fresh one and the user was told every
    figure of the task, else 0.
    """

    def __init__(self) -> None:
        self._base = base()
        self._task: Task | None = None
        self._state = State("")

    async def reset(self, task: Task) -> Opening:
        self._task, self._state = task, State(task.uid)
        messages = (Message("system", POLICY), Message("user", task.question))
        return Opening(messages, tuple(json.dumps(TOOLS[name].schema) for name in wish_of(task).tools))

    async def step(self, reply: str, stop: StopReason) -> Feedback:
        task = self._begun()
        if self._state.ended:
            raise RuntimeError("the episode has ended: reset the environment before another step")
        text = visible_text(reply)
        calls = parse_calls(text)
        if stop is StopReason.LENGTH:
            calls = whole_calls(calls)
            if not calls:
                return Feedback((CUT,), done=False)
        if not calls:
            return self._tell(task, text)
        answers = [self._answer(task, call, number) for number, call in enumerate(calls)]
        return Feedback(
            tuple(Message("tool", encodable(content)) for content, _ in answers),
            done=False,
            calls=tuple(use for _, use in answers),
        )

    def snapshot(self) -> Snapshot:
        self._begun()
        database = Database(self._base, self._state.changed).digest()
        rest = replace(self._state, changed=())
        return Snapshot(self._state, hashlib.sha256(f"{database}{rest!r}".encode()).hexdigest())

    def restore(self, task: Task, snapshot: Snapshot) -> None:
        state: State = snapshot.state
        if state.uid != task.uid:
            raise ValueError(
                f"the snapshot is of task {state.uid!r}, not of {task.uid!r}: restore it with its own task"
            )
        self._task, self._state = task, state

    async def grade(self) -> Grade:
        task = self._begun()
        if not self._state.ended:
            return Grade(GradeOutcome.GRADED, 0.0, "the user has not ended the dialogue")
        if Database(self._base, self._state.changed).digest() != gold(wish_of(task).key).digest():
            return Grade(GradeOutcome.GRADED, 0.0, "the database is not what it should be")
        heard = [message.lower().replace(",", "") for message in self._state.said]
        missing = [figure for figure in wish_of(task).figures if not any(figure.lower() in text for text in heard)]
        if missing:
            return Grade(GradeOutcome.GRADED, 0.0, f"the user was not told {', '.join(missing)}")
        return Grade(GradeOutcome.GRADED, 1.0)

    def _tell(self, task: Task, text: str) -> Feedback:
        state = self._state
        heard = (*state.said, text)
        said = answer(wish_of(task), heard, wrote=state.wrote, transferred=state.transferred)
        self._state = replace(state, said=heard, answers=(*state.answers, said.text), ended=said.ends)
        return Feedback(() if said.ends else (Message("user", said.text),), done=said.ends)

    def _answer(self, task: Task, call: Call | Malformed, number: int) -> tuple[str, ToolUse]:
        """What the agent is told of the reply's call `number`, and what became of it."""
        schemas = {name: TOOLS[name].schema for name in wish_of(task).tools}
        refused = refusal(call, schemas, number, most=1)
        if refused is not None:
            return refused
        assert isinstance(call, Call)
        tool = TOOLS[call.name]
        try:
            database, told = tool.run(Database(self._base, self._state.changed), call.arguments)
        except ToolError as error:
            return f"Error: {error}.", ToolUse(call.name, ToolOutcome.PROGRAM_ERROR)
        self._state = replace(
            self._state,
            changed=database.changed,
            wrote=self._state.wrote or tool.writes,
            transferred=self._state.transferred or tool.name == TRANSFER,
        )
        return told, ToolUse(call.name, ToolOutcome.OK)

    def _begun(self) -> Task:
        if self._task is None:
            raise RuntimeError("the environment has no episode: reset or restore it first")
        return self._task


ENVIRONMENT = Environment(lambda settings, max_turns: BookingEnv(), read_tasks, generate, split_key)
