"""Grading of mathematical answers by math-verify, in a pool of child processes that can be killed.

math-verify's clocks are SIGALRM's. Outside a main thread they raise, and in one they turn what takes too long into "not
equal": either way a reward function that goes on has a silent 0. Here the children grade without them, and this side
keeps the time: what could not be graded is UNGRADABLE, never 0.
"""

import atexit
import json
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Final

from rtpo.errors import InfrastructureError
from rtpo.types import Grade, GradeOutcome

CHILD = Path(__file__).with_name("grading_child.py")
START_SECONDS: Final = 120.0
SHOWN_CHARACTERS: Final = 100
RIGHT, WRONG, UNREADABLE_ANSWER = "right", "wrong", "unreadable answer"
_OUT_OF_MEMORY: Final = "MemoryError"


class MathGrader:
    """A pool of child processes, each started when no other is free. Any thread may grade, in a forked process too.

    A grade has a child to itself. One that is ended, by the clock or by itself, is replaced at a later grade; the
    others go on. A process that ends, however it does, takes its children with it; a forked one has none of them.

    seconds: wall-clock limit of one comparison, from the next one on; waiting for a child counts against no limit.
    workers: the most children; one for each CPU this process may use by default.
    """

    def __init__(self, seconds: float = 10.0, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers is {workers}: use 1 or more")
        self.seconds = seconds
        self.workers = workers or len(os.sched_getaffinity(0))
        self._children: list[_Child] = []
        self._idle: list[_Child] = []
        self._lock = threading.Lock()
        self._places = threading.Semaphore(self.workers)
        _GRADERS.add(self)

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the children there are."""
        with self._lock:
            return tuple(child.process.pid for child in self._children)

    def grade(self, golds: tuple[str, ...], answer: str) -> Grade:
        """Whether `answer` equals one of `golds`, all as they stand inside `\\boxed{}`: 1, or 0 where it equals none or
        cannot be read. UNGRADABLE where it was found equal to none and could not be compared with one: the gold cannot
        be read, the comparison raised, met the limit, or ended its child twice.

        Raises InfrastructureError when a child cannot be started, and ValueError without a gold.
        """
        if isinstance(golds, str) or not golds:
            raise ValueError(f"golds is {golds!r}: give a tuple of one accepted answer or more")
        verdicts = []
        for gold in golds:
            verdicts.append(self._compare(gold, answer))
            if verdicts[-1] == RIGHT:
                return Grade(GradeOutcome.GRADED, 1.0, RIGHT)
        failed = [verdict for verdict in verdicts if verdict not in (WRONG, UNREADABLE_ANSWER)]
        if failed:
            return Grade(GradeOutcome.UNGRADABLE, None, "; ".join(failed))
        is_read = WRONG in verdicts
        return Grade(GradeOutcome.GRADED, 0.0, WRONG if is_read else "the answer cannot be read as mathematics")

    def close(self) -> None:
        """End all children; another grade would start new ones."""
        with self._lock:
            children, idle = self._children, self._idle
            self._children, self._idle = [], []
        for child in children:
            child.process.kill()
        # those at work are given back, and ended then
        for child in idle:
            child.end()

    def _forget(self) -> None:
        """In a forked process: the children are its parent's, and nobody is left to release the locks."""
        for child in self._children:
            child.close_pipes()
        self._children, self._idle = [], []
        self._lock = threading.Lock()
        self._places = threading.Semaphore(self.workers)

    def _compare(self, gold: str, answer: str) -> str:
        """RIGHT, WRONG, UNREADABLE_ANSWER, or why there is no verdict."""
        seconds = self.seconds
        pair = f"comparing {_shown(answer)} with {_shown(gold)}"
        request = json.dumps({"gold": gold, "answer": answer, "seconds": seconds}).encode() + b"\n"
        with self._places:
            for is_new in (False, True):
                child = self._take(is_new)
                is_well = False
                try:
                    verdict = child.ask(request, seconds)
                    # what a child that was short of memory still holds would be missing at its next grade
                    is_well = verdict != _OUT_OF_MEMORY
                except TimeoutError:
                    return f"{pair} took over {seconds:g} s"
                except (EOFError, BrokenPipeError):
                    continue
                finally:
                    self._give_back(child, is_well)
                return verdict if verdict in (RIGHT, WRONG, UNREADABLE_ANSWER) else f"{verdict}: {pair}"
        return f"{pair} ended the grading process, twice"

    def _take(self, is_new: bool) -> "_Child":
        """The child that was idle last, so that few are started where few are needed; or a new one in its place, since
        what ended one between two grades may have ended others."""
        with self._lock:
            child = self._idle.pop() if self._idle else None
            if child and is_new:
                self._children.remove(child)
        if child:
            if not is_new:
                return child
            child.end()
        child = _Child()
        with self._lock:
            self._children.append(child)
        return child

    def _give_back(self, child: "_Child", is_well: bool) -> None:
        with self._lock:
            is_ours = child in self._children
            if is_ours and is_well:
                self._idle.append(child)
                return
            if is_ours:
                self._children.remove(child)
        child.end()


class _Child:
    """A child process that is ready to grade. Raises InfrastructureError when it cannot be started."""

    def __init__(self) -> None:
        try:
            # a session of its own: Ctrl-C is for the run, which finishes its phase
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(CHILD)],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # sympy's way through an expression depends on the order of sets
                env=os.environ | {"PYTHONHASHSEED": "0"},
                start_new_session=True,
            )
        except OSError as error:
            raise InfrastructureError(f"the grading process could not be started: {error}") from error
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout
        os.set_blocking(self._stdin.fileno(), False)
        try:
            self.ask(b"", START_SECONDS)
        except (EOFError, TimeoutError) as error:
            self.end()
            raise InfrastructureError(
                "the grading process did not start; what it said stands above. Is math-verify installed?"
            ) from error
        except BaseException:
            self.end()
            raise

    def ask(self, request: bytes, seconds: float) -> str:
        """The value of the line that answers a request. Raises TimeoutError, and EOFError or BrokenPipeError when the
        child has ended."""
        deadline = time.monotonic() + seconds
        while request:
            _wait(self._stdin.fileno(), select.POLLOUT, deadline)
            request = request[os.write(self._stdin.fileno(), request) :]
        line = b""
        while not line.endswith(b"\n"):
            _wait(self._stdout.fileno(), select.POLLIN, deadline)
            part = os.read(self._stdout.fileno(), 1 << 16)
            if not part:
                raise EOFError
            line += part
        return str(json.loads(line))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.close_pipes()

    def close_pipes(self) -> None:
        for pipe in (self._stdin, self._stdout):
            with suppress(OSError):
                pipe.close()


def _shown(text: str) -> str:
    """For a record, which an answer without end would fill."""
    return repr(text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}...")


def _wait(descriptor: int, event: int, deadline: float) -> None:
    """Until it is ready, or broken, which reading or writing then says. Raises TimeoutError."""
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(1000 * max(0.0, deadline - time.monotonic())):
        raise TimeoutError


_GRADERS: "weakref.WeakSet[MathGrader]" = weakref.WeakSet()


def _close_all() -> None:
    for grader in list(_GRADERS):
        grader.close()


def _forget_all() -> None:
    for grader in list(_GRADERS):
        grader._forget()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_all)

GRADER = MathGrader()
"""of this process"""
