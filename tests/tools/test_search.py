"""The search tool: queries, text, cache, replay. Its servers are in test_search_servers.py."""

import asyncio
import fcntl
import json
import os
import unicodedata
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtpo.core.http_client import RequestSettings
from rtpo.core.recording import Recording
from rtpo.errors import DataError
from rtpo.tools.base import Tool, ToolResult
from rtpo.tools.search.bm25 import Bm25Settings, build_index
from rtpo.tools.search.remote import HttpSettings, WebSettings
from rtpo.tools.search.replay import ReplaySettings, read_recording
from rtpo.tools.search.text import NO_RESULTS, Passage, normalise_query, render
from rtpo.tools.search.tool import SearchSettings, SearchTool, SearchWorld
from rtpo.types import ToolOutcome

PASSAGES = Path(__file__).parents[1] / "fixtures" / "passages.jsonl"
DATA = os.environ.get("RTPO_DATA")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("search") / "index"
    build_index(PASSAGES, folder)
    return str(folder)


def ask(world: SearchWorld, *queries: str) -> list[ToolResult]:
    return [asyncio.run(world.call(query)) for query in queries]


def texts(world: SearchWorld, *queries: str) -> list[str]:
    results = ask(world, *queries)
    assert {result.outcome for result in results} <= {ToolOutcome.OK}
    return [result.output for result in results]


def on_index(index: str, **fields: Any) -> SearchSettings:
    return SearchSettings("bm25", bm25=Bm25Settings(index), **fields)


def on_recording(file: Path, on_miss: Any, **fields: Any) -> SearchSettings:
    live = fields.pop("live", None)
    return SearchSettings("replay", replay=ReplaySettings(str(file), on_miss, live), **fields)


# queries and text


def test_queries_have_one_form() -> None:
    assert normalise_query("  Who\twas\u00a0Ada\r\nHolm? ") == "Who was Ada Holm?"
    assert normalise_query("cafe\u0301") == "caf\u00e9"
    assert normalise_query("a\0b\ud800c\x1fd") == "a b c d"
    assert normalise_query('"Ada Holm", PAINTER') == '"Ada Holm", PAINTER'
    assert normalise_query("\ud800\n") == ""


@given(st.text(st.characters(codec=None)))
def test_any_query_has_a_form_that_is_its_own_and_can_be_sent(query: str) -> None:
    found = normalise_query(query)
    assert normalise_query(found) == found
    assert found == " ".join(found.encode().decode().split())
    assert not {unicodedata.category(letter) for letter in found} & {"Cc", "Cs"}


def test_results_are_a_line_each_and_cut() -> None:
    found = [Passage("Brask", " a town\n on the\ttamm "), Passage("", "x" * 30), Passage("Marn", "")]
    assert render(found, 20) == f"Page 1: Brask: a town on the ...\nPage 2: {'x' * 20} ...\nPage 3: Marn"
    assert render([], 20) == NO_RESULTS == "No results."


# settings


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("bm25.index", SearchSettings()),
        ("results", SearchSettings("bm25", results=0, bm25=Bm25Settings("i"))),
        ("http.url", SearchSettings("http")),
        ("http.url", SearchSettings("http", http=HttpSettings("http://me:word@host/"))),
        ("web.url", SearchSettings("web", web=WebSettings("https://host/?key=word"))),
        ("web.key_variable", SearchSettings("web", web=WebSettings(key_variable="BSA-word"))),
        ("results", SearchSettings("web", results=21)),
        ("query_characters", SearchSettings("web", query_characters=401)),
        ("requests.tries", SearchSettings("web", requests=RequestSettings(tries=0))),
        ("requests.longest_wait_seconds", SearchSettings("web", requests=RequestSettings(longest_wait_seconds=0.5))),
        ("replay.on_miss", on_recording(Path("r.jsonl"), None)),
        ("replay.file", on_recording(Path("r.txt"), "error")),
        ("replay.on_miss", on_recording(Path("r.jsonl"), "live")),
        ("http.url", on_recording(Path("r.jsonl"), "live", live="http")),
    ],
)
def test_settings_that_cannot_be_are_named(field: str, settings: SearchSettings) -> None:
    (problem,) = settings.problems("search")
    assert problem.startswith(f"search.{field} ")
    assert "word" not in problem


