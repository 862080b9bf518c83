"""The search tool: queries, text, cache, replay, and the BM25 index. Its servers are in test_search_servers.py."""

import asyncio
import fcntl
import json
import math
import os
import signal
import unicodedata
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.build_index import main
from rtpo.core.files import sha256
from rtpo.core.recording import Recording
from rtpo.errors import DataError
from rtpo.tools.base import Tool
from rtpo.tools.search import bm25
from rtpo.tools.search.bm25 import FILES, MANIFEST, Bm25Index, Bm25Settings, build_index, tokens
from rtpo.tools.search.replay import ReplaySettings, read_recording
from rtpo.tools.search.text import NO_RESULTS, Passage, normalise_query, render
from rtpo.tools.search.tool import SearchSettings, SearchTool, SearchWorld
from rtpo.types import ToolOutcome

PASSAGES = Path(__file__).parents[1] / "fixtures" / "passages.jsonl"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("search") / "index"
    build_index(PASSAGES, folder)
    return str(folder)


def texts(world: SearchWorld, *queries: str) -> list[str]:
    results = [asyncio.run(world.call(query)) for query in queries]
    assert {result.outcome for result in results} <= {ToolOutcome.OK}
    return [result.output for result in results]


def on_index(index: str, **fields: Any) -> SearchSettings:
    return SearchSettings("bm25", bm25=Bm25Settings(index), **fields)


def on_recording(file: Path, on_miss: Any, **fields: Any) -> SearchSettings:
    live = fields.pop("live", None)
    return SearchSettings("replay", replay=ReplaySettings(str(file), on_miss, live), **fields)


@given(st.text(st.characters(codec=None)))
def test_any_query_has_a_form_that_is_its_own_and_can_be_sent(query: str) -> None:
    form = normalise_query(query)
    assert normalise_query(form) == form
    assert form == " ".join(form.encode().decode().split())
    assert not {unicodedata.category(letter) for letter in form} & {"Cc", "Cs"}
    assert normalise_query("  Who\twas\u00a0cafe\u0301\r\na\0b\ud800c? ") == "Who was caf\u00e9 a b c?"


def test_results_are_a_line_each_and_cut() -> None:
    passages = [Passage("Brask", " a town\n on the\ttamm "), Passage("", "x" * 30), Passage("Marn", "")]
    assert render(passages, 20) == f"Page 1: Brask: a town on the ...\nPage 2: {'x' * 20} ...\nPage 3: Marn"
    assert render([], 20) == NO_RESULTS == "No results."


def test_the_tool_is_one_and_answers_in_text(index: str) -> None:
    tool: Tool = SearchTool(on_index(index, results=2))
    assert json.loads(json.dumps(tool.schema)) == tool.schema
    result = asyncio.run(tool.call({"query": "Where was Ada Holm born?"}, [{"query": "earlier"}]))
    assert result.outcome is ToolOutcome.OK
    assert [line.split(":")[1].strip() for line in result.output.splitlines()] == ["Brask", "Ada Holm"]
    world = SearchWorld(on_index(index, query_characters=10))
    results = [asyncio.run(world.call(query)) for query in ("", " \t\0", "x" * 11, "Ada Holm")]
    assert [result.outcome for result in results] == [ToolOutcome.REFUSED] * 3 + [ToolOutcome.OK]
    assert [result.is_forgotten for result in results] == [True] * 3 + [False]


IDENTITY = {"backend": "http", "url": "http://host/"}


def keep(recording: Recording, query: str, text: str) -> str:
    return asyncio.run(recording.keep(query, text))


def get(recording: Recording, query: str) -> str | None:
    return asyncio.run(recording.get(query))


def test_the_first_text_stays_for_everyone(tmp_path: Path) -> None:
    """Two that hold the same file open, as two processes do."""
    first, second = Recording(tmp_path, IDENTITY), Recording(tmp_path, IDENTITY)
    assert keep(first, "q", "first\nline \u2028 two") == "first\nline \u2028 two"
    assert keep(second, "q", "second") == "first\nline \u2028 two"
    assert keep(second, "r", "third") == "third"
    assert [get(first, query) for query in "qrs"] == ["first\nline \u2028 two", "third", None]
    assert get(Recording(tmp_path, IDENTITY), "r") == "third"
    assert len(first.path.read_bytes().splitlines()) == 3
    assert get(Recording(tmp_path, IDENTITY | {"url": "http://other/"}), "q") is None


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


