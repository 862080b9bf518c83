"""Grading of mathematical answers by math-verify, in a pool of child processes that can be killed.

math-verify's clocks are SIGALRM's. Outside a main thread they raise, and in one they turn what takes too long into "not
equal": either way a reward function that goes on has a silent 0. Here the children grade without them, under the
kernel's clock of their CPU time. What could not be graded is UNGRADABLE and never 0, unless the answer alone is the
cause: what the same grader then makes of the gold tells.
"""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from rtpo.errors import InfrastructureError
from rtpo.types import Grade, GradeOutcome

CHILD = Path(__file__).with_name("grading_child.py")
_PACKAGES = Path(__file__).parents[2]
"""the folder that this project is imported from, for the child"""
START_SECONDS: Final = 120.0
STALL: Final = 30.0
"""wall-clock seconds for each second of the limit, after which a child is stopped or starved and not at work"""
SHOWN_CHARACTERS: Final = 100
RIGHT, WRONG, UNREADABLE_ANSWER, UNREADABLE_GOLD = "right", "wrong", "unreadable answer", "unreadable gold"
_VERDICTS: Final = (RIGHT, WRONG, UNREADABLE_ANSWER)
_OTHER: Final = "0"
"""an answer as good as any, to try a gold with"""
_CRASHES: Final = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)


@dataclass(frozen=True, slots=True)
class _NoVerdict:
    """why: in a few words. by: what did it: the clock, what was compared, the gold alone, or nothing of these."""

    why: str
    by: Literal["time", "expressions", "gold", "outside"]


class MathGrader:
    """A pool of child processes, each started when no other is free. Any thread may grade, in a forked process too.

    A grade has a child to itself. One that is ended, by the clock or by itself, is replaced at a later grade; the
    others go on. A process that ends, however it does, takes its children with it; a forked one has none of them.

    seconds: of CPU time, the limit of one comparison, from the next one on, so that a busy machine takes nothing away.
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
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forget)

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the children there are."""
        with self._lock:
            return tuple(child.process.pid for child in self._children)

    def grade(self, golds: tuple[str, ...], answer: str) -> Grade:
        """Whether `answer` equals one of `golds`, all as they stand inside `\\boxed{}`: 1, or 0 where it equals none or
        cannot be read, and a spoiled 0 where the answer alone took too much time or memory, made math-verify raise or
        ended its process. UNGRADABLE where it was found equal to none and could not be compared with one through no
        doing of its own: the gold cannot be read, fails with any answer, or the child was ended twice from outside.

        Raises InfrastructureError when a child cannot be started, and ValueError without a gold.
        """
        if isinstance(golds, str) or not golds:
            raise ValueError(f"golds is {golds!r}: give a tuple of one accepted answer or more")
        results: dict[str, str | _NoVerdict] = {}
        for gold in golds:
            results[gold] = self._compare(gold, answer)
            if results[gold] == RIGHT:
                return Grade(GradeOutcome.GRADED, 1.0, RIGHT)
        failed = {gold: result for gold, result in results.items() if isinstance(result, _NoVerdict)}
        if failed:
            why = "; ".join(result.why for result in failed.values())
            if all(result.by in ("time", "expressions") and self._is_fit(gold) for gold, result in failed.items()):
                return Grade(GradeOutcome.GRADED, 0.0, f"{why}, by the answer alone", spoiled=True)
            return Grade(GradeOutcome.UNGRADABLE, None, why)
        is_read = WRONG in results.values()
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
            child.pipe.close()
        self._children, self._idle = [], []
        self._lock = threading.Lock()
        self._places = threading.Semaphore(self.workers)

    def _compare(self, gold: str, answer: str) -> str | _NoVerdict:
        """RIGHT, WRONG, UNREADABLE_ANSWER, or what kept it from one of them."""
        with self._places:
            result = self._ask(gold, answer)
            # memory that an earlier grade still holds, or a signal, may be gone with the child
            if isinstance(result, _NoVerdict) and result.by in ("expressions", "outside"):
                result = self._ask(gold, answer, is_new=True)
        if isinstance(result, str):
            return result
        return replace(result, why=f"comparing {_shown(answer)} with {_shown(gold)} {result.why}")

    def _is_fit(self, gold: str) -> bool:
        """Whether a gold can be graded by, which the answer that failed with it is then the cause of."""
        with self._places:
            # a comparison with itself may be over before it has begun
            return self._ask(gold, gold, is_new=True) == RIGHT and self._ask(gold, _OTHER) in _VERDICTS

    def _ask(self, gold: str, answer: str, is_new: bool = False) -> str | _NoVerdict:
        """What one child says: RIGHT, WRONG, UNREADABLE_ANSWER, or why there is no verdict."""
        seconds = self.seconds
        request = json.dumps({"gold": gold, "answer": answer, "seconds": seconds}).encode() + b"\n"
        child = self._take(is_new)
        said = ""
        try:
            said = child.ask(request, STALL * seconds)
        except TimeoutError:
            return _NoVerdict(f"stood still for {STALL * seconds:g} s", "outside")
        except (EOFError, ConnectionError):
            return child.death(seconds)
        finally:
            self._give_back(child, is_well=said in (*_VERDICTS, UNREADABLE_GOLD))
        if said in _VERDICTS:
            return said
        return _NoVerdict(f"gave {said}", "gold" if said == UNREADABLE_GOLD else "expressions")

    def _take(self, is_new: bool) -> "_Child":
        """The child that was idle last, so that few are started where few are needed; or a new one in its place, since
        what ended one between two grades may have ended others."""
        with self._lock:
            child = self._idle.pop() if self._idle else None
            if child and is_new:
                self._children.remove(child)
        if child and not is_new:
            return child
        if child:
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
        self.pipe, theirs = socket.socketpair()
        paths = [str(_PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])]
        try:
            # a session of its own: Ctrl-C is for the run, which finishes its phase
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(CHILD)],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                # sympy's way through an expression depends on the order of sets
                env=os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,
            )
        except OSError as error:
            self.pipe.close()
            raise InfrastructureError(f"the grading process could not be started: {error}") from error
        finally:
            theirs.close()
        try:
            self.ask(b"", START_SECONDS)
        except BaseException as error:
            self.end()
            if not isinstance(error, EOFError | OSError):
                raise
            raise InfrastructureError(
                "the grading process did not start; what it said stands above. Is math-verify installed?"
            ) from error

    def ask(self, request: bytes, seconds: float) -> str:
        """The value of the line that answers a request. Raises TimeoutError where that waits so long, and EOFError or
        ConnectionError when the child has ended."""
        self.pipe.settimeout(seconds)
        self.pipe.sendall(request)
        line = b""
        while not line.endswith(b"\n"):
            part = self.pipe.recv(1 << 16)
            if not part:
                raise EOFError
            line += part
        return str(json.loads(line))

    def death(self, seconds: float) -> _NoVerdict:
        """Of what it died."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(START_SECONDS)
        status = self.process.returncode
        if status == -signal.SIGPROF:
            return _NoVerdict(f"took over {seconds:g} s of CPU time", "time")
        is_own = status is not None and (status >= 0 or -status in _CRASHES)
        return _NoVerdict("ended the grading process, twice", "expressions" if is_own else "outside")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.pipe.close()


def _shown(text: str) -> str:
    """For a record, which an answer without end would fill."""
    return repr(text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}...")


GRADER = MathGrader()
"""of this process"""