# the tool


def test_the_tool_is_one_and_answers_in_text(index: str) -> None:
    tool: Tool = SearchTool(on_index(index, results=2))
    function = tool.schema["function"]
    assert (function["name"], function["parameters"]["required"]) == ("search", ["query"])
    assert json.loads(json.dumps(tool.schema)) == tool.schema
    result = asyncio.run(tool.call({"query": "Where was Ada Holm born?"}, [{"query": "earlier"}]))
    assert result.outcome is ToolOutcome.OK
    assert [line.split(":")[1].strip() for line in result.output.splitlines()] == ["Brask", "Ada Holm"]
    world = SearchWorld(on_index(index, query_characters=10))
    refused = ask(world, "", " \t\0", "x" * 11)
    assert [result.outcome for result in refused] == [ToolOutcome.REFUSED] * 3
    assert world.counts == {"calls": 3, "refused": 3}


# what is kept


IDENTITY = {"backend": "http", "url": "http://host/"}


def keep(recording: Recording, query: str, text: str) -> str:
    return asyncio.run(recording.keep(query, text))


def get(recording: Recording, query: str) -> str | None:
    return asyncio.run(recording.get(query))


def test_the_first_text_stays_for_everyone(tmp_path: Path) -> None:
    """Two that hold the same file open, as two processes do."""
    one, two = Recording(tmp_path, IDENTITY), Recording(tmp_path, IDENTITY)
    assert keep(one, "q", "first\nline \u2028 two") == "first\nline \u2028 two"
    assert keep(two, "q", "second") == "first\nline \u2028 two"
    assert keep(two, "r", "third") == "third"
    assert [get(one, query) for query in "qrs"] == ["first\nline \u2028 two", "third", None]
    assert get(Recording(tmp_path, IDENTITY), "r") == "third"
    assert len(one.path.read_bytes().splitlines()) == 3
    other = Recording(tmp_path, IDENTITY | {"url": "http://other/"})
    assert get(other, "q") is None
    assert other.path != one.path


def test_who_writes_and_who_reads_waits_for_another_that_writes(tmp_path: Path) -> None:
    writer, reader = Recording(tmp_path, IDENTITY), Recording(tmp_path, IDENTITY)
    with writer.path.open("ab") as other, ThreadPoolExecutor(2) as pool:
        fcntl.flock(other, fcntl.LOCK_EX)
        kept, read = pool.submit(keep, writer, "q", "mine"), pool.submit(get, reader, "q")
        wait((kept, read), timeout=0.2)
        other.write(json.dumps({"query": "q", "text": "the other's"}).encode() + b"\n")
        other.flush()
        fcntl.flock(other, fcntl.LOCK_UN)
        assert (kept.result(), read.result()) == ("the other's", "the other's")


@pytest.mark.parametrize("size", [0, 1, 20, 40])
def test_a_killed_writer_leaves_nothing(tmp_path: Path, size: int) -> None:
    """Killed after that many bytes of its line, or of the file's first."""
    recording = Recording(tmp_path, IDENTITY)
    whole = recording.path.read_bytes()
    keep(recording, "q", "text")
    with recording.path.open("ab") as file:
        file.write((json.dumps({"query": "torn", "text": "never given out"}).encode() + b"\n")[:size])
    assert get(recording, "torn") is None
    assert read_recording(recording.path) == {"q": "text"}
    again = Recording(tmp_path, IDENTITY)
    assert get(again, "torn") is None
    assert keep(again, "r", "more") == "more"
    assert read_recording(recording.path) == {"q": "text", "r": "more"}
    assert recording.path.read_bytes().endswith(b"\n")
    assert (get(recording, "q"), get(recording, "r")) == ("text", "more")

    recording.path.write_bytes(whole[:size])
    assert get(Recording(tmp_path, IDENTITY), "q") is None
    assert recording.path.read_bytes() == whole


@pytest.mark.parametrize("line", [b"{]\n", b"3\n", b'{"query": "q", "text": 1}\n', b"\0" * 9 + b"\n"])
def test_damaged_lines_are_named(tmp_path: Path, line: bytes) -> None:
    recording = Recording(tmp_path, IDENTITY)
    start = recording.path.stat().st_size
    with recording.path.open("ab") as file:
        file.write(line)
    with pytest.raises(DataError, match=f"byte {start} .*"):
        get(recording, "other")
    recording.path.write_text('{"query": "q", "text": "t"}\n')
    with pytest.raises(DataError):
        Recording(tmp_path, IDENTITY)


