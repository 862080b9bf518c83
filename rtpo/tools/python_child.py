"""What runs in the sandbox of the Python tool (docs/python_tool.md): `python python_child.py SETTINGS SOCKET`.

Three processes take part in a call:

    zygote   lives long, with the libraries imported; forks a program for each call, keeps the time, reads the output
    init     process 1 of a PID namespace made for the call, which ends with it: `cat` on a pipe of the zygote's
    program  without privileges, under limits and a system call filter: runs the code

Code of the policy runs in the last alone. What the zygote says is therefore true, and what the program can say of
itself (its output, and its notes: a cell has begun, memory ran out) is about its own call only.

Standard library alone: this file goes into the sandbox with python_seccomp.py. `send` and `receive` are the other
side's too (`rtpo.tools.python_pool`).
"""

import ast
import atexit
import ctypes
import fcntl
import gc
import importlib
import json
import os
import random
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
import types
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from typing import Any, NoReturn

LIBRARIES = (
    *("bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq", "itertools"),
    *("json", "math", "operator", "random", "re", "statistics", "string", "time", "typing"),
    # the last ones numpy itself imports when they are first used
    *("sympy", "numpy", "numpy.fft", "numpy.linalg", "numpy.ma", "numpy.polynomial", "numpy.random"),
)
"""imported in the zygote; a program imports others itself"""
INIT = "/sandbox/cat"
SCRATCH = "/tmp"
SCRATCH_BYTES = 64 << 20
SCRATCH_FILES = 1024
THREADS = 32
OPEN_FILES = 256
SETUP_SECONDS = 60.0
REPLAY_FACTOR = 2
"""a replayed cell's limits of time, in those of a cell that is run: what was in time once is in time again"""
LAST_WORDS_BYTES = 16 << 20
"""address space kept for saying that memory ran out"""
LAST_WORDS_CHARACTERS = 600
CUT = "\n... (cut) ...\n"
_BEGUN, _DONE, _NO_MEMORY = b"b", b"d", b"m"
_NEW_MOUNTS, _NEW_PIDS = 0x00020000, 0x20000000
_NO_SUID, _NO_DEVICES, _NO_EXECUTION = 2, 4, 8
_PDEATHSIG, _DUMPABLE, _NO_NEW_PRIVILEGES = 1, 4, 38
_CAPABILITY_VERSION = 0x20080522
_ABOVE = 64
"""descriptors are moved here while the program's own are put in place"""
_HIGHEST = 1 << 16
"""of the descriptors that are closed before a program runs; the zygote has none above a few"""

libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Settings:
    """Of a zygote. user: whom programs run as; null where the zygote has no right to change that."""

    cpu_seconds: int
    wall_seconds: float
    memory_bytes: int
    processes: int
    output_characters: int
    namespaces: bool
    user: int | None
    site: list[str]


def _ask_kernel(name: str, *args: Any) -> None:
    """A call of libc that returns 0 where it succeeds. Raises OSError."""
    if getattr(libc, name)(*args):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


# messages: a length, then JSON


def send(end: socket.socket, message: Any) -> None:
    """Raises OSError where the other side has gone."""
    data = json.dumps(message).encode()
    end.sendall(struct.pack("!I", len(data)) + data)


def receive(end: socket.socket) -> Any:
    """The next message. Raises EOFError where the other side has gone."""
    (length,) = struct.unpack("!I", _exactly(end, 4))
    return json.loads(_exactly(end, length))


def _exactly(end: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = end.recv(length - len(data))
        if not part:
            raise EOFError
        data += part
    return data


# the program


def complaint(error: BaseException) -> str:
    """The error in one line, with the program's line where it has one."""
    what = traceback.format_exception_only(error)[-1].strip()
    if len(what) > LAST_WORDS_CHARACTERS:
        what = f"{what[:LAST_WORDS_CHARACTERS]} ..."
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == "<program>"]
    if isinstance(error, SyntaxError) and error.filename == "<program>":
        lines.append(error.lineno or 0)
    return f"{what} (line {lines[-1]})" if lines and lines[-1] else what


