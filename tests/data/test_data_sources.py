"""Raw files of every schema become records; what a row lacks is said with its place."""

import base64
import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rtpo.data import sources
from rtpo.data.records import Record
from rtpo.data.sources import Dropped, Parsed, Parser, parse_file
from rtpo.errors import DataError

FIXTURES = Path(__file__).parents[1] / "fixtures" / "data"


def parse(file: str, parser: Parser) -> list[tuple[str, tuple[str, ...]]]:
    records, dropped = parse_file("set", FIXTURES / file, parser)
    assert dropped == []
    return [(record.uid, record.answers) for record in records]


def refused(parser: Parser, row: dict[str, Any], path: Path) -> str:
    (path / "raw").write_text(json.dumps([row]), encoding="utf-8")
    with pytest.raises(DataError) as caught:
        parse_file("set", path / "raw", parser)
    assert str(caught.value).startswith(f"row 1 of {path / 'raw'} ")
    return str(caught.value)


# schemas


def test_gsm8k() -> None:
    records, _ = parse_file("gsm8k", FIXTURES / "gsm8k.jsonl", sources.gsm8k)
    assert records[0] == Record(
        "gsm8k/0",
        "Ann has 3 bags of 4 pears. She eats 5. How many are left?",
        ("7",),
        {"annotations": [["3*4", "12"], ["12-5", "7"]]},
    )
    row = {"question": "q", "answer": "So $<< 4000+1 = 4001 >>4,001.\n#### 4,001", "idx": 7}
    assert sources.gsm8k(row) == sources.Parsed("q", ("4001",), "7", {"annotations": [["4000+1", "4001"]]})


@pytest.mark.parametrize("answer", ["it is 4", "it is\n#### ", None, 4])
def test_gsm8k_without_its_number(tmp_path: Path, answer: Any) -> None:
    assert "has no answer" in refused(sources.gsm8k, {"question": "q", "answer": answer}, tmp_path)


def test_mathematics() -> None:
    assert parse("amc23.jsonl", sources.mathematics) == [("set/0", ("27",)), ("set/1", ("0.75",)), ("set/2", ("-1",))]
    assert parse("aime25.jsonl", sources.mathematics) == [("set/0", ("100",)), ("set/1", ("16",))]
    assert parse("math500.jsonl", sources.mathematics)[:2] == [
        ("set/1", ("\\frac{3}{4}",)),
        ("set/2", ("\\{-3, 3\\}",)),
    ]
    assert sources.mathematics({"problem": "q\u2028r ", "answer": "025"}) == sources.Parsed("q\u2028r", ("025",))


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"answer": "1"}, "has no question or problem"),
        ({"question": " ", "answer": "1"}, "has no question"),
        ({"question": "q"}, "has the answer None"),
        ({"question": "q", "answer": "\u2028"}, "has the answer"),
        ({"question": "q", "answer": ["1"]}, r"has the answer ['1']"),
        ({"question": "q", "answer": True}, "has the answer True"),
        ({"question": "q", "answer": float("nan")}, "has the answer nan"),
        ({"question": "q", "answer": 1, "id": [1]}, "has the id [1]"),
        ({"question": "q", "answer": 1, "id": True}, "has the id True"),
    ],
)
def test_a_row_that_cannot_be_is_said(tmp_path: Path, row: dict[str, Any], sentence: str) -> None:
    assert sentence in refused(sources.mathematics, row, tmp_path)


def test_boxes_of_solutions() -> None:
    records, dropped = parse_file("math_train", FIXTURES / "math_train.jsonl", sources.boxed)
    answers = {record.uid: record.answers for record in records}
    assert answers == {
        "math_train/1": ("\\frac{3}{4}",),
        "math_train/2": ("\\{1,3,5,7,9\\}",),
        "math_train/3": ("2",),
        "math_train/4": ("\\text{B}",),
        "math_train/7": ("8",),
    }
    assert records[0].meta == {"level": "Level 1", "subject": "Prealgebra"}
    assert dropped == [Dropped("math_train/5", "no answer"), Dropped("math_train/6", "repeat", "math_train/3")]


