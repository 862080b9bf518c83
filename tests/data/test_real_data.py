"""Maths files as they are published: read whole, and every gold answer graded.

Always on the stand-ins in tests/fixtures/data, which have the real files' schemas, and with RTPO_DATA=<folder> on the
real files too.
"""

import itertools
import os
from pathlib import Path

import pytest

from rtpo.data.prepare import DataFolder
from rtpo.data.records import read_records
from rtpo.rewards.grading import GRADER

DATA = os.environ.get("RTPO_DATA")
FIXTURES = Path(__file__).parents[1] / "fixtures" / "data"
REAL = Path(DATA or "")
FOLDERS = [FIXTURES, REAL] if DATA else [FIXTURES]
ROWS = {
    FIXTURES: {"gsm8k": 12, "math500": 9, "aime24": 3, "amc23": 3},
    REAL: {"gsm8k": 1319, "math500": 500, "aime24": 30, "amc23": 40},
}
ANNOTATED = {FIXTURES: 12, REAL: 1301}
"""rows of gsm8k.jsonl that have some"""
EQUAL = {("5", "x=5")}
"""golds that stand one after another in a file and differ as text alone: an assignment is its value"""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(FIXTURES, id="stand-in"),
        pytest.param(
            REAL, id="real", marks=pytest.mark.skipif(not DATA, reason="set RTPO_DATA to a folder of real maths files")
        ),
    ],
)
def folder(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, DataFolder]:
    """Every folder's files, prepared; the real ones have to be those of the registry."""
    made = {}
    for raw in FOLDERS:
        made[raw] = DataFolder(tmp_path_factory.mktemp("data"))
        for name in ROWS[raw]:
            made[raw].prepare(name, raw / f"{name}.jsonl", may_differ=raw == FIXTURES)
    return made


@pytest.fixture(scope="module")
def data(folder: Path, prepared: dict[Path, DataFolder]) -> DataFolder:
    return prepared[folder]


@pytest.mark.parametrize("name", ["gsm8k", "math500", "aime24", "amc23"])
def test_files_are_read_whole_and_every_gold_equals_itself_alone(folder: Path, data: DataFolder, name: str) -> None:
    tasks = read_records(data.file(name))
    assert len(tasks) == ROWS[folder][name]
    assert [task.answer for task in tasks if GRADER.grade(task.answer, task.answer[0]).reward != 1] == []
    golds = [task.answer[0] for task in tasks]
    neighbours = {(gold, other) for gold, other in itertools.pairwise(golds) if gold != other} - EQUAL
    assert [(gold, other) for gold, other in neighbours if GRADER.grade((gold,), other).reward != 0] == []


def test_annotations_are_read(folder: Path, data: DataFolder) -> None:
    tasks = read_records(data.file("gsm8k"))
    assert sum(bool(task.meta["annotations"]) for task in tasks) == ANNOTATED[folder]
