"""The Python tool: one program, one fresh child process with limits."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

from rtpo.errors import InfrastructureError
from rtpo.tools.base import Arguments, ToolResult
from rtpo.types import ToolOutcome

CHILD = Path(__file__).with_name("python_child.py")
CHILDREN_AT_ONCE = max(2, os.cpu_count() or 1)
LEAST_MEMORY = 256 << 20
_BEGUN = b"\0"

_rooms: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


@dataclass(frozen=True)
class PythonSettings:
    """Of the Python tool; the limits are those of one call.

    cpu_seconds, wall_seconds: of processor time, and in all. memory_bytes: of address space of each process, the
    interpreter and its libraries included. processes: at once. output_characters: of what a call prints, given to the
    policy; what is over is cut out of the middle. workers: calls run at once; null: one a processor. isolation:
    `namespaces`, or `limits`, which accepts less where there are no namespaces (docs/python_tool.md). session: run a
    call after the episode's earlier ones, in one process; without, a call knows nothing of them.
    """

    cpu_seconds: int = 10
    wall_seconds: float = 20.0
    memory_bytes: int = 512 << 20
    processes: int = 1
    output_characters: int = 4000
    workers: int | None = None
    isolation: Literal["namespaces", "limits"] = "namespaces"
    session: bool = False

    def problems(self, path: str) -> list[str]:
        """One sentence for each value that cannot be; `path` is where these settings stand."""
        found = [
            f"{path}.{name} is {value:g}: use {least} or more."
            for name, value, least in [
                ("cpu_seconds", self.cpu_seconds, 1),
                ("memory_bytes", self.memory_bytes, LEAST_MEMORY),
                ("processes", self.processes, 1),
                ("output_characters", self.output_characters, 100),
                ("workers", 1 if self.workers is None else self.workers, 1),
            ]
            if value < least
        ]
        if self.wall_seconds <= 0:
            found.append(f"{path}.wall_seconds is {self.wall_seconds:g}: use a number above 0.")
        if self.isolation == "limits" and self.processes > 1:
            found.append(
                f"{path}.processes is {self.processes} and {path}.isolation limits: what a program leaves running can "
                "be ended for certain in namespaces alone; use 1, or isolation namespaces."
            )
        return found

    def check(self) -> dict[str, str]:
        """Facts of this machine's sandbox. Raises MachineError where it does not hold."""
        return {"isolation": "none"}


class PythonTool:
    """`rtpo.tools.base.Tool`: runs a Python program."""

    def __init__(self, settings: PythonSettings | None = None) -> None:
        self.settings = settings or PythonSettings()

    @property
    def schema(self) -> Mapping[str, Any]:
        settings = self.settings
        kept = "Names of earlier calls are kept." if settings.session else "Nothing is kept between calls."
        description = (
            f"Run a Python program and see what it prints, the value of its last expression included. {kept} "
            "sympy and numpy are installed. No network. "
            f"Limits: {settings.cpu_seconds} s of CPU time, {settings.wall_seconds:g} s in all, "
            f"{settings.memory_bytes >> 20} MiB of memory, {settings.output_characters} characters of output."
        )
        return {
            "type": "function",
            "function": {
                "name": "python",
                "description": description,
                "parameters": {
                    "type": "object",
                    "properties": {"code": {"type": "string", "description": "The program."}},
                    "required": ["code"],
                },
            },
        }

    async def call(self, arguments: Arguments, earlier: Sequence[Arguments]) -> ToolResult:
        """Run `arguments["code"]`; with `session` after the code of the earlier calls, what they print discarded.

        Raises InfrastructureError when it could not be run.
        """
        program = str(arguments["code"])
        if not program.strip():
            return ToolResult(ToolOutcome.REFUSED, "Error: the program is empty.")
        limits = PythonLimits(
            cpu_seconds=self.settings.cpu_seconds,
            wall_seconds=self.settings.wall_seconds,
            memory_bytes=self.settings.memory_bytes,
            output_bytes=self.settings.output_characters,
        )
        result = await run_python(program, limits)
        outcome = {
            PythonOutcome.OK: ToolOutcome.OK,
            PythonOutcome.ERROR: ToolOutcome.PROGRAM_ERROR,
            PythonOutcome.TIMEOUT: ToolOutcome.TIMEOUT,
        }[result.outcome]
        return ToolResult(outcome, result.output)


class PythonOutcome(StrEnum):
    """What became of a program."""

    OK = "ok"
    ERROR = "error"
    """it raised, exited with another status than 0, or was ended by a signal, its CPU limit's included"""
    TIMEOUT = "timeout"
    """it was ended at the wall-clock limit"""


@dataclass(frozen=True, slots=True)
class PythonResult:
    """outcome, and the text that the program printed (stderr included), cut at the limit."""

    outcome: PythonOutcome
    output: str


