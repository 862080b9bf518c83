"""Base classes of environments. A step replaces the immutable state, so a snapshot is just a reference to it."""

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from rtpo.rewards.boxes import last_box
from rtpo.tools.protocol import Call, Malformed, parse_calls, visible_text, whole_calls
from rtpo.types import Feedback, Grade, GradeOutcome, Snapshot, StopReason, Task

NO_ANSWER = Grade(GradeOutcome.GRADED, 0.0, "no answer in a box")


class State(Protocol):
    """An episode's state. Its repr must show all of it, because a snapshot's digest is a hash of the repr."""

    @property
    def uid(self) -> str:
        """The task's uid."""

    @property
    def ended(self) -> object:
        """True, or any true value, once the episode has ended."""


S = TypeVar("S", bound=State)


class Episode(Generic[S]):
    """Implements `snapshot` and `restore` of `rtpo.envs.base.Env`."""

    _state: S
    path_seed: int | None = None

    def __init__(self) -> None:
        self._task: Task | None = None

    def snapshot(self) -> Snapshot:
        self._current_task()
        return Snapshot(self._state, hashlib.sha256(repr(self._state).encode()).hexdigest())

    def restore(self, task: Task, snapshot: Snapshot) -> None:
        state: S = snapshot.state
        if state.uid != task.uid:
            raise ValueError(
                f"the snapshot is of task {state.uid!r}, not of {task.uid!r}: restore it with its own task"
            )
        self._task, self._state = task, state

    def _current_task(self) -> Task:
        if self._task is None:
            raise RuntimeError("the environment has no episode: reset or restore it first")
        return self._task

    def _active_task(self) -> Task:
        task = self._current_task()
        if self._state.ended:
            raise RuntimeError("the episode has ended: reset the environment before another step")
        return task


@dataclass(frozen=True, slots=True)
class Answering:
    """The state of an `AnswerEpisode`."""

    uid: str  # the task's
    past: tuple[tuple[str, str], ...] = ()  # earlier calls: (tool, arguments in JSON); in toy tasks (call, answer)
    final: str | None = None  # the final reply's visible text

    @property
    def ended(self) -> bool:
        return self.final is not None


class AnswerEpisode(Episode[Answering], ABC):
    """An episode that ends with a final reply. The reply's last `\\boxed{}` holds the answer."""

    @abstractmethod
    async def _grade_answer(self, task: Task, answer: str) -> Grade:
        """Grade the content of the box."""

    async def grade(self) -> Grade:
        task = self._current_task()
        if self._state.final is None:
            return Grade(GradeOutcome.GRADED, 0.0, "no final reply")
        answer = last_box(self._state.final)
        return NO_ANSWER if answer is None else await self._grade_answer(task, answer)

    def _end(self, text: str) -> Feedback:
        self._state = replace(self._state, final=text)
        return Feedback((), done=True)


def text_and_calls(reply: str, stop: StopReason) -> tuple[str, tuple[Call | Malformed, ...]] | None:
    """A reply's visible text and its calls. None if the reply was cut before its first whole call."""
    text = visible_text(reply)
    calls = parse_calls(text)
    if stop is StopReason.LENGTH:
        calls = whole_calls(calls)
        if not calls:
            return None
    return text, calls
