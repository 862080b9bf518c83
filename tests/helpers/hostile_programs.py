"""Programs that try to get out of the Python tool's sandbox, to break it, or to leave something behind.

They stand in tests/fixtures/hostile, a file a theme. test_hostile_programs.py runs each in a test of its own, and all
of them as an ordinary user (hostile_run.py).
"""

import asyncio
import os
import platform
import secrets
import socket
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import psutil
import yaml

from rtpo.tools.base import ToolResult
from rtpo.tools.python import python_seccomp
from rtpo.tools.python import tool as python
from rtpo.tools.python.tool import PythonSettings, PythonTool
from rtpo.types import ToolOutcome

PROGRAMS = Path(__file__).parents[1] / "fixtures" / "hostile"
ONE = PythonSettings(cpu_seconds=1, wall_seconds=60, memory_bytes=256 << 20, output_characters=1000, workers=1)
MANY = replace(ONE, processes=4)
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


@dataclass(frozen=True)
class Hostile:
    """A program, what may become of it, and what must be in its output. It prints ESCAPED where it did what it must
    not."""

    program: str
    outcomes: tuple[ToolOutcome, ...] = (ToolOutcome.OK,)
    says: str = ""
    settings: PythonSettings = ONE


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
    if name not in NUMBERS:
        raise OSError(name)
    return call("syscall", ctypes.c_long(NUMBERS[name]), *args)
"""


def tries(program: str, settings: PythonSettings = ONE) -> Hostile:
    """A program that goes on where it is refused."""
    return Hostile(f"{TRY}\n{program}\nprint('tried')\n", says="tried", settings=settings)


def read(name: str, **limits: Any) -> dict[str, Hostile]:
    """The programs of a file, by name: a `program`, with what it says, its outcomes and its limits; or what it `tries`,
    each part of which may be refused."""
    found = {}
    for title, entry in yaml.safe_load((PROGRAMS / f"{name}.yaml").read_text(encoding="utf-8")).items():
        own = {key: entry[key] for key in ("processes", "wall_seconds") if key in entry}
        settings = replace(ONE, **limits, **own)
        if "tries" in entry:
            found[title] = tries(entry["tries"], settings)
        else:
            outcomes = tuple(map(ToolOutcome, entry.get("outcomes", ["ok"])))
            found[title] = Hostile(entry["program"], outcomes, entry.get("says", ""), settings)
    return found


DENIED_CALLS = """
def expect_denial(name, action):
    try:
        print("ESCAPED", name, action())
    except OSError as error:
        if error.errno not in (1, 38):
            print("ESCAPED", name, error.errno)
for name in {tables}:
    if name in NUMBERS:
        expect_denial(name, lambda: by_number(name, 1, 0, 0, 0, 0, 0))
for name in {libc}:
    expect_denial(name, lambda: call(name, 0, 0, 0, 0, 0, 0))
for flag in (0x10000000, 0x00020000, 0x20000000, 0x40000000, 0x08000000, 0x04000000, 0x00008000):
    expect_denial("clone", lambda: by_number("clone", flag | 17, 0, 0, 0, 0))