@dataclass(frozen=True, slots=True)
class PythonLimits:
    """Of one program: CPU seconds, wall-clock seconds (its interpreter's start included), bytes of address space,
    processes, bytes of output kept. Files cannot be written at all, beyond empty ones.

    processes: counts every process and thread that the user runs on the machine, this run's own among them, so where
    more than that are running a program can start none. Not applied to root.
    """

    cpu_seconds: int = 10
    wall_seconds: float = 20.0
    memory_bytes: int = 512 << 20
    processes: int = 1024
    output_bytes: int = 2000


async def run_python(program: str, limits: PythonLimits | None = None) -> PythonResult:
    """Run a program in an empty folder that is removed afterwards; the value of its last expression is printed.

    Nothing is kept between calls. String hashes are fixed, so a program that asks for no randomness, time or address
    prints the same each time. At most `CHILDREN_AT_ONCE` programs run at once in an event loop; waiting for a place
    counts against no limit.

    This is no sandbox. The program runs as the same user, so it can read every file that user can, use the network and
    signal that user's processes; a process that it starts in a session of its own outlives it.

    Raises InfrastructureError when the child could not be started, or did not get to the program.
    """
    limits = limits or PythonLimits()
    room = _rooms.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(CHILDREN_AT_ONCE))
    async with room:
        try:
            with tempfile.TemporaryDirectory(prefix="rtpo-python-", ignore_cleanup_errors=True) as folder:
                return await _run_child(program, limits, folder)
        except OSError as error:
            raise InfrastructureError(f"the Python tool could not start a process: {error}") from error


async def _run_child(program: str, limits: PythonLimits, folder: str) -> PythonResult:
    with tempfile.TemporaryFile() as source:
        # half of a surrogate pair, which JSON can spell, becomes a question mark
        source.write(program.encode("utf-8", "replace"))
        source.seek(0)
        process = subprocess.Popen(
            # with this environment the isolation of -I, but with string hashes fixed; numerical libraries would take
            # memory for each of their threads
            [sys.executable, "-s", "-P", "-B", "-u", str(CHILD), json.dumps(asdict(limits))],
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
    assert process.stdout is not None
    with process.stdout as stdout:
        output = _Output(stdout.fileno(), most=len(_BEGUN) + limits.output_bytes + 1)
        try:
            timed_out = not await _ends(process.pid, output, limits.wall_seconds)
        finally:
            # before the process is waited for, while its number is still its own
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.read()
    if not output.kept.startswith(_BEGUN):
        how = "did not begin in time" if timed_out else f"ended with status {process.returncode}"
        raise InfrastructureError(f"the Python tool's process {how} before its program: {_text(output.kept)[-500:]}")
    return _result(output.kept[len(_BEGUN) :], limits, None if timed_out else process.returncode)


class _Output:
    """The first `most` bytes of a pipe; what comes after is let go, so that the writer is not held up."""

    def __init__(self, pipe: int, most: int) -> None:
        self.kept = b""
        self.pipe = pipe
        self._most = most
        os.set_blocking(pipe, False)

    def read(self) -> bool:
        """What is there now, a pipe's capacity at most; returns whether the pipe is still open."""
        with suppress(BlockingIOError):
            part = os.read(self.pipe, 1 << 16)
            self.kept += part[: self._most - len(self.kept)]
            return bool(part)
        return True


async def _ends(pid: int, output: _Output, seconds: float) -> bool:
    """Read until the process ends, whether or not processes it started hold the pipe; False when it does not in
    time."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    handle = os.pidfd_open(pid)
    loop.add_reader(handle, ended.set)
    loop.add_reader(output.pipe, lambda: output.read() or loop.remove_reader(output.pipe))
    try:
        async with asyncio.timeout(seconds):
            await ended.wait()
        return True
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(handle)
        loop.remove_reader(output.pipe)
        os.close(handle)


def _result(output: bytes, limits: PythonLimits, status: int | None) -> PythonResult:
    """`status` None: ended at the wall-clock limit."""
    text = _text(output[: limits.output_bytes])
    if len(output) > limits.output_bytes:
        text += " ... (cut)"
    if status == 0:
        return PythonResult(PythonOutcome.OK, text)
    if status is None:
        why = f"TimeoutError: stopped after {limits.wall_seconds:g} s"
        return PythonResult(PythonOutcome.TIMEOUT, f"{text}\n{why}".lstrip("\n"))
    if status < 0:
        is_cpu = -status == signal.SIGXCPU
        why = f"{limits.cpu_seconds} s of CPU time used up" if is_cpu else f"ended by signal {-status}"
        text = f"{text}\n{why}".lstrip("\n")
    return PythonResult(PythonOutcome.ERROR, text)


def _text(output: bytes) -> str:
    return output.decode("utf-8", "replace").strip("\n")
