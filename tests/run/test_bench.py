"""The bench keeps every timing of both sides."""

import json
from argparse import Namespace
from pathlib import Path

import pytest

from experiments import bench


def test_a_case_is_printed_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (answers := tmp_path / "answers.jsonl").write_text('{"answer": "5"}\n{"answer": "6"}\n')
    bench.main(["grading", "--file", str(answers), "--repeats", "2", "--results", str(tmp_path / "bench")])
    assert capsys.readouterr().out.startswith("grading, 2 answers")
    (record,) = (tmp_path / "bench").glob("*.json")
    (case,) = json.loads(record.read_text())["cases"]
    assert [len(case["timings"][side]) for side in ("right", "wrong")] == [2, 2]
    assert min(case["timings"]["right"]) > 0


def test_sides_of_unequal_length_are_compared_by_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step of each warms it up."""
    monkeypatch.setattr(bench, "our_steps", lambda *_: [(9.0, 700), (1.0, 500)])
    monkeypatch.setattr(bench, "stock_steps", lambda *_: [(9.0, 2000), (1.0, 1000)])
    ((_, unit, timings),) = bench.verl(Namespace(repeats=1))
    assert (unit, timings) == ("us a token", {"ours": [2000], "stock verl": [1000]})
