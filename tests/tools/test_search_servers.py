"""The search tool against real servers that answer late, wrongly, seldom or not at all."""

import asyncio
import gzip
import json
import os
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from json_server import Asked, Reply, Server

from rtpo.core import http_client
from rtpo.core.http_client import RequestSettings
from rtpo.errors import ConfigError, InfrastructureError, MachineError
from rtpo.tools.base import ToolResult
from rtpo.tools.search.remote import HttpSettings, WebSettings
from rtpo.tools.search.replay import ReplaySettings
from rtpo.tools.search.tool import SearchSettings, SearchWorld
from rtpo.types import ToolOutcome

pytestmark = pytest.mark.filterwarnings("error")  # connections left open among them

QUICK = RequestSettings(timeout_seconds=30, tries=3, first_wait_seconds=0.01, longest_wait_seconds=0.05)
ONCE = replace(QUICK, tries=1)
KEY = "BSA-very-secret"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    with Server("/retrieve", lambda asked: retrieved(asked.query)) as server:
        yield server


def retrieved(*texts: str, title: str = "") -> Reply:
    """A retriever's reply."""
    contents = [f'"{title}"\n{text}' if title else text for text in texts]
    rows = [{"document": {"id": "7", "contents": text}, "score": 1.5} for text in contents]
    return Reply(body=json.dumps({"result": [rows]}).encode())


def pages(*results: dict[str, str]) -> Reply:
    """A web API's reply."""
    return Reply(body=json.dumps({"type": "search", "web": {"results": results}}).encode())


def retriever(server: Server, requests: RequestSettings = QUICK, **fields: Any) -> SearchSettings:
    return SearchSettings("http", http=HttpSettings(server.url), requests=requests, **fields)


@pytest.fixture
def web(server: Server, monkeypatch: pytest.MonkeyPatch) -> SearchSettings:
    monkeypatch.setenv("SEARCH_KEY", KEY)
    return SearchSettings("web", web=WebSettings(server.url, "SEARCH_KEY"), requests=QUICK)


def ask(world: SearchWorld, query: str = "who") -> str:
    result = asyncio.run(world.call(query))
    assert result.outcome is ToolOutcome.OK
    return result.output


def fails(world: SearchWorld, query: str = "who") -> InfrastructureError:
    with pytest.raises(InfrastructureError) as raised:
        ask(world, query)
    return raised.value


def test_a_retriever_is_asked_in_search_r1s_protocol(server: Server) -> None:
    server.answer = lambda asked: retrieved("was born in 1871.", "painted.\nLong.", "not asked for", title="Ada Holm")
    world = SearchWorld(retriever(server, results=2))
    assert ask(world, " Who  was Ada? ") == "Page 1: Ada Holm: was born in 1871.\nPage 2: Ada Holm: painted. Long."
    (asked,) = server.asked
    body = {"queries": ["Who was Ada?"], "topk": 2, "return_scores": True}
    assert (asked.method, asked.path, asked.body) == ("POST", "/retrieve", body)


def test_a_web_api_is_asked_in_braves(server: Server, web: SearchSettings) -> None:
    server.answer = lambda asked: pages(
        {"title": "Ada &amp; Jon", "description": "It&#x27;s \u00e9\n"}, {"title": "Bare"}, {"title": "Third"}
    )
    assert ask(SearchWorld(replace(web, results=2)), "a&b=c #\u00e9") == "Page 1: Ada & Jon: It's \u00e9\nPage 2: Bare"
    (asked,) = server.asked
    assert (asked.method, asked.query, asked.headers["X-Subscription-Token"]) == ("GET", "a&b=c #\u00e9", KEY)
    assert parse_qs(urlsplit(asked.path).query)["count"] == ["2"]
    assert KEY not in asked.path
    assert asyncio.run(SearchWorld(web).call("a " * 51)).outcome is ToolOutcome.REFUSED  # more words than it takes
    server.answer = lambda asked: Reply(body=b'{"type": "search"}')
    assert ask(SearchWorld(web), "a " * 50) == "No results."
    server.answer = lambda asked: Reply(body=b'{"type": "error"}')
    fails(SearchWorld(web))