def run_cell(code: str, names: dict[str, Any]) -> None:
    """Run code; the value of a last expression is printed unless it is None."""
    tree = ast.parse(code, "<program>")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<program>", "exec"), names)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), "<program>", "eval"), names)
        if value is not None:
            print(value)


def _say(text: str) -> None:
    """To the output itself, whatever the program has made of sys.stdout."""
    with suppress(OSError):
        os.write(1, f"{text}\n".encode("utf-8", "replace"))


def attempt(code: str, names: dict[str, Any], notes: int) -> int:
    """Run a cell and say how it failed, if it did; its exit status."""
    try:
        run_cell(code, names)
    except SystemExit as end:
        if end.code in (None, 0):
            return 0
        _say(f"SystemExit: {end.code}")
    except MemoryError as error:
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        _note(notes, _NO_MEMORY)
        _say(complaint(error))
    except BaseException as error:
        _say(complaint(error))
    else:
        return 0
    return 1


def _note(notes: int, note: bytes) -> None:
    with suppress(OSError):  # a program can close it
        os.write(notes, note)


def run_cells(cells: list[str], settings: Settings, notes: int) -> int:
    """Run cells in one namespace, as `__main__`; what all but the last print is discarded. Exit status of the last."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    sys.argv = [""]
    output = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    status = 0
    for place, code in enumerate(cells):
        is_last = place == len(cells) - 1
        for stream in (1, 2):
            os.dup2(output if is_last else nowhere, stream)
        if is_last:
            os.close(output)
            os.close(nowhere)
        seconds = settings.cpu_seconds * (1 if is_last else REPLAY_FACTOR)
        if place:
            used = resource.getrusage(resource.RUSAGE_SELF)
            seconds += ceil(used.ru_utime + used.ru_stime)
        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (min(seconds, most), most))
        _note(notes, _BEGUN)
        status = attempt(code, main.__dict__, notes)
        if is_last:
            _end_interpreter()
        _note(notes, _DONE)
    return status


def _end_interpreter() -> None:
    """What an interpreter does at its end, but for taking itself apart, which is slow."""
    for end in (threading._shutdown, atexit._run_exitfuncs, sys.stdout.flush, sys.stderr.flush):  # type: ignore[attr-defined]
        with suppress(BaseException):
            end()


def confine(settings: Settings, cells: int) -> None:
    """Limits and no privileges, for good. Raises OSError."""
    # threads count as processes, and so do the zygote and init where they are of the same user
    processes = (THREADS if settings.processes == 1 else settings.processes) + (0 if settings.user else 2)
    seconds = settings.cpu_seconds * (1 + REPLAY_FACTOR * (cells - 1)) + cells - 1
    for name, soft, hard in (
        # a second more: SIGXCPU, which comes first, can be ignored
        (resource.RLIMIT_CPU, seconds, seconds + 1),
        (resource.RLIMIT_AS, settings.memory_bytes, settings.memory_bytes + LAST_WORDS_BYTES),
        (resource.RLIMIT_NPROC, processes, processes),
        (resource.RLIMIT_FSIZE, *(2 * [SCRATCH_BYTES if settings.namespaces else 0])),
        (resource.RLIMIT_NOFILE, OPEN_FILES, OPEN_FILES),
        (resource.RLIMIT_CORE, 1, 1),
        (resource.RLIMIT_MEMLOCK, 0, 0),
        (resource.RLIMIT_MSGQUEUE, 0, 0),
        (resource.RLIMIT_SIGPENDING, THREADS, THREADS),
    ):
        _, most = resource.getrlimit(name)
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(name, (soft, hard))
    zygote = os.getppid()
    if settings.user is not None:
        os.setgroups([])
        os.setresgid(settings.user, settings.user, settings.user)
        os.setresuid(settings.user, settings.user, settings.user)
    _ask_kernel("capset", (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)())
    # after the change of user, which would take it back
    _ask_kernel("prctl", _PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != zygote:
        raise ProcessLookupError("the zygote has gone")
    _ask_kernel("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    import python_seccomp

    python_seccomp.put_on(libc, os.getpid(), settings.processes > 1)


def be_program(cells: list[str], settings: Settings, output: int, notes: int, report: int) -> NoReturn:
    """Never returns; the exit status is 0 where the last cell ended well."""
    try:
        os.setsid()
        output, notes, report = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for end in (output, notes, report))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.dup2(notes, 3, inheritable=False)
        random.seed(0)
        sys.modules["numpy"].random.seed(0)
        if settings.namespaces:
            _mount_scratch(settings.user)
        confine(settings, len(cells))
        if settings.namespaces:
            os.chdir(SCRATCH)
    except BaseException as error:
        os.write(report, complaint(error).encode())
        os._exit(1)
    os.closerange(4, _HIGHEST)
    status = 1
    try:
        status = run_cells(cells, settings, 3)
    except BaseException as error:
        _say(complaint(error))
    finally:
        os._exit(status)


def _mount_scratch(user: int | None) -> None:
    _ask_kernel("unshare", _NEW_MOUNTS)
    owner = os.getuid() if user is None else user
    group = os.getgid() if user is None else user
    options = f"size={SCRATCH_BYTES},nr_inodes={SCRATCH_FILES},mode=0700,uid={owner},gid={group}"
    flags = _NO_SUID | _NO_DEVICES | _NO_EXECUTION
    _ask_kernel("mount", b"tmpfs", SCRATCH.encode(), b"tmpfs", flags, options.encode())


# the zygote


class Output:
    """The beginning and the end of what a pipe gave."""

    def __init__(self, characters: int) -> None:
        self._characters = characters
        self._most = 4 * characters  # UTF-8 has no longer characters
        self._begin = self._end = b""
        self._is_whole = True

    def add(self, part: bytes) -> None:
        room = self._most - len(self._begin)
        self._begin += part[:room]
        self._end += part[room:]
        if len(self._end) > self._most:
            self._end = self._end[-self._most :]
            self._is_whole = False

    def text(self) -> str:
        """Over the limit, three quarters of it from the beginning and one from the end."""
        head = (self._begin + self._end).decode("utf-8", "replace").strip("\n")
        if self._is_whole and len(head) <= self._characters:
            return head
        tail = (self._begin + self._end)[-self._most :].decode("utf-8", "replace").strip("\n")
        last = self._characters // 4
        return head[: self._characters - last] + CUT + tail[-last:]


class Call:
    """A call that runs, as the zygote sees it."""

    def __init__(self, settings: Settings, cells: list[str], home: int) -> None:
        self._settings = settings
        self._cells = len(cells)
        self._output = Output(settings.output_characters)
        self._begun = self._done = 0
        self._is_out_of_memory = self._is_timed_out = self._is_given_up = False
        self._failure = ""
        self._deadline = time.monotonic() + SETUP_SECONDS
        (output, output_in), (notes, notes_in), (self._report, report_in) = (os.pipe() for _ in range(3))
        self._init: int | None = None
        if settings.namespaces:
            _ask_kernel("unshare", _NEW_PIDS)
            standard_in, self._init_input = os.pipe()
            self._init = os.posix_spawn(INIT, ["cat"], {}, file_actions=[(os.POSIX_SPAWN_DUP2, standard_in, 0)])
            os.close(standard_in)
        self._program = os.fork()
        if not self._program:
            be_program(cells, settings, output_in, notes_in, report_in)
        if settings.namespaces:
            _ask_kernel("setns", home, _NEW_PIDS)
        for end in (output_in, notes_in, report_in):
            os.close(end)
        self._handle = os.pidfd_open(self._program)
        self._readers = {output: self._output.add, notes: self._read_notes}
        for end in self._readers:
            os.set_blocking(end, False)

    def run(self, control: socket.socket) -> Any:
        """The reply. A message, which can only mean that nobody waits, ends the call, as does the other side's end."""
        poll = select.poll()
        for end in (control.fileno(), self._handle, *self._readers):
            poll.register(end, select.POLLIN)
        try:
            while True:
                left = self._deadline - time.monotonic()
                if left <= 0:
                    self._is_timed_out = True
                    break
                ready = {end for end, _ in poll.poll(1000 * left)}
                for end in ready & self._readers.keys():
                    if not self._read(end):
                        poll.unregister(end)
                if control.fileno() in ready:
                    receive(control)
                    self._is_given_up = True
                    break
                if self._handle in ready:
                    break
        finally:
            self._end()
        return self._reply()

    def _read(self, end: int) -> bool:
        """Whether there can be more."""
        try:
            part = os.read(end, 1 << 16)
        except BlockingIOError:
            return True
        self._readers[end](part)
        return bool(part)

    def _read_notes(self, notes: bytes) -> None:
        _, is_new, of_last = notes.rpartition(_BEGUN)
        self._is_out_of_memory = _NO_MEMORY in of_last or (self._is_out_of_memory and not is_new)
        self._done += notes.count(_DONE)
        begun = min(self._cells, self._begun + notes.count(_BEGUN))
        if begun > self._begun:
            self._begun = begun
            factor = 1 if begun == self._cells else REPLAY_FACTOR
            self._deadline = time.monotonic() + factor * self._settings.wall_seconds

    def _end(self) -> None:
        """End all processes of the call, and read what is still in the pipes."""
        if self._init is None:
            os.kill(self._program, signal.SIGKILL)  # it could start no other
        else:
            if os.waitid(os.P_PID, self._init, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                self._failure = "its namespace ended before it"
            os.kill(self._init, signal.SIGKILL)
        _, self._status, self._usage = os.wait4(self._program, 0)
        if self._init is not None:
            os.waitpid(self._init, 0)
            os.close(self._init_input)
        for end in self._readers:
            while self._read_rest(end):
                pass
            os.close(end)
        os.close(self._handle)
        with os.fdopen(self._report, "rb") as file:
            self._failure = file.read().decode() or self._failure

    def _read_rest(self, end: int) -> bool:
        part = os.read(end, 1 << 16)
        if part:
            self._readers[end](part)
        return bool(part)

    def _reply(self) -> dict[str, Any]:
        if not self._failure and not self._begun:
            self._failure = f"it did not begin ({self._output.text() or self._status})"
        return {
            "is_given_up": self._is_given_up,
            "failure": self._failure,
            "begun": self._begun,
            "is_done": self._done >= self._cells,
            "is_timed_out": self._is_timed_out,
            "is_out_of_memory": self._is_out_of_memory,
            "status": self._status,
            "cpu_seconds": self._usage.ru_utime + self._usage.ru_stime,
            "output": self._output.text(),
        }


def warm_up() -> None:
    """Once here for all programs: what sympy imports and keeps when it is first used."""
    import sympy

    x = sympy.Symbol("x")
    sympy.solve(x**2 - 2, x)
    sympy.solveset(x**2 - 2, x)
    sympy.integrate(sympy.sin(x) ** 2, x)
    sympy.simplify((x**2 - 1) / (x - 1))
    sympy.lambdify(x, x)(1)


def main() -> None:
    settings = Settings(**json.loads(sys.argv[1]))
    # it comes with the number that it has in the process that starts this one
    given = int(sys.argv[2])
    control = socket.socket(fileno=fcntl.fcntl(given, fcntl.F_DUPFD_CLOEXEC, 3))
    os.close(given)
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, folder)
    importlib.import_module("python_seccomp")
    sys.path.remove(folder)
    sys.path.extend(path for path in settings.site if path not in sys.path)
    _ask_kernel("prctl", _PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _ask_kernel("prctl", _DUMPABLE, 0, 0, 0, 0)
    for name in LIBRARIES:
        importlib.import_module(name)
    warm_up()
    atexit._clear()
    home = os.pidfd_open(os.getpid())
    gc.collect()
    gc.freeze()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        send(control, "ready")
        while True:
            cells = receive(control)
            if cells is not None:  # None: a call was given up after its reply was sent
                send(control, Call(settings, cells, home).run(control))
    os._exit(0)


if __name__ == "__main__":
    main()
