"""Grading by math-verify in a child process, and what becomes of grades when that process fails."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import math_verify
import pytest

from rtpo.errors import InfrastructureError
from rtpo.rewards import grading, grading_child
from rtpo.rewards.grading import MathGrader
from rtpo.types import GradeOutcome

ENDLESS = "9^{9^{9^9}}"
"""takes math-verify more time than there is"""


@pytest.fixture(scope="module")
def grader() -> Iterator[MathGrader]:
    grader = MathGrader(seconds=60)
    yield grader
    grader.close()


def is_gone(pid: int) -> bool:
    """Neither running nor a zombie."""
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    ("gold", "answer", "reward"),
    [
        ("3000", "3,000", 1),
        ("\\frac{3}{4}", "0.75", 1),
        ("(1,4)", "\\left(1, 4\\right)", 1),
        ("\\{-3, 3\\}", "\\{3, -3\\}", 1),
        ("x(x+2)", "x^2+2x", 1),
        ("\\text{Monday}", "Monday", 1),
        ("18", "\\$18", 1),
        ("18", "18.0", 1),
        ("18", "18\\text{ dollars}", 1),
        ("1000", "1{,}000", 1),
        ("5", "x=5", 1),
        ("25", "25\\%", 1),
        ("25", "25 % ", 1),
        ("25", "25 percent", 1),
        ("25", "26\\%", 0),
        ("10\\%", "10\\%", 1),
        ("10%", "10", 1),
        ("90", "90^\\circ", 1),
        ("90°", "90", 1),
        ("5", "%", 0),
        ("5", "6", 0),
        ("5", "", 0),
        ("5", "\\frac{", 0),
        ("5", "}{", 0),
        ("5", "a line\nand another", 0),
    ],
)
def test_answers_are_compared_as_mathematics(grader: MathGrader, gold: str, answer: str, reward: float) -> None:
    grade = grader.grade(gold, answer)
    assert (grade.outcome, grade.reward) == (GradeOutcome.GRADED, reward)


@pytest.mark.parametrize("gold", ["", "{", "?", "%"])
def test_a_gold_that_cannot_be_read_gives_no_reward(grader: MathGrader, gold: str) -> None:
    grade = grader.grade(gold, "5")
    assert (grade.outcome, grade.reward) == (GradeOutcome.UNGRADABLE, None)
    assert "unreadable gold" in grade.detail


def test_a_comparison_without_end_is_no_zero() -> None:
    grader = MathGrader(seconds=60)
    assert grader.grade("5", "5").reward == 1
    before = grader.pid
    assert before is not None
    grader.seconds = 1
    grade = grader.grade("5", ENDLESS)
    assert (grade.outcome, grade.reward) == (GradeOutcome.UNGRADABLE, None)
    assert "took over 1 s" in grade.detail
    assert is_gone(before)
    assert grader.pid is None
    grader.seconds = 60
    assert grader.grade("5", "5").reward == 1
    grader.close()


@pytest.mark.parametrize("place", ["grader.sympy_expr_eq", "parser.get_extraction_regexes"])
def test_a_comparison_that_raises_is_no_zero(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str) -> None:
    """A child in which math-verify runs out of memory, inside what would make False, or no answer, of it."""
    module, name = place.split(".")
    child = tmp_path / "child.py"
    child.write_text(
        f"import math_verify.{module} as module\n"
        "from rtpo.rewards import grading_child\n"
        "def no_memory(*given, **options):\n"
        "    raise MemoryError\n"
        f"module.{name} = no_memory\n"
        "grading_child.main()\n"
    )
    monkeypatch.setattr(grading, "CHILD", child)
    grader = MathGrader(seconds=60)
    grade = grader.grade("5", "6")
    assert (grade.outcome, grade.reward) == (GradeOutcome.UNGRADABLE, None)
    assert grade.detail == "MemoryError: comparing '6' with '5'"
    grader.close()


def test_a_child_is_under_an_alarm_while_it_grades_and_at_no_other_time(monkeypatch: pytest.MonkeyPatch) -> None:
    between, within = [], []
    verdict = grading_child.verdict

    def watched(gold: str, answer: str) -> str:
        within.append(signal.getitimer(signal.ITIMER_REAL)[0] > 0)
        return verdict(gold, answer)

    def requests() -> Iterator[str]:
        for answer in ("5", "6"):
            between.append(signal.getitimer(signal.ITIMER_REAL)[0] > 0)
            yield json.dumps({"gold": "5", "answer": answer})

    monkeypatch.setattr(grading_child, "verdict", watched)
    assert list(grading_child.verdicts(requests())) == ["right", "wrong"]
    assert within == [True, True]
    assert between == [False, False]
    assert signal.alarm(0) == 0


def test_grades_in_threads_and_the_trap_they_avoid(grader: MathGrader) -> None:
    """math-verify's clock is SIGALRM's: in a thread it raises, and in a main thread what it ends is "not equal"."""
    with ThreadPoolExecutor(4) as pool:
        with pytest.raises(ValueError, match="doesn't support threaded environment"):
            pool.submit(math_verify.parse, "\\boxed{5}").result()
        golds = math_verify.parse("\\boxed{5}", parsing_timeout=None)
        with pytest.raises(ValueError, match="doesn't support threaded environment"):
            pool.submit(math_verify.verify, golds, golds).result()
        assert threading.current_thread() is threading.main_thread()
        texts = ("\\boxed{10^9}", "\\boxed{\\sum_{k=1}^{10^9} 1}")
        number, a_billion = (math_verify.parse(text, parsing_timeout=None) for text in texts)
        assert not math_verify.verify(number, a_billion, timeout_seconds=1)

        pairs = [(str(n), str(n + n % 2)) for n in range(40)]
        grades = list(pool.map(lambda pair: grader.grade(*pair), pairs))
    assert [grade.reward for grade in grades] == [1 - n % 2 for n in range(40)]


def test_a_child_killed_between_grades_is_replaced(grader: MathGrader) -> None:
    assert grader.grade("5", "5").reward == 1
    before = grader.pid
    assert before is not None
    os.kill(before, signal.SIGKILL)
    assert grader.grade("5", "5").reward == 1
    assert grader.pid != before
    assert is_gone(before)


def test_a_child_killed_during_a_grade_is_replaced_once() -> None:
    grader = MathGrader(seconds=60)
    assert grader.grade("5", "5").reward == 1
    killed: set[int] = set()

    def kill_each() -> None:
        """Every child that has got to work on the endless comparison, as its CPU time says."""
        while len(killed) < 2:
            pid = grader.pid
            if pid is not None and pid not in killed and cpu_ticks(pid) > idle + 20:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
            time.sleep(0.01)

    assert grader.pid is not None
    idle = cpu_ticks(grader.pid)
    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill_each)
        grade = grader.grade("5", ENDLESS)
        killing.result()
    assert (grade.outcome, grade.reward) == (GradeOutcome.UNGRADABLE, None)
    assert "ended the grading process, twice" in grade.detail
    assert all(map(is_gone, killed))
    assert grader.grade("5", "5").reward == 1
    grader.close()


def cpu_ticks(pid: int) -> int:
    """Hundredths of a second; 0 for a process that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0
    return int(fields[11]) + int(fields[12])


def test_a_child_that_cannot_be_started_is_no_zero(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    grader = MathGrader()
    with monkeypatch.context() as patch:
        patch.setattr(grading, "CHILD", tmp_path / "missing.py")
        with pytest.raises(InfrastructureError, match="did not start"):
            grader.grade("5", "5")
    with monkeypatch.context() as patch:
        patch.setattr(grading.sys, "executable", str(tmp_path / "nowhere"))
        with pytest.raises(InfrastructureError, match="could not be started"):
            grader.grade("5", "5")
    assert grader.pid is None


@pytest.mark.parametrize("end", ["pass", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"])
def test_no_child_outlives_its_process(end: str) -> None:
    program = (
        "from rtpo.rewards.grading import GRADER\n"
        "assert GRADER.grade('5', '5').reward == 1\n"
        f"print(GRADER.pid, flush=True)\n{end}"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    pid = int(done.stdout)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
