"""Maths files the whole way: read, overfitted, rolled out with the Python tool, graded, trained on real verl.

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

from experiments import overfit as command
from experiments.train import train
from rtpo.config import RunConfig
from rtpo.math_data import read_math
from rtpo.rewards.grading import GRADER
from rtpo.run import StopRequest
from rtpo.tasks import load_tasks
from rtpo.toy.byte_model import MAX_TURN_TOKENS, Overfit, overfit

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
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Overfitted on the first train problems of every folder's gsm8k.jsonl."""
    output = tmp_path_factory.mktemp("byte_model") / "model"
    tasks = [task for folder in FOLDERS for task in command.problems(folder / "gsm8k.jsonl", COUNT)]
    record = overfit(tasks, output, Overfit(steps=200))
    print(record)
    assert 0 < record["sampled_success"] < 1
    return output


@pytest.fixture(scope="module")
def live_backend(model: Path) -> Iterator[Any]:
    """The test run's worker group with this model; the next test that wants another opens that one."""
    from rtpo.verl_harness.session import close_backend, open_backend

    yield open_backend(configuration(FIXTURES, model))
    close_backend()


def configuration(folder: Path, model: Path, *overrides: str) -> RunConfig:
    data = folder / "gsm8k.jsonl"
    return compose_config("task=math", f"data={data}", f"model.path={model}", *SMALL, *overrides)


@pytest.mark.parametrize("name", ["gsm8k", "math500", "aime24", "amc23"])
def test_files_are_read_whole_and_every_gold_equals_itself_alone(folder: Path, name: str) -> None:
    tasks = read_math(folder / f"{name}.jsonl")
    assert len(tasks) == ROWS[folder][name]
    golds = [task.answer for task in tasks]
    assert [gold for gold in golds if GRADER.grade(gold, gold).reward != 1] == []
    neighbours = {(gold, other) for gold, other in itertools.pairwise(golds) if gold != other} - EQUAL
    assert [pair for pair in neighbours if GRADER.grade(*pair).reward != 0] == []


def test_annotations_are_read(folder: Path) -> None:
    tasks = read_math(folder / "gsm8k.jsonl")
    assert sum(bool(task.meta["annotations"]) for task in tasks) == ANNOTATED[folder]


@pytest.mark.parametrize("mode", MODES)
def test_a_step_calls_the_tool_compares_and_trains(folder: Path, live_backend: Any, model: Path, mode: str) -> None:
    from rtpo.verl_harness.session import open_backend

    config = configuration(folder, model, *MODES[mode])
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
    folder: Path, live_backend: Any, model: Path, tmp_path: Path
) -> None:
    config = configuration(
        folder, model, *MODES["grpo, strip_think, recorded"], "budget.rollouts=16", f"results={tmp_path}"
    )
    ledger = train(config, StopRequest()).manifest["ledger"]
    assert ledger["rollouts"] == 16
    assert ledger["tool_calls"]["ok"] >= 1
    assert ledger["optimizer_steps"] == 1
    assert ledger["evaluation_rollouts"] == 4


def test_turns_of_the_traces_fit(folder: Path) -> None:
    """The limit that the traces are held to is the one of the task's configuration."""
    assert configuration(folder, Path()).task.max_turn_tokens == MAX_TURN_TOKENS
