"""The Python tool: runs the policy's programs in a sandbox (docs/run/tools.md)."""

import asyncio
import atexit
import json
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from annotated_types import Ge, Gt, Lt

from rtpo.core.bounds import Count
from rtpo.core.json_text import encodable
from rtpo.errors import InfrastructureError, MachineError
from rtpo.tools.base import Arguments, ToolResult, text_tool
from rtpo.tools.python.pool import Pool
from rtpo.tools.python.python_child import REPLAY_FACTOR, Reply, Settings
from rtpo.tools.python.sandbox import ENVIRONMENT, LESS, bubblewrap_version, inside, interpreter_folders, site_folders
from rtpo.types import ToolOutcome

LONGEST_PROGRAM: Final = 100_000
"""in characters"""
PROBE: Final = Path(__file__).with_name("python_probe.py")
IMPORTED: Final = ("sympy", "numpy")
VERSIONS: Final = f"import {', '.join(IMPORTED)}\nprint({', '.join(f'{name}.__version__' for name in IMPORTED)})"
GAPS_ALWAYS: Final = "timing, and the load that concurrent calls put on the machine"
GAPS_WITH_PROCESSES: Final = "messages between concurrent calls, by locks on pages of shared files"
GAPS_UNDER_LIMITS: Final = (
    "all files that the programs' user may read, and, through /proc, the variables and memory of that user's other "
    "processes"
)
REMEDY: Final = (
    "Namespaces may be forbidden here. As an ordinary user: set sysctl user.max_user_namespaces above 0 and, if they "
    "exist, kernel.unprivileged_userns_clone to 1 and kernel.apparmor_restrict_unprivileged_userns to 0. As root in a "
    f"container: give it CAP_SYS_ADMIN and a seccomp profile that allows unshare and mount. Do so, {LESS}."
)


@dataclass(frozen=True)
class PythonSettings:
    """Settings of the Python tool. The limits are for one call."""

    cpu_seconds: Count = 10  # of each process
    wall_seconds: Annotated[float, Gt(0), Lt(1e6)] = 20.0  # of the whole call
    memory_bytes: Annotated[int, Ge(256 << 20)] = 512 << 20  # address space of a process, libraries included
    processes: Count = 1  # processes and threads at once, if more than 1; 1 means one process, with a few threads
    output_characters: Annotated[int, Ge(100)] = 4000  # longer output is cut in its middle
    workers: Count | None = None  # calls at once; null: one per available CPU
    isolation: Literal["namespaces", "limits"] = "namespaces"  # `limits` is weaker (docs/run/tools.md)
    session: bool = False  # a call continues from the episode's earlier calls, replayed in its process

    def problems(self, path: str) -> list[str]:
        """A sentence if the values contradict each other. path: of these settings."""
        if self.isolation == "namespaces" or self.processes == 1:
            return []
        return [
            f"{path}.processes is {self.processes} and {path}.isolation limits: only namespaces can surely end all "
            "processes of a program; use 1, or isolation namespaces."
        ]

    @property
    def gaps(self) -> list[str]:
        """Known gaps of the isolation."""
        under_limits = [GAPS_UNDER_LIMITS] if self.isolation == "limits" else []
        return [GAPS_ALWAYS, *([GAPS_WITH_PROCESSES] if self.processes > 1 else []), *under_limits]

    def check(self) -> dict[str, str]:
        """Run a program that tries to escape, and one that takes too much memory; returns facts for the manifest. Do
        not call it in an event loop.

        user: `reserved` if programs run as a separate user, `own` if they run as this process's user. Raises
        MachineError if a program does not run, or does what the sandbox must prevent.
        """
        is_isolated = self.isolation == "namespaces"
        facts = {
            "isolation": self.isolation,
            "user": "own" if os.getuid() else "reserved",
            "kernel": platform.release(),
            "open": "; ".join(self.gaps),
        }
        if is_isolated:
            facts["bubblewrap"] = bubblewrap_version()
        else:
            print(f"the Python tool has task.settings.python.isolation=limits. Programs can use: {facts['open']}")
        folders = ["/", "/dev", "/usr/lib", sys.base_prefix, *site_folders()] if is_isolated else ["/tmp", "/dev/shm"]
        hidden, visible = ("/proc", "/sys", "/etc/passwd", "/var", "/home"), interpreter_folders().values()
        secrets = [
            path for path in hidden if is_isolated and not any(Path(place).is_relative_to(path) for place in visible)
        ]
        limits = {"cpu_seconds": self.cpu_seconds, "most_processes": self.processes - 1}
        arguments = ", ".join(map(repr, (secrets, folders, [*ENVIRONMENT, "PYTHONPATH", "LC_CTYPE", "PWD"], limits)))
        probe_code = f"{PROBE.read_text()}\nimport json\njson.dumps(findings({arguments}))"
        programs = (probe_code, VERSIONS, f"len(bytearray({self.memory_bytes}))")
        try:
            probe, versions, hog = (_result(asyncio.run(_pool(self).run([code])), self) for code in programs)
        except InfrastructureError as error:
            raise MachineError(f"{error}. {REMEDY if is_isolated else ''}".strip()) from error
        if probe.outcome is not ToolOutcome.OK:
            raise MachineError(
                f"the Python tool's test program failed in the sandbox: {probe.output} Programs run as a user without "
                f"privileges, who must be able to read {sys.base_prefix} and its packages. Their limit, "
                f"task.settings.python.memory_bytes={self.memory_bytes}, includes the interpreter and its libraries."
            )
        if versions.output != (installed := " ".join(version(name) for name in IMPORTED)):
            raise MachineError(
                f"programs of the Python tool import {' and '.join(IMPORTED)} as {versions.output}, this process as "
                f"{installed}: install them in {', '.join(site_folders())}, and not in a folder of PYTHONPATH."
            )
        breaches = json.loads(probe.output)
        if hog.outcome is not ToolOutcome.MEMORY:
            breaches.append(f"it takes {self.memory_bytes!s} bytes of memory")
        if breaches:
            raise MachineError(f"the Python tool's sandbox leaks on this machine: {', '.join(breaches)}.")
        return facts


