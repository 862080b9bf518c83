"""Programs that try to get out of the Python tool's sandbox, to break it, or to leave something behind, and ordinary
programs that must not be refused.

They stand in tests/fixtures/hostile, a file a theme. `python hostile_programs.py ISOLATION PART` runs those of an
isolation, and prints as JSON what went wrong, what of an earlier call is in the memory that a later one can read, and
what the tool's own check says. PART is `outcomes`, of all programs, or `time`, of all programs with any limits.
"""

import asyncio
import base64
import hashlib
import json
import os
import platform
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import yaml
from denied_calls import DENIED

from rtpo.tools.base import ToolResult
from rtpo.tools.python import python_seccomp
from rtpo.tools.python import tool as python
from rtpo.tools.python.tool import PythonSettings, PythonTool, close_pools
from rtpo.types import ToolOutcome

PROGRAMS = Path(__file__).parents[1] / "fixtures" / "hostile"
ONE = PythonSettings(cpu_seconds=1, wall_seconds=60, memory_bytes=256 << 20, output_characters=1000, workers=1)
SPARE = 2
"""seconds after its limit in which a call is over"""
PLAIN = """
import builtins, gc, math, os, random, sympy, sys, threading
print(sympy.sqrt(8), round(math.pi, 3), len(os.listdir()), threading.active_count(), min(os.getpid(), 9))
print(random.random(), hash("a"), hasattr(builtins, "left"), "left" in globals(), "left" in sys.modules, sys.argv)
def is_open(number):
    try: return bool(os.fstat(number))
    except OSError: return False
[number for number in range(256) if is_open(number)]
"""
"""what it prints, in a healthy pool that keeps nothing, is always the same"""
TRY = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, action, fails=(OSError, ValueError)):
    try:
        print("ESCAPED", name, action())
    except fails:
        pass
def call(name, *args):
    if getattr(libc, name)(*args) == -1:
        raise OSError(ctypes.get_errno(), name)
    return "done"
def by_number(name, *args):
    return call("syscall", ctypes.c_long(NUMBERS[name]), *args)
