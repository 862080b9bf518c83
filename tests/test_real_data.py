"""Maths files the whole way: prepared, overfitted, rolled out with the Python tool, graded, trained on real verl.

Always on the stand-ins in tests/fixtures/data, which have the real files' schemas, and with RTPO_DATA=<folder> on the
real files too. One model is overfitted on problems of all folders, and one worker group serves all tests here.
"""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import compose_config, harness_on

from experiments.train import train
from rtpo.config import RunConfig
from rtpo.data.prepare import DataFolder
from rtpo.data.records import read_records
from rtpo.rewards.grading import GRADER
from rtpo.run import StopRequest
from rtpo.tasks import load_tasks
from rtpo.toy.byte_model import Overfit, overfit

DATA = os.environ.get("RTPO_DATA")
FIXTURES = Path(__file__).parent / "fixtures" / "data"
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
COUNT = 2 // len(FOLDERS)
"""problems of each folder that the model is overfitted on"""
SMALL = (f"task.train.count={COUNT}", f"budget.tasks_per_step={COUNT}", "task.held_out.count=1")
RTPO = ("algorithm=rtpo", f"algorithm.trunks={4 // COUNT}", "algorithm.group_size=5")
GRPO = (f"algorithm.chains={16 // COUNT}", "algorithm.minibatches=1")
MODES = {
    "rtpo, strip_think, recorded": RTPO,
    "rtpo, full, recorded": (*RTPO, "algorithm.rollout_context=full"),
    "grpo, strip_think, flattened": ("algorithm=grpo", *GRPO),
    "grpo, strip_think, recorded": ("algorithm=grpo_exact", *GRPO),
    "grpo, full, recorded": ("algorithm=grpo_exact", *GRPO, "algorithm.rollout_context=full"),
    "grpo, full, flattened": ("algorithm=grpo_full", *GRPO),
}


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


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, prepared: dict[Path, DataFolder]) -> Path:
    """Overfitted on the first train problems of every folder's gsm8k."""
    output = tmp_path_factory.mktemp("byte_model") / "model"
    runs = [configuration(data, output) for data in prepared.values()]
    tasks = [task for run in runs for task in load_tasks(run.task, run.task.train)]
    record = overfit(tasks, runs[0].task, output, Overfit(steps=200))
    print(record)
    assert 0 < record["sampled_success"] < 1
    return output


@pytest.fixture(scope="module")
def live_backend(model: Path, prepared: dict[Path, DataFolder]) -> Iterator[Any]:
    """The test run's worker group with this model; the next test that wants another opens that one."""
    from rtpo.verl_harness.session import close_backend, open_backend

    yield open_backend(configuration(prepared[FIXTURES], model))
    close_backend()


def configuration(data: DataFolder, model: Path, *overrides: str) -> RunConfig:
    file = data.file("gsm8k")
    return compose_config("task=math", f"data={file}", f"model.path={model}", *SMALL, *overrides)


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


@pytest.mark.parametrize("mode", MODES)
def test_a_step_calls_the_tool_compares_and_trains(data: DataFolder, live_backend: Any, model: Path, mode: str) -> None:
    from rtpo.verl_harness.session import open_backend

    config = configuration(data, model, *MODES[mode])
    algorithm = config.algorithm_config
    assert mode == f"{algorithm.name}, {algorithm.rollout_context}, {algorithm.training_context}"
    backend = open_backend(config)
    assert backend is live_backend
    harness = harness_on(backend, config)
    harness.sync()
    before = backend.engine_states()[0].checksum
    config.descriptor.step(harness, load_tasks(config.task, config.task.train), algorithm)
    harness.sync()
    log, ledger = harness.end_step(), harness.ledger
    assert sum(call["tools"].get("ok", 0) for call in log.rollouts) >= 1
    assert min(update["zero_advantage"]["all"] for update in log.updates) < 1
    assert ledger.trained_tokens > 0
    assert backend.engine_states()[0].checksum != before
    assert all(call["grades"].keys() <= {"graded"} for call in log.rollouts)


def test_a_run_from_the_command_line_to_its_records(
    data: DataFolder, live_backend: Any, model: Path, tmp_path: Path
) -> None:
    config = configuration(
        data, model, *MODES["grpo, strip_think, recorded"], "budget.rollouts=16", f"results={tmp_path}"
    )
    ledger = train(config, StopRequest()).manifest["ledger"]
    assert ledger["rollouts"] == 16
    assert ledger["tool_calls"]["ok"] >= 1
    assert ledger["optimizer_steps"] == 1
    assert ledger["evaluation_rollouts"] == 4
