"""Raw files of every schema become records, and prepared files are read as they were written; what a row lacks is said
with its place."""

import bz2
import gzip
import json
import lzma
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments import prepare_data
from rtpo.core.files import sha256
from rtpo.data import sources
from rtpo.data.manifest import Manifest, Raw, write_manifest
from rtpo.data.records import Record, read_records, write_records
from rtpo.data.registry import REGISTRY, read_tasks
from rtpo.data.sources import Dropped, Parser, parse_file
from rtpo.errors import DataError
from rtpo.rewards.grading import GRADER
from rtpo.types import Task

FIXTURES = Path(__file__).parents[1] / "fixtures" / "data"


def read(file: str, parser: Parser) -> list[Record]:
    return parse_file("set", FIXTURES / file, parser)[0]


ANSWERS: dict[str, tuple[str, ...]] = {
    **{"amc23/1": ("0.75",), "amc23/2": ("-1",), "aime25/1": ("16",), "gsm8k/0": ("7",)},
    **{"math500/1": ("\\frac{3}{4}",), "math_train/2": ("\\{1,3,5,7,9\\}",), "oe_math/1606": ("(1,3),(3,1)",)},
    **{"hotpotqa/3": ("A. B. Quist", "Quist, A. B."), "2wiki/1": ("New York, New York", "NYC", "the five boroughs")},
    **{"webwalker/2": ("Rooms 1, 2 and 3; it opens at 9:00.",), "hard_search/0": ("Karin Lind, of Lund",)},
    **{"gaia/00000000-0000-0000-0000-000000000001": ("broccoli, celery, ",), "xbench/1": ("161.27元",)},
}
"""of a problem of each schema; where an answer is long, its beginning"""


def test_every_schema_is_read_by_the_parser_of_its_set() -> None:
    for uid, expected in ANSWERS.items():
        name = uid.partition("/")[0]
        (file,), parser = FIXTURES.glob(f"{name}.*"), REGISTRY[name].parse
        assert parser is not None
        records = parse_file(name, file, parser)[0]
        answers = {record.uid: record.answers for record in records}[uid]
        if REGISTRY[name].kind == "math":
            assert [each.answers for each in records if GRADER.grade(each.answers, each.answers[0]).reward != 1] == []
        assert len(answers) == len(expected)
        assert all(map(str.startswith, answers, expected))


def test_what_schemas_have_beside_question_and_answer() -> None:
    row = {"question": "q", "answer": "So $<< 4000+1 = 4001 >>4,001.\n#### 4,001", "idx": 7}
    assert sources.gsm8k(row) == Record("7", "q", ("4001",), {"annotations": [["4000+1", "4001"]]})
    assert sources.mathematics({"problem": "q\u2028r ", "answer": "025"}) == Record("", "q\u2028r", ("025",))
    assert read("math_train.jsonl", sources.boxed)[0].meta == {"level": "Level 1", "subject": "Prealgebra"}
    olympiad = read("oe_math.jsonl", sources.olympiad)[1]
    assert olympiad.question == "Let $A B C$ be a triangle of area 6.\n\nWhat is twice its area?"
    assert olympiad.meta["unit"] == "$cm^2$"
    assert [record.meta["level"] for record in read("gaia.jsonl", sources.gaia)] == [1, 3]
    hle = {"answer_type": "multipleChoice", "category": "Humanities/Social Science"}
    assert read("hle.json", sources.hle)[0].meta == hle
    decrypted = read("xbench.csv", sources.xbench)[0].question
    assert decrypted == "2024年示例合约的“最高价”与“最低价”之差约为多少？"


def test_lists_spelled_as_text() -> None:
    cases: list[tuple[Any, tuple[str, ...]]] = [
        *(("Lund, Sweden", ("Lund, Sweden",)), (["a", "a", " a "], ("a",)), ([1866, 2.0], ("1866", "2"))),
        *(('["a, b", "c"]', ("a, b", "c")), ("['a', \"b's\"]", ("a", "b's"))),
        *((text, (text,)) for text in ("[sic] transit", "[" * 10_000)),
    ]
    for answer, answers in cases:
        assert sources.aliases({"question": "q", "answer": answer}).answers == answers
        if isinstance(answer, str):
            assert sources.plain({"question": "q", "answer": answer}).answers == (answer,)


