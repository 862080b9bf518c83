"""A client for a web search API, in the shape of Brave's Web Search API.

`GET <url>?q=query&count=n` with the key in the header `X-Subscription-Token` is answered by
`{"web": {"results": [{"title": ..., "description": ...}, ...]}}`. The service takes 400 characters and 50 words a query
and gives 20 results at most.
"""

import html
from dataclasses import dataclass
from typing import Any

from rtpo.core.http_client import Client, RequestSettings, key_problems, read_key, url_problems
from rtpo.tools.search.text import Passage, render

MOST_CHARACTERS = 400
MOST_WORDS = 50
MOST_RESULTS = 20


@dataclass(frozen=True)
class WebSettings:
    """url: of the API. key_variable: the environment variable that holds the key, which is written nowhere."""

    url: str | None = "https://api.search.brave.com/res/v1/web/search"
    key_variable: str = "BRAVE_API_KEY"

    def problems(self, path: str) -> list[str]:
        return url_problems(self.url, f"{path}.url") + key_problems(self.key_variable, f"{path}.key_variable")


class WebBackend:
    """`rtpo.tools.search.tool.Backend` on a web search API. Raises ConfigError without a key."""

    def __init__(self, settings: WebSettings, requests: RequestSettings, results: int, characters: int) -> None:
        assert settings.url is not None
        key = read_key(settings.key_variable, "the search API's")
        headers = {"X-Subscription-Token": key, "Accept": "application/json"}
        self._client = Client(settings.url, requests, headers, secret=key)
        self._results = results
        self._characters = characters
        self.identity = {"backend": "web", "url": settings.url, "results": results, "characters": characters}

    def refusal(self, query: str) -> str:
        words = len(query.split())
        return f"The query has {words} words: use {MOST_WORDS} or fewer." if words > MOST_WORDS else ""

    async def answer(self, query: str) -> str:
        params = {"q": query, "count": str(self._results), "text_decorations": "false", "result_filter": "web"}
        passages = await self._client.ask("GET", _read, params=params)
        return render(passages[: self._results], self._characters)


def _read(reply: Any) -> list[Passage]:
    match reply:
        case {"web": {"results": [*found]}}:
            return [_passage(item) for item in found]
        case {"type": "search"} if "web" not in reply:
            return []
    raise ValueError("it has no web.results")


def _passage(item: Any) -> Passage:
    match item:
        case {"title": str(title)}:
            description = item.get("description") or ""
            if isinstance(description, str):
                return Passage(html.unescape(title), html.unescape(description))
    raise ValueError("a result has no title, or no text as its description")
