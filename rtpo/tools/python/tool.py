"""The Python tool: model-written programs, run in a sandbox (docs/run/tools.md)."""

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
"""characters"""
PROBE: Final = Path(__file__).with_name("python_probe.py")
IMPORTED: Final = ("sympy", "numpy")
VERSIONS: Final = f"import {', '.join(IMPORTED)}\nprint({', '.join(f'{name}.__version__' for name in IMPORTED)})"
OPEN: Final = "timing, and what calls that run at once see of the machine's load"
OPEN_TO_PROCESSES: Final = "messages between calls that run at once, by locks on pages of files that all see"
OPEN_UNDER_LIMITS: Final = (
    "reading files that the programs' user may read, and through /proc the variables and the memory of that user's "
    "other processes"
)
REMEDY: Final = (
    "Namespaces may be forbidden here. As an ordinary user: sysctl user.max_user_namespaces must be above 0, "
    "kernel.unprivileged_userns_clone, where there is one, 1, and kernel.apparmor_restrict_unprivileged_userns, where "
    "there is one, 0. As root in a container: give it CAP_SYS_ADMIN and a seccomp profile that allows unshare and "
    f"mount. Do so, {LESS}."
)


@dataclass(frozen=True)
class PythonSettings:
    """Of the Python tool; the limits are those of one call.

    cpu_seconds, wall_seconds: of processor time of a process, and in all. memory_bytes: of address space of a process,
    the interpreter and its libraries included. processes: at once, threads counted; 1: one process, and a few threads.
    output_characters: of what a call prints, given to the policy; what is over is cut out before the end. workers:
    calls run at once; null: one a processor that this process may use. isolation: `namespaces`, or `limits`, which
    accepts less where there are no namespaces (docs/run/tools.md). session: a call is run after the episode's
    earlier ones, in one process; without, it knows nothing of them.
    """

    cpu_seconds: Count = 10
    wall_seconds: Annotated[float, Gt(0), Lt(1e6)] = 20.0
    memory_bytes: Annotated[int, Ge(256 << 20)] = 512 << 20
    processes: Count = 1
    output_characters: Annotated[int, Ge(100)] = 4000
    workers: Count | None = None
    isolation: Literal["namespaces", "limits"] = "namespaces"
    session: bool = False

    def problems(self, path: str) -> list[str]:
        """A sentence where these values do not go together; `path` is where they stand."""
        if self.isolation == "namespaces" or self.processes == 1:
            return []
        return [
            f"{path}.processes is {self.processes} and {path}.isolation limits: what a program leaves running can be "
            "ended for certain in namespaces alone; use 1, or isolation namespaces."
        ]

    @property
    def gaps(self) -> list[str]:
        """What is known to be open to programs."""
        under_limits = [OPEN_UNDER_LIMITS] if self.isolation == "limits" else []
        return [OPEN, *([OPEN_TO_PROCESSES] if self.processes > 1 else []), *under_limits]

    def check(self) -> dict[str, str]:
        """Run a program that tries to get out, and one that takes too much memory; facts of this machine's sandbox. Not
        for use within an event loop.

        user: `reserved` where programs run as a user of their own number, `own` where they run as this process's.
        Raises MachineError where no program can be run, or one can do what it should not.
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
            print(f"the Python tool has task.settings.python.isolation=limits. Open to programs: {facts['open']}")
        folders = ["/", "/dev", "/usr/lib", sys.base_prefix, *site_folders()] if is_isolated else ["/tmp", "/dev/shm"]
        hidden, seen = ("/proc", "/sys", "/etc/passwd", "/var", "/home"), interpreter_folders().values()
        secrets = [
            path for path in hidden if is_isolated and not any(Path(place).is_relative_to(path) for place in seen)
        ]
        limits = {"cpu_seconds": self.cpu_seconds, "most_processes": self.processes - 1}
        words = ", ".join(map(repr, (secrets, folders, [*ENVIRONMENT, "PYTHONPATH", "LC_CTYPE", "PWD"], limits)))
        look = f"{PROBE.read_text()}\nimport json\njson.dumps(findings({words}))"
        programs = (look, VERSIONS, f"len(bytearray({self.memory_bytes}))")
        try:
            probe, versions, hog = (_result(asyncio.run(_pool(self).run([code])), self) for code in programs)
        except InfrastructureError as error:
            raise MachineError(f"{error}. {REMEDY if is_isolated else ''}".strip()) from error
        if probe.outcome is not ToolOutcome.OK:
            raise MachineError(
                f"a program that the Python tool ran to try its sandbox ended with: {probe.output} Programs run as a "
                f"user without privileges, who must be able to read {sys.base_prefix} and its packages, and have "
                f"task.settings.python.memory_bytes, {self.memory_bytes}, interpreter and libraries included."
            )
        if versions.output != (installed := " ".join(version(name) for name in IMPORTED)):
            raise MachineError(
                f"programs of the Python tool import {' and '.join(IMPORTED)} as {versions.output}, this process as "
                f"{installed}: install them in {', '.join(site_folders())}, and name no others in PYTHONPATH."
            )
        breaches = json.loads(probe.output)
        if hog.outcome is not ToolOutcome.MEMORY:
            breaches.append(f"it takes {self.memory_bytes} bytes of memory")
        if breaches:
            raise MachineError(f"the Python tool's sandbox does not hold a program here: {', '.join(breaches)}.")
        return facts


class PythonTool:
    """`rtpo.tools.base.Tool`: runs a Python program. Tools of the same settings share this process's interpreters."""

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
        return text_tool("python", description, "code", "The program.")

    async def call(self, arguments: Arguments, earlier: Sequence[Arguments]) -> ToolResult:
        """Run `arguments["code"]`; with `session` after the code of the earlier calls, what they print discarded.

        An earlier call that ends its process (by a limit, a signal, `os._exit`) where it did not before is left out.
        Raises InfrastructureError when the program could not be run, MachineError where none can.
        """
        program, settings = _program(arguments), self.settings
        if not program.strip():
            return ToolResult(ToolOutcome.REFUSED, "Error: the program is empty.", is_over=True)
        if len(program) > LONGEST_PROGRAM:
            sizes = f"{len(program)} characters, over {LONGEST_PROGRAM}"
            return ToolResult(ToolOutcome.REFUSED, f"Error: the program has {sizes}.", is_over=True)
        replayed = [*map(_program, earlier)] if settings.session else []
        replay_seconds, begin = REPLAY_FACTOR * settings.wall_seconds, time.monotonic()
        while True:
            reply = await _pool(settings).run([*replayed, program])
            result = _result(reply, settings)
            if reply.begun > len(replayed):
                return replace(result, is_over=settings.session and not reply.is_done)
            if result.outcome is ToolOutcome.TIMEOUT or time.monotonic() - begin > replay_seconds:
                slow = f"TimeoutError: the earlier calls took more than {replay_seconds:g} s to run again"
                return ToolResult(ToolOutcome.TIMEOUT, slow, is_over=True)
            del replayed[reply.begun - 1]


