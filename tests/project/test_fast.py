"""The edit loop: which files it runs, and that its tests start nothing."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from fast import TESTS, is_fast, nothing_started


def test_the_core_and_the_methods_are_in_it_and_what_starts_things_is_not() -> None:
    files = {file.stem.removeprefix("test_") for file in TESTS.rglob("test_*.py") if is_fast(file)}
    core = {"budget", "chat", "contexts", "credit", "harness", "losses", "packing", "records", "rows", "saves"}
    assert files >= core | {"arpo", "baselines", "grpo", "refuel", "rtpo", "seeupo", "tree_grpo"}
    assert not files & {"evaluation", "fast", "machine", "figures", "python_tool", "run", "slurm", "view"}


@pytest.mark.parametrize(
    "start", [lambda: subprocess.run([sys.executable, "-c", ""]), lambda: os.posix_spawnp("true", ["true"], os.environ)]
)
def test_a_fast_test_can_start_nothing(start: Callable[[], object]) -> None:
    with nothing_started(), pytest.raises(AssertionError, match="a fast test starts"):
        start()
    start()
    with nothing_started():
        subprocess.run("true", shell=True, check=True)
