"""What the toy tasks' problems share: drawing those of a split, and reading them from a file.

A problem's split is a function of a hash of the problem, so no two splits can share one.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from rtpo.core.splits import SPLITS, split_of
from rtpo.envs.task_files import read_task_file
from rtpo.errors import ConfigError, DataError
from rtpo.types import Task


class Problem(Protocol):
    """question: its text in canonical form. key: the problem without spaces, as uids have it. answer: the right one."""

    @property
    def question(self) -> str: ...

    @property
    def key(self) -> str: ...

    @property
    def answer(self) -> int | str: ...


def draw_tasks(task: str, split: str, count: int, draw: Callable[[], Problem]) -> list[Task]:
    """The first `count` different problems of a split among those that `draw` gives. Raises ConfigError."""
    if split not in SPLITS:
        raise ConfigError(f"split {split!r} does not exist: use one of {', '.join(SPLITS)}")
    if count < 1:
        raise ConfigError(f"count of problems is {count}: ask for at least 1")
    found: dict[str, Task] = {}
    while len(found) < count:
        problem = draw()
        if split_of(problem.key) == split and problem.key not in found:
            uid = f"{task}/{split}/{problem.key}"
            found[problem.key] = Task(uid=uid, question=problem.question, answer=problem.answer)
    return list(found.values())


def read_tasks(path: str | Path, parse: Callable[[str], Problem], example: str) -> list[Task]:
    """The tasks of a file with the fields question, answer and uid. Raises DataError, naming the line.

    parse: from a question to its problem; raises DataError. example: a question, for messages.
    """

    def make(row: Mapping[str, Any]) -> Task:
        if not isinstance(row["question"], str):
            raise DataError(f"question must be text like {example!r}")
        answer = parse(row["question"]).answer
        given = row["answer"]
        if isinstance(given, str) and given == str(answer):  # a cell of CSV
            given = answer
        if type(given) is not type(answer) or given != answer:
            raise DataError(f"answer is {row['answer']!r}, but the question's answer is {answer!r}")
        return Task(uid=row["uid"], question=row["question"], answer=answer)

    return read_task_file(path, ("question", "answer"), make)
