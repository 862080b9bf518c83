"""What the toy tasks' problems share: drawing those of a split, and reading them from a file.

A problem's split is a function of a hash of the problem, so no two splits can share one.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from rtpo.core import json_text
from rtpo.core.splits import SPLITS, split_of
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
    """The tasks of a JSONL file with the fields question, answer and uid. Raises DataError, naming the line.

    parse: from a question to its problem; raises DataError. example: a question, for messages.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DataError(f"data file {path} cannot be read ({error.strerror}): check the path") from error
    except UnicodeDecodeError as error:
        raise DataError(f"data file {path} is not UTF-8 text: save it as UTF-8") from error
    tasks: dict[str, Task] = {}
    for number, line in enumerate(lines, start=1):
        task = _read_line(f"line {number} of {path}", line, parse, example)
        if task.uid in tasks:
            raise DataError(f"line {number} of {path} repeats uid {task.uid!r}: give each problem its own uid")
        tasks[task.uid] = task
    if not tasks:
        raise DataError(f"data file {path} is empty: write one problem a line, with question, answer and uid")
    return list(tasks.values())


def _read_line(place: str, line: str, parse: Callable[[str], Problem], example: str) -> Task:
    try:
        fields: Any = json_text.parse(line)
    except ValueError as error:
        raise DataError(f"{place} is not JSON ({error}): write one object a line") from error
    if not isinstance(fields, dict) or set(fields) != {"question", "answer", "uid"}:
        raise DataError(f"{place} must be an object with the fields question, answer and uid, and no others")
    if not isinstance(fields["question"], str):
        raise DataError(f"{place}: question must be text like {example!r}")
    if not isinstance(fields["uid"], str) or not fields["uid"]:
        raise DataError(f"{place}: uid must be text that is not empty")
    try:
        answer = parse(fields["question"]).answer
    except DataError as error:
        raise DataError(f"{place}: {error}") from error
    if type(fields["answer"]) is not type(answer) or fields["answer"] != answer:
        raise DataError(f"{place}: answer is {fields['answer']!r}, but the question's answer is {answer!r}")
    return Task(uid=fields["uid"], question=fields["question"], answer=answer)
