"""The edit loop: its tests start nothing, and the files that it names are there."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from fast import BESIDE, FOLDERS, SLOW, TESTS, nothing_started

NOTHING = [sys.executable, "-c", ""]


@pytest.mark.parametrize(
    "start", [lambda: subprocess.run(NOTHING), lambda: os.posix_spawnp(sys.executable, NOTHING, os.environ)]
)
def test_a_fast_test_can_start_nothing(start: Callable[[], object]) -> None:
    with nothing_started(), pytest.raises(AssertionError, match="a fast test starts"):
        start()
    start()
    with nothing_started():
        subprocess.run("true", shell=True, check=True)
    assert {*BESIDE, *SLOW} <= {file.stem for file in TESTS.rglob("test_*.py")}
    assert all(any((TESTS / folder).glob("test_*.py")) for folder in FOLDERS)
