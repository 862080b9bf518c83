"""Recorded answers: a file of them to replay, and the file that a search tool keeps its own in.

A recording is JSONL: `{"query": ..., "text": ...}` a line, after a first line that tells what answered. A JSON
dictionary of query to text is read too.
"""

import asyncio
import fcntl
import hashlib
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, Protocol

from rtpo.core.files import disk_errors, sha256
from rtpo.errors import DataError
from rtpo.tools.search.text import NO_RESULTS, normalise_query


class Backend(Protocol):
    """What answers a normalised query. identity: all that its answers depend on, as plain JSON; no key."""

    @property
    def identity(self) -> Mapping[str, Any]: ...

    def refusal(self, query: str) -> str:
        """Why the policy may not ask this, in a sentence to it; empty when it may."""
        ...

    async def answer(self, query: str) -> str:
        """The text that the policy reads. Raises InfrastructureError when there is none to be had now."""
        ...


@dataclass(frozen=True)
class ReplaySettings:
    """file: a recording (.jsonl), or a JSON dictionary of query to text (.json).

    on_miss: what a query that is not in it gets: `error` ends the run, `empty` is told that there are no results,
    `live` is answered by the backend that `live` names.
    """

    file: str | None = None
    on_miss: Literal["error", "empty", "live"] | None = None
    live: Literal["bm25", "http", "web"] | None = None

    def problems(self, path: str) -> list[str]:
        problems = []
        if self.file is None:
            problems.append(f"{path}.file is missing: name the recording to replay.")
        elif Path(self.file).suffix not in (".json", ".jsonl"):
            problems.append(f"{path}.file is {self.file}: use a .jsonl recording, or a .json dictionary.")
        if self.on_miss is None:
            problems.append(
                f"{path}.on_miss is missing: say what a query that is not in the recording gets: error, empty or live."
            )
        if (self.on_miss == "live") != (self.live is not None):
            problems.append(
                f"{path}.on_miss is {self.on_miss} and {path}.live {self.live}: name a live backend with on_miss live, "
                "and only then."
            )
        return problems


class ReplayBackend:
    """`Backend` on a recording. Counts the queries that are not in it as `missed`. Raises DataError for a file that
    cannot be read."""

    def __init__(
        self, file: Path, on_miss: Literal["error", "empty", "live"], live: Backend | None, counts: Counter[str]
    ) -> None:
        assert (on_miss == "live") == (live is not None)
        self._file = file
        self._texts = read_recording(file)
        self._on_miss = on_miss
        self._live = live
        self._counts = counts
        self.identity = {
            "backend": "replay",
            "sha256": sha256(file),
            "queries": len(self._texts),
            "on_miss": on_miss,
            "live": None if live is None else dict(live.identity),
        }

    def refusal(self, query: str) -> str:
        return self._live.refusal(query) if self._live is not None and query not in self._texts else ""

    async def answer(self, query: str) -> str:
        text = self._texts.get(query)
        if text is not None:
            return text
        self._counts["missed"] += 1
        if self._live is not None:
            return await self._live.answer(query)
        if self._on_miss == "empty":
            return NO_RESULTS
        raise DataError(
            f"the recording {self._file} has no answer to {query!r}: record it, or use replay.on_miss empty or live."
        )


def read_recording(path: Path) -> dict[str, str]:
    """Normalised query -> text. A last line without its end, which a killed writer leaves, is not read.

    Raises DataError for a file, line or query that cannot be, and for two texts of one query.
    """
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the recording {path} cannot be read: {error}.") from error
    found = _dictionary(content, path) if path.suffix == ".json" else _lines(content, path)
    texts: dict[str, str] = {}
    for place, query, text in found:
        text = text.encode("utf-8", "replace").decode()  # half surrogate pairs, which JSON can spell
        if texts.setdefault(normalise_query(query), text) != text:
            raise DataError(f"{place}: {query!r} has another text before it; delete one of them.")
    return texts


def _dictionary(content: str, path: Path) -> Iterator[tuple[str, str, str]]:
    place = f"the recording {path}"
    for query, text in _object(content, place).items():
        yield place, *_entry({"query": query, "text": text}, place)


def _lines(content: str, path: Path) -> Iterator[tuple[str, str, str]]:
    for number, line in enumerate(content.split("\n")[:-1], start=1):
        place = f"line {number} of the recording {path}"
        row = _object(line, place)
        if number > 1 or "recording" not in row:
            yield place, *_entry(row, place)


def _object(text: str | bytes, place: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise DataError(f"{place} is not JSON ({error}); delete it.") from error
    if not isinstance(found, dict):
        raise DataError(f"{place} is no JSON object; delete it.")
    return found


def _entry(row: dict[str, Any], place: str) -> tuple[str, str]:
    match row:
        case {"query": str(query), "text": str(text)}:
            return query, text
    raise DataError(f"{place} has no query and text that are text; delete it.")


class Memory:
    """Texts by query, for as long as the process lives. The first text of a query is its text from then on."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    async def get(self, query: str) -> str | None:
        return self._texts.get(query)

    async def keep(self, query: str, text: str) -> str:
        """The text of the query: this one, or the one that was kept before."""
        return self._texts.setdefault(query, text)


class Recording(Memory):
    """Kept in a recording too, `<folder>/<checksum of the identity>.jsonl`, which any number of processes may read and
    extend at once. A line is on disk before its text is given out."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        super().__init__()
        header = json.dumps({"recording": 1, "backend": dict(identity)}, sort_keys=True).encode() + b"\n"
        self.path = folder / f"{hashlib.sha256(header).hexdigest()}.jsonl"
        self._read_to = len(header)
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        self.path.touch()
        with self._alone() as file:
            first = file.readline()
            if not first.endswith(b"\n"):
                _write(file, 0, header)
            elif first != header:
                raise DataError(f"the recording {self.path} begins with another line than its own: delete it.")

    async def get(self, query: str) -> str | None:
        return self._texts.get(query) or await asyncio.to_thread(self._keep, query, None)

    async def keep(self, query: str, text: str) -> str:
        kept = await asyncio.to_thread(self._keep, query, text)
        assert kept is not None
        return kept

    def _keep(self, query: str, text: str | None) -> str | None:
        with self._lock, self._alone() as file:
            self._read_on(file)
            if text is not None and query not in self._texts:
                line = json.dumps({"query": query, "text": text}).encode() + b"\n"
                _write(file, self._read_to, line)
                self._read_to += len(line)
                self._texts[query] = text
            return self._texts.get(query)

    @contextmanager
    def _alone(self) -> Iterator[IO[bytes]]:
        """The file, held against other processes until it is closed."""
        with disk_errors(self.path), self.path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    def _read_on(self, file: IO[bytes]) -> None:
        """What has been added since. A line without its end was left by a killed writer."""
        if os.fstat(file.fileno()).st_size < self._read_to:
            raise DataError(f"the recording {self.path} became shorter while in use: start the run again.")
        file.seek(self._read_to)
        for line in file:
            if not line.endswith(b"\n"):
                break
            place = f"the line at byte {self._read_to} of the recording {self.path}"
            query, text = _entry(_object(line, place), place)
            self._texts.setdefault(query, text)
            self._read_to += len(line)


def _write(file: IO[bytes], start: int, line: bytes) -> None:
    """Over what a killed writer left."""
    file.truncate(start)
    file.seek(start)
    file.write(line)
    file.flush()
    os.fsync(file.fileno())