GAIA = {"Question": "q", "answer": "a", "Level": 1}
ENCRYPTED = {"id": "1", "prompt": "not base64", "answer": "x", "canary": "key"}
Q = {"question": "q"}
BAD_ROWS: list[tuple[Parser, dict[str, Any], str]] = [
    *((sources.gsm8k, Q | {"answer": answer}, "answer") for answer in ("4", "it is\n#### ", None)),
    (sources.mathematics, {"answer": "1", "question": " "}, "question"),
    *((sources.mathematics, Q | {"answer": answer}, "answer") for answer in (None, " ", True, float("nan"))),
    (sources.mathematics, Q | {"answer": 1, "id": [1]}, "id"),
    *((sources.olympiad, Q | {"final_answer": final}, "final_answer") for final in ("12", [], ["1", "2"])),
    *((sources.aliases, Q | {"answer": answer}, "answer") for answer in (None, "[]", ["a", None])),
    (sources.hard_search, Q, "extra_info"),
    (sources.gaia, GAIA | {"file_name": "a.png"}, "a.png"),
    (sources.hle, Q | {"answer": "a", "has_image": True}, "image"),
    (sources.xbench, ENCRYPTED, "decrypted"),
    (sources.xbench, {"prompt": "x", "answer": "x"}, "canary"),
]