def test_olympiad() -> None:
    records, _ = parse_file("oe_math", FIXTURES / "oe_math.jsonl", sources.olympiad)
    assert [record.answers for record in records] == [("(1,3),(3,1)",), ("12",)]
    assert records[1].question == "Let $A B C$ be a triangle of area 6.\n\nWhat is twice its area?"
    assert records[1].meta["unit"] == "$cm^2$"
    assert sources.olympiad({"question": "q", "final_answer": ["\\$5$"]}).answers == ("\\$5",)


@pytest.mark.parametrize("final", [None, "12", [], [12], ["1", "1"], ["1", "2"]])
def test_olympiad_without_its_answers(tmp_path: Path, final: Any) -> None:
    assert "final_answer" in refused(sources.olympiad, {"question": "q", "final_answer": final}, tmp_path)


def test_aliases_keep_their_commas() -> None:
    assert parse("hotpotqa.jsonl", sources.aliases) == [
        ("set/1", ("Lund, Sweden",)),
        ("set/2", ("yes",)),
        ("set/3", ("A. B. Quist", "Quist, A. B.")),
    ]
    assert parse("2wiki.jsonl", sources.aliases) == [
        ("set/1", ("New York, New York", "NYC", "the five boroughs")),
        ("set/2", ("Rupert, King of Ny-Ålesund", "Rupert")),
        ("set/3", ("Blue, the Movie", "Green's Blue")),
    ]


@pytest.mark.parametrize(
    ("answer", "answers"),
    [
        ("Lund, Sweden", ("Lund, Sweden",)),
        (["a", "a", " a "], ("a",)),
        ([1866, 2.0], ("1866", "2")),
        ('["a, b", "c"]', ("a, b", "c")),
        ("['a', \"b's\"]", ("a", "b's")),
        ("[sic] transit", ("[sic] transit",)),
        ("[1, 2", ("[1, 2",)),
        ("[" * 10_000, ("[" * 10_000,)),
    ],
)
def test_lists_spelled_as_text(answer: Any, answers: tuple[str, ...]) -> None:
    assert sources.aliases({"question": "q", "answer": answer}).answers == answers


@pytest.mark.parametrize("answer", [None, [], "[]", [""], ["a", None], [["a"]], {"a": 1}])
def test_no_answer_among_aliases(tmp_path: Path, answer: Any) -> None:
    assert "answer" in refused(sources.aliases, {"question": "q", "answer": answer}, tmp_path)


def test_plain_answers_are_not_read() -> None:
    assert parse("webwalker.jsonl", sources.plain) == [
        ("set/1", ("2024年10月27日，以网站公布为准。",)),
        ("set/2", ("Rooms 1, 2 and 3; it opens at 9:00.",)),
    ]
    assert sources.plain({"question": "q", "answer": "['a', 'b']"}).answers == ("['a', 'b']",)


def test_hard_search_from_parquet(tmp_path: Path) -> None:
    path = parquet(FIXTURES / "hard_search.jsonl", tmp_path)
    records, _ = parse_file("hard_search", path, sources.hard_search)
    assert records[0] == Record(
        "hard_search/0", "who painted the mill", ("Karin Lind, of Lund",), {"data_source": "DR_nan"}
    )
    assert records == parse_file("hard_search", FIXTURES / "hard_search.jsonl", sources.hard_search)[0]
    assert "has no extra_info or reward_model" in refused(sources.hard_search, {"question": "q"}, tmp_path)


def test_gaia(tmp_path: Path) -> None:
    records, _ = parse_file("gaia", FIXTURES / "gaia.jsonl", sources.gaia)
    assert [record.meta["level"] for record in records] == [1, 3]
    assert records[0].uid == "gaia/00000000-0000-0000-0000-000000000001"
    assert records[0].answers == ("broccoli, celery, basil, lettuce, potatoes",)
    row = {"Question": "q", "answer": "a", "Level": 1}
    assert "has the Level 4" in refused(sources.gaia, row | {"Level": 4}, tmp_path)
    assert "needs the file a.png" in refused(sources.gaia, row | {"file_name": "a.png"}, tmp_path)


def test_hle(tmp_path: Path) -> None:
    records, _ = parse_file("hle", FIXTURES / "hle.json", sources.hle)
    assert [record.answers for record in records] == [("B",), ("e",)]
    assert records[0].meta == {"answer_type": "multipleChoice", "category": "Humanities/Social Science"}
    assert "has an image" in refused(sources.hle, {"question": "q", "answer": "a", "has_image": True}, tmp_path)