class PythonTool:
    """A `rtpo.tools.base.Tool` that runs Python programs. Tools with the same settings share their interpreters."""

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
            f"{settings.memory_bytes >> 20} MiB of memory, {settings.output_characters!s} characters of output."
        )
        return text_tool("python", description, "code", "The program.")

    async def call(self, arguments: Arguments, earlier: Sequence[Arguments]) -> ToolResult:
        """Run `arguments["code"]`. With `session`, first replay the code of the earlier calls and discard their output.

        An earlier call that now ends its process, by a signal or `os._exit`, is left out. If it reaches a time limit,
        this call times out. Raises InfrastructureError if the program could not be run, MachineError if none can be.
        """
        program, settings = _program(arguments), self.settings
        if not program.strip():
            return ToolResult(ToolOutcome.REFUSED, "Error: the program is empty.", is_forgotten=True)
        if len(program) > LONGEST_PROGRAM:
            sizes = f"{len(program)!s} characters, over {LONGEST_PROGRAM}"
            return ToolResult(ToolOutcome.REFUSED, f"Error: the program has {sizes}.", is_forgotten=True)
        replayed = [*map(_program, earlier)] if settings.session else []
        replay_seconds, begin = REPLAY_FACTOR * settings.wall_seconds, time.monotonic()
        while True:
            reply = await _pool(settings).run([*replayed, program])
            result = _result(reply, settings)
            if reply.begun > len(replayed):
                return replace(result, is_forgotten=settings.session and not reply.is_done)
            if result.outcome is ToolOutcome.TIMEOUT or time.monotonic() - begin > replay_seconds:
                message = f"TimeoutError: the earlier calls took more than {replay_seconds:g} s to run again"
                return ToolResult(ToolOutcome.TIMEOUT, message, is_forgotten=True)
            del replayed[reply.begun - 1]


def _program(arguments: Arguments) -> str:
    return encodable(str(arguments["code"]))


def _result(reply: Reply, settings: PythonSettings) -> ToolResult:
    outcome, why = _outcome(reply, settings)
    return ToolResult(outcome, "\n".join(part for part in (reply.output, why) if part))


def _outcome(reply: Reply, settings: PythonSettings) -> tuple[ToolOutcome, str]:
    """The outcome, and a sentence to add to the output."""
    if reply.is_interpreter_ended:
        return ToolOutcome.INTERPRETER_ENDED, "the program ended the interpreter"
    if reply.is_timed_out:
        return ToolOutcome.TIMEOUT, f"TimeoutError: stopped after {settings.wall_seconds:g} s"
    code = os.waitstatus_to_exitcode(reply.status)
    # a program that ignores SIGXCPU gets SIGKILL
    if -code == signal.SIGXCPU or (-code == signal.SIGKILL and reply.cpu_seconds >= settings.cpu_seconds):
        return ToolOutcome.TIMEOUT, f"TimeoutError: {settings.cpu_seconds} s of CPU time used up"
    if reply.is_out_of_memory:
        return ToolOutcome.MEMORY, ""
    if code < 0:
        return ToolOutcome.PROGRAM_ERROR, f"ended by signal {-code}"
    if code:
        return ToolOutcome.PROGRAM_ERROR, "" if reply.is_done else f"ended with status {code}"
    return ToolOutcome.OK, ""


_pools: dict[PythonSettings, Pool] = {}
_pools_lock = threading.Lock()


def _pool(settings: PythonSettings) -> Pool:
    """This process's pool for these settings."""
    with _pools_lock:
        if settings not in _pools:
            is_isolated = settings.isolation == "namespaces"
            child_settings = Settings(
                cpu_seconds=settings.cpu_seconds,
                wall_seconds=settings.wall_seconds,
                memory_bytes=settings.memory_bytes,
                processes=settings.processes,
                output_characters=settings.output_characters,
                namespaces=is_isolated,
                user=None,
                site=[inside(path) if is_isolated else path for path in site_folders()],
            )
            _pools[settings] = Pool(child_settings, settings.workers or len(os.sched_getaffinity(0)))
        return _pools[settings]


def close_pools() -> None:
    """End this process's interpreters and their programs. A later call starts new ones."""
    with _pools_lock:
        pools = list(_pools.values())
        _pools.clear()
    for pool in pools:
        pool.close()


def _forget_pools() -> None:
    global _pools_lock
    _pools_lock = threading.Lock()
    for pool in _pools.values():
        pool.forget()
    _pools.clear()


atexit.register(close_pools)
os.register_at_fork(after_in_child=_forget_pools)
