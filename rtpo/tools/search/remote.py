"""Search over HTTP: a retriever with Search-R1's protocol, or a web search API like Brave's.

Requests and answers, best result first:

    retriever  POST <url> {"queries": [query], "topk": n, "return_scores": true}
    answers    {"result": [[{"document": {"contents": "title\\ntext"}, "score": ...}, ...]]}
    web API    GET <url>?q=query&count=n, with the key in the header X-Subscription-Token
    answers    {"web": {"results": [{"title": ..., "description": ...}, ...]}}
"""

import html
from dataclasses import dataclass
from typing import Any

from rtpo.core.http_client import Client, key_problems, url_problems
from rtpo.core.names import counted
from rtpo.tools.search.replay import SearchBackend
from rtpo.tools.search.text import Passage, render

MOST_CHARACTERS, MOST_WORDS, MOST_RESULTS = 400, 50, 20
"""the web API's limits: characters and words of a query, and results"""


@dataclass(frozen=True)
class HttpSettings:
    """Settings of the http backend."""

    url: str | None = None  # of the retriever's endpoint `retrieve`

    def problems(self, path: str) -> list[str]:
        return url_problems(self.url, f"{path}.url")


@dataclass(frozen=True)
class WebSettings:
    """Settings of the web backend."""

    url: str | None = "https://api.search.brave.com/res/v1/web/search"
    key_variable: str = "BRAVE_API_KEY"  # environment variable with the API key, which is never stored

    def problems(self, path: str) -> list[str]:
        return url_problems(self.url, f"{path}.url") + key_problems(self.key_variable, f"{path}.key_variable")


class HttpBackend(SearchBackend):
    """A search backend on a retriever."""

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
    """A search backend on a web search API."""

    name = "web"

    def refusal(self, query: str) -> str:
        words = len(query.split())
        return f"The query has {counted(words, 'word')}: use {MOST_WORDS} or fewer." if words > MOST_WORDS else ""

    async def _passages(self, query: str) -> list[Passage]:
        params = {"q": query, "count": str(self._results), "text_decorations": "false", "result_filter": "web"}
        return await self._client.ask("GET", _from_web, params=params)


def split_contents(contents: str) -> Passage:
    """Split a passage: the first line is the title, in quotes in wiki-18. A single line is text without a title."""
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
    # a title or text that is not a string raises in strip
    return [Passage(html.unescape(title.strip()), html.unescape(text.strip())) for title, text in parts]
