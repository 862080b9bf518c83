"""Finished runs in a few files (`experiments/maintenance/pack.py`), read as if each lay in its folder.

`packed/<kind>.jsonl.gz` holds the files of one kind, such as steps.jsonl, of all runs below the folder that `packed/`
lies in: a line a file, with its `run`, its name, `file`, and its `text`. Each line is a gzip member of its own, so that
one run is read without the others. What lies on disk comes before what is packed.
"""

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path, PurePosixPath

from rtpo.core.names import missing_file, nearest, some
from rtpo.errors import DataError

PACKED = "packed"
_SUFFIX = ".jsonl.gz"
_GZIP = 31
"""zlib's word for gzip's header and checksum"""


def exists(file: Path) -> bool:
    """Whether a record is on disk or packed."""
    return file.exists() or _place(file) is not None


def read(file: Path) -> bytes:
    """A record, packed or not. Raises FileNotFoundError without one, and DataError for a damaged archive."""
    place = None if file.exists() else _place(file)
    return file.read_bytes() if place is None else member(*place)


def find(folder: Path, pattern: str) -> list[Path]:
    """The records below the folder, packed or not, that fit a pattern of names and `*`; sorted."""
    parts, root = PurePosixPath(pattern).parts, folder.absolute()
    kind = PurePosixPath(pattern).stem + _SUFFIX
    archives = [above / PACKED / kind for above in (root, *root.parents)]
    for depth in range(1, len(parts) - 1):
        archives += root.glob("/".join([*parts[:depth], PACKED, kind]))
    found = set(folder.glob(pattern))
    for archive in archives:
        for name in members(archive):
            file = archive.parents[1] / name
            below = file.relative_to(root).parts if file.is_relative_to(root) else ()
            if len(below) == len(parts) and all(map(fnmatchcase, below, parts)):
                found.add(folder.joinpath(*below))
    return sorted(found)


def no_run(folder: Path) -> str:
    """Why a folder is none of a run, with the runs that are below it, or the nearest that there is."""
    if below := [file.parent.name for file in find(folder, "*/config.yaml")]:
        return f"{folder} is no run's folder: give that of one of its runs, {some(below)}."
    if beside := [file.parent.name for file in find(folder.parent, "*/config.yaml")]:
        why = f"{folder} is no run's folder; {nearest(folder.name, beside)}"
    else:
        why = f"{folder} is no run's folder" if folder.exists() else missing_file(folder)
    return f"{why}: give one with a config.yaml, such as results/<experiment>/<run>."


def archive_of(folder: Path, file: str) -> Path:
    """The archive that files of this name are packed in, of the runs below a folder."""
    return folder / PACKED / (PurePosixPath(file).stem + _SUFFIX)


def line(name: str, data: bytes) -> bytes:
    """What an archive holds of a file of this name. Raises ValueError where that is no text."""
    run, _, file = name.rpartition("/")
    text = json.dumps({"run": run, "file": file, "text": data.decode()}) + "\n"
    return gzip.compress(text.encode(), mtime=0)


def members(archive: Path) -> Mapping[str, tuple[int, int]]:
    """Where each file lies in an archive, by name below the archives' folder; empty without one. Raises DataError for
    damage."""
    if not archive.exists():
        return {}
    state = archive.stat()
    return _members(archive, state.st_mtime_ns, state.st_size)


def member(archive: Path, start: int, end: int) -> bytes:
    """A file out of an archive. Raises DataError for damage."""
    with archive.open("rb") as packed:
        packed.seek(start)
        ((_, data, _),) = _lines(archive, packed.read(end - start))
    return data


@lru_cache(maxsize=64)
def _members(archive: Path, _changed: int, _size: int) -> Mapping[str, tuple[int, int]]:
    found, start = {}, 0
    for name, _, end in _lines(archive, archive.read_bytes()):
        found[name] = (start, end)
        start = end
    return found


def _lines(archive: Path, packed: bytes) -> Iterator[tuple[str, bytes, int]]:
    """Of each line the name, the file, and where it ends."""
    start = 0
    while start < len(packed):
        inflate = zlib.decompressobj(_GZIP)
        try:
            value = json.loads(inflate.decompress(memoryview(packed)[start:]))
            if not inflate.eof:
                raise ValueError("it was cut off")
            name, data = f"{value['run']}/{value['file']}", value["text"].encode()
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError, zlib.error) as error:
            raise DataError(f"{archive} is damaged ({' '.join(str(error).split())}): restore it.") from error
        start = len(packed) - len(inflate.unused_data)
        yield name, data, start


def _place(file: Path) -> tuple[Path, int, int] | None:
    """The archive that holds a file, and where."""
    whole = file.absolute()
    for folder in whole.parents[1:]:
        archive = archive_of(folder, whole.name)
        if (place := members(archive).get(whole.relative_to(folder).as_posix())) is not None:
            return archive, *place
    return None