"""
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


@dataclass(frozen=True)
class Hostile:
    """A program, what may become of it, and what must be in its output. It prints ESCAPED where it did what it must
    not."""

    program: str
    outcomes: tuple[ToolOutcome, ...]
    says: str
    settings: PythonSettings


def read(*names: str, isolation: str = "namespaces") -> dict[str, Hostile]:
    """The programs of files, by name: a `program`, with what it says, its outcomes and its limits; or what it `tries`,
    each part of which may be refused."""
    hostiles = {}
    for name in names:
        for title, entry in yaml.safe_load((PROGRAMS / f"{name}.yaml").read_text(encoding="utf-8")).items():
            own = {key: entry[key] for key in ("processes", "wall_seconds", "cpu_seconds") if key in entry}
            program, says = entry.get("program", ""), entry.get("says", "")
            if "tries" in entry:
                program, says = f"{TRY}\n{entry['tries']}\nprint('tried')\n", "tried"
            outcomes = tuple(map(ToolOutcome, entry.get("outcomes", ["ok"])))
            settings = replace(ONE, isolation=isolation, **own)
            hostiles[title] = Hostile(program, outcomes, says, settings)
    return hostiles


HOSTILE = read("limits", "escapes", "leftovers", "denied")
ALONE = HOSTILE["every denied system call"]
HOSTILE["every denied system call where processes are allowed"] = replace(ALONE, settings=replace(ONE, processes=4))
ORDINARY = read("ordinary", "ordinary_in_namespaces")
UNDER_LIMITS = read("messages", "denied", "ordinary", isolation="limits")


def denied(settings: PythonSettings) -> dict[str, int]:
    """The system calls that a program of these settings may not make, with their numbers on this machine."""
    _, column = python_seccomp.MACHINES[platform.machine()]
    tables = [DENIED]
    if settings.processes == 1:
        tables += [python_seccomp.FORKS, python_seccomp.SIGNALS]
    if settings.isolation == "limits":
        tables.append(python_seccomp.CHANGES)
    numbers = {name: columns[column] for table in tables for name, columns in table.items()}
    return {name: number for name, number in numbers.items() if number is not None}


class World:
    """What hostile programs are after: services, files, variables, descriptors and processes of the host."""

    def __enter__(self) -> "World":
        self.secret = secrets.token_hex(16)
        with ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            self.folder.chmod(0o777)
            (self.folder / "secret").write_text(self.secret)
            os.environ["RTPO_SECRET"] = self.secret
            for _ in range(300):
                os.set_inheritable(stack.enter_context((self.folder / "secret").open()).fileno(), True)
            self.listeners = [socket.create_server(("127.0.0.1", 0)), socket.socket(type=socket.SOCK_DGRAM)]
            port = self.listeners[0].getsockname()[1]
            self.listeners[1].bind(("127.0.0.1", port))
            abstract = f"rtpo-{self.secret[:8]}"
            for address in (f"{self.folder}/socket", f"\0{abstract}"):
                unix = socket.socket(socket.AF_UNIX)
                unix.bind(address)
                unix.listen()
                self.listeners.append(unix)
            (self.folder / "socket").chmod(0o777)
            for listener in self.listeners:
                stack.enter_context(listener).setblocking(False)
            _, column = python_seccomp.MACHINES[platform.machine()]
            self._names = {
                "PORT": port,
                "UNIX": f"{self.folder}/socket",
                "ABSTRACT": abstract,
                "SECRET": f"{self.folder}/secret",
                "FOLDER": str(self.folder),
                "PROJECT": str(Path(python.__file__).parents[2]),
                "HOME": os.path.expanduser("~"),
                "HARNESS": os.getpid(),
                "DEVICES": DEVICES,
                "CLONE": python_seccomp.CLONE[column],
                "FUTEX": python_seccomp.FUTEX[column],
            }
            self._state = self.state()
            self._plain: dict[PythonSettings, ToolResult] = {}
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, program: str, settings: PythonSettings) -> ToolResult:
        return asyncio.run(PythonTool(settings).call({"code": program}, []))

    def escapes(self, hostile: Hostile) -> list[str]:
        """Run it, and a plain program after it: what is not as it should be."""
        if hostile.settings not in self._plain:
            self._plain[hostile.settings] = self.run(PLAIN, hostile.settings)
        plain, processes = self._plain[hostile.settings], self._processes()
        begin = time.monotonic()
        result = self.run(self.text(hostile), hostile.settings)
        clauses = self.late(time.monotonic() - begin, hostile.settings)
        if result.outcome not in hostile.outcomes:
            clauses.append(f"outcome {result.outcome.value}")
        if hostile.says not in result.output:
            clauses.append(f"does not say {hostile.says!r}")
        if "ESCAPED" in result.output or self.secret in result.output:
            clauses.append("escaped")
        if len(result.output) > ONE.output_characters + 200:
            clauses.append(f"{len(result.output)} characters of output")
        clauses = [f"{clause}: {result.output}" for clause in clauses]
        if (after := self.run(PLAIN, hostile.settings)) != plain:
            clauses.append(f"the next call gives {after}, not {plain}")
        if (state := self.state()) != self._state:
            clauses.append(f"made of the host's files {state}")
        for listener in self.listeners:
            try:
                heard = listener.recv(1) if listener.type == socket.SOCK_DGRAM else listener.accept()
            except BlockingIOError:
                continue
            clauses.append(f"reached a service of the host: {heard}")
        if (now := self._processes()) != processes:
            clauses.append(f"processes {processes} are now {now}")
        return clauses

    def text(self, hostile: Hostile) -> str:
        names = self._names | {"NUMBERS": denied(hostile.settings)}
        return f"{'; '.join(f'{name} = {value!r}' for name, value in names.items())}\n{hostile.program}"

    def late(self, seconds: float, settings: PythonSettings) -> list[str]:
        return [f"took {seconds:.1f} s"] if seconds > settings.wall_seconds + SPARE else []

    async def lasting(self, hostiles: Mapping[str, Hostile], settings: PythonSettings) -> dict[str, Any]:
        """Those that do not end in time with these settings; and what they change."""
        lasting: dict[str, Any] = {}
        place = asyncio.Semaphore(2)
        tool = PythonTool(replace(settings, workers=2))

        async def run(name: str, hostile: Hostile) -> None:
            async with place:
                begin = time.monotonic()
                await tool.call({"code": self.text(hostile)}, [])
                if late := self.late(time.monotonic() - begin, settings):
                    lasting[name] = late

        waiting = {"code": "import time\ntime.sleep(0.5)"}  # until both interpreters have started
        await asyncio.gather(*[tool.call(waiting, []) for _ in range(2)])
        await asyncio.gather(*[run(name, hostile) for name, hostile in hostiles.items()])
        if (state := self.state()) != self._state:
            lasting["files of the host"] = state
        return lasting

    def state(self) -> list[tuple[object, ...]]:
        """Any change of a file or folder changes its ctime too."""
        paths = [self.folder, *sorted(self.folder.iterdir()), *map(Path, DEVICES)]
        states = [path.stat() for path in paths]
        return [(path.name, state.st_ctime_ns, state.st_blocks) for path, state in zip(paths, states, strict=True)]

    def _processes(self) -> list[tuple[int, str]]:
        """This process's own: bubblewrap, a keeper and a zygote for each pool."""
        return sorted((process.pid, process.name()) for process in psutil.Process().children(recursive=True))


