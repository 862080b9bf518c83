"""Calls of the Python tool with small limits, and its processes."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from rtpo.tools.base import ToolResult
from rtpo.tools.python import sandbox as python_sandbox
from rtpo.tools.python.tool import PythonSettings, PythonTool, close_pools
from rtpo.types import ToolOutcome

OK, ERROR, TIMEOUT = ToolOutcome.OK, ToolOutcome.PROGRAM_ERROR, ToolOutcome.TIMEOUT
SETTINGS = PythonSettings(cpu_seconds=1, wall_seconds=60, memory_bytes=256 << 20, output_characters=200, workers=2)
SESSION = replace(SETTINGS, session=True)


@pytest.fixture(scope="module")
def no_pools_after() -> Iterator[None]:
    yield
    close_pools()


@pytest.fixture
def no_pools() -> Iterator[None]:
    """For tests of how interpreters start."""
    close_pools()
    yield
    close_pools()


@pytest.fixture
def quick_starts(no_pools: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Interpreters without sympy, which takes most of the time of a start."""
    whole = python_sandbox.PROGRAM.read_text()
    quick = whole.replace('("sympy", "numpy"', '("numpy"').replace("    warm_up()\n", "")
    assert len(quick) < len(whole) - 20
    (tmp_path / "python_program.py").write_text(quick)
    monkeypatch.setattr(python_sandbox, "PROGRAM", tmp_path / "python_program.py")


def run(program: str, *earlier: str, settings: PythonSettings = SETTINGS) -> ToolResult:
    return asyncio.run(PythonTool(settings).call({"code": program}, [{"code": code} for code in earlier]))


def results(programs: list[str], settings: PythonSettings = SETTINGS) -> list[ToolResult]:
    async def run_all() -> list[ToolResult]:
        tool = PythonTool(settings)
        return await asyncio.gather(*[tool.call({"code": program}, []) for program in programs])

    return asyncio.run(run_all())


def interpreters() -> list[psutil.Process]:
    """Bubblewrap's processes, and the keepers, zygotes and programs in its namespaces."""

    def is_ours(process: psutil.Process) -> bool:
        try:
            return any("python_child.py" in part for part in process.cmdline())
        except psutil.NoSuchProcess:
            return False

    return [child for child in psutil.Process().children(recursive=True) if is_ours(child)]


def eventually(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
