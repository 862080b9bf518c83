"""Prepared files: problems of any set in one shape, one JSON object a line (docs/run/data.md)."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rtpo.core.files import disk_errors, sha256, write_whole
from rtpo.core.json_text import parse
from rtpo.errors import DataError
from rtpo.types import Task

_REMEDY = "python experiments/prepare_data.py makes such files (docs/run/data.md)"


@dataclass(frozen=True, slots=True)
class Record:
    """A problem. uid: `<set>/<the row's id, or its number>`. answers: accepted ones, one or more. meta: JSON values."""

    uid: str
    question: str
    answers: tuple[str, ...]
    meta: Mapping[str, Any] = field(default_factory=dict)


def manifest_path(path: Path) -> Path:
    """Where the manifest of a prepared file stands."""
    return path.with_suffix(".manifest.json")


def read_manifest(path: Path) -> dict[str, Any] | None:
    """The manifest of a prepared file; None where there is none. Raises DataError for one that cannot be read."""
    file = manifest_path(path)
    try:
        manifest: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read ({error}): remove it and prepare {path.stem} again") from error
    return manifest


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write a prepared file, whole or not at all. Raises MachineError for a disk that takes no more."""
    lines = "".join(json.dumps(asdict(record), ensure_ascii=False) + "\n" for record in records)
    with disk_errors(path):
        write_whole(path, lines.encode())


def read_records(path: str | Path) -> list[Task]:
    """The tasks of a prepared file; `answer` is the tuple of accepted answers.

    Raises DataError naming the line, for a repeated question or uid too, and for a file that is not the one which the
    manifest beside it describes.
    """
    path = Path(path)
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise DataError(f"data file {path} cannot be read ({error.strerror}): check the path") from error
    except UnicodeDecodeError as error:
        raise DataError(f"data file {path} is not UTF-8 text: {_REMEDY}") from error
    tasks: list[Task] = []
    lines: dict[tuple[str, str], int] = {}
    # not splitlines(), which also cuts at characters that JSON leaves as they are
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        place = f"line {number} of {path}"
        task = _read_line(place, line)
        for name, value in (("question", task.question), ("uid", task.uid)):
            if before := lines.setdefault((name, value), number) - number:
                raise DataError(f"{place} repeats the {name} of line {number + before} ({value[:60]!r}): remove one")
        tasks.append(task)
    _check_manifest(path, len(tasks))
    return tasks


def _read_line(place: str, line: str) -> Task:
    try:
        row: Any = parse(line)
    except ValueError as error:
        raise DataError(f"{place} is not JSON ({error}): {_REMEDY}") from error
    if not isinstance(row, dict):
        raise DataError(f"{place} is not an object: {_REMEDY}")
    uid, question, answers, meta = (row.pop(key, default) for key, default in _FIELDS)
    if row:
        raise DataError(f"{place} has the field {min(row)!r}, which prepared files have not: {_REMEDY}")
    for name, value in (("uid", uid), ("question", question)):
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{place} has no {name}: give text; {_REMEDY}")
    if not isinstance(answers, list) or not answers:
        raise DataError(f"{place} has no answers: give a list of text; {_REMEDY}")
    for answer in answers:
        if not isinstance(answer, str) or not answer.strip():
            raise DataError(f"{place}: {answer!r} is among its answers: give text alone")
    if not isinstance(meta, dict):
        raise DataError(f"{place}: meta is {meta!r}: give an object, or leave it out")
    return Task(uid, question, tuple(answers), meta)


_FIELDS: tuple[tuple[str, Any], ...] = (("uid", None), ("question", None), ("answers", None), ("meta", {}))


def _check_manifest(path: Path, rows: int) -> None:
    manifest = read_manifest(path)
    if manifest is None:
        return
    found = sha256(path)
    if found != manifest.get("sha256"):
        raise DataError(
            f"{path} has {rows} rows and the sha256 {found}, and its manifest says {manifest.get('rows')} rows and "
            f"{manifest.get('sha256')}: prepare it again, or give another name to a file you made of it"
        )
