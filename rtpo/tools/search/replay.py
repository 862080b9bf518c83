"""Recorded answers replayed: of a recording (`rtpo.core.recording`), or of a JSON dictionary of query to text."""

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
    """What answers a normalised query. identity: all that its answers depend on, as plain JSON; no key."""

    identity: Mapping[str, Any]

    def refusal(self, query: str) -> str:
        """Why the policy may not ask this, in a sentence to it; empty when it may."""
        return ""

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


class ReplayBackend(SearchBackend):
    """On a recording. Raises DataError for a file that cannot be read."""

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
    """Normalised query -> text. A last line without its end, which a killed writer leaves, is not read.

    Raises DataError for a file, line or query that cannot be, and for two texts of one query.
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
            raise DataError(f"{place}: {query!r} has another text before it; delete one of them.")
    return texts
