"""One Ray start and one worker group for the whole test run, in one of its processes; what the machine lacks is looked
for before the first test."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import fast
import machine
import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from rtpo.harness.budget import Budget, Ledger
from rtpo.harness.harness import AgentHarness
from rtpo.run.cli import composed
from rtpo.run.config import RunConfig, compose_run
from rtpo.run.model_folder import chat_format
from rtpo.run.run import open_harness
from rtpo.tools.python import sandbox as python_sandbox

settings.register_profile("no clock", deadline=None)  # a busy machine is no failure
settings.load_profile("no clock")


@cache
def compose_config(*overrides: str) -> RunConfig:
    """The checked configuration that experiments/train.py would run with these overrides."""
    return compose_run(composed("train", overrides))


ON_VERL = (
    "test_real_tasks",
    "test_textworld_verl",
    "test_engine_conformance",
    "test_evaluation_verl",
    "test_run",
    "test_verl_crashes",
    "test_verl_harness",
    "test_verl_two_processes",
)
"""files with tests on the one worker group: they go to one process of the test run, first of all and in this order, so
that the group is put up a few times only; others go to any"""

LONG = ("test_python_tool", "test_view")
"""files of half a minute and more that the alphabet would put last"""

LACKS = {name: part.lack for name, part in machine.PARTS.items()}
MISSING = machine.in_one_line(LACKS)


def pytest_configure() -> None:
    # a shell has it ignored in what it starts in the background, and every command that a test starts inherits that
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if MISSING and os.environ.get("CI"):
        raise pytest.UsageError(f"CI is set, where the machine has all that tests need, and {MISSING}")


def pytest_report_header() -> str:
    return MISSING and f"some tests are skipped: {MISSING}"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="only the files of the edit loop: see tests/fast.py")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    skipped = config.getoption("--fast") and collection_path.suffix == ".py" and not fast.is_fast(collection_path)
    return True if skipped else None


def needed(item: pytest.Item) -> tuple[str, ...]:
    mark = item.get_closest_marker("needs")
    return mark.args if mark else ()


@pytest.fixture(autouse=True)
def _nothing_used_without_a_mark(request: pytest.FixtureRequest) -> Iterator[None]:
    """No sandbox, so that a test that lacks its mark is found where there is one, too."""
    with pytest.MonkeyPatch.context() as patch:  # which no test undoes
        if "bwrap" not in needed(request.node):
            patch.setattr(python_sandbox, "BUBBLEWRAP", 'bwrap for a test without pytest.mark.needs("bwrap")')
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for lack in (LACKS[part] for part in needed(item) if LACKS[part]):
            item.add_marker(pytest.mark.skip(reason=lack))
        if {"_live_backend", "live_backend"} & set(getattr(item, "fixturenames", ())) and item.path.stem not in ON_VERL:
            raise pytest.UsageError(f"{item.nodeid} is on real verl: name its file in ON_VERL of tests/conftest.py")
    # what takes longest is begun first, so that no process is left with it in the end
    order = {name: place for place, name in enumerate((*ON_VERL, "test_slurm", *LONG))}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = Path(nodeid.partition("::")[0]).stem
            return "on verl" if file in ON_VERL else file

    return ByFile(config, log)


@pytest.fixture(scope="session")
def toy_config() -> RunConfig:
    """With a KL, so that the one worker group of the test run has a reference policy (see `open_backend`)."""
    return compose_config("algorithm.kl=0.02")


@pytest.fixture(scope="session")
def _live_backend(toy_config: RunConfig) -> Iterator[Any]:
    from rtpo.verl_harness.session import close_backend, open_backend

    yield open_backend(toy_config)
    close_backend()


@pytest.fixture
def backend(_live_backend: Any, toy_config: RunConfig) -> Any:
    """The verl backend, put back to the warm start."""
    from rtpo.verl_harness.session import open_backend

    return open_backend(toy_config)


def harness_on(backend: Any, config: RunConfig, *, reserve: int = 10_000, seed: int = 0) -> AgentHarness:
    """A harness on a live backend, in a step of `reserve` rollouts."""
    ledger = Ledger(Budget(100_000))
    harness = open_harness(replace(config, seed=seed), backend, chat_format(config), ledger, AgentHarness)
    harness.begin_step(0, reserve)
    return harness


@pytest.fixture
def make_harness(backend: Any) -> Callable[..., AgentHarness]:
    """`harness_on` the verl backend. `overrides` are Hydra's."""

    def make(*overrides: str, reserve: int = 10_000, seed: int = 0) -> AgentHarness:
        return harness_on(backend, compose_config(*overrides), reserve=reserve, seed=seed)

    return make


@pytest.fixture
def plain_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    """`LocalBackend` in the place of verl's trainer."""
    from local_backend import LocalBackend

    monkeypatch.setattr("rtpo.verl_harness.session.open_backend", LocalBackend)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"
