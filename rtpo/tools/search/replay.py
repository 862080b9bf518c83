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
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, Protocol

from rtpo.core.files import disk_errors, sha256
from rtpo.errors import DataError
from rtpo.tools.search.text import NO_RESULTS, normalise_query

KEPT_IN_MEMORY = 4096


class Backend(Protocol):
    """What answers a normalised query.

    identity: all that its answers depend on, as plain JSON; no key. is_fixed: whether the same identity gives the same
    answer at any time.
    """

    @property
    def identity(self) -> Mapping[str, Any]: ...

    @property
    def is_fixed(self) -> bool: ...

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
        self.is_fixed = live is None or live.is_fixed
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
    texts: dict[str, str] = {}
    for place, row in _dictionary(path, content) if path.suffix == ".json" else _lines(path, content):
        query, text = _entry(row, place)
        text = text.encode("utf-8", "replace").decode()  # half surrogate pairs, which JSON can spell
        if texts.setdefault(normalise_query(query), text) != text:
            raise DataError(f"{place}: {query!r} has another text before it; delete one of them.")
    return texts


def _dictionary(path: Path, content: str) -> Iterator[tuple[str, Any]]:
    place = f"the recording {path}"
    for query, text in _row(content, place).items():
        yield place, {"query": query, "text": text}


def _lines(path: Path, content: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(content.split("\n")[:-1], start=1):
        place = f"line {number} of the recording {path}"
        row = _row(line, place)
        if number > 1 or "recording" not in row:
            yield place, row


def _row(line: str | bytes, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DataError(f"{place} is not JSON ({error}); delete it.") from error
    if not isinstance(row, dict):
        raise DataError(f"{place} is no JSON object; delete it.")
    return row


def _entry(row: dict[str, Any], place: str) -> tuple[str, str]:
    query, text = row.get("query"), row.get("text")
    if not isinstance(query, str) or not isinstance(text, str):
        raise DataError(f"{place} has no query and text that are text; delete it.")
    return query, text


class Store(Protocol):
    """Texts by query. The first text of a query is its text from then on."""

    async def get(self, query: str) -> str | None: ...

    async def keep(self, query: str, text: str) -> str:
        """The text of the query: this one, or the one that was kept before."""
        ...


class Memory:
    """`Store` for as long as the process lives; `most`: texts kept, the longest unused going first."""

    def __init__(self, most: int | None) -> None:
        self._texts: OrderedDict[str, str] = OrderedDict()
        self._most = most

    async def get(self, query: str) -> str | None:
        if query in self._texts:
            self._texts.move_to_end(query)
        return self._texts.get(query)

    async def keep(self, query: str, text: str) -> str:
        text = self._texts.setdefault(query, text)
        if self._most is not None and len(self._texts) > self._most:
            self._texts.popitem(last=False)
        return text


class Recording:
    """`Store` in a recording, `<folder>/<checksum of the identity>.jsonl`, which any number of processes may read and
    extend at once. A line is on disk before its text is given out."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        header = json.dumps({"recording": 1, "backend": dict(identity)}, sort_keys=True).encode() + b"\n"
        self.path = folder / f"{hashlib.sha256(header).hexdigest()}.jsonl"
        self._texts: dict[str, str] = {}
        self._read_to = len(header)
        self._lock = threading.Lock()
        with disk_errors(self.path):
            folder.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab"):
                pass
            with self.path.open("r+b") as file, _locked(file, fcntl.LOCK_EX):
                first = file.readline()
                if not first.endswith(b"\n"):
                    _write(file, 0, header)
                elif first != header:
                    raise DataError(f"the recording {self.path} begins with another line than its own: delete it.")

    async def get(self, query: str) -> str | None:
        return await asyncio.to_thread(self._get, query)

    async def keep(self, query: str, text: str) -> str:
        return await asyncio.to_thread(self._keep, query, text)

    def _get(self, query: str) -> str | None:
        with self._lock:
            if query not in self._texts:
                with self.path.open("rb") as file, _locked(file, fcntl.LOCK_SH):
                    self._read_on(file)
            return self._texts.get(query)

    def _keep(self, query: str, text: str) -> str:
        with self._lock, disk_errors(self.path), self.path.open("r+b") as file, _locked(file, fcntl.LOCK_EX):
            self._read_on(file)
            if query not in self._texts:
                line = json.dumps({"query": query, "text": text}).encode() + b"\n"
                _write(file, self._read_to, line)
                self._read_to += len(line)
                self._texts[query] = text
            return self._texts[query]

    def _read_on(self, file: IO[bytes]) -> None:
        """What has been added since. A line without its end was left by a killed writer."""
        if os.fstat(file.fileno()).st_size < self._read_to:
            raise DataError(f"the recording {self.path} became shorter while in use: start the run again.")
        file.seek(self._read_to)
        for line in file:
            if not line.endswith(b"\n"):
                break
            place = f"the line at byte {self._read_to} of the recording {self.path}"
            query, text = _entry(_row(line, place), place)
            self._texts.setdefault(query, text)
            self._read_to += len(line)


def _write(file: IO[bytes], start: int, line: bytes) -> None:
    """Over what a killed writer left."""
    file.truncate(start)
    file.seek(start)
    file.write(line)
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def _locked(file: IO[bytes], how: int) -> Iterator[None]:
    """Against other processes."""
    fcntl.flock(file, how)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)
