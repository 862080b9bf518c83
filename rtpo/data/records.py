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
from rtpo.data.reading import read_rows
from rtpo.errors import DataError
from rtpo.types import Task

Text = Annotated[str, StringConstraints(pattern=r"\S")]


class NotPrepared(DataError):
    """A row is not one of a prepared file; it may be a raw one."""

    def __init__(self, message: str, row: Mapping[str, Any]) -> None:
        super().__init__(f"{message}; docs/run/data.md says what a row holds")
        self.message, self.row = message, row


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, slots=True)
class Record:
    """A problem: one line of a prepared file."""

    uid: Text  # <set>/<the row's id, or its number>
    question: Text
    answers: Annotated[tuple[Text, ...], MinLen(1)]  # each is accepted
    meta: Mapping[str, Any] = field(default_factory=dict)  # JSON values


_RECORD = TypeAdapter(Record)


def manifest_path(path: Path) -> Path:
    """The path of a prepared file's manifest."""
    return path.with_suffix(".manifest.json")


def read_manifest(path: Path) -> dict[str, Any] | None:
    """Read a prepared file's manifest; None if there is no such file. Raises DataError if it cannot be read."""
    file = manifest_path(path)
    try:
        manifest: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read ({error}): remove it and prepare {path.stem} again") from error
    return manifest


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write a prepared file, whole or not at all. Raises MachineError if the disk is full."""
    lines = "".join(json.dumps(asdict(record), ensure_ascii=False) + "\n" for record in records)
    with disk_errors(path):
        write_whole(path, lines.encode())


def read_records(path: str | Path) -> list[Task]:
    """Read tasks from a prepared file, or another format with its fields. `answer` is the tuple of accepted answers.

    Raises DataError naming the line, also for a repeated question or uid. Raises it if a manifest beside the file
    describes another file.
    """
    path = Path(path)
    tasks: list[Task] = []
    places: dict[tuple[str, str], str] = {}
    for place, row in read_rows(path):
        task = _read(place, row)
        for name, value in (("question", task.question), ("uid", task.uid)):
            if (first := places.setdefault((name, value), place)) != place:
                before = first.removesuffix(f" of {path}")
                raise DataError(f"{place} repeats the {name} of {before} ({value[:60]!r}): remove one")
        tasks.append(task)
    if (manifest := read_manifest(path)) is not None and (checksum := sha256(path)) != manifest.get("sha256"):
        raise DataError(
            f"{path} has {counted(len(tasks), 'row')} and the sha256 {checksum}, but its manifest says "
            f"{manifest.get('rows')!s} rows and {manifest.get('sha256')}: prepare it again, or rename a file that you "
            "edited"
        )
    return tasks


def _read(place: str, row: dict[str, Any]) -> Task:
    # a table has an empty cell where JSONL omits the field
    fields = {name: value for name, value in row.items() if value not in (None, "")}
    spelled = {name: _cell_value(fields[name]) for name in ("answers", "meta") if name in fields}
    try:
        record = _RECORD.validate_python(fields | spelled)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise NotPrepared(f"{place}, {field}: {first['msg']}", row) from error
    return Task(record.uid, record.question, record.answers, record.meta)


def _cell_value(value: Any) -> Any:
    """The JSON value that a CSV cell spells; any other value unchanged."""
    try:
        return parse(value) if isinstance(value, str) else value
    except ValueError:
        return value