def test_the_key_is_nowhere_but_in_its_header(server: Server, web: SearchSettings, tmp_path: Path) -> None:
    """Even where the server says it back."""
    settings = replace(web, cache=str(tmp_path))
    world = SearchWorld(settings)
    server.answer = lambda asked: pages({"title": "you sent", "description": asked.headers["X-Subscription-Token"]})
    assert ask(world, "good") == "Page 1: you sent: ***"
    server.answer = lambda asked: Reply(401, json.dumps(asked.headers).encode())
    raised = fails(world, "bad")
    told = ["".join(traceback.format_exception(raised)), repr(raised.__context__), repr(settings)]
    told += [json.dumps(settings.check()), *(path.name + path.read_text() for path in tmp_path.iterdir())]
    assert "good" in told[-1]
    assert [KEY in text for text in told] == [False] * len(told)
    assert all(asked.headers["X-Subscription-Token"] == KEY for asked in server.asked)


@given(
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=12),
    st.integers(0, 2),
    st.randoms(use_true_random=False),
)
def test_a_key_is_blanked_however_json_spells_it(key: str, nested: int, draw: Random) -> None:
    def spelled(letter: str) -> str:
        number = f"{ord(letter):04x}"
        ways = [rf"\u{number}", rf"\u{number.upper()}", *([f"\\{letter}"] if letter in '"\\/' else [letter])]
        return draw.choice(ways)

    text = json.dumps("before ")[:-1] + "".join(map(spelled, key)) + ' after"'
    for _ in range(nested):
        text = json.dumps(text)
    blanked = http_client._spellings(key).sub("***", text)
    for _ in range(nested + 1):
        blanked = json.loads(blanked)
    assert blanked == "before *** after"
    assert http_client._spellings("key u").sub("***", r"key \u0075") == "***"


def test_what_a_server_says_is_quoted_in_one_line_that_can_be_seen(server: Server, web: SearchSettings) -> None:
    server.answer = lambda asked: Reply(404, f"\x1b[2J\nerror: forged\r{KEY}\u202e{json.dumps(KEY)}".encode())
    said = str(fails(SearchWorld(web)))
    assert said.isprintable()
    assert "⟨U+001B⟩[2J error: forged" in said
    assert KEY not in said


def test_a_reply_that_was_compressed_unasked_is_refused_as_it_is(server: Server) -> None:
    body = gzip.compress(gzip.compress(bytes(32 << 20), 1))
    server.answer = lambda asked: Reply(body=body, headers={"Content-Encoding": "gzip, gzip"})
    assert "encoding gzip, gzip" in str(fails(SearchWorld(retriever(server, ONCE))))
    assert server.asked[0].headers["Accept-Encoding"] == "identity"


@given(st.text() | st.from_regex(r"\w{3}, \d{1,3} \w{3} -?\d{1,9} \d{1,5}:\d\d:\d\d( \w{3})?", fullmatch=True))
@example("Mon, 01 Jan 99999 00:00:00 GMT")
@example("9" * 400)
def test_any_text_of_a_header_is_a_time_to_wait(value: str) -> None:
    assert http_client._retry_after(value) >= 0