PIECE = 16
SCAN = yaml.safe_load((PROGRAMS / "memory.yaml").read_text())["scan"]


def planted(text: str) -> list[tuple[str, str]]:
    """Of 64 bytes: each piece's first six, and its digest. The program that looks for them has none itself."""
    pieces = [text[place : place + PIECE].encode() for place in range(0, len(text), PIECE)]
    return [(piece[:6].hex(), hashlib.sha256(piece).hexdigest()) for piece in pieces]


def memory(world: World, settings: PythonSettings) -> list[list[int]]:
    """Pieces found, pages scanned and pages mapped: of an earlier program and its output, and of a program's own text,
    which is there to be found."""

    def run(program: str) -> str:
        result = world.run(program, settings)
        assert result.outcome is ToolOutcome.OK, result
        return result.output

    def scanned(wanted: list[tuple[str, str]], kept: str = "") -> list[int]:
        return [int(word) for word in run(f"PIECE, WANTED = {PIECE}, {wanted}\nkept = {kept!r}\n{SCAN}").split()]

    code, output, own = (base64.b64encode(secrets.token_bytes(48)).decode() for _ in range(3))
    hidden = [ord(letter) ^ 1 for letter in output]
    assert run(f"# {code}\nprint(''.join(chr(letter ^ 1) for letter in {hidden}))") == output
    return [scanned(planted(code) + planted(output)), scanned(planted(own), own)]


def main(isolation: str, part: str) -> None:
    settings = replace(ONE, isolation=isolation)
    facts = settings.check()
    programs = UNDER_LIMITS if isolation == "limits" else HOSTILE | ORDINARY
    with World() as world:
        later, control = memory(world, replace(settings, cpu_seconds=10, memory_bytes=512 << 20))
        late = {}
        if part == "time":
            quick = replace(settings, processes=1 if isolation == "limits" else 4, wall_seconds=1)
            late = asyncio.run(world.lasting(HOSTILE | UNDER_LIMITS, quick))
            close_pools()
            programs = {name: each for name, each in programs.items() if ToolOutcome.TIMEOUT not in each.outcomes}
        escaped = {name: clauses for name, each in programs.items() if (clauses := world.escapes(each))}
    close_pools()
    record = {"user": os.getuid(), "facts": facts, "programs": len(programs), "escaped": escaped, "late": late}
    print(json.dumps(record | {"later": later, "control": control}))


if __name__ == "__main__":
    main(*sys.argv[1:])
