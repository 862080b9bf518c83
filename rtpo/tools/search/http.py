"""A client for a retriever that speaks Search-R1's protocol.

`POST <url>` with `{"queries": [query], "topk": n, "return_scores": true}` is answered by
`{"result": [[{"document": {"contents": "title\\ntext"}, "score": ...}, ...]]}`, best first.
"""

from dataclasses import dataclass
from typing import Any

from rtpo.core.http_client import Client, RequestSettings, url_problems
from rtpo.tools.search.text import Passage, render


@dataclass(frozen=True)
class HttpSettings:
    """url: of the retriever's `retrieve`."""

    url: str | None = None

    def problems(self, path: str) -> list[str]:
        return url_problems(self.url, f"{path}.url")


class HttpBackend:
    """`rtpo.tools.search.tool.Backend` on a retriever."""

    def __init__(self, url: str, requests: RequestSettings, results: int, characters: int) -> None:
        self._client = Client(url, requests, {})
        self._results = results
        self._characters = characters
        self.identity = {"backend": "http", "url": url, "results": results, "characters": characters}

    def refusal(self, query: str) -> str:
        return ""

    async def answer(self, query: str) -> str:
        body = {"queries": [query], "topk": self._results, "return_scores": True}
        passages = await self._client.ask("POST", _read, body=body)
        return render(passages[: self._results], self._characters)


def split_contents(contents: str) -> Passage:
    """The first line is the title, which wiki-18 has in quotes; a single line is text."""
    title, newline, text = contents.strip().partition("\n")
    return Passage(title.strip().strip('"'), text) if newline else Passage("", title)


def _read(reply: Any) -> list[Passage]:
    match reply:
        case {"result": [[*found]]}:
            return [_passage(item) for item in found]
    raise ValueError("it is not {'result': [[...]]} with one list")


def _passage(item: Any) -> Passage:
    match item:
        case {"document": {"contents": str(contents)}}:
            return split_contents(contents)
    raise ValueError("a result is not {'document': {'contents': text}}")