@pytest.mark.parametrize("size", [0, 20])
def test_a_killed_writer_leaves_nothing(tmp_path: Path, size: int) -> None:
    """Killed after that many bytes of its line, or of the file's first."""
    recording = Recording(tmp_path, IDENTITY)
    whole = recording.path.read_bytes()
    keep(recording, "q", "text")
    with recording.path.open("ab") as file:
        file.write((json.dumps({"query": "torn", "text": "never given out"}).encode() + b"\n")[:size])
    again = Recording(tmp_path, IDENTITY)
    assert [get(each, "torn") for each in (recording, again)] == [None, None]
    assert read_recording(recording.path) == {"q": "text"}
    assert keep(again, "r", "more") == "more"
    assert read_recording(recording.path) == {"q": "text", "r": "more"}
    assert recording.path.read_bytes().endswith(b"\n")
    assert (get(recording, "q"), get(recording, "r")) == ("text", "more")

    recording.path.write_bytes(whole[:size])
    assert get(Recording(tmp_path, IDENTITY), "q") is None
    assert recording.path.read_bytes() == whole


def test_a_damaged_line_is_named_and_a_foreign_file_refused(tmp_path: Path) -> None:
    recording = Recording(tmp_path, IDENTITY)
    with recording.path.open("ab") as file:
        file.write(b"{]\n")
    with pytest.raises(DataError, match="byte"):
        get(recording, "other")
    recording.path.write_text('{"query": "q", "text": "t"}\n')
    with pytest.raises(DataError):
        Recording(tmp_path, IDENTITY)


def test_a_recording_replays_to_the_same_text(index: str, tmp_path: Path) -> None:
    queries = ["Brask", "café", "nothing known"]
    recorded = texts(SearchWorld(on_index(index, cache=str(tmp_path))), *queries)
    (file,) = tmp_path.iterdir()
    dictionary = tmp_path / "as_dictionary.json"
    dictionary.write_text(json.dumps(dict(zip(queries, recorded, strict=True))))
    for path in (file, dictionary):
        assert texts(SearchWorld(on_recording(path, "error")), *queries) == recorded


def test_what_a_miss_gets_is_declared(index: str, tmp_path: Path) -> None:
    """Of a recording with a query that is not in its normal form, and no first line of its own."""
    file = tmp_path / "recording.jsonl"
    file.write_text('{"query": " known \\t query", "text": "  known\\ntext "}\n{"query": "half", "text": "\\ud800"}\n')
    strict = SearchWorld(on_recording(file, "error"))
    assert texts(strict, "known query", "half") == ["  known\ntext ", "?"]
    with pytest.raises(DataError, match=r"recording.jsonl .*'Brask'"):
        texts(strict, "Brask")
    assert texts(SearchWorld(on_recording(file, "empty")), "Brask") == [NO_RESULTS]
    kept = {"bm25": Bm25Settings(index), "cache": str(tmp_path / "c")}
    live = SearchWorld(on_recording(file, "live", live="bm25", **kept))
    (on_brask,) = texts(SearchWorld(on_index(index)), "Brask")
    assert texts(live, "known query", "Brask", "Brask") == ["  known\ntext ", on_brask, on_brask]


def test_wrong_recordings_are_named(tmp_path: Path) -> None:
    twice = '{"query": "q", "text": "a"}\n{"query": " q", "text": "b"}\n'
    for name, content in {"a.jsonl": "{]\n", "b.jsonl": twice, "c.json": '{"q": ["a"]}'}.items():
        (tmp_path / name).write_text(content)
        with pytest.raises(DataError, match=name):
            on_recording(tmp_path / name, "error").check()


# the BM25 index


