"""Replays recorded answers, from a recording (`rtpo.core.recording`) or a JSON dictionary of query to text."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from rtpo.core.files import readable, sha256
from rtpo.core.json_text import encodable
from rtpo.core.recording import entry, json_object
from rtpo.errors import DataError
from rtpo.tools.search.text import NO_RESULTS, normalise_query


class SearchBackend(Protocol):
    """Answers normalised queries. identity: everything that the answers depend on, in JSON and without API keys."""

    identity: Mapping[str, Any]

    def refusal(self, query: str) -> str:
        """A sentence to the policy if it may not ask this query, else empty."""
        return ""

    async def answer(self, query: str) -> str:
        """The text for the policy. Raises InfrastructureError if the backend cannot answer now."""
        ...


@dataclass(frozen=True)
class ReplaySettings:
    """Settings of the replay backend."""

    file: str | None = None  # a recording (.jsonl), or a JSON dictionary of query to text (.json)
    on_miss: Literal["error", "empty", "live"] | None = None  # unknown query: end the run, no results, or ask `live`
    live: Literal["bm25", "http", "web"] | None = None  # the backend for `on_miss: live`

    def problems(self, path: str) -> list[str]:
        problems = []
        if self.file is None:
            problems.append(f"{path}.file is missing: name the recording to replay.")
        elif Path(self.file).suffix not in (".json", ".jsonl"):
            problems.append(f"{path}.file is {self.file}: use a .jsonl recording, or a .json dictionary.")
        if self.on_miss is None:
            problems.append(
                f"{path}.on_miss is missing: choose error, empty or live for a query that is not in the recording."
            )
        if (self.on_miss == "live") != (self.live is not None):
            problems.append(
                f"{path}.on_miss is {self.on_miss} and {path}.live {self.live}: name a live backend with on_miss live, "
                "and only then."
            )
        return problems


class ReplayBackend(SearchBackend):
    """A search backend on a recording. Raises DataError if the file cannot be read."""

    def __init__(self, file: Path, on_miss: Literal["error", "empty", "live"], live: SearchBackend | None) -> None:
        self._file, self._on_miss, self._live = file, on_miss, live
        self._texts = read_recording(file)
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
        if query in self._texts:
            return self._texts[query]
        if self._live is not None:
            return await self._live.answer(query)
        if self._on_miss == "empty":
            return NO_RESULTS
        raise DataError(
            f"the recording {self._file} has no answer to {query!r}: record it, or use replay.on_miss empty or live."
        )


def read_recording(path: Path) -> dict[str, str]:
    """Read a recording; returns texts by normalised query. It skips an unfinished last line, left by a killed writer.

    Raises DataError for an invalid file, line or query, and for two texts of one query.
    """
    with readable("the recording", path):
        content = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        place = f"the recording {path}"
        rows = [(place, {"query": query, "text": text}) for query, text in json_object(content, place).items()]
    else:
        lines = enumerate(content.split("\n")[:-1], start=1)
        places = [(f"line {number} of the recording {path}", line) for number, line in lines]
        rows = [(place, json_object(line, place)) for place, line in places]
        rows = rows[1:] if rows and "recording" in rows[0][1] else rows
    texts: dict[str, str] = {}
    for place, row in rows:
        query, text = entry(row, place)
        text = encodable(text)
        if texts.setdefault(normalise_query(query), text) != text:
            raise DataError(f"{place}: an earlier line has another text for {query!r}; delete one of them.")
    return texts
