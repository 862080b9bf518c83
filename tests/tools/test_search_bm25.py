"""The BM25 index: what is found, how it is built, and that a damaged one is never used."""

import hashlib
import json
import math
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from experiments.build_index import main
from rtpo.errors import DataError
from rtpo.run.config import PROJECT
from rtpo.tools.search.bm25 import FILES, MANIFEST, Bm25Index, build_index, tokens

PASSAGES = Path(__file__).parents[1] / "fixtures" / "passages.jsonl"


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def built(folder: Path, rows: list[dict[str, object]], name: str = "index") -> Bm25Index:
    build_index(write(folder / f"{name}.jsonl", rows), folder / name)
    return Bm25Index(folder / name)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Bm25Index:
    folder = tmp_path_factory.mktemp("bm25") / "index"
    build_index(PASSAGES, folder)
    return Bm25Index(folder)


def ids(index: Bm25Index, query: str, results: int = 10) -> list[str]:
    return [uid for uid, _, _ in index.search(query, results)]


# what is found


def test_words_are_lower_case_and_without_stop_words() -> None:
    assert tokens("The CAFÉ, of Żubr's 41-metre tower_2!") == ["café", "żubr", "s", "41", "metre", "tower_2"]
    assert tokens("the of and") == tokens("?!") == []


def test_passages_of_both_shapes_are_found(index: Bm25Index) -> None:
    assert ids(index, "lighthouse metres")[0] == "13"
    assert ids(index, "engineer") == ["15"]
    assert ids(index, "recipe lost") == ["16"]
    ((_, passage, _),) = index.search("recipe", 1)
    assert (passage.title, passage.text) == (
        "Glass of Brask",
        "The glass of Brask is blue.\nIts recipe has been lost twice.",
    )
    assert ids(index, "café ŻUBR") == ["18"]


def test_only_passages_that_share_a_word_are_found(index: Bm25Index) -> None:
    assert [index.search(query, 3) for query in ("zeppelin", "the", "?", "\u6587\u5b57")] == [[]] * 4
    assert ids(index, "zeppelin engineer") == ["15"]


def test_equal_scores_are_in_the_order_of_the_file(index: Bm25Index, tmp_path: Path) -> None:
    assert ids(index, "krone struck", 2) == ["copy-b", "copy-a"]
    assert ids(index, "krone struck", 1) == ["copy-b"]
    alike: list[dict[str, object]] = [{"id": str(number), "text": "one text"} for number in range(50)]
    found = built(tmp_path, alike)
    assert ids(found, "text", 4) == ["0", "1", "2", "3"]
    assert ids(found, "text", 60) == ids(found, "text", 50) == [str(number) for number in range(50)]


def bm25(documents: list[list[str]], query: list[str]) -> list[float]:
    """Lucene's BM25 from its formula, k1 1.5, b 0.75."""
    mean = sum(map(len, documents)) / len(documents)
    scores = []
    for document in documents:
        score = 0.0
        for word in query:
            having = sum(word in other for other in documents)
            idf = math.log(1 + (len(documents) - having + 0.5) / (having + 0.5))
            count = Counter(document)[word]
            score += idf * count / (count + 1.5 * (1 - 0.75 + 0.75 * len(document) / mean))
        scores.append(score)
    return scores


def test_scores_are_bm25s_formula(tmp_path: Path) -> None:
    draw = random.Random(1)
    words = [f"w{number}" for number in range(12)]
    documents = [draw.choices(words, k=draw.randint(0, 9)) for _ in range(40)]
    rows: list[dict[str, object]] = [
        {"id": f"{number:02}", "title": "", "text": " ".join(document)} for number, document in enumerate(documents)
    ]
    index = built(tmp_path, rows)
    for _ in range(30):
        query = draw.choices([*words, "other"], k=draw.randint(1, 5))
        wanted = bm25(documents, query)
        found = index.search(" ".join(query), 40)
        assert {uid: score for uid, _, score in found} == pytest.approx(
            {f"{number:02}": score for number, score in enumerate(wanted) if score > 0}, rel=1e-5
        )
        order = [(-score, uid) for uid, _, score in found]
        assert order == sorted(order)
        assert index.search(" ".join(query), 3) == found[:3]


