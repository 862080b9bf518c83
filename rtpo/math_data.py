"""Files of maths problems: GSM8K, MATH-500, AIME, AMC and what has their schemas."""

import json
import re
from pathlib import Path
from typing import Any

from rtpo.errors import DataError
from rtpo.types import Task

_ANNOTATION = re.compile(r"<<([^<>=]+)=([^<>]+)>>")


def read_math(path: str | Path) -> list[Task]:
    """The tasks of a JSONL file with `question` (or `problem`) and `answer`: text, or a number.

    An answer that ends in `#### n`, as GSM8K's do, is n, without its commas; its annotations `<<48/2=24>>` are in the
    task's `meta["annotations"]` as pairs (expression, value). A uid is the file's name with the row's `id` or `idx`, or
    its line. Other fields are left aside. Raises DataError naming the line, for a repeated question or uid too.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"data file {path} cannot be read ({error.strerror}): check the path") from error
    except UnicodeDecodeError as error:
        raise DataError(f"data file {path} is not UTF-8 text: save it as UTF-8") from error
    tasks: list[Task] = []
    lines: dict[tuple[str, str], int] = {}
    # not splitlines(), which also cuts at characters that JSON leaves as they are
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        place = f"line {number} of {path}"
        task = _read_line(place, path.stem, number, line)
        for field, value in (("question", task.question), ("uid", task.uid)):
            if before := lines.setdefault((field, value), number) - number:
                raise DataError(f"{place} repeats the {field} of line {number + before} ({value[:60]!r}): remove one")
        tasks.append(task)
    return tasks


def _read_line(place: str, name: str, number: int, line: str) -> Task:
    try:
        row: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{place} is not JSON ({error.msg}): write one object a line") from error
    if not isinstance(row, dict):
        raise DataError(f"{place} is not an object: write one with question and answer")
    question = row.get("question", row.get("problem"))
    if not isinstance(question, str) or not question.strip():
        raise DataError(f"{place} has no question: give text as question, or problem")
    uid = row.get("id", row.get("idx", number))
    if not isinstance(uid, str | int):
        raise DataError(f"{place}: id is {uid!r}: give text or a whole number")
    answer = _answer_text(row.get("answer"))
    solution, marker, last = answer.rpartition("####")
    gold = last.replace(",", "").strip() if marker else answer.strip()
    if not gold:
        raise DataError(f"{place} has no answer: give text or a number, or a solution that ends in '#### <number>'")
    annotations = tuple((expression.strip(), value.strip()) for expression, value in _ANNOTATION.findall(solution))
    return Task(f"{name}/{uid}", question, gold, {"annotations": annotations} if marker else {})


def _answer_text(answer: Any) -> str:
    """27.0 is 27. Nothing for what is neither text nor a number."""
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer)
    return str(answer) if isinstance(answer, str | int | float) and not isinstance(answer, bool) else ""
