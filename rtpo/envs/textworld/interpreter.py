"""Child processes that play games: what a game says to commands, as a function of the two."""

import atexit
import json
import os
import socket
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Final

from rtpo.errors import InfrastructureError

CHILD: Final = Path(__file__).with_name("interpreter_child.py")
START_SECONDS: Final = 120.0
ANSWER_SECONDS: Final = 60.0
"""after which a child is taken to stand still; an answer takes milliseconds"""


class Interpreters:
    """A pool of child processes, each started when no other is free. Any thread may ask, in a forked process too.

    A process that ends takes its children with it; a forked one has none of them. workers: the most children.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._idle: list[_Child] = []
        self._lock = threading.Lock()
        self._places = threading.Semaphore(workers)
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forget)

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the children that are not at work."""
        with self._lock:
            return tuple(child.process.pid for child in self._idle)

    def answer(self, game: str, commands: tuple[str, ...]) -> str:
        """What a game says to the last of these commands, its opening where there are none. Raises InfrastructureError
        when a child cannot be started, ends or says nothing; the next call has another."""
        with self._places:
            with self._lock:
                child = self._idle.pop() if self._idle else None
            child = child or _Child()
            try:
                text = child.ask({"game": game, "commands": commands}, ANSWER_SECONDS)
            except BaseException as error:
                child.end()
                if not isinstance(error, EOFError | OSError):
                    raise
                what = "stood still" if isinstance(error, TimeoutError) else "ended"
                raise InfrastructureError(f"the interpreter of {Path(game).name} {what}: {commands}") from error
            with self._lock:
                self._idle.append(child)
            return text

    def close(self) -> None:
        """End the children that are not at work; another call would start new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for child in idle:
            child.end()

    def _forget(self) -> None:
        """In a forked process: the children are its parent's, and nobody is left to release the locks."""
        for child in self._idle:
            child.pipe.close()
        self._idle = []
        self._lock = threading.Lock()
        self._places = threading.Semaphore(self.workers)


class _Child:
    """A child process that is ready to play. Raises InfrastructureError when it cannot be started."""

    def __init__(self) -> None:
        self.pipe, theirs = socket.socketpair()
        try:
            # a session of its own: Ctrl-C is for the run, which finishes its phase
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(CHILD)],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                start_new_session=True,
            )
        except OSError as error:
            self.pipe.close()
            raise InfrastructureError(f"the interpreter could not be started: {error}") from error
        finally:
            theirs.close()
        try:
            self._receive(START_SECONDS)
        except BaseException as error:
            self.end()
            if not isinstance(error, EOFError | OSError):
                raise
            raise InfrastructureError("the interpreter did not start; what it said stands above") from error

    def ask(self, request: object, seconds: float) -> str:
        """The value of the line that answers a request. Raises TimeoutError where that waits so long, and EOFError or
        ConnectionError when the child has ended."""
        self.pipe.sendall(json.dumps(request).encode() + b"\n")
        return self._receive(seconds)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.pipe.close()

    def _receive(self, seconds: float) -> str:
        self.pipe.settimeout(seconds)
        line = b""
        while not line.endswith(b"\n"):
            part = self.pipe.recv(1 << 16)
            if not part:
                raise EOFError
            line += part
        return str(json.loads(line))


@cache
def interpreters(workers: int | None) -> Interpreters:
    """Of this process; by default one for each processor that it may use."""
    return Interpreters(workers or len(os.sched_getaffinity(0)))
