"""A cache of answers (texts) by query, in memory or in a file that any number of processes share."""

import asyncio
import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple
from weakref import WeakKeyDictionary

from rtpo.core.files import disk_errors
from rtpo.errors import DataError


class Entry(NamedTuple):
    """A line of a recording, in JSON. The recording's first line is a header instead."""

    query: str
    text: str


class Memory:
    """Texts by query, kept as long as the process lives. A query keeps its first text."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._asking: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Task[str]]] = WeakKeyDictionary()

    async def once(self, query: str, ask: Callable[[], Awaitable[str]]) -> str:
        """The query's kept text, or else the one from `ask`. Equal queries that wait at the same time share one call of
        `ask` and its error. Errors are not kept."""
        loop = asyncio.get_running_loop()
        asking = self._asking.setdefault(loop, {})
        if query not in asking:
            asking[query] = loop.create_task(self._text(query, ask))
            # read the error: asyncio would log it if every caller was cancelled
            asking[query].add_done_callback(lambda task: (asking.pop(query), task.cancelled() or task.exception()))
        # shielded, so that cancelling one caller does not cancel the answer for others
        return await asyncio.shield(asking[query])

    async def _text(self, query: str, ask: Callable[[], Awaitable[str]]) -> str:
        text = await self.get(query)
        return await self.keep(query, await ask()) if text is None else text

    async def get(self, query: str) -> str | None:
        return self._texts.get(query)

    async def keep(self, query: str, text: str) -> str:
        """Keep this text, unless the query has one. Returns the text that is kept."""
        return self._texts.setdefault(query, text)


class Recording(Memory):
    """A `Memory` whose texts are also in a file, `<folder>/<checksum of the header>.jsonl`. Any number of processes may
    read and extend it at once. A line is on disk before its text is returned. identity: the source of the texts."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        super().__init__()
        header = json.dumps({"recording": 1, "backend": dict(identity)}, sort_keys=True).encode() + b"\n"
        self.path = folder / f"{hashlib.sha256(header).hexdigest()}.jsonl"
        self._read_to = len(header)
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        self.path.touch()
        with self._locked() as file:
            first = file.readline()
            if not first.endswith(b"\n"):
                _write(file, 0, header)
            elif first != header:
                raise DataError(f"the recording {self.path} has the header of another recording: delete it.")

    async def get(self, query: str) -> str | None:
        return self._texts.get(query) or await asyncio.to_thread(self._read_and_keep, query, None)

    async def keep(self, query: str, text: str) -> str:
        kept = await asyncio.to_thread(self._read_and_keep, query, text)
        assert kept is not None
        return kept

    def _read_and_keep(self, query: str, text: str | None) -> str | None:
        """Read new lines of the file. If the query has no text, add `text`; None adds nothing. Returns its text."""
        with self._lock, self._locked() as file:
            self._read_on(file)
            if text is not None and query not in self._texts:
                line = json.dumps(Entry(query, text)._asdict()).encode() + b"\n"
                _write(file, self._read_to, line)
                self._read_to += len(line)
                self._texts[query] = text
            return self._texts.get(query)

    @contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        """The file, locked against other processes until it is closed."""
        with disk_errors(self.path), self.path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    def _read_on(self, file: IO[bytes]) -> None:
        """Read the lines added since the last call, up to an incomplete line that a killed writer left."""
        if os.fstat(file.fileno()).st_size < self._read_to:
            raise DataError(f"the recording {self.path} became shorter while in use: start the run again.")
        file.seek(self._read_to)
        for line in file:
            if not line.endswith(b"\n"):
                break
            place = f"the line at byte {self._read_to} of the recording {self.path}"
            query, text = entry(json_object(line, place), place)
            self._texts.setdefault(query, text)
            self._read_to += len(line)


def _write(file: IO[bytes], start: int, line: bytes) -> None:
    """Write a line at `start`, over anything that a killed writer left there."""
    file.truncate(start)
    file.seek(start)
    file.write(line)
    file.flush()
    os.fsync(file.fileno())


def json_object(text: str | bytes, place: str) -> dict[str, Any]:
    """Parse a JSON object, whose texts may have lone surrogates. place: where it is, for the message. Raises
    DataError."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place} is not JSON ({error}); delete it.") from error
    if not isinstance(parsed, dict):
        raise DataError(f"{place} is not a JSON object; delete it.")
    return parsed


def entry(row: dict[str, Any], place: str) -> Entry:
    """Check a parsed line. Raises DataError."""
    match row:
        case {"query": str(query), "text": str(text)}:
            return Entry(query, text)
    raise DataError(f"{place} has no query and text that are strings; delete it.")
