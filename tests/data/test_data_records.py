"""Prepared files: what is written is read, and what cannot be is refused by line."""

import json
from pathlib import Path
from typing import Any

import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtpo.core.files import sha256
from rtpo.data.records import Record, manifest_path, read_records, write_records
from rtpo.errors import DataError

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
        uids, questions = ({getattr(one, name) for one in written} for name in ("uid", "question"))
        if len(uids) == len(questions) == len(written):
            found = [Record(one.uid, one.question, one.answer, one.meta) for one in read_records(path)]
            assert found == written
        else:
            with pytest.raises(DataError, match="repeats the"):
                read_records(path)


ROWS: list[Any] = [
    *("{oops", "", "[" * 100_000, "1" * 5_000, "[]"),
    {"question": "q", "answers": ["1"]},
    {"uid": "a", "question": " ", "answers": ["1"]},
    {"uid": "a", "question": "q", "answer": "1"},
    *({"uid": "a", "question": "q", "answers": answers} for answers in ("1", [], ["1", ""], [7])),
    RECORD | {"meta": [1], "uid": "a"},
    RECORD | {"uid": "a"},
    RECORD | {"question": "q"},
]


def test_a_line_or_a_file_that_cannot_be_is_named(tmp_path: Path) -> None:
    for row in ROWS:
        with pytest.raises(DataError, match=r"line 2 of .*problems\.jsonl"):
            read_records(write(tmp_path, RECORD, row))
    (tmp_path / "latin.jsonl").write_bytes(b"\xe9")
    for name in ("nowhere", "latin"):
        with pytest.raises(DataError, match=rf"{name}\.jsonl"):
            read_records(tmp_path / f"{name}.jsonl")


def test_a_file_that_its_manifest_does_not_describe_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, RECORD, RECORD | {"uid": "set/2", "question": "second"})
    manifest_path(path).write_text(json.dumps({"rows": 2, "sha256": sha256(path)}))
    assert len(read_records(path)) == 2
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    with pytest.raises(DataError, match=r"1 rows .* 2 rows"):
        read_records(path)
    manifest_path(path).write_text("{oops")
    with pytest.raises(DataError, match=r"problems\.manifest\.json"):
        read_records(path)


@pytest.mark.parametrize("kind", ["json", "csv", "parquet"])
def test_other_formats_of_the_same_shape_are_read(tmp_path: Path, kind: str) -> None:
    rows = [RECORD | {"meta": {"level": "1"}}, {"uid": "007", "question": "2024-10-27", "answers": ["0.50", "a, b"]}]
    path = tmp_path / f"problems.{kind}"
    if kind == "json":
        path.write_text(json.dumps(rows))
    elif kind == "csv":
        cells = [row | {name: json.dumps(row[name]) for name in ("answers", "meta") if name in row} for row in rows]
        pandas.DataFrame(cells).to_csv(path, index=False)
    else:
        pandas.DataFrame(rows).to_parquet(path)
    first, second = read_records(path)
    assert (first.uid, first.question, first.answer, first.meta) == ("set/1", "first", ("1",), {"level": "1"})
    assert (second.uid, second.question, second.answer) == ("007", "2024-10-27", ("0.50", "a, b"))
    assert second.meta == {}
