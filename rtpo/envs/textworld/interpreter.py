"""A pool of child processes that play games. A game's text depends only on the game and the commands."""

import atexit
import json
import os
import threading
from functools import cache
from pathlib import Path
from typing import Final

from rtpo.core.children import Child
from rtpo.errors import InfrastructureError

CHILD: Final = Path(__file__).with_name("interpreter_child.py")
ANSWER_SECONDS: Final = 60.0
"""timeout of an answer, which normally takes milliseconds"""


class Interpreters:
    """A pool of at most `workers` child processes. It starts a child only if no other is idle.

    Any thread may use it. The children end with their process. A forked process starts its own.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._idle: list[Child] = []
        self._lock = threading.Lock()
        self._places = threading.Semaphore(workers)
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forget)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the idle children."""
        with self._lock:
            return tuple(child.process.pid for child in self._idle)

    def answer(self, game: str, commands: tuple[str, ...]) -> str:
        """The game's answer to the last command, or its opening if there are no commands. Raises InfrastructureError if
        the child does not start, ends or does not answer; the next call uses another child."""
        with self._places:
            with self._lock:
                child = self._idle.pop() if self._idle else None
            child = child or Child(CHILD, "the interpreter")
            try:
                text = child.ask(json.dumps({"game": game, "commands": commands}).encode() + b"\n", ANSWER_SECONDS)
            except BaseException as error:
                child.end()
                if not isinstance(error, EOFError | OSError):
                    raise
                failure = "did not answer" if isinstance(error, TimeoutError) else "ended"
                raise InfrastructureError(f"the interpreter of {Path(game).name} {failure}: {commands}") from error
            with self._lock:
                self._idle.append(child)
            return text

    def close(self) -> None:
        """End the idle children. A later call starts new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for child in idle:
            child.end()

    def _forget(self) -> None:
        """Runs in a forked process: drop the parent's children, and replace locks that a thread of the parent held."""
        for child in self._idle:
            child.pipe.close()
        self._idle = []
        self._lock = threading.Lock()
        self._places = threading.Semaphore(self.workers)


@cache
def interpreters(workers: int | None) -> Interpreters:
    """This process's pool; by default one worker per available CPU."""
    return Interpreters(workers or len(os.sched_getaffinity(0)))
