"""Grading of mathematical answers by math-verify, in one child process.

math-verify's clocks are SIGALRM's. Outside a main thread they raise, and in one they turn what takes too long into "not
equal": either way a reward function that goes on has a silent 0. Here the child grades without them, and this side
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
from contextlib import suppress
from pathlib import Path
from typing import Final

from rtpo.errors import InfrastructureError
from rtpo.types import Grade, GradeOutcome

CHILD = Path(__file__).with_name("grading_child.py")
START_SECONDS: Final = 120.0
_GRADES: Final = {
    "right": Grade(GradeOutcome.GRADED, 1.0, "right"),
    "wrong": Grade(GradeOutcome.GRADED, 0.0, "wrong"),
    "unreadable answer": Grade(GradeOutcome.GRADED, 0.0, "the answer cannot be read as mathematics"),
}


class MathGrader:
    """One child process, started at the first grade and after each that ended it. Any thread may grade; grades wait for
    one another.

    seconds: wall-clock limit of one grade, from the next one on.
    """

    def __init__(self, seconds: float = 10.0) -> None:
        self.seconds = seconds
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    @property
    def pid(self) -> int | None:
        """Of the child, where there is one."""
        return None if self._child is None else self._child.pid

    def grade(self, gold: str, answer: str) -> Grade:
        """Whether `answer` equals `gold`, both as they stand inside `\\boxed{}`: 1, or 0 where it does not or cannot
        be read. UNGRADABLE where the gold cannot be read, the comparison raised, the limit was met, or the child ended
        twice on it.

        Raises InfrastructureError when the child cannot be started.
        """
        with self._lock:
            for _ in range(2):
                try:
                    verdict = self._ask(gold, answer)
                except TimeoutError:
                    self._end()
                    return _ungradable(f"comparing {answer!r} with {gold!r} took over {self.seconds:g} s")
                except (EOFError, BrokenPipeError):
                    self._end()
                else:
                    return _GRADES.get(verdict) or _ungradable(f"{verdict}: comparing {answer!r} with {gold!r}")
        return _ungradable(f"comparing {answer!r} with {gold!r} ended the grading process, twice")

    def close(self) -> None:
        """End the child, if there is one; another grade would start a new one."""
        with self._lock:
            self._end()

    def _ask(self, gold: str, answer: str) -> str:
        child = self._child or self._start()
        assert child.stdin is not None
        child.stdin.write(json.dumps({"gold": gold, "answer": answer}).encode() + b"\n")
        child.stdin.flush()
        return _read(child, self.seconds)

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            # a session of its own: Ctrl-C is for the run, which finishes its phase
            child = subprocess.Popen(
                [sys.executable, "-P", str(CHILD)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise InfrastructureError(f"the grading process could not be started: {error}") from error
        self._child = child
        try:
            _read(child, START_SECONDS)
        except (EOFError, TimeoutError) as error:
            self._end()
            raise InfrastructureError(
                "the grading process did not start; what it said stands above. Is math-verify installed?"
            ) from error
        return child

    def _end(self) -> None:
        if self._child is None:
            return
        child, self._child = self._child, None
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # a request that it did not read
                pipe.close()


GRADER = MathGrader()
"""of this process"""


def _read(child: subprocess.Popen[bytes], seconds: float) -> str:
    """The next line's value. Raises TimeoutError, and EOFError when the child has ended."""
    assert child.stdout is not None
    deadline = time.monotonic() + seconds
    line = b""
    while not line.endswith(b"\n"):
        if not select.select([child.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError
        part = os.read(child.stdout.fileno(), 1 << 16)
        if not part:
            raise EOFError
        line += part
    return str(json.loads(line))


def _ungradable(detail: str) -> Grade:
    return Grade(GradeOutcome.UNGRADABLE, None, detail)
