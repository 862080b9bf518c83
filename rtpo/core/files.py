"""What is written for good: whole files, the disk's refusals in words, and SHA-256 of files, of lines as they are
appended, and of all that a save holds."""

import errno
import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from rtpo.errors import DataError, MachineError

SUMS = "SHA256SUMS"
"""the file beside others with their checksums, as `sha256sum --check` reads it"""
_CHUNK = 1 << 20


def write_whole(path: Path, data: bytes) -> None:
    """Beside its place, flushed, and moved there."""
    beside = partial_of(path)
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    flush(path.parent)


def flush(place: Path) -> None:
    """A file or folder to disk."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_is_free(output: Path) -> None:
    """Raises DataError for a place that holds something."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise DataError(f"{output} is there already, and not an empty folder: name a new folder.")


def partial_of(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


@contextmanager
def disk_errors(place: Path) -> Iterator[None]:
    """A full or read-only disk in words. Raises MachineError."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES):
            raise
        raise MachineError(
            f"cannot write {place}: {os.strerror(error.errno)}. What was saved before is intact; make room and run the "
            "same command to go on."
        ) from error


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class Appended:
    """The length and the checksum of all that a file should hold that is only appended to."""

    def __init__(self) -> None:
        self.size = 0
        self._sum = hashlib.sha256()

    def add(self, data: bytes) -> None:
        self.size += len(data)
        self._sum.update(data)

    @property
    def sha256(self) -> str:
        return self._sum.hexdigest()


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def start_of(path: Path, size: int) -> Appended:
    """Of the file's first `size` bytes, or of all where it has fewer; of none where there is no file."""
    found = Appended()
    if path.exists():
        with path.open("rb") as file:
            while data := file.read(min(_CHUNK, size - found.size)):
                found.add(data)
    return found


def write_sums(folder: Path) -> None:
    """The checksums of all files in the folder and below it, into SUMS."""
    there = list(_files(folder))
    text = "".join(f"{found}  {name}\n" for name, found in zip(there, _sums(folder, there), strict=True))
    (folder / SUMS).write_bytes(text.encode())


def checked_sums(folder: Path) -> dict[str, str]:
    """The checksums by name of the files in a folder, which has those of SUMS, as they were, and no others. Raises
    DataError naming one that differs."""
    try:
        listed = [line.partition("  ") for line in (folder / SUMS).read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        raise DataError(
            f"{folder / SUMS} is missing: it was lost, or a version made the save whose saves had no checksums."
        ) from None
    except ValueError as error:
        raise DataError(f"{folder / SUMS} is damaged ({error}).") from error
    known = {name: digest for digest, _, name in listed}
    there = set(_files(folder))
    for name in sorted(known.keys() ^ there):
        what = "is missing" if name in known else f"is not in {SUMS}, so that one of the two is damaged"
        raise DataError(f"{folder / name} {what}.")
    for (name, digest), found in zip(known.items(), _sums(folder, list(known)), strict=True):
        if found != digest:
            raise DataError(f"{folder / name} is damaged: its sha256 is not the one that was written down with it.")
    return known


def _files(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path != folder / SUMS:
            yield path.relative_to(folder).as_posix()


def _sums(folder: Path, names: list[str]) -> Iterator[str]:
    """In threads: weights are large, and hashing leaves the interpreter to others."""
    with ThreadPoolExecutor() as pool:
        yield from pool.map(lambda name: sha256(folder / name), names)
