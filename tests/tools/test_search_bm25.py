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


def built(folder: Path, rows: list[dict[str, object]], name: str = "built") -> Bm25Index:
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    build_index(folder / f"{name}.jsonl", folder / name)
    return Bm25Index(folder / name)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Bm25Index:
    folder = tmp_path_factory.mktemp("bm25") / "index"
    build_index(PASSAGES, folder)
    return Bm25Index(folder)


def ids(index: Bm25Index, query: str, results: int = 10) -> list[str]:
    return [uid for uid, _, _ in index.search(query, results)]


def test_passages_of_both_shapes_are_found_where_they_share_a_word(index: Bm25Index) -> None:
    assert tokens("The CAFÉ, of Żubr's 41-metre tower_2!") == ["café", "żubr", "s", "41", "metre", "tower_2"]
    assert ids(index, "lighthouse metres")[0] == "13"
    assert [ids(index, query) for query in ("engineer", "zeppelin engineer", "café ŻUBR")] == [["15"], ["15"], ["18"]]
    ((uid, passage, _),) = index.search("recipe lost", 1)
    assert (uid, passage.title) == ("16", "Glass of Brask")
    assert [index.search(query, 3) for query in ("zeppelin", "the", "?", "\u6587\u5b57")] == [[]] * 4
    assert "/index/data.csc.index.npy" in Path("/proc/self/maps").read_text()  # memory-mapped


def test_equal_scores_are_in_the_order_of_the_file(index: Bm25Index, tmp_path: Path) -> None:
    assert [ids(index, "krone struck", results) for results in (2, 1)] == [["copy-b", "copy-a"], ["copy-b"]]
    found = built(tmp_path, [{"id": str(number), "text": "one text"} for number in range(50)])
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


def test_the_same_passages_give_the_same_index_by_the_command(
    index: Bm25Index, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "copy.jsonl").write_bytes(PASSAGES.read_bytes())
    folder = tmp_path / "made" / "index"
    assert main([str(tmp_path / "copy.jsonl"), "--output", str(folder)]) == 0
    assert Bm25Index(folder).checksum == index.checksum
    checksum = hashlib.sha256(PASSAGES.read_bytes()).hexdigest()
    said = json.loads(capsys.readouterr().out)["passages"]
    assert said == {"file": "copy.jsonl", "rows": 12, "sha256": checksum}
    assert built(tmp_path, [{"id": 1, "text": "another"}], "other").checksum != index.checksum
    for passages, output, named in ((PASSAGES, folder, folder), (folder / "no", tmp_path / "index", folder / "no")):
        assert main([str(passages), "--output", str(output)]) == 1
        assert str(named) in capsys.readouterr().err


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
    held = "from contextlib import nullcontext; from rtpo.tools.search import bm25; "
    held += "bm25.readable = lambda *_: nullcontext(); "
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
    for text in ("{", *(json.dumps(manifest | change) for change in ({"format": 0}, {"tokenizer": {"pattern": "."}}))):
        (folder / MANIFEST).write_text(text)
        with pytest.raises(DataError, match=str(folder)):
            Bm25Index(folder)