def test_a_key_does_not_follow_a_redirect_and_one_that_is_empty_or_malformed_is_refused_at_the_start(
    server: Server, web: SearchSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server("/retrieve", lambda asked: retrieved()) as other:
        server.answer = lambda asked: Reply(302, headers={"Location": other.url})
        fails(SearchWorld(web))
        assert other.asked == []
    for key in ("", "a\nb", "schl\u00fcssel"):
        monkeypatch.setenv("SEARCH_KEY", key)
        with pytest.raises(ConfigError, match="SEARCH_KEY") as raised:
            replace(web, results=7).check()  # a world of its own
        assert not key or key not in str(raised.value)


def test_a_server_that_is_slow_or_breaks_off_is_an_outage(server: Server) -> None:
    def late(asked: Asked) -> Reply:
        server.released.wait()
        return retrieved("late")

    server.answer = late
    assert "0.2 s" in str(fails(SearchWorld(retriever(server, replace(QUICK, timeout_seconds=0.2, tries=2)))))
    with Server("/retrieve", lambda asked: Reply(body=b'{"result"', declared=100)) as other:
        fails(SearchWorld(retriever(other)), "cut")
        assert len(other.asked) == QUICK.tries


PASSING = (
    *(Reply(429), Reply(503, headers={"Retry-After": "no date"}), Reply(body=b"\xff\xfe"), Reply(body=b"[" * 200_000)),
    *(Reply(body=b'{"result": []}'), Reply(body=b'{"result": [[{"document": {"contents": 3}}]]}')),
    Reply(body=b'{"result": [[]], "more": "%s"}' % (b"x" * 300_000)),
)


def test_what_may_pass_is_tried_again_and_a_refusal_is_not(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage is no answer, and is not kept. tests/engines/test_endpoint.py has more of them."""
    monkeypatch.setattr(http_client, "MOST_BYTES", 250_000)
    world = SearchWorld(retriever(server))
    for number, reply in enumerate(PASSING):
        server.asked.clear()
        server.in_turn(*[reply] * 3)
        said = str(fails(world, f"query {number}"))
        assert server.url in said
        assert len(said) < 600
        server.in_turn(*[reply] * 2)
        assert ask(world, f"query {number}") == f"Page 1: query {number}"
        assert len(server.asked) == 3 + 3
    server.in_turn(Reply(404, b"told so"))
    assert "failed once" in str(fails(world))


def test_a_server_that_is_not_there_is_an_outage(server: Server) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        gone = HttpSettings(f"http://127.0.0.1:{free.getsockname()[1]}/retrieve")
    with pytest.raises(MachineError, match=r"search\.http\.url"):
        replace(retriever(server), http=gone).check()
    facts = retriever(server).check()
    assert (facts["backend"], facts["url"], len(server.asked)) == ("http", server.url, 1)


def test_requests_keep_to_retry_after_and_to_the_rate_and_a_longer_wait_ends_the_tries(server: Server) -> None:
    world = SearchWorld(retriever(server, replace(ONCE, longest_wait_seconds=2, per_second=50)))
    server.in_turn(Reply(429, headers={"Retry-After": "1"}))
    begin = time.monotonic()
    fails(world, "first")
    ask(world, "second")
    assert time.monotonic() - begin > 0.9
    begin = time.monotonic()

    async def at_once() -> None:
        await asyncio.gather(*(world.call(str(query)) for query in range(6)))

    asyncio.run(at_once())
    assert time.monotonic() - begin >= 5 / 50
    server.asked.clear()
    for value in (formatdate(time.time() + 3600), "9" * 400):
        server.answer = lambda asked, value=value: Reply(429, headers={"Retry-After": value})
        fails(SearchWorld(retriever(server)))
    assert len(server.asked) == 2


def test_equal_queries_at_once_share_one_request_and_its_failure(server: Server) -> None:
    """A caller that is cancelled leaves the others their answer."""
    world = SearchWorld(retriever(server, ONCE))
    begun = threading.Event()

    def held(asked: Asked) -> Reply:
        begun.set()
        server.released.wait()
        return retrieved(asked.query)

    async def together() -> list[Any]:
        return await asyncio.gather(*(world.call("who") for _ in range(5)), return_exceptions=True)

    async def first_is_cancelled() -> ToolResult:
        first, second = (asyncio.create_task(world.call("who")) for _ in range(2))
        await asyncio.to_thread(begun.wait)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        server.released.set()
        return await second

    server.in_turn(Reply(500))
    assert {type(result) for result in asyncio.run(together())} == {InfrastructureError}
    server.answer = held
    assert asyncio.run(first_is_cancelled()).output == "Page 1: who"
    assert len(server.asked) == 2


def test_a_query_has_one_answer_in_every_event_loop(server: Server, tmp_path: Path) -> None:
    """Of a cache in memory, and of one on disk, which another process with the same settings has, too; an outage is not
    kept, and what a replayed recording has is not asked."""
    file = tmp_path / "recording.jsonl"
    file.write_text('{"query": "who", "text": "known"}\n')
    server.answer = server._usual = lambda asked: retrieved(f"{asked.query} {len(server.asked)}")  # no two alike
    memory, disk = retriever(server), retriever(server, ONCE, cache=str(tmp_path / "cache"))
    replayed = replace(disk, backend="replay", replay=ReplaySettings(str(file), "live", "http"))
    for settings in (memory, disk, replayed):
        world = SearchWorld(settings)
        if settings is not memory:
            server.in_turn(Reply(500))
            fails(world, "0")
        first, again = ([ask(world, str(query)) for query in range(3)] for _ in range(2))
        assert again == first
        assert ([ask(SearchWorld(settings), str(query)) for query in range(3)] == first) is (settings is not memory)
        assert ask(SearchWorld(replace(settings, characters=9)), "0") != first[0]
    assert ask(world) == "known"
