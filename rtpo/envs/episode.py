"""What the environments' episodes share: a task, and a state that is replaced and never changed, so that a snapshot is
a reference to it and a fork sees nothing of another's."""

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from rtpo.rewards.boxes import last_box
from rtpo.tools.protocol import Call, Malformed, parse_calls, visible_text, whole_calls
from rtpo.types import Feedback, Grade, GradeOutcome, Snapshot, StopReason, Task

NO_ANSWER = Grade(GradeOutcome.GRADED, 0.0, "no answer in a box")


class State(Protocol):
    """uid: the task's. ended: truthy once no reply is taken any more. Its repr has all that an episode goes on from."""

    @property
    def uid(self) -> str: ...

    @property
    def ended(self) -> object: ...


S = TypeVar("S", bound=State)


class Episode(Generic[S]):
    """The half of `rtpo.envs.base.Env` that holds the state."""

    _state: S
    path_seed: int | None = None

    def __init__(self) -> None:
        self._task: Task | None = None

    def snapshot(self) -> Snapshot:
        self._begun()
        return Snapshot(self._state, hashlib.sha256(repr(self._state).encode()).hexdigest())

    def restore(self, task: Task, snapshot: Snapshot) -> None:
        state: S = snapshot.state
        if state.uid != task.uid:
            raise ValueError(
                f"the snapshot is of task {state.uid!r}, not of {task.uid!r}: restore it with its own task"
            )
        self._task, self._state = task, state

    def _begun(self) -> Task:
        if self._task is None:
            raise RuntimeError("the environment has no episode: reset or restore it first")
        return self._task

    def _goes_on(self) -> Task:
        task = self._begun()
        if self._state.ended:
            raise RuntimeError("the episode has ended: reset the environment before another step")
        return task


@dataclass(frozen=True, slots=True)
class Answering:
    """past: calls, each with what goes with it. final: the final reply's visible text once it is there."""

    uid: str
    past: tuple[tuple[str, str], ...] = ()
    final: str | None = None

    @property
    def ended(self) -> bool:
        return self.final is not None


class AnswerEpisode(Episode[Answering], ABC):
    """One that ends with a final reply, whose last `\\boxed{}` has the answer."""

    @abstractmethod
    async def _grade_answer(self, task: Task, answer: str) -> Grade:
        """The grade of what the box holds."""

    async def grade(self) -> Grade:
        task = self._begun()
        if self._state.final is None:
            return Grade(GradeOutcome.GRADED, 0.0, "no final reply")
        answer = last_box(self._state.final)
        return NO_ANSWER if answer is None else await self._grade_answer(task, answer)

    def _end(self, text: str) -> Feedback:
        self._state = replace(self._state, final=text)
        return Feedback((), done=True)


def text_and_calls(reply: str, stop: StopReason) -> tuple[str, tuple[Call | Malformed, ...]] | None:
    """A reply's visible text and the calls in it; None of one that was cut before it had made a call."""
    text = visible_text(reply)
    calls = parse_calls(text)
    if stop is StopReason.LENGTH:
        calls = whole_calls(calls)
        if not calls:
            return None
    return text, calls
