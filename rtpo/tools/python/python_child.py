"""The process in the sandbox of the Python tool (docs/run/tools.md): `python python_child.py SETTINGS SOCKET`.

Four processes take part in a call:

    keeper   serves all calls: passes on the code, enforces the time limits, reads the output
    zygote   the keeper's child, serves all calls: imports the libraries, forks a program per call (python_program.py)
    init     process 1 of the call's PID namespace: when it ends, so do all processes of the call; runs `cat`
    program  runs the code, without privileges, under limits and a system call filter

Only the program runs the policy's code, so the keeper's replies can be trusted. A program can lie only about its own
call: in its output, and in its notes (a cell has begun, memory ran out). Every program inherits the zygote's memory. So
the zygote never sees code or output: these pass between keeper and program.

This file goes into the sandbox with python_program.py and python_seccomp.py. It uses only the standard library.
`rtpo.tools.python.pool` also uses `send` and `receive`.
"""

import ctypes
import fcntl
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

INIT = "/sandbox/cat"
SCRATCH = "/tmp"
SETUP_SECONDS = 60.0
REPLAY_FACTOR = 2
"""time limit of all replayed cells together, in units of the last cell's limit"""
CUT = "\n... (cut) ...\n"
BEGUN, DONE, NO_MEMORY = b"b", b"d", b"m"
"""a program's notes: a cell has begun, a cell is done, memory ran out in the current cell"""
ENDED = struct.Struct("!id")
"""the zygote's report on an ended program: status, CPU seconds"""
PDEATHSIG = 1
_DUMPABLE = 4

libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Settings:
    """Settings of a zygote; `rtpo.tools.python.tool.PythonSettings` explains the limits."""

    cpu_seconds: int
    wall_seconds: float
    memory_bytes: int
    processes: int
    output_characters: int
    namespaces: bool
    user: int | None  # user id of programs; null if the zygote may not change users
    site: list[str]  # folders of the packages that programs may import


@dataclass
class Reply:
    """The result of cells, which are programs that run one after another in one process and share their names."""

    begun: int = 0  # number of cells that began
    is_done: bool = False  # the last cell ended before the process did
    is_timed_out: bool = False
    is_out_of_memory: bool = False
    is_given_up: bool = False  # the pool cancelled the call
    is_interpreter_ended: bool = False  # set by the pool: the last begun cell killed its interpreter at each attempt
    status: int = 0  # of `os.wait`
    cpu_seconds: float = 0.0
    output: str = ""
    failure: str = ""  # why the cells have no result; empty if they have one


def ask_kernel(name: str, *args: Any) -> None:
    """Call a libc function that returns 0 on success. Raises OSError on failure."""
    if getattr(libc, name)(*args):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


# messages: the length in 4 bytes, then JSON


def send(peer: socket.socket, message: Any) -> None:
    """Send a message. Raises OSError if the other side has ended."""
    data = json.dumps(message).encode()
    peer.sendall(struct.pack("!I", len(data)) + data)


def receive(peer: socket.socket) -> Any:
    """The next message. Raises EOFError if the other side has ended."""
    (length,) = struct.unpack("!I", _exactly(peer, 4))
    return json.loads(_exactly(peer, length))


