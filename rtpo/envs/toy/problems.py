"""What the toy tasks' problems share: reading them from questions and files, and drawing those of a split."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from rtpo.core.splits import drawn
from rtpo.data.reading import read_task_file
from rtpo.envs.base import Env, Environment
from rtpo.envs.toy.luck import ToySettings
from rtpo.errors import DataError
from rtpo.types import Task


class Problem(Protocol):
    """question: its text in canonical form. key: the problem without spaces, as uids have it. answer: the right one."""

    @property
    def question(self) -> str: ...

    @property
    def key(self) -> str: ...

    @property
    def answer(self) -> int | str: ...


P = TypeVar("P", bound=Problem)


@dataclass(frozen=True)
class Problems(Generic[P]):
    """The problems of one toy task.

    task: its name. example: a question, and form: what questions are like, for messages. read: from a question to its
    problem; None for one of no problem. draw: the next problem of a random stream.
    """

    task: str
    example: str
    form: str
    read: Callable[[str], P | None]
    draw: Callable[[np.random.Generator], P]

    def parse(self, question: str) -> P:
        """The problem a question states. Raises DataError for a question that is none."""
        problem = self.read(question)
        if problem is None or problem.question != question:
            raise DataError(
                f"question {question!r} is none of {self.task}: write it like {self.example!r}, one space before each "
                f"word, {self.form}"
            )
        return problem

    def generate(self, split: str, count: int, seed: int) -> list[Task]:
        """`count` different problems of a split; the same arguments give the same list, and fewer a prefix of it.
        Raises ConfigError."""
        rng = np.random.default_rng(seed)

        def draw(_: int) -> Task:
            problem = self.draw(rng)
            return Task(f"{self.task}/{split}/{problem.key}", problem.question, problem.answer)

        return drawn(split, count, draw, self.key)

    def key(self, task: Task) -> str:
        """The problem of a task without spaces."""
        return self.parse(task.question).key

    def read_file(self, path: str | Path) -> list[Task]:
        """The tasks of a file with the fields question, answer and uid. Raises DataError, naming the line."""

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
        """The descriptor that the environment's file ends with."""
        return Environment(make, self.read_file, self.generate, self.key, settings)
