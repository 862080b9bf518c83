"""Search over HTTP: a retriever that speaks Search-R1's protocol, or a web search API in the shape of Brave's.

A retriever answers `POST <url>` with `{"queries": [query], "topk": n, "return_scores": true}` by
`{"result": [[{"document": {"contents": "title\\ntext"}, "score": ...}, ...]]}`, best first. A web API answers
`GET <url>?q=query&count=n`, with the key in the header `X-Subscription-Token`, by
`{"web": {"results": [{"title": ..., "description": ...}, ...]}}`. It takes 400 characters and 50 words a query and
gives 20 results at most.
"""

import html
from dataclasses import dataclass
from typing import Any

from rtpo.core.http_client import Client, key_problems, url_problems
from rtpo.tools.search.replay import SearchBackend
from rtpo.tools.search.text import Passage, render

MOST_CHARACTERS = 400
MOST_WORDS = 50
MOST_RESULTS = 20


@dataclass(frozen=True)
class HttpSettings:
    """url: of the retriever's `retrieve`."""

    url: str | None = None

    def problems(self, path: str) -> list[str]:
        return url_problems(self.url, f"{path}.url")


@dataclass(frozen=True)
class WebSettings:
    """url: of the API. key_variable: the environment variable that holds the key, which is written nowhere."""

    url: str | None = "https://api.search.brave.com/res/v1/web/search"
    key_variable: str = "BRAVE_API_KEY"

    def problems(self, path: str) -> list[str]:
        return url_problems(self.url, f"{path}.url") + key_problems(self.key_variable, f"{path}.key_variable")


class HttpBackend(SearchBackend):
    """On a retriever, of settings without problems."""

    name = "http"

    def __init__(self, client: Client, results: int, characters: int) -> None:
        self._client, self._results, self._characters = client, results, characters
        self.identity = {"backend": self.name, "url": client.url, "results": results, "characters": characters}

    async def answer(self, query: str) -> str:
        return render((await self._passages(query))[: self._results], self._characters)

    async def _passages(self, query: str) -> list[Passage]:
        body = {"queries": [query], "topk": self._results, "return_scores": True}
        return await self._client.ask("POST", _from_retriever, body=body)


class WebBackend(HttpBackend):
    """The same on a web search API."""

    name = "web"

    def refusal(self, query: str) -> str:
        words = len(query.split())
        return f"The query has {words} words: use {MOST_WORDS} or fewer." if words > MOST_WORDS else ""

    async def _passages(self, query: str) -> list[Passage]:
        params = {"q": query, "count": str(self._results), "text_decorations": "false", "result_filter": "web"}
        return await self._client.ask("GET", _from_web, params=params)


def split_contents(contents: str) -> Passage:
    """The first line is the title, which wiki-18 has in quotes; a single line is text."""
    title, newline, text = contents.strip().partition("\n")
    return Passage(title.strip().strip('"'), text) if newline else Passage("", title)


def _from_retriever(reply: Any) -> list[Passage]:
    match reply:
        case {"result": [[*rows]]}:
            return [split_contents(row["document"]["contents"]) for row in rows]
    raise ValueError("it is not {'result': [[...]]} with one list")


def _from_web(reply: Any) -> list[Passage]:
    if reply.get("type") == "search" and "web" not in reply:
        return []
    parts = [(row["title"], row.get("description") or "") for row in reply["web"]["results"]]
    # what is no text has nothing to strip
    return [Passage(html.unescape(title.strip()), html.unescape(text.strip())) for title, text in parts]