def test_xbench_is_decrypted(tmp_path: Path) -> None:
    records, _ = parse_file("xbench", FIXTURES / "xbench.csv", sources.xbench)
    assert [(record.uid, record.answers) for record in records] == [("xbench/1", ("161.27元",)), ("xbench/2", ("4",))]
    assert records[0].question == "2024年示例合约的“最高价”与“最低价”之差约为多少？"
    row = {"id": "1", "prompt": "not base64", "answer": "x", "canary": "key"}
    assert "cannot be decrypted" in refused(sources.xbench, row, tmp_path)
    row["prompt"] = base64.b64encode(b"\xff\xff").decode()
    assert "cannot be decrypted" in refused(sources.xbench, row, tmp_path)
    assert "has no canary" in refused(sources.xbench, {"prompt": "x", "answer": "x"}, tmp_path)
    assert sources.xbench({"question": "q", "answer": "a"}) == Parsed("q", ("a",))


# formats


def parquet(file: Path, folder: Path) -> Path:
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
    return folder / "rows.parquet"


ROWS = [{"question": "one\u2028line", "answer": "1, 2"}, {"question": "中文\x85", "answer": '"x"'}]


def as_csv() -> bytes:
    out = io.StringIO(newline="")
    table = csv.DictWriter(out, ["question", "answer"])
    table.writeheader()
    table.writerows(ROWS)
    return out.getvalue().encode()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode(), id="lines"),
        pytest.param("\r\n".join(json.dumps(row) for row in ROWS).encode(), id="lines of another system"),
        pytest.param(b"\xef\xbb\xbf" + json.dumps(ROWS, indent=1).encode(), id="array with a mark"),
        pytest.param(as_csv(), id="csv"),
    ],
)
def test_the_format_is_told_by_the_content(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "raw").write_bytes(content)
    records, _ = parse_file("set", tmp_path / "raw", sources.plain)
    assert [(record.question, record.answers) for record in records] == [
        ("one\u2028line", ("1, 2",)),
        ("中文", ('"x"',)),
    ]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"\xff\xfe", "is neither Parquet nor UTF-8 text"),
        (b"PAR1 and no more", "is not whole Parquet"),
        (b'{"question": "\\ud800", "answer": "1"}', "half a surrogate pair"),
        (b"question,answer\nq,a\nq,1,2\n", "is not whole .* CSV"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a pointer of Git LFS"),
        (b"<!DOCTYPE html>", "is a web page and not data"),
        (b'[{"question": "q"', "is not JSON"),
        (b"[1]", "row 1 of .* is not an object"),
        (b'{"question": "q", "answer": "a"}\n{"question"', "line 2 of .* is not JSON"),
        (b'{"question": "q", "answer": "a"}\n\n', "line 2 of .* is not JSON"),
        (b'question,answer\n"q,a\n', "is not whole .* CSV"),
        (b"answer\n1\n", "row 1 of .* has no question"),
    ],
)
def test_a_file_that_cannot_be_is_said(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "raw").write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        parse_file("set", tmp_path / "raw", sources.plain)


def test_cut_parquet_is_refused(tmp_path: Path) -> None:
    path = parquet(FIXTURES / "hard_search.jsonl", tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="is not whole Parquet"):
        parse_file("set", path, sources.hard_search)


def test_a_repeated_question_is_left_out_and_a_repeated_id_refused(tmp_path: Path) -> None:
    rows = [{"question": "q", "answer": "a", "id": 1}, {"question": " q", "answer": "b", "id": 2}]
    (tmp_path / "raw").write_text(json.dumps(rows))
    records, dropped = parse_file("set", tmp_path / "raw", sources.plain)
    assert records == [Record("set/1", "q", ("a",))]
    assert dropped == [Dropped("set/2", "repeat", "set/1")]
    (tmp_path / "raw").write_text(json.dumps([rows[0], rows[1] | {"id": "1"}]))
    with pytest.raises(DataError, match=r"row 2 of .* repeats the id of row 1 \(set/1\)"):
        parse_file("set", tmp_path / "raw", sources.plain)