"""
"""by the tool's own numbers for them, and by libc's functions, which have theirs"""
LIBC = """
ptrace process_vm_readv process_vm_writev setpriority sched_setaffinity sched_setscheduler sched_setparam
unshare setns mount umount2 chroot memfd_create shmget shmat shmctl msgget msgsnd msgrcv msgctl semget semop semctl
vmsplice splice tee inotify_init inotify_init1 sendmsg sendmmsg setsockopt bind socket
fanotify_init name_to_handle_at open_by_handle_at personality
"""
LIBC_CHANGES = """
truncate ftruncate fallocate mkdir mkdirat mknod mknodat link linkat symlink symlinkat rename renameat unlink unlinkat
rmdir chmod fchmod fchmodat chown lchown fchown fchownat futimens setxattr lsetxattr fsetxattr removexattr
lremovexattr fremovexattr
"""


def denied(tables: str, libc: str, settings: PythonSettings) -> Hostile:
    """Every system call of these tables of `World.names`, and these functions of libc."""
    return tries(DENIED_CALLS.format(tables=tables, libc=libc.split()), settings)


WEAK = replace(ONE, isolation="limits")
HOSTILE = {
    **read("limits"),
    **read("escapes"),
    **read("leftovers"),
    "every denied system call": denied("[*ALWAYS, *ALONE]", LIBC, ONE),
    "every denied system call where processes are allowed": denied("ALWAYS", LIBC, MANY),
}
MESSAGES = {
    **read("messages", isolation="limits"),
    "every denied system call": denied("[*ALWAYS, *ALONE, *CHANGES]", LIBC + LIBC_CHANGES, WEAK),
}


def tables() -> dict[str, object]:
    """Of denied calls: their numbers here, and the names of those denied always, to a program that may not start
    others, and to one that may change no file."""
    _, column = python_seccomp.MACHINES[platform.machine()]
    alone = python_seccomp.FORKS | python_seccomp.SIGNALS
    alone |= {"clone": python_seccomp.CLONE, "clone3": python_seccomp.CLONE3}
    both = {"ALWAYS": python_seccomp.NUMBERS, "ALONE": alone, "CHANGES": python_seccomp.CHANGES}
    numbers = {name: columns[column] for table in both.values() for name, columns in table.items()}
    known = {name: number for name, number in numbers.items() if number is not None}
    return {"NUMBERS": known} | {name: list(table) for name, table in both.items()}


DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


class World:
    """What hostile programs are after: services, files, variables and processes of the host."""

    def __init__(self) -> None:
        self.secret = secrets.token_hex(16)

    def __enter__(self) -> "World":
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            self.folder = Path(folder)
            self.folder.chmod(0o777)
            (self.folder / "secret").write_text(self.secret)
            os.environ["RTPO_SECRET"] = self.secret
            stack.callback(os.environ.pop, "RTPO_SECRET")
            abstract = f"rtpo-{self.secret[:8]}"
            self.listeners = []
            tcp = socket.create_server(("127.0.0.1", 0))
            port = tcp.getsockname()[1]
            udp = socket.socket(type=socket.SOCK_DGRAM)
            udp.bind(("127.0.0.1", port))
            for address in (f"{folder}/socket", f"\0{abstract}"):
                unix = socket.socket(socket.AF_UNIX)
                unix.bind(address)
                unix.listen()
                self.listeners.append(unix)
            (self.folder / "socket").chmod(0o777)
            self.listeners += [tcp, udp]
            for listener in self.listeners:
                stack.callback(listener.close)
                listener.setblocking(False)
            self._names = {
                "PORT": port,
                "UNIX": f"{folder}/socket",
                "ABSTRACT": abstract,
                "SECRET": f"{folder}/secret",
                "FOLDER": folder,
                "PROJECT": str(Path(python.__file__).parents[2]),
                "HOME": os.path.expanduser("~"),
                "HARNESS": os.getpid(),
                "DEVICES": DEVICES,
            } | tables()
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
        found = self.late(time.monotonic() - begin, hostile.settings)
        if result.outcome not in hostile.outcomes:
            found.append(f"outcome {result.outcome.value}")
        if hostile.says not in result.output:
            found.append(f"does not say {hostile.says!r}")
        if "ESCAPED" in result.output or self.secret in result.output:
            found.append("escaped")
        if len(result.output) > ONE.output_characters + 200:
            found.append(f"{len(result.output)} characters of output")
        found = [f"{clause}: {result.output}" for clause in found]
        if (after := self.run(PLAIN, hostile.settings)) != plain:
            found.append(f"the next call gives {after}, not {plain}")
        if (state := self.state()) != self._state:
            found.append(f"made of the host's files {state}")
        for listener in self.listeners:
            try:
                heard = listener.recv(1) if listener.type == socket.SOCK_DGRAM else listener.accept()
            except BlockingIOError:
                continue
            found.append(f"reached a service of the host: {heard}")
        if (now := self._processes()) != processes:
            found.append(f"processes {processes} are now {now}")
        return found

    def text(self, hostile: Hostile) -> str:
        names = "; ".join(f"{name} = {value!r}" for name, value in self._names.items())
        return f"{names}\n{hostile.program}"

    def late(self, seconds: float, settings: PythonSettings) -> list[str]:
        return [f"took {seconds:.1f} s"] if seconds > settings.wall_seconds + SPARE else []

    def lasting(self, hostiles: Mapping[str, Hostile], isolation: Literal["namespaces", "limits"]) -> dict[str, Any]:
        """Those that do not end in time in an isolation, whatever processes they may start; and what they change."""
        found: dict[str, Any] = {}

        async def run(name: str, hostile: Hostile, settings: PythonSettings, place: asyncio.Semaphore) -> None:
            async with place:
                begin = time.monotonic()
                await PythonTool(settings).call({"code": self.text(hostile)}, [])
                if late := self.late(time.monotonic() - begin, settings):
                    found[f"{name} of {settings.processes} processes"] = late

        async def run_all(settings: PythonSettings) -> None:
            waiting = {"code": "import time\ntime.sleep(0.5)"}  # until both interpreters have started
            await asyncio.gather(*[PythonTool(settings).call(waiting, []) for _ in range(2)])
            place = asyncio.Semaphore(2)
            await asyncio.gather(*[run(name, hostile, settings, place) for name, hostile in hostiles.items()])

        for processes in (1, 4) if isolation == "namespaces" else (1,):
            settings = replace(ONE, isolation=isolation, processes=processes, wall_seconds=2, workers=2)
            asyncio.run(run_all(settings))
            python.close_pools()
        if (state := self.state()) != self._state:
            found["files of the host"] = state
        return found

    def state(self) -> list[tuple[object, ...]]:
        """Any change of a file or folder changes its ctime too."""
        paths = [self.folder, *sorted(self.folder.iterdir()), *map(Path, DEVICES)]
        states = [path.stat() for path in paths]
        return [(path.name, state.st_ctime_ns, state.st_blocks) for path, state in zip(paths, states, strict=True)]

    def _processes(self) -> list[tuple[int, str]]:
        """This process's own: bubblewrap, a keeper and a zygote for each pool."""
        return sorted((process.pid, process.name()) for process in psutil.Process().children(recursive=True))