def _exactly(peer: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = peer.recv(length - len(data))
        if not part:
            raise EOFError
        data += part
    return data


# the keeper


class Output:
    """Keeps the beginning and the end of a pipe's output."""

    def __init__(self, characters: int) -> None:
        self._characters = characters
        self._most = 4 * characters  # bytes: a character of UTF-8 has at most 4
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
        """The output. If it is over the limit: its beginning, three quarters of the limit, and its end, one quarter."""
        head = (self._begin + self._end).decode("utf-8", "replace").strip("\n")
        if self._is_whole and len(head) <= self._characters:
            return head
        tail = (self._begin + self._end)[-self._most :].decode("utf-8", "replace").strip("\n")
        last = self._characters // 4
        return head[: self._characters - last] + CUT + tail[-last:]


class Call:
    """A running call, in the keeper."""

    def __init__(self, settings: Settings, cells: list[str], zygote: socket.socket) -> None:
        """Start it. Raises OSError if the zygote has ended."""
        self._settings = settings
        self._cells = len(cells)
        self._zygote = zygote
        self._output = Output(settings.output_characters)
        self._report = bytearray()
        self._reply = Reply()
        self._done = 0
        self._deadline = time.monotonic() + SETUP_SECONDS
        """of the current phase: the start, the replayed cells, or the last cell"""
        code = os.memfd_create("cells")
        with os.fdopen(os.dup(code), "w") as file:
            json.dump(cells, file)
        os.lseek(code, 0, os.SEEK_SET)
        (output, output_in), (notes, notes_in), (report, report_in) = (os.pipe() for _ in range(3))
        self._readers = {output: self._output.add, notes: self._read_notes, report: self._report.extend}
        for descriptor in self._readers:
            os.set_blocking(descriptor, False)
        program_ends = [code, output_in, notes_in, report_in]
        socket.send_fds(zygote, [b"r"], program_ends)
        for descriptor in program_ends:
            os.close(descriptor)
        _, handles, _, _ = socket.recv_fds(zygote, 1, 1, socket.MSG_CMSG_CLOEXEC)
        if not handles:
            raise BrokenPipeError
        (self._handle,) = handles

    def run(self, control: socket.socket) -> Reply:
        """Run the call to its end. It is cancelled by any message from the pool, or if the pool ends."""
        poll = select.poll()
        for descriptor in (control.fileno(), self._handle, *self._readers):
            poll.register(descriptor, select.POLLIN)
        try:
            while True:
                left = self._deadline - time.monotonic()
                if left <= 0:
                    self._reply.is_timed_out = True
                    break
                ready = {descriptor for descriptor, _ in poll.poll(1000 * left)}
                for descriptor in ready & self._readers.keys():
                    if not self._read(descriptor):
                        poll.unregister(descriptor)
                if control.fileno() in ready:
                    receive(control)
                    self._reply.is_given_up = True
                    break
                if self._handle in ready:
                    break
        finally:
            self._end()
        reply = self._reply
        # a cell may forge notes and end the process: it must not look as if later cells had run
        reply.is_done = reply.begun == self._cells and self._done >= self._cells
        reply.output = self._output.text()
        if not reply.failure and not reply.begun:
            reply.failure = f"it did not begin ({reply.output or reply.status})"
        return reply

    def _read(self, descriptor: int) -> int:
        """Read once; returns the number of bytes, -1 if there are none now, 0 at the end."""
        try:
            part = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return -1
        self._readers[descriptor](part)
        return len(part)

    def _read_notes(self, notes: bytes) -> None:
        _, is_new, notes_of_last_cell = notes.rpartition(BEGUN)
        self._reply.is_out_of_memory = NO_MEMORY in notes_of_last_cell or (self._reply.is_out_of_memory and not is_new)
        self._done += notes.count(DONE)
        begun = min(self._cells, self._reply.begun + notes.count(BEGUN))
        if begun > self._reply.begun:
            if begun == self._cells:
                self._deadline = time.monotonic() + self._settings.wall_seconds
            elif not self._reply.begun:
                self._deadline = time.monotonic() + REPLAY_FACTOR * self._settings.wall_seconds
            self._reply.begun = begun

    def _end(self) -> None:
        """End all processes of the call and read what is left in the pipes. Do not wait for the pipes to close: some
        other process may still hold them open."""
        with suppress(OSError):
            self._zygote.send(b"e")
        reply = self._reply
        try:
            reply.status, reply.cpu_seconds = ENDED.unpack(_exactly(self._zygote, ENDED.size))
        except (EOFError, OSError):
            reply.failure = "the zygote ended with the program"
        else:
            # the filter keeps a single process from sending SIGKILL: if no limit explains it, it came from outside
            settings = self._settings
            is_explained = settings.processes > 1 or reply.cpu_seconds >= settings.cpu_seconds
            is_explained = is_explained or reply.is_timed_out or reply.is_given_up
            is_killed = os.waitstatus_to_exitcode(reply.status) == -signal.SIGKILL
            reply.failure = "it was killed from outside" if is_killed and not is_explained else ""
        for descriptor in self._readers:
            while self._read(descriptor) > 0:
                pass
            os.close(descriptor)
        os.close(self._handle)
        reply.failure = self._report.decode() or reply.failure


def main() -> None:
    settings = Settings(**json.loads(sys.argv[1]))
    # the socket has the same descriptor number as in the parent process
    inherited = int(sys.argv[2])
    control = socket.socket(fileno=fcntl.fcntl(inherited, fcntl.F_DUPFD_CLOEXEC, 3))
    os.close(inherited)
    ask_kernel("prctl", PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    ask_kernel("prctl", _DUMPABLE, 0, 0, 0, 0)
    zygote, keeper = socket.socketpair()
    pid = os.getpid()
    child = os.fork()
    if not child:
        for end in (control, zygote):
            end.close()
        sys.modules["python_child"] = sys.modules["__main__"]
        folder = os.path.dirname(os.path.abspath(__file__))
        sys.path.insert(0, folder)
        importlib.import_module("python_seccomp")
        program = importlib.import_module("python_program")
        sys.path.remove(folder)
        program.serve(settings, keeper, pid)
    keeper.close()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        _exactly(zygote, 1)
        send(control, "ready")
        while True:
            cells = receive(control)
            if cells is not None:  # None: a call was given up after its reply was sent
                send(control, vars(Call(settings, cells, zygote).run(control)))
    zygote.close()
    os.waitpid(child, 0)
    os._exit(0)


if __name__ == "__main__":
    main()
