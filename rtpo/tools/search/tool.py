"""The search tool, with four backends. A query gets the same answer in all paths of a run (docs/run/tools.md)."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from rtpo.core.bounds import Count
from rtpo.core.http_client import Client, RequestSettings
from rtpo.core.names import counted
from rtpo.core.recording import Memory, Recording
from rtpo.errors import InfrastructureError, MachineError
from rtpo.tools.base import Arguments, ToolResult, text_tool
from rtpo.tools.search.bm25 import Bm25Backend, Bm25Settings
from rtpo.tools.search.remote import MOST_CHARACTERS, MOST_RESULTS, HttpBackend, HttpSettings, WebBackend, WebSettings
from rtpo.tools.search.replay import ReplayBackend, ReplaySettings, SearchBackend
from rtpo.tools.search.text import TEXT_FORMAT, normalise_query
from rtpo.types import ToolOutcome

SCHEMA = text_tool(
    "search", "Searches for passages of text about a query. Returns the best of them.", "query", "What to search for."
)


@dataclass(frozen=True)
class SearchSettings:
    """Settings of the search tool. Only the chosen backend's fields are used."""

    backend: Literal["bm25", "http", "web", "replay"] = "bm25"
    results: Count = 3  # at most, per query
    characters: Count = 1000  # of each result's title and text; the rest is cut
    query_characters: Count = MOST_CHARACTERS  # a longer query is refused
    cache: str | None = None  # folder of answers, one recording per backend and settings; null keeps them in memory
    bm25: Bm25Settings = field(default_factory=Bm25Settings)
    http: HttpSettings = field(default_factory=HttpSettings)
    web: WebSettings = field(default_factory=WebSettings)
    replay: ReplaySettings = field(default_factory=ReplaySettings)
    requests: RequestSettings = field(default_factory=RequestSettings)  # for http and web

    @property
    def backends(self) -> tuple[str, ...]:
        """The backends that may be asked."""
        live = self.replay.live if self.backend == "replay" else None
        return (self.backend,) if live is None else (self.backend, live)

    def problems(self, path: str) -> list[str]:
        problems = [problem for name in self.backends for problem in getattr(self, name).problems(f"{path}.{name}")]
        if "web" in self.backends:
            for name, most in (("results", MOST_RESULTS), ("query_characters", MOST_CHARACTERS)):
                if getattr(self, name) > most:
                    problems.append(
                        f"{path}.{name} is {getattr(self, name)} and the web API takes {most}: use {most} or fewer."
                    )
        return problems

    def check(self) -> dict[str, Any]:
        """Open the backend and try it; returns facts for the manifest. It asks a retriever one query, a web API none.
        Do not call it in an event loop.

        Raises DataError for an unusable index or recording, ConfigError for a missing key, and MachineError if a
        retriever does not answer.
        """
        world = open_world(self)
        try:
            if "http" in self.backends:
                asyncio.run(_open_backend(self, "http").answer("Who wrote Hamlet?"))
        except InfrastructureError as error:
            raise MachineError(f"{error}. Start the retriever, or name another search.http.url.") from error
        return {**world.identity, "cache": "memory" if self.cache is None else "folder"}


class SearchTool:
    """A `rtpo.tools.base.Tool` that searches. Tools with the same settings share one world, so a new tool is cheap."""

    def __init__(self, settings: SearchSettings) -> None:
        self.world = open_world(settings)

    @property
    def schema(self) -> Mapping[str, Any]:
        return SCHEMA

    async def call(self, arguments: Arguments, earlier: Sequence[Arguments]) -> ToolResult:
        """Search for `arguments["query"]`. Raises InfrastructureError if the backend cannot answer, and DataError for a
        query that a replayed recording lacks."""
        return await self.world.call(arguments["query"])


class SearchWorld:
    """Answers queries through a backend and a cache, so that a query always gets the same answer.

    Equal queries at the same time make one request. If two processes get different answers, both use the one stored
    first. Failures are not stored. It may be used in several event loops, one after another.
    """

    def __init__(self, settings: SearchSettings) -> None:
        self._settings = settings
        self._backend = _open_backend(settings, settings.backend)
        self.identity: Mapping[str, Any] = {"text_format": TEXT_FORMAT, **self._backend.identity}
        self._store = Memory() if settings.cache is None else Recording(Path(settings.cache), self.identity)

    async def call(self, query: str) -> ToolResult:
        query = normalise_query(query)
        limit = self._settings.query_characters
        if not query:
            refusal = "The query is empty: give words to search for."
        elif len(query) > limit:
            refusal = f"The query has {counted(len(query), 'character')}: use {limit} or fewer."
        else:
            refusal = self._backend.refusal(query)
        if refusal:
            return ToolResult(ToolOutcome.REFUSED, refusal, is_forgotten=True)
        return ToolResult(ToolOutcome.OK, await self._store.once(query, lambda: self._backend.answer(query)))


@cache
def open_world(settings: SearchSettings) -> SearchWorld:
    """Open the world of these settings, once per process. Raises DataError and ConfigError as `SearchSettings.check`
    does."""
    return SearchWorld(settings)


def _open_backend(settings: SearchSettings, name: str) -> SearchBackend:
    """The backend of valid settings. Raises ConfigError if its API key is missing."""
    sizes = settings.results, settings.characters
    if name == "bm25":
        return Bm25Backend(Path(str(settings.bm25.index)), *sizes)
    if name == "http":
        return HttpBackend(Client(str(settings.http.url), settings.requests), *sizes)
    if name == "web":
        url, key = str(settings.web.url), settings.web.key_variable
        client = Client(url, settings.requests, key, "the search API's", "X-Subscription-Token", scheme="")
        return WebBackend(client, *sizes)
    replay = settings.replay
    assert replay.on_miss is not None
    live = None if replay.live is None else _open_backend(settings, replay.live)
    return ReplayBackend(Path(str(replay.file)), replay.on_miss, live)