def test_a_wrong_row_is_named(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    for parser, row, named in BAD_ROWS:
        raw.write_text(json.dumps([row]), encoding="utf-8")
        with pytest.raises(DataError, match=rf"^row 1 of {raw} .*{named}"):
            parse_file("set", raw, parser)


ROWS = [{"question": "one\u2028line", "answer": "1, 2"}, {"question": "中文\x85", "answer": '"x"'}]


def test_the_format_is_told_by_the_content(tmp_path: Path) -> None:
    """Lines of another system, an array with a byte order mark, CSV, and Parquet."""
    for content in (
        "\r\n".join(json.dumps(row) for row in ROWS).encode(),
        b"\xef\xbb\xbf" + json.dumps(ROWS, indent=1).encode(),
        pd.DataFrame(ROWS).to_csv(index=False).encode(),
        pd.DataFrame(ROWS).to_parquet(),
    ):
        (tmp_path / "raw").write_bytes(content)
        parsed = [(record.question, record.answers) for record in parse_file("set", tmp_path / "raw", sources.plain)[0]]
        assert parsed == [("one\u2028line", ("1, 2",)), ("中文", ('"x"',))]


BAD_FILES = (
    *(b"PAR1 and no more", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", b"<!DOCTYPE html>"),
    *(b'{"question": "q", "answer": "a"}\n{"question"', b'{"question": "q", "answer": "a"}\n\n'),
    *(b'question,answer\n"q,a\n', b"question,answer\nq,a\nq,1,2\n"),
)
"""tests/project/test_bad_input.py has more"""


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    for content in BAD_FILES:
        (tmp_path / "raw").write_bytes(content)
        with pytest.raises(DataError, match=str(tmp_path / "raw")):
            parse_file("set", tmp_path / "raw", sources.plain)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_compressed_file_is_said_to_be_one(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl.gz").write_bytes(pack(b'{"uid": "1", "question": "q", "answers": ["a"]}\n'))
    with pytest.raises(DataError, match="unpack it"):
        read_records(tmp_path / "rows.jsonl.gz")


def test_a_repeated_question_is_left_out_and_a_repeated_id_refused(tmp_path: Path) -> None:
    rows = [{"question": "q", "answer": "a", "id": 1}, {"question": " q", "answer": "b", "id": 2}]
    (tmp_path / "raw").write_text(json.dumps(rows))
    records, dropped = parse_file("set", tmp_path / "raw", sources.plain)
    assert (records, dropped) == ([Record("set/1", "q", ("a",))], [Dropped("set/2", "repeat", "set/1")])
    (tmp_path / "raw").write_text(json.dumps([rows[0], rows[1] | {"id": "1"}]))
    with pytest.raises(DataError, match=r"row 2 of .* row 1"):
        parse_file("set", tmp_path / "raw", sources.plain)


RECORD = {"uid": "set/1", "question": "first", "answers": ["1"], "meta": {}}
AWKWARD = (
    Record("set/1", "two lines\u2028of\x85one\r\nquestion \\frac{1}{2}", ("New York, New York", "NYC")),
    Record("set/é", "“Größe” 最高价 𝔸 \x00", ("1,000", "0.5"), {"annotations": [["2/2", "1"]], "level": None}),
)


def write(folder: Path, *rows: Any) -> Path:
    path = folder / "problems.jsonl"
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


TEXT = st.text(min_size=1).filter(str.strip)


@settings(max_examples=20)
@given(st.lists(st.builds(Record, TEXT, TEXT, st.lists(TEXT, min_size=1).map(tuple)), min_size=1))
def test_any_text_comes_back(tmp_path_factory: pytest.TempPathFactory, records: list[Record]) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    for written in ([*AWKWARD], records):
        write_records(path, written)
        assert path.read_bytes().count(b"\n") == len(written)
        uids, questions = ({getattr(record, name) for record in written} for name in ("uid", "question"))
        if len(uids) == len(questions) == len(written):
            again = [Record(record.uid, record.question, record.answer, record.meta) for record in read_records(path)]
            assert again == written
        else:
            with pytest.raises(DataError, match="repeats the"):
                read_records(path)


BAD_RECORDS: list[Any] = [
    *("{oops", "", "[" * 100_000, "[]"),
    {"question": "q", "answers": ["1"]},
    {"uid": "a", "question": "q", "answer": "1"},
    *({"uid": "a", "question": "q", "answers": answers} for answers in ("1", [], ["1", ""])),
    RECORD | {"uid": "a"},
    RECORD | {"question": "q"},
]


def test_a_wrong_line_is_named(tmp_path: Path) -> None:
    for row in BAD_RECORDS:
        with pytest.raises(DataError, match=r"line 2 of .*problems\.jsonl"):
            read_records(write(tmp_path, RECORD, row))


@pytest.mark.parametrize("name", ["gsm8k", "math_train", "hotpotqa", "xbench"])
def test_a_raw_file_of_a_set_is_refused_with_the_command_that_prepares_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = FIXTURES.glob(f"{name}.*")
    with pytest.raises(DataError, match="prepare_data") as caught:
        read_tasks(file)
    monkeypatch.chdir(tmp_path)
    typed = shlex.split(re.findall("python (experiments/.*) makes", str(caught.value))[0])
    assert typed[2] == f"{REGISTRY[name].name}={file}"
    if not REGISTRY[name].against:  # which would have to be there first
        assert prepare_data.main(typed[1:]) == 0
        assert read_records(tmp_path / "data" / "own" / f"{name}.jsonl")


def test_a_file_that_its_manifest_does_not_describe_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, RECORD, RECORD | {"uid": "set/2", "question": "second"})
    raw = Raw("0", 1, "https://example.com/set", "unverified", "2026-01-01")
    counts: dict[str, int] = {}
    manifest = Manifest(
        name="set",
        rows=2,
        sha256=sha256(path),
        raw=raw,
        raw_rows=2,
        licence="MIT",
        dropped=counts,
        overlaps=counts,
        against={},
        sample_seed=None,
        date=raw.date,
    )
    write_manifest(path, manifest)
    assert len(read_records(path)) == 2
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    with pytest.raises(DataError, match=r"1 row .* 2 rows"):
        read_records(path)


def test_a_table_of_the_same_shape_is_read(tmp_path: Path) -> None:
    """Its cells are text, and spell lists and objects in JSON. Other formats are read as raw files are."""
    row = {"uid": "007", "question": "2024-10-27", "answers": '["0.50", "a, b"]', "meta": '{"level": "1"}'}
    pd.DataFrame([row]).to_csv(tmp_path / "problems.csv", index=False)
    task = Task("007", "2024-10-27", ("0.50", "a, b"), {"level": "1"})
    assert read_records(tmp_path / "problems.csv") == [task]