def built(folder: Path, rows: list[dict[str, object]]) -> Bm25Index:
    (folder / "passages.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    build_index(folder / "passages.jsonl", folder / "index")
    return Bm25Index(folder / "index")


@pytest.fixture(scope="module")
def opened(index: str) -> Bm25Index:
    return Bm25Index(Path(index))


def ids(index: Bm25Index, query: str, results: int = 10) -> list[str]:
    return [uid for uid, _, _ in index.search(query, results)]


def test_passages_of_both_shapes_are_found_where_they_share_a_word(opened: Bm25Index) -> None:
    assert tokens("The CAFÉ, of Żubr's 41-metre tower_2!") == ["café", "żubr", "s", "41", "metre", "tower_2"]
    assert ids(opened, "lighthouse metres")[0] == "13"
    assert [ids(opened, query) for query in ("engineer", "zeppelin engineer", "café ŻUBR")] == [["15"], ["15"], ["18"]]
    ((uid, passage, _),) = opened.search("recipe lost", 1)
    assert (uid, passage.title) == ("16", "Glass of Brask")
    assert [opened.search(query, 3) for query in ("zeppelin", "the", "?", "\u6587\u5b57")] == [[]] * 4
    assert "/index/data.csc.index.npy" in Path("/proc/self/maps").read_text()  # memory-mapped


def test_equal_scores_are_in_the_order_of_the_file(opened: Bm25Index, tmp_path: Path) -> None:
    assert [ids(opened, "krone struck", results) for results in (2, 1)] == [["copy-b", "copy-a"], ["copy-b"]]
    equal = built(tmp_path, [{"id": str(number), "text": "one text"} for number in range(50)])
    assert ids(equal, "text", 4) == ["0", "1", "2", "3"]
    assert ids(equal, "text", 60) == [str(number) for number in range(50)]


def test_scores_are_lucenes_bm25(tmp_path: Path) -> None:
    """With k1 1.5 and b 0.75: idf * count / (count + k1 * (1 - b + b * length / mean length)), a word."""
    index = built(tmp_path, [{"id": "short", "text": "red fox"}, {"id": "long", "text": "red red dog"}])
    red, fox = math.log(1 + 0.5 / 2.5), math.log(1 + 1.5 / 1.5)
    short, long = (1.5 * (0.25 + 0.75 * length / 2.5) for length in (2, 3))
    wanted = {"long": red * 2 / (2 + long), "short": red / (1 + short)}
    hits = index.search("red", 2)
    assert {uid: score for uid, _, score in hits} == pytest.approx(wanted, rel=1e-5)
    assert [uid for uid, _, _ in hits] == ["long", "short"]
    ((uid, _, score),) = index.search("fox red", 1)
    assert (uid, score) == ("short", pytest.approx((red + fox) / (1 + short), rel=1e-5))


def test_words_are_found_in_either_form_of_unicode(tmp_path: Path) -> None:
    """A letter with an accent is one character in NFC and two in NFD."""
    texts = {form: unicodedata.normalize(form, "Die Brücke über den Fluß, 한국, Zoë") for form in ("NFC", "NFD")}
    assert texts["NFC"] != texts["NFD"]
    index = built(tmp_path, [{"id": form, "text": text} for form, text in texts.items()])
    for form in texts:
        for word in ("Brücke", "ÜBER", "한국", "Zoë"):
            assert ids(index, unicodedata.normalize(form, word), 2) == ["NFC", "NFD"]


def test_the_same_passages_give_the_same_index_by_the_command(
    opened: Bm25Index, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "copy.jsonl").write_bytes(PASSAGES.read_bytes())
    folder = tmp_path / "made" / "index"
    assert main([str(tmp_path / "copy.jsonl"), "--output", str(folder)]) == 0
    assert Bm25Index(folder).checksum == opened.checksum
    said = json.loads(capsys.readouterr().out)["passages"]
    assert said == {"file": "copy.jsonl", "rows": 12, "sha256": sha256(PASSAGES)}
    assert main([str(PASSAGES), "--output", str(folder)]) == 1
    assert str(folder) in capsys.readouterr().err


def test_wrong_passages_are_named(tmp_path: Path) -> None:
    file, folder = tmp_path / "passages.jsonl", tmp_path / "index"
    for lines, named in (
        ('{"id": 1, "text": "a"}\n{"id":', "line 2"),
        ('{"id": "1", "title": 3, "text": "a"}', "line 1"),
        ('{"id": 1, "text": "a"}\n\n{"id": "1", "text": "b"}', "line 3"),
        ('{"id": 1, "text": "the !"}', "passages.jsonl"),
    ):
        file.write_text(lines)
        with pytest.raises(DataError, match=named):
            build_index(file, folder)
        assert list(tmp_path.iterdir()) == [file]


def test_a_killed_build_never_looks_complete(
    opened: Bm25Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed as it would write the manifest."""
    folder = tmp_path / "index"
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(bm25, "write_whole", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        try:
            build_index(PASSAGES, folder)
        finally:
            os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    (partial,) = tmp_path.glob("index.partial-*")
    for place in (folder, partial):
        with pytest.raises(DataError, match=place.name):
            Bm25Index(place)
    build_index(PASSAGES, folder)
    assert Bm25Index(folder).checksum == opened.checksum


def test_a_changed_lost_or_foreign_file_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    manifest = build_index(PASSAGES, folder)
    for name in FILES:
        whole = (folder / name).read_bytes()
        changed = bytearray(whole)
        changed[len(changed) // 2] ^= 1
        for content in (changed, None):
            (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
            with pytest.raises(DataError, match=name):
                Bm25Index(folder)
        (folder / name).write_bytes(whole)
    earlier = {name: value for name, value in manifest["tokenizer"].items() if name != "unicode"}
    for text in ("{", *(json.dumps(manifest | change) for change in ({"format": 0}, {"tokenizer": earlier}))):
        (folder / MANIFEST).write_text(text)
        with pytest.raises(DataError, match=str(folder)):
            Bm25Index(folder)
