"""Calls of the Python tool with small limits, and its processes."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psutil
import pytest

from rtpo.tools.base import ToolResult
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


ORDINARY = {
    "import asyncio\nasync def f(): return await asyncio.to_thread(abs, -5)\nasyncio.run(f())": "5",
    """
import asyncio, socket
async def talk():
    (_, writer), (reader, _) = [await asyncio.open_connection(sock=end) for end in socket.socketpair()]
    writer.write(b"hello\\n")
    return await reader.readline()
asyncio.run(talk())""": "b'hello\\n'",
    "from multiprocessing import Pipe\na, b = Pipe()\na.send([1])\nb.recv()": "[1]",
    "import mmap\nm = mmap.mmap(-1, 4096)\nm[:2] = b'ab'\nm[:2]": "b'ab'",
    "import selectors, socket\na, b = socket.socketpair()\ns = selectors.DefaultSelector()\ns.register(a, 1)\n"
    "b.send(b'x')\nlen(s.select(1))": "1",
    "from concurrent.futures import ThreadPoolExecutor as E\nwith E(4) as e: print(*e.map(abs, [-1, 2]))": "1 2",
    "import sqlite3\nsqlite3.connect(':memory:').execute('select 1').fetchall()": "[(1,)]",
    "import shutil, sys\nsys.stdout.isatty(), shutil.get_terminal_size().columns": "(False, 80)",
    "import numpy\nnumpy.linalg.solve(numpy.eye(9), numpy.ones(9)).sum()": "9.0",
}
"""programs that need what the filter looks at, and what they print"""
