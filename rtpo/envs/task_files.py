"""Files of tasks that environments generate too: rows with the same few fields each."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rtpo.data.reading import read_rows
from rtpo.errors import DataError
from rtpo.types import Task


def read_task_file(path: str | Path, fields: tuple[str, ...], make: Callable[[Mapping[str, Any]], Task]) -> list[Task]:
    """The tasks of a file, of which each row has these fields and uid. make: raises DataError. Raises DataError, naming
    the line."""
    path, names = Path(path), f"{', '.join(fields)} and uid"
    tasks: dict[str, Task] = {}
    for place, row in read_rows(path):
        if set(row) != {*fields, "uid"}:
            raise DataError(f"{place} must be an object with the fields {names}, and no others")
        if not isinstance(row["uid"], str) or not row["uid"]:
            raise DataError(f"{place}: uid must be text that is not empty")
        try:
            task = make(row)
        except DataError as error:
            raise DataError(f"{place}: {error}") from error
        if tasks.setdefault(task.uid, task) is not task:
            raise DataError(f"{place} repeats uid {task.uid!r}: give each task its own uid")
    return list(tasks.values())