def test_a_world_on_disk_outlives_its_process(index: str, tmp_path: Path) -> None:
    settings = on_index(index, cache=str(tmp_path))
    first = texts(SearchWorld(settings), "Brask", "Sund")
    later = SearchWorld(settings)
    assert texts(later, "Brask", "Sund") == first
    assert later.counts == {"calls": 2, "kept": 2}
    assert settings.check()["cache"] == "folder"
    # other settings, another world
    shorter = SearchWorld(on_index(index, cache=str(tmp_path), characters=5))
    assert texts(shorter, "Sund") == ["Page 1: Sund ...\nPage 2: Ada H ..."]
    assert len(list(tmp_path.iterdir())) == 2


# replay


def test_a_recording_replays_to_the_same_text(index: str, tmp_path: Path) -> None:
    queries = ["Brask", "café", "nothing known", "the capital of Velland"]
    recorded = texts(SearchWorld(on_index(index, cache=str(tmp_path))), *queries)
    (file,) = tmp_path.iterdir()
    assert read_recording(file) == dict(zip(queries, recorded, strict=True))
    assert texts(SearchWorld(on_recording(file, "error")), *queries) == recorded
    dictionary = tmp_path / "as_dictionary.json"
    dictionary.write_text(json.dumps(read_recording(file)))
    assert texts(SearchWorld(on_recording(dictionary, "error")), *queries) == recorded


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """With a query that is not in its normal form, and no first line of its own."""
    path = tmp_path / "recording.jsonl"
    path.write_text('{"query": " known \\t query", "text": "  known\\ntext "}\n{"query": "half", "text": "\\ud800"}\n')
    return path


def test_what_a_miss_gets_is_declared(recording: Path, index: str, tmp_path: Path) -> None:
    strict = SearchWorld(on_recording(recording, "error"))
    assert texts(strict, "known query", "half") == ["  known\ntext ", "?"]
    with pytest.raises(DataError, match=r"recording.jsonl .*'Brask'"):
        ask(strict, "Brask")
    empty = SearchWorld(on_recording(recording, "empty"))
    assert texts(empty, "known query", "Brask") == ["  known\ntext ", NO_RESULTS]
    live = SearchWorld(
        on_recording(recording, "live", live="bm25", bm25=Bm25Settings(index), cache=str(tmp_path / "c"))
    )
    assert texts(live, "known query", "Brask") == ["  known\ntext ", *texts(SearchWorld(on_index(index)), "Brask")]
    assert [world.counts["missed"] for world in (strict, empty, live)] == [1, 1, 1]
    assert texts(live, "Brask") == texts(SearchWorld(on_index(index)), "Brask")
    assert live.counts == {"calls": 3, "asked": 2, "missed": 1, "kept": 1}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("r.jsonl", None),
        ("r.jsonl", "{]\n"),
        ("r.jsonl", '{"query": "q", "text": 3}\n'),
        ("r.jsonl", '{"query": "q", "text": "a"}\n{"query": " q", "text": "b"}\n'),
        ("r.json", "[]"),
        ("r.json", '{"q": ["a"]}'),
    ],
)
def test_recordings_that_cannot_be_are_named(tmp_path: Path, name: str, content: str | None) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=name):
        on_recording(tmp_path / name, "error").check()


@pytest.mark.skipif(not DATA, reason="set RTPO_DATA to a folder with search_cache.json")
def test_real_recorded_searches_replay() -> None:
    path = Path(str(DATA)) / "search_cache.json"
    known = json.loads(path.read_text())
    assert len(known) == 1000
    assert all(len(normalise_query(query)) > 0 for query in known)
    world = SearchWorld(on_recording(path, "error", query_characters=max(map(len, known))))

    async def together() -> list[ToolResult]:
        return await asyncio.gather(*(world.call(query) for query in known))

    assert asyncio.run(together()) == [ToolResult(ToolOutcome.OK, text) for text in known.values()]
    assert world.counts == {"calls": 1000, "asked": 1000}
