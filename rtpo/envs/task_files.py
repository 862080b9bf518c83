"""Files of tasks that environments generate too: JSON lines with the same few fields each."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rtpo.core.json_text import parse
from rtpo.errors import DataError
from rtpo.types import Task


def read_task_file(path: str | Path, fields: tuple[str, ...], make: Callable[[Mapping[str, Any]], Task]) -> list[Task]:
    """The tasks of a JSONL file, of which each line has these fields and uid. make: raises DataError. Raises DataError,
    naming the line."""
    path, names = Path(path), f"{', '.join(fields)} and uid"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DataError(f"data file {path} cannot be read ({error.strerror}): check the path") from error
    except UnicodeDecodeError as error:
        raise DataError(f"data file {path} is not UTF-8 text: save it as UTF-8") from error
    tasks: dict[str, Task] = {}
    for number, line in enumerate(lines, start=1):
        place = f"line {number} of {path}"
        try:
            row: Any = parse(line)
        except ValueError as error:
            raise DataError(f"{place} is not JSON ({error}): write one object a line") from error
        if not isinstance(row, dict) or set(row) != {*fields, "uid"}:
            raise DataError(f"{place} must be an object with the fields {names}, and no others")
        if not isinstance(row["uid"], str) or not row["uid"]:
            raise DataError(f"{place}: uid must be text that is not empty")
        try:
            task = make(row)
        except DataError as error:
            raise DataError(f"{place}: {error}") from error
        if tasks.setdefault(task.uid, task) is not task:
            raise DataError(f"{place} repeats uid {task.uid!r}: give each task its own uid")
    if not tasks:
        raise DataError(f"data file {path} is empty: write one task a line, with {names}")
    return list(tasks.values())
