"""Reads rows and tasks from Parquet, JSON, JSONL and CSV files."""

import codecs
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rtpo.core.files import readable
from rtpo.core.json_text import parse
from rtpo.errors import DataError
from rtpo.types import Task

Row = Mapping[str, Any]


NOT_DATA = {
    b"version https://git-lfs": "a pointer of Git LFS and not data: get the file itself",
    b"<": "a web page and not data: get the file itself",
    **{
        prefix: f"compressed by {program}: unpack it, and give the unpacked file"
        for prefix, program in (
            *((b"\x1f\x8b", "gzip"), (b"BZh", "bzip2"), (b"\xfd7zXZ", "xz")),
            *((b"\x28\xb5\x2f\xfd", "zstd"), (b"PK\x03\x04", "zip")),
        )
    },
}
"""the first bytes of files that cannot be read as rows, and what such a file is"""


def read_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row of a file with its place, such as `line 3 of data.jsonl`.

    The content decides the format: Parquet, a JSON array, JSONL, or CSV (all cells are text). Raises DataError for
    another format, a damaged file, or a file without rows."""
    with readable("data file", path), path.open("rb") as file:
        start = file.read(1000).removeprefix(codecs.BOM_UTF8).lstrip()
    for prefix, problem in NOT_DATA.items():
        if start.startswith(prefix):
            raise DataError(f"data file {path} is {problem}")
    if not start:
        raise DataError(f"data file {path} is empty: check that it is the right file")
    place = ""
    for number, row in enumerate(_rows(path, start), start=1):
        place = f"{'line' if start.startswith(b'{') else 'row'} {number} of {path}"
        if not isinstance(row, dict):
            raise DataError(f"{place} is not an object: check that it is the right file")
        yield place, row
    if not place:
        raise DataError(f"data file {path} has no row: check that it is the right file")


def read_task_file(path: str | Path, fields: tuple[str, ...], make: Callable[[Mapping[str, Any]], Task]) -> list[Task]:
    """Read tasks from a file whose rows have exactly `fields` and uid. Raises DataError naming the line.

    make: turns a row into a task, or raises DataError.
    """
    path, names = Path(path), f"{', '.join(fields)} and uid"
    tasks: dict[str, Task] = {}
    for place, row in read_rows(path):
        if differing := set(row) ^ {*fields, "uid"}:
            raise DataError(
                f"{place} must have exactly the fields {names}: add or remove {', '.join(sorted(differing))}"
            )
        if not isinstance(row["uid"], str) or not row["uid"]:
            raise DataError(f"{place}: uid must be text that is not empty")
        try:
            task = make(row)
        except DataError as error:
            raise DataError(f"{place}: {error}") from error
        if tasks.setdefault(task.uid, task) is not task:
            raise DataError(f"{place} repeats uid {task.uid!r}: give each task its own uid")
    return list(tasks.values())


def _rows(path: Path, start: bytes) -> Iterable[Any]:
    # imported here because they are slow to import
    import pandas
    from pyarrow import parquet

    try:
        if start.startswith(b"PAR1"):
            return parquet.read_table(path).to_pylist()
        if start.startswith(b"["):
            return _json(f"data file {path}", path.read_text(encoding="utf-8-sig"))
        if start.startswith(b"{"):
            lines = path.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
            return (_json(f"line {number} of {path}", line) for number, line in enumerate(lines, start=1))
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)  # it warns of cells beyond the first row's
            return pandas.read_csv(path, dtype=str, na_filter=False, index_col=False).to_dict("records")
    except UnicodeDecodeError as error:
        raise DataError(f"data file {path} is neither Parquet nor UTF-8 text: check what it is") from error
    except (OSError, ValueError, NotImplementedError, pandas.errors.ParserWarning) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"data file {path} is not whole Parquet, JSON or CSV ({reason}): check what it is") from error


def _json(place: str, text: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise DataError(f"{place} is not JSON ({error}): check that it is whole") from error
