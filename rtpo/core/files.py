"""Files that must survive crashes: atomic writes, messages for disk errors, and SHA-256 checksums."""

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from rtpo.core.names import missing_file
from rtpo.errors import DataError, MachineError

SUMS = "SHA256SUMS"
"""name of the file with the checksums of a folder's other files, as `sha256sum --check` reads it"""
NOTE_SUFFIX = ".noted_sha256"
"""suffix of a note: a file with the checksum of the file beside it. `write_sums` reads and deletes it"""
_CHUNK = 1 << 20
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise the limit of open files (ulimit -n)"),
    **dict.fromkeys((errno.EROFS, errno.EACCES), "make the folder writable, or name another"),
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
}
"""by errno, what the user can do about an error that the machine causes"""


def write_whole(path: Path, data: bytes) -> None:
    """Write a file under a temporary name, flush it to disk, and rename it."""
    partial = partial_of(path)
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    flush(path.parent)


def whole_lines(path: Path) -> bytes:
    """The file's complete lines, without a last line that a running or killed writer left incomplete."""
    data = path.read_bytes() if path.exists() else b""
    return data[: data.rfind(b"\n") + 1]


@contextmanager
def readable(what: str, path: Path) -> Iterator[None]:
    """Turn the errors of a block that reads a user's file into DataError. A pipe or device raises it too, since reading
    one may never end. what: names the kind of file in the message."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise OSError(errno.EINVAL, "it is a pipe or a device, not a file")
        yield
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error if os.path.exists(path) else missing_file(path)
        raise DataError(f"{what} {path} cannot be read ({why}): check the path") from error


def flush(path: Path) -> None:
    """Flush a file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_is_free(output: Path) -> None:
    """Raises DataError if `output` is a file, or a folder that is not empty."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise DataError(f"{output} exists and is not an empty folder: name a new folder.")


def partial_of(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into a MachineError with a remedy, if the disk is full, read-only or forbids writing, or if a
    system limit is reached."""
    try:
        yield
    except OSError as error:
        if (remedy := remedy_of(error)) is None:
            raise
        raise MachineError(
            f"cannot write {path}: {os.strerror(error.errno or 0)}. What was saved before is intact; {remedy} and run "
            "the same command to go on."
        ) from error


@contextmanager
def whole_folder(output: Path) -> Iterator[Path]:
    """Give a new folder to fill, which becomes `output` in the end. After an error it is deleted. Raises DataError if
    `output` is not free, and MachineError as `disk_errors` does."""
    check_is_free(output)
    partial = partial_of(output)
    with disk_errors(output):
        shutil.rmtree(partial, ignore_errors=True)  # of a killed process
        partial.mkdir(parents=True)
        try:
            yield partial
            for file in filter(Path.is_file, partial.rglob("*")):
                flush(file)
            partial.replace(output)
            flush(output.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def remedy_of(error: BaseException | None) -> str | None:
    """The remedy for an error of the disk or of a system limit; None for any other error."""
    return _REMEDIES.get(error.errno or 0) if isinstance(error, OSError) else None


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class SizeAndSum:
    """Size in bytes and SHA-256 of a file's content, updated with each part that is added."""

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


def start_of_file(path: Path, size: int) -> SizeAndSum:
    """Size and checksum of the file's first `size` bytes, or of the whole file if it is shorter. A missing file is
    empty."""
    content = SizeAndSum()
    if path.exists():
        with path.open("rb") as file:
            while data := file.read(min(_CHUNK, size - content.size)):
                content.add(data)
    return content


class HashedFile:
    """A file that is hashed while it is written, from start to end."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._sum = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._sum.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def note(self, path: Path) -> None:
        """Write the checksum into <path>NOTE_SUFFIX, for `write_sums`."""
        path.with_name(path.name + NOTE_SUFFIX).write_text(self._sum.hexdigest(), encoding="ascii")


def write_sums(folder: Path) -> None:
    """Write SUMS: the checksums of all files in the folder and below it. Files whose checksum `HashedFile`
    noted are not read again, since reading a large model's save takes minutes."""
    noted = {}
    for note in folder.rglob(f"*{NOTE_SUFFIX}"):
        noted[note.relative_to(folder).as_posix().removesuffix(NOTE_SUFFIX)] = note.read_text(encoding="ascii")
        note.unlink()
    names = list(_files(folder))
    unread = [name for name in names if name not in noted]
    sums = noted | dict(zip(unread, _sums(folder, unread), strict=True))
    (folder / SUMS).write_text("".join(f"{sums[name]}  {name}\n" for name in names), encoding="utf-8")


def checked_sums(folder: Path) -> dict[str, str]:
    """The checksums of the folder's files, by name. Raises DataError unless SUMS lists exactly these files with these
    checksums; the error names the first that differs."""
    try:
        listed = [line.partition("  ") for line in (folder / SUMS).read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        raise DataError(
            f"{folder / SUMS} is missing: it was lost, or the save is of an older version without checksums."
        ) from None
    except ValueError as error:
        raise DataError(f"{folder / SUMS} is damaged ({error}).") from error
    known = {name: digest for digest, _, name in listed}
    present = set(_files(folder))
    missing, unlisted = sorted(known.keys() - present), sorted(present - known.keys())
    if missing and unlisted:
        raise DataError(f"{folder / SUMS} is damaged: it lists {missing[0]}, but the folder has {unlisted[0]}.")
    for name in (*missing, *unlisted):
        problem = "is missing" if name in known else f"is not in {SUMS}: one of the two is damaged"
        raise DataError(f"{folder / name} {problem}.")
    for (name, digest), actual in zip(known.items(), _sums(folder, list(known)), strict=True):
        if actual != digest:
            raise DataError(f"{folder / name} is damaged, or its line in {SUMS} is: their sha256 differ.")
    return known


def _files(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path != folder / SUMS:
            yield path.relative_to(folder).as_posix()


def _sums(folder: Path, names: list[str]) -> Iterator[str]:
    """The files' checksums, in order. Threads share the work: weights are large, and hashing releases Python's lock."""
    with ThreadPoolExecutor() as pool:
        yield from pool.map(lambda name: sha256(folder / name), names)