def test_the_arrays_are_memory_mapped(index: Bm25Index) -> None:
    index.search("Brask", 1)
    assert "/index/data.csc.index.npy" in Path("/proc/self/maps").read_text()


# how it is built


def test_the_same_passages_give_the_same_index(index: Bm25Index, tmp_path: Path) -> None:
    (tmp_path / "copy.jsonl").write_bytes(PASSAGES.read_bytes())
    manifest = build_index(tmp_path / "copy.jsonl", tmp_path / "index")
    again = Bm25Index(tmp_path / "index")
    assert again.checksum == index.checksum
    assert manifest["passages"] == {
        "file": "copy.jsonl",
        "rows": 12,
        "sha256": hashlib.sha256(PASSAGES.read_bytes()).hexdigest(),
    }
    assert built(tmp_path, [{"id": 1, "text": "another"}], "other").checksum != index.checksum


def test_the_command_builds_and_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(PASSAGES), "--output", str(tmp_path / "made" / "index")]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["passages"]["rows"] == 12
    assert ids(Bm25Index(tmp_path / "made" / "index"), "engineer") == ["15"]
    assert main(arguments) == 1
    assert str(tmp_path / "made" / "index") in capsys.readouterr().err
    assert main([str(tmp_path / "none"), "--output", str(tmp_path / "index")]) == 1
    assert str(tmp_path / "none") in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ('{"id": 1, "text": "a"}\n{"id":', "line 2"),
        ("[" * 100_000, "line 1"),
        ('{"text": "a"}', "line 1"),
        ('{"id": "1", "title": 3, "text": "a"}', "line 1"),
        ('{"id": 1, "text": "a"}\n\n{"id": "1", "text": "b"}', "line 3"),
        ('{"id": 1, "text": "\\ud800"}', "line 1"),
        ('{"id": 1, "text": "the !"}', "passages.jsonl"),
    ],
)
def test_passages_that_cannot_be_are_named(tmp_path: Path, lines: str, named: str) -> None:
    file, folder = tmp_path / "passages.jsonl", tmp_path / "index"
    file.write_text(lines)
    with pytest.raises(DataError, match=named):
        build_index(file, folder)
    assert list(tmp_path.iterdir()) == [file]


def test_a_killed_build_never_looks_complete(index: Bm25Index, tmp_path: Path) -> None:
    pipe, folder = tmp_path / "pipe", tmp_path / "index"
    os.mkfifo(pipe)
    # a pipe, which is refused else, holds the build where it is killed
    held = "from rtpo.tools.search import bm25; bm25.check_is_file = lambda path: None; "
    build = f"from experiments.build_index import main; main([{str(pipe)!r}, '--output', {str(folder)!r}])"
    command = [sys.executable, "-c", held + build]
    process = subprocess.Popen(command, cwd=PROJECT)
    lines = PASSAGES.read_bytes().splitlines(keepends=True)
    with pipe.open("wb") as out:  # opened once the build reads it
        out.write(b"".join(lines[:6]))
        out.flush()
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    (partial,) = tmp_path.glob("index.partial-*")
    assert not folder.exists()
    for place in (folder, partial):
        with pytest.raises(DataError, match=place.name):
            Bm25Index(place)
    build_index(PASSAGES, folder)
    assert Bm25Index(folder).checksum == index.checksum


# a damaged index


@pytest.mark.parametrize("name", FILES)
def test_a_changed_or_lost_file_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "index"
    build_index(PASSAGES, folder)
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(DataError, match=name):
        Bm25Index(folder)
    (folder / name).unlink()
    with pytest.raises(DataError, match=name):
        Bm25Index(folder)


@pytest.mark.parametrize("change", [{"format": 0}, {"tokenizer": {"pattern": "."}}, None])
def test_an_index_of_another_kind_is_refused(tmp_path: Path, change: dict[str, object] | None) -> None:
    folder = tmp_path / "index"
    manifest = build_index(PASSAGES, folder)
    (folder / MANIFEST).write_text("{" if change is None else json.dumps(manifest | change))
    with pytest.raises(DataError, match=str(folder)):
        Bm25Index(folder)
