"""Reads and writes prepared files: one `Record` in JSON per line, for any set (docs/run/data.md)."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from annotated_types import MinLen
from pydantic import ConfigDict, StringConstraints, TypeAdapter, ValidationError, with_config

from rtpo.core.files import disk_errors, sha256, write_whole
from rtpo.core.json_text import parse
from rtpo.core.names import counted
from rtpo.data.manifest import read_manifest
from rtpo.data.reading import read_rows
from rtpo.errors import DataError
from rtpo.types import Task

NonBlank = Annotated[str, StringConstraints(pattern=r"\S")]


class NotPrepared(DataError):
    """A row that is not in the format of a prepared file. It may come from a raw file."""

    def __init__(self, message: str, row: Mapping[str, Any]) -> None:
        super().__init__(f"{message}; docs/run/data.md says what a row holds")
        self.message, self.row = message, row


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, slots=True)
class Record:
    """A problem: one line of a prepared file."""

    uid: NonBlank  # <set>/<the row's id, or its number>
    question: NonBlank
    answers: Annotated[tuple[NonBlank, ...], MinLen(1)]  # each is accepted
    meta: Mapping[str, Any] = field(default_factory=dict)  # JSON values


_RECORD = TypeAdapter(Record)


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write a prepared file, whole or not at all. Raises MachineError if the disk is full."""
    lines = "".join(json.dumps(asdict(record), ensure_ascii=False) + "\n" for record in records)
    with disk_errors(path):
        write_whole(path, lines.encode())


def read_records(path: str | Path) -> list[Task]:
    """Read tasks from a prepared file, or from a table with the same columns. `Task.answer` is the tuple of accepted
    answers.

    Raises DataError for an invalid line, a repeated question or uid, and a manifest beside the file with another
    checksum.
    """
    path = Path(path)
    tasks: list[Task] = []
    first_places: dict[tuple[str, str], str] = {}
    for place, row in read_rows(path):
        task = _task_of(place, row)
        for name, value in (("question", task.question), ("uid", task.uid)):
            if (first_place := first_places.setdefault((name, value), place)) != place:
                short_place = first_place.removesuffix(f" of {path}")
                raise DataError(f"{place} repeats the {name} of {short_place} ({value[:60]!r}): remove one")
        tasks.append(task)
    if (manifest := read_manifest(path)) is not None and (checksum := sha256(path)) != manifest.sha256:
        raise DataError(
            f"{path} has {counted(len(tasks), 'row')} and the sha256 {checksum}, but its manifest says "
            f"{counted(manifest.rows, 'row')} and {manifest.sha256}: prepare it again, or rename a file that you "
            "edited"
        )
    return tasks


def _task_of(place: str, row: dict[str, Any]) -> Task:
    # where JSONL omits a field, a table has an empty cell
    fields = {name: value for name, value in row.items() if value not in (None, "")}
    parsed = {name: _cell_value(fields[name]) for name in ("answers", "meta") if name in fields}
    try:
        record = _RECORD.validate_python(fields | parsed)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise NotPrepared(f"{place}, {field}: {first['msg']}", row) from error
    return Task(record.uid, record.question, record.answers, record.meta)


def _cell_value(value: Any) -> Any:
    """Parse a CSV cell that holds JSON; other values stay as they are."""
    try:
        return parse(value) if isinstance(value, str) else value
    except ValueError:
        return value
