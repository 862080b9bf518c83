"""Reads the toy tasks' problems from questions and files, and draws problems for a split."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from rtpo.core.splits import draw_tasks
from rtpo.data.reading import read_task_file
from rtpo.envs.base import Env, Environment
from rtpo.envs.toy.luck import ToySettings
from rtpo.errors import DataError
from rtpo.types import Task


class Problem(Protocol):
    """A problem of a toy task. `question` is its canonical text, `key` the same without spaces, for uids."""

    @property
    def question(self) -> str: ...

    @property
    def key(self) -> str: ...

    @property
    def answer(self) -> int | str: ...


P = TypeVar("P", bound=Problem)


@dataclass(frozen=True)
class Problems(Generic[P]):
    """The problems of one toy task."""

    task: str  # the task's name
    example: str  # a question, for error messages
    form: str  # describes questions, for error messages
    read: Callable[[str], P | None]  # the problem of a question; None if it states none
    draw: Callable[[np.random.Generator], P]  # a random problem

    def parse(self, question: str) -> P:
        """The problem that a question states. Raises DataError if it states none in canonical form."""
        problem = self.read(question)
        if problem is None or problem.question != question:
            raise DataError(
                f"question {question!r} is not a question of {self.task}: write it like {self.example!r}, one space "
                f"before each word, {self.form}"
            )
        return problem

    def generate(self, split: str, count: int, seed: int) -> list[Task]:
        """Draw `count` different problems of a split. The same arguments give the same list, and a smaller `count` its
        beginning. Raises ConfigError as `draw_tasks` does."""
        rng = np.random.default_rng(seed)

        def draw(_: int) -> Task:
            problem = self.draw(rng)
            return Task(f"{self.task}/{split}/{problem.key}", problem.question, problem.answer)

        return draw_tasks(split, count, draw, self.key)

    def key(self, task: Task) -> str:
        """The key of a task's problem."""
        return self.parse(task.question).key

    def read_file(self, path: str | Path) -> list[Task]:
        """Read tasks from a file with the fields question, answer and uid. Raises DataError naming the line."""

        def make(row: Mapping[str, Any]) -> Task:
            if not isinstance(row["question"], str):
                raise DataError(f"question must be text like {self.example!r}")
            answer = self.parse(row["question"]).answer
            value = answer if row["answer"] == str(answer) else row["answer"]  # cells of CSV are text
            if type(value) is not type(answer) or value != answer:
                raise DataError(f"answer is {row['answer']!r}, but the question's answer is {answer!r}")
            return Task(uid=row["uid"], question=row["question"], answer=answer)

        return read_task_file(path, ("question", "answer"), make)

    def environment(self, make: Callable[[Any, int], Env], settings: type[ToySettings] = ToySettings) -> Environment:
        """The descriptor of the task's environment."""
        return Environment(make, self.read_file, self.generate, self.key, settings)
