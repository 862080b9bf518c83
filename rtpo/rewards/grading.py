"""Grading of mathematical answers by math-verify, in a pool of child processes that can be killed.

math-verify limits time with SIGALRM. It counts a comparison that is too slow as "not equal", and nobody sees the wrong
0. Here children grade without SIGALRM, and the kernel limits their CPU time.

A failed comparison is UNGRADABLE, unless the answer alone caused the failure; then the answer gets 0. The answer alone
caused it if the grader can compare the gold with itself and with another answer.
"""

import atexit
import json
import os
import signal
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from rtpo.core.children import START_SECONDS, Child
from rtpo.types import Grade, GradeOutcome

CHILD = Path(__file__).with_name("grading_child.py")
_PACKAGES = Path(__file__).parents[2]
"""the folder that the child imports this project from"""
STALL: Final = 30.0
"""wall-clock seconds to wait for each second of the CPU limit. A child that takes longer is stalled"""
SHOWN_CHARACTERS: Final = 100
RIGHT, WRONG, UNREADABLE_ANSWER, UNREADABLE_GOLD = "right", "wrong", "unreadable answer", "unreadable gold"
_VERDICTS: Final = (RIGHT, WRONG, UNREADABLE_ANSWER)
_TRIAL_ANSWER: Final = "0"
"""an arbitrary answer, to test whether a gold can be compared"""
_CRASHES: Final = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a comparison has no verdict."""

    why: str  # in a few words
    cause: Literal["time", "expressions", "gold", "outside"]  # outside: something killed or stopped the child


class MathGrader:
    """A pool of child processes that grade. After a failed comparison, a new child takes the place of an idle one.

    A child does one comparison at a time. If a child ends, a later comparison starts a new child, and the other
    children continue. All children end with the process that started them. A forked process starts new children.

    seconds: limit of a comparison's CPU time. A busy machine changes no grade, since it lengthens wall-clock time only.
    workers: largest number of children; by default one per available CPU.
    """

    def __init__(self, seconds: float = 10.0, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers is {workers}: use 1 or more")
        self.seconds = seconds
        self.workers = workers or len(os.sched_getaffinity(0))
        self._children: list[Child] = []
        self._idle: list[Child] = []
        self._lock = threading.Lock()
        self._places = threading.Semaphore(self.workers)
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forget)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of all children."""
        with self._lock:
            return tuple(child.process.pid for child in self._children)

    def grade(self, golds: tuple[str, ...], answer: str) -> Grade:
        """Grade an answer: 1 if it equals one of `golds`, else 0. Golds and answer are contents of `\\boxed{}`.

        An unreadable answer gets 0. The 0 is `spoiled` if the answer alone exceeded the time or memory limit, made
        math-verify raise, or ended the child. The grade is UNGRADABLE if no gold is equal and a comparison failed for
        another reason. Reasons: an unreadable gold, a gold that fails with any answer, or a child killed or stalled
        twice from outside.

        Any thread may call it. Raises InfrastructureError if a child does not start, and ValueError without a gold.
        """
        if isinstance(golds, str) or not golds:
            raise ValueError(f"golds is {golds!r}: give a tuple of one accepted answer or more")
        results: dict[str, str | _Failure] = {}
        for gold in golds:
            results[gold] = self._compare(gold, answer)
            if results[gold] == RIGHT:
                return Grade(GradeOutcome.GRADED, 1.0, RIGHT)
        failed = {gold: result for gold, result in results.items() if isinstance(result, _Failure)}
        if failed:
            reason = "; ".join(result.why for result in failed.values())
            by_answer = ("time", "expressions")
            if all(result.cause in by_answer and self._is_gradable(gold) for gold, result in failed.items()):
                return Grade(GradeOutcome.GRADED, 0.0, f"{reason}, by the answer alone", spoiled=True)
            return Grade(GradeOutcome.UNGRADABLE, None, reason)
        is_read = WRONG in results.values()
        return Grade(GradeOutcome.GRADED, 0.0, WRONG if is_read else "the answer cannot be read as mathematics")

    def close(self) -> None:
        """End all children. A later comparison starts new children."""
        with self._lock:
            children, idle = self._children, self._idle
            self._children, self._idle = [], []
        for child in children:
            child.process.kill()
        # a busy child ends when `_give_back` gets it
        for child in idle:
            child.end()

    def _forget(self) -> None:
        """Drop the parent's children in a forked process. Replace the locks, which a thread of the parent may hold."""
        for child in self._children:
            child.pipe.close()
        self._children, self._idle = [], []
        self._lock = threading.Lock()
        self._places = threading.Semaphore(self.workers)

    def _compare(self, gold: str, answer: str) -> str | _Failure:
        """RIGHT, WRONG or UNREADABLE_ANSWER, or why there is no verdict."""
        with self._places:
            result = self._ask(gold, answer)
            # a new child may succeed: it has no memory in use from earlier grades, and no signal pending
            if isinstance(result, _Failure) and result.cause in ("expressions", "outside"):
                result = self._ask(gold, answer, is_new=True)
        if isinstance(result, str):
            return result
        return replace(result, why=f"comparing {_shown(answer)} with {_shown(gold)} {result.why}")

    def _is_gradable(self, gold: str) -> bool:
        """Whether a gold can be compared at all. If so, the answer caused a failed comparison with this gold."""
        with self._places:
            # math-verify may skip the work of comparing a gold with itself, so another answer is tried too
            return self._ask(gold, gold, is_new=True) == RIGHT and self._ask(gold, _TRIAL_ANSWER) in _VERDICTS

    def _ask(self, gold: str, answer: str, is_new: bool = False) -> str | _Failure:
        """Ask one child: RIGHT, WRONG or UNREADABLE_ANSWER, or why there is no verdict."""
        seconds = self.seconds
        request = json.dumps({"gold": gold, "answer": answer, "seconds": seconds}).encode() + b"\n"
        child = self._take(is_new)
        verdict = ""
        try:
            verdict = child.ask(request, STALL * seconds)
        except TimeoutError:
            return _Failure(f"stood still for {STALL * seconds:g} s", "outside")
        except (EOFError, ConnectionError):
            return _death(child, seconds)
        finally:
            self._give_back(child, can_be_reused=verdict in (*_VERDICTS, UNREADABLE_GOLD))
        if verdict in _VERDICTS:
            return verdict
        return _Failure(f"gave {verdict}", "gold" if verdict == UNREADABLE_GOLD else "expressions")

    def _take(self, is_new: bool) -> Child:
        """Take the child that became idle last, or start one. is_new: start a new child in place of the idle one. What
        ended the last child may have ended the idle one too."""
        with self._lock:
            child = self._idle.pop() if self._idle else None
            if child and is_new:
                self._children.remove(child)
        if child and not is_new:
            return child
        if child:
            child.end()
        child = _start()
        with self._lock:
            self._children.append(child)
        return child

    def _give_back(self, child: Child, can_be_reused: bool) -> None:
        with self._lock:
            is_ours = child in self._children
            if is_ours and can_be_reused:
                self._idle.append(child)
                return
            if is_ours:
                self._children.remove(child)
        child.end()


def _start() -> Child:
    paths = [str(_PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])]
    # sympy's results depend on the order of sets, so string hashes are fixed
    environment = {"PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(paths)}
    return Child(CHILD, "the grading process", environment, " Is math-verify installed?")


def _death(child: Child, seconds: float) -> _Failure:
    """Why the child died."""
    with suppress(subprocess.TimeoutExpired):
        child.process.wait(START_SECONDS)
    status = child.process.returncode
    if status == -signal.SIGPROF:
        return _Failure(f"took over {seconds:g} s of CPU time", "time")
    by_itself = status is not None and (status >= 0 or -status in _CRASHES)
    return _Failure("ended the grading process, twice", "expressions" if by_itself else "outside")


def _shown(text: str) -> str:
    """Text shortened for a record."""
    return repr(text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}...")


GRADER = MathGrader()
"""the process's shared grader"""