def _program(arguments: Arguments) -> str:
    return encodable(str(arguments["code"]))


def _result(reply: Reply, settings: PythonSettings) -> ToolResult:
    outcome, why = _outcome(reply, settings)
    return ToolResult(outcome, "\n".join(part for part in (reply.output, why) if part))


def _outcome(reply: Reply, settings: PythonSettings) -> tuple[ToolOutcome, str]:
    """With what is said beside the output."""
    if reply.is_interpreter_ended:
        return ToolOutcome.INTERPRETER_ENDED, "the program ended the interpreter"
    if reply.is_timed_out:
        return ToolOutcome.TIMEOUT, f"TimeoutError: stopped after {settings.wall_seconds:g} s"
    code = os.waitstatus_to_exitcode(reply.status)
    # SIGKILL comes where a program ignores SIGXCPU
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
    """This process's pool of these settings; what differs for programs alone makes another."""
    with _pools_lock:
        if settings not in _pools:
            is_isolated = settings.isolation == "namespaces"
            inner = Settings(
                cpu_seconds=settings.cpu_seconds,
                wall_seconds=settings.wall_seconds,
                memory_bytes=settings.memory_bytes,
                processes=settings.processes,
                output_characters=settings.output_characters,
                namespaces=is_isolated,
                user=None,
                site=[inside(path) if is_isolated else path for path in site_folders()],
            )
            _pools[settings] = Pool(inner, settings.workers or len(os.sched_getaffinity(0)))
        return _pools[settings]


def close_pools() -> None:
    """End this process's interpreters, and the programs that run; another call starts new ones."""
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
