"""Published files: read whole, held to the registry, every gold answer graded, overlaps dropped.

Always on the stand-ins in tests/fixtures/data, which have the real files' schemas, and with RTPO_DATA=<folder> on the
real files too.
"""

import itertools
import json
import os
from pathlib import Path

import pytest

from rtpo.data.prepare import DataFolder
from rtpo.data.records import manifest_path, read_records
from rtpo.data.registry import REGISTRY
from rtpo.data.sources import parse_file
from rtpo.rewards.grading import GRADER

DATA = os.environ.get("RTPO_DATA")
FIXTURES = Path(__file__).parents[1] / "fixtures" / "data"
REAL = Path(DATA or "")
MATHS = ("gsm8k", "math500", "aime24", "amc23")
FILES = {name: f"{name}.jsonl" for name in (*MATHS, "hotpotqa", "2wiki", "webwalker")}
FILES["hard_search"] = "hard_search_1k.parquet"
ANNOTATED = {"stand-in": 12, "real": 1301}
"""rows of gsm8k.jsonl that have some"""
EQUAL = {("5", "x=5")}
"""golds that stand one after another in a file and differ as text alone: an assignment is its value"""
needs_real = pytest.mark.skipif(not DATA, reason="set RTPO_DATA to a folder of real files")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> DataFolder:
    """All sets that RTPO_DATA has, held to the registry's rows and checksums."""
    data = DataFolder(tmp_path_factory.mktemp("real"))
    for name, file in FILES.items():
        data.prepare(name, REAL / file)
    return data


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> DataFolder:
    data = DataFolder(tmp_path_factory.mktemp("stand-ins"))
    for name in MATHS:
        data.prepare(name, FIXTURES / f"{name}.jsonl", may_differ=True)
    return data


@pytest.mark.parametrize("kind", ["stand-in", pytest.param("real", marks=needs_real)])
def test_every_gold_equals_itself_and_not_its_neighbour(kind: str, request: pytest.FixtureRequest) -> None:
    data: DataFolder = request.getfixturevalue("real" if kind == "real" else "stand_ins")
    for name in MATHS:
        tasks = read_records(data.file(name))
        assert [task.answer for task in tasks if GRADER.grade(task.answer, task.answer[0]).reward != 1] == []
        golds = [task.answer[0] for task in tasks]
        neighbours = {(gold, other) for gold, other in itertools.pairwise(golds) if gold != other} - EQUAL
        assert [(gold, other) for gold, other in neighbours if GRADER.grade((gold,), other).reward != 0] == []
    assert sum(bool(task.meta["annotations"]) for task in read_records(data.file("gsm8k"))) == ANNOTATED[kind]


@needs_real
def test_real_files_are_those_of_the_registry(real: DataFolder) -> None:
    for name in FILES:
        assert real.status(name) == "ready"
        manifest = json.loads(manifest_path(real.file(name)).read_text())
        assert (manifest["raw_rows"], manifest["raw"]["sha256"]) == (REGISTRY[name].rows, REGISTRY[name].sha256)
        assert manifest["dropped"].keys() <= {"overlap"}
        assert len(read_records(real.file(name))) == REGISTRY[name].rows - sum(manifest["dropped"].values())


@needs_real
def test_the_fifteen_questions_of_hotpotqa_are_dropped_from_hard_search(real: DataFolder) -> None:
    assert REGISTRY["hard_search"].parse is not None
    records, _ = parse_file("hard_search", REAL / FILES["hard_search"], REGISTRY["hard_search"].parse)
    panel = {task.question: task.uid for task in read_records(real.file("hotpotqa"))}
    same = [[one.uid, "overlap", panel[one.question]] for one in records if one.question in panel]
    assert len(same) == 15
    lines = (real.path / "hard_search.dropped.jsonl").read_text().splitlines()
    assert [list(json.loads(line).values()) for line in lines] == same
    left = {task.question for task in read_records(real.file("hard_search"))}
    assert len(left) == 1056
    assert not left & panel.keys()
