"""Real tasks the whole way on real verl: prepared, overfitted, rolled out with their tools, graded, trained.

Maths with the Python tool, and questions with a BM25 index; with RTPO_DATA=<folder> the maths is the real GSM8K file's.
One byte-level model has a problem of each by heart, and one worker group serves all tests here.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from byte_model import overfit
from conftest import compose_config, harness_on

from rtpo.data.prepare import DataFolder
from rtpo.data.records import Record, write_records
from rtpo.run.config import RunConfig
from rtpo.run.tasks import load_tasks
from rtpo.tools.search.bm25 import build_index

pytestmark = pytest.mark.needs("bwrap")
DATA = os.environ.get("RTPO_DATA")
FIXTURES = Path(__file__).parents[1] / "fixtures"
SMALL = ("task.train.count=1", "budget.tasks_per_step=1", "task.held_out.count=1")
QUESTIONS = [f"Where was the painter Ada Holm born? ({number})" for number in range(20)]
"""enough for both splits"""
STEPS = {
    "rtpo": ("algorithm=rtpo", "algorithm.trunks=2", "algorithm.group_size=5"),
    "gspo": ("algorithm=gspo", "algorithm.chains=12", "algorithm.minibatches=1"),
    "arpo": ("algorithm=arpo", "algorithm.roots=8", "algorithm.paths=24", "algorithm.minibatches=1"),
    "refuel": ("algorithm=refuel", "algorithm.pairs=24", "algorithm.minibatches=1"),
}
"""with each loss, context and kind of start"""
FEW = ("task.train.count=2", "task.held_out.count=4")
"""tasks of a file, as many as the small model learns"""
Places = dict[str, tuple[str, ...]]
"""of the tests' tasks, what composes them"""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    folder = tmp_path_factory.mktemp("real_tasks")
    data = DataFolder(folder / "data")
    data.prepare("gsm8k", Path(DATA or FIXTURES / "data") / "gsm8k.jsonl", may_differ=DATA is None)
    records = [Record(f"q/{number}", question, ("Brask",), {}) for number, question in enumerate(QUESTIONS)]
    write_records(folder / "questions.jsonl", records)
    build_index(FIXTURES / "passages.jsonl", folder / "index")
    index = f"task.settings.search.bm25.index={folder / 'index'}"
    return {
        "math": ("task=math", f"data={data.file('gsm8k')}", *FEW),
        "search": ("task=search", f"data={folder / 'questions.jsonl'}", index, *FEW),
    }


def configuration(place: tuple[str, ...], model: Path, *overrides: str) -> RunConfig:
    return compose_config(*place, f"model.path={model}", *SMALL, *overrides)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, places: Places) -> Path:
    output = tmp_path_factory.mktemp("byte_model") / "model"
    runs = {name: configuration(place, output).task for name, place in places.items()}
    tasks = {name: load_tasks(task, task.train) for name, task in runs.items()}
    successes = overfit([(task, tasks[name]) for name, task in runs.items()], output, steps=240)
    assert all(0 < success < 1 for success in successes), successes
    return output


@pytest.fixture(scope="module")
def live_backend(model: Path, places: Places) -> Iterator[Any]:
    """The test run's worker group with this model; the next test that wants another opens that one."""
    from rtpo.verl_harness.session import close_backend, open_backend

    yield open_backend(configuration(places["math"], model))
    close_backend()


@pytest.mark.parametrize(("task", "method"), [*(("math", method) for method in STEPS), ("search", "rtpo")])
def test_a_step_on_a_real_task(task: str, method: str, places: Places, live_backend: Any, model: Path) -> None:
    """It calls a tool, has a group that is not tied, and changes a weight of the engine."""
    from rtpo.verl_harness.session import open_backend

    config = configuration(places[task], model, *STEPS[method])
    backend = open_backend(config)
    assert backend is live_backend
    harness = harness_on(backend, config)
    harness.sync()
    before = backend.engine_checksums()[0]
    config.descriptor.step(harness, load_tasks(config.task, config.task.train), config.algorithm_config)
    harness.sync()
    log, ledger = harness.end_step(), harness.ledger
    assert sum(call["tools"].get("ok", 0) for call in log.rollouts) >= 1
    assert min(update["zero_advantage"]["all"] for update in log.updates) < 1
    assert ledger.trained_tokens > 0
    assert backend.engine_checksums()[0] != before
    assert all(call["grades"].keys() <= {"graded", "pending"} for call in log.rollouts)
