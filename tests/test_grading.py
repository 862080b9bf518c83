"""Grading by math-verify in child processes, and what becomes of grades when these fail."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import math_verify
import pytest
from sympy.core.random import rng

from experiments.bench_grading import graded
from rtpo.errors import InfrastructureError
from rtpo.rewards import grading, grading_child
from rtpo.rewards.grading import MathGrader
from rtpo.types import GradeOutcome

DATA = os.environ.get("RTPO_DATA", "")
ENDLESS = "9^{9^{9^9}}"
"""takes math-verify more time than there is"""


@pytest.fixture(scope="module")
def pool() -> Iterator[MathGrader]:
    pool = MathGrader(workers=2)
    yield pool
    pool.close()


@pytest.fixture
def grader(pool: MathGrader) -> MathGrader:
    """Of all tests here, with two children."""
    pool.seconds = 60
    while len(pool.pids) < 2:
        grade_all(pool, [("5", "5")] * 8)
    return pool


def grade_all(grader: MathGrader, pairs: Sequence[tuple[str, str]]) -> list[float | None]:
    """The rewards of pairs (gold, answer), several at a time."""
    with ThreadPoolExecutor(4) as threads:
        return [grade.reward for grade in threads.map(lambda pair: grader.grade((pair[0],), pair[1]), pairs)]


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
    grade = grader.grade((gold,), answer)
    assert (grade.outcome, grade.reward) == (GradeOutcome.GRADED, reward)


@pytest.mark.parametrize("gold", ["", "{", "?", "%"])
def test_a_gold_that_cannot_be_read_gives_no_reward(grader: MathGrader, gold: str) -> None:
    grade = grader.grade((gold,), "5")
    assert (grade.outcome, grade.reward) == (GradeOutcome.UNGRADABLE, None)
    assert "unreadable gold" in grade.detail


def test_a_comparison_without_end_costs_its_own_time_and_child(grader: MathGrader) -> None:
    before = {pid: cpu_ticks(pid) for pid in grader.pids}
    with ThreadPoolExecutor(1) as threads:
        grader.seconds = 2
        endless = threads.submit(grader.grade, ("5",), ENDLESS)
        while not (at_work := [pid for pid, ticks in before.items() if cpu_ticks(pid) > ticks + 10]):
            assert not endless.done()
            time.sleep(0.01)
        grader.seconds = 60
        others = 0
        while not endless.done():
            assert grader.grade(("5",), "5").reward == 1
            others += not endless.done()
    grade = endless.result()
    assert (grade.outcome, grade.reward) == (GradeOutcome.UNGRADABLE, None)
    assert grade.detail == f"comparing {ENDLESS!r} with '5' took over 2 s"
    assert others > 1
    assert all(map(is_gone, at_work))
    assert set(grader.pids) == before.keys() - {*at_work}
    assert grade_all(grader, [("5", "5")] * 8) == [1] * 8


@pytest.mark.parametrize(
    ("golds", "answer", "reward"),
    [
        (("5", "6"), "6", 1),
        (("5", "6"), "7", 0),
        (("5", "{"), "5", 1),
        (("{", "5"), "5", 1),
        (("{", "5"), "6", None),
        (("5", "6"), "\\frac{", 0),
    ],
)
def test_any_gold_will_do_and_a_zero_takes_all(
    grader: MathGrader, golds: tuple[str, ...], answer: str, reward: float | None
) -> None:
    grade = grader.grade(golds, answer)
    assert grade.reward == reward
    assert (grade.outcome is GradeOutcome.UNGRADABLE) == (reward is None)


def test_a_gold_that_takes_too_long_does_not_hide_the_next(grader: MathGrader) -> None:
    grader.seconds = 4
    assert grader.grade((ENDLESS, "5"), "5").reward == 1


@pytest.mark.parametrize("golds", ["5", ()])
def test_golds_are_a_tuple_of_some(grader: MathGrader, golds: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="give a tuple of one accepted answer or more"):
        grader.grade(golds, "5")


def test_no_more_children_than_workers_and_none_before_they_are_needed() -> None:
    with pytest.raises(ValueError, match="workers is 0"):
        MathGrader(workers=0)
    grader = MathGrader(seconds=60, workers=1)
    assert grader.pids == ()
    assert grade_all(grader, [("5", str(n)) for n in range(20)]) == [n == 5 for n in range(20)]
    (child,) = grader.pids
    grader.close()
    assert is_gone(child)
    assert grader.pids == ()


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
    grade = grader.grade(("5",), "6")
    assert (grade.outcome, grade.reward) == (GradeOutcome.UNGRADABLE, None)
    assert grade.detail == "MemoryError: comparing '6' with '5'"
    # what it still holds would be missing at its next grade
    assert grader.pids == ()


def test_a_child_has_little_memory_and_one_order_of_sets(grader: MathGrader) -> None:
    for pid in grader.pids:
        limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
        (memory,) = [line for line in limits if line.startswith("Max address space")]
        assert memory.split()[3:5] == [str(grading_child.MEMORY_BYTES)] * 2
        assert b"PYTHONHASHSEED=0" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def test_a_grade_has_an_alarm_and_random_numbers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    between, within, draws = [], [], []
    verdict = grading_child.verdict

    def watched(gold: str, answer: str) -> str:
        within.append(20 < signal.getitimer(signal.ITIMER_REAL)[0] < 60)
        draws.append(rng.random())
        return verdict(gold, answer)

    def requests() -> Iterator[str]:
        for answer in ("5", "6"):
            between.append(signal.getitimer(signal.ITIMER_REAL)[0] > 0)
            yield json.dumps({"gold": "5", "answer": answer, "seconds": 20})

    monkeypatch.setattr(grading_child, "verdict", watched)
    assert list(grading_child.verdicts(requests())) == ["right", "wrong"]
    assert within == [True, True]
    assert draws[0] == draws[1]  # where sympy compares at random points, they are the same ones
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
    assert grade_all(grader, pairs) == [1 - n % 2 for n in range(40)]


def test_children_killed_between_grades_are_replaced(grader: MathGrader) -> None:
    before = set(grader.pids)
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    assert grader.grade(("5",), "5").reward == 1
    assert len(set(grader.pids) - before) == 1
    assert grade_all(grader, [("5", "5")] * 8) == [1] * 8
    assert not set(grader.pids) & before
    assert all(map(is_gone, before))


def test_a_child_killed_during_a_grade_is_replaced_once() -> None:
    grader = MathGrader(seconds=60, workers=1)
    assert grader.grade(("5",), "5").reward == 1
    killed: set[int] = set()

    def kill_each() -> None:
        """Every child that has got to work on the endless comparison, as its CPU time says."""
        while len(killed) < 2:
            for pid in set(grader.pids) - killed:
                if cpu_ticks(pid) > idle + 20:
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
            time.sleep(0.01)

    (idle,) = map(cpu_ticks, grader.pids)
    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill_each)
        grade = grader.grade(("5",), ENDLESS)
        killing.result()
    assert (grade.outcome, grade.reward) == (GradeOutcome.UNGRADABLE, None)
    assert "ended the grading process, twice" in grade.detail
    assert all(map(is_gone, killed))
    assert grader.grade(("5",), "5").reward == 1
    grader.close()


def test_a_child_that_stops_reading_meets_the_limit_too(grader: MathGrader) -> None:
    """A request that its pipe cannot hold must not be waited for without end."""
    before = set(grader.pids)
    for pid in before:
        os.kill(pid, signal.SIGSTOP)
    grader.seconds = 0.2
    for _ in before:
        grade = grader.grade(("5",), "6" * (1 << 20))
        assert grade.outcome is GradeOutcome.UNGRADABLE
        assert len(grade.detail) < 200
    assert all(map(is_gone, before))


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
            grader.grade(("5",), "5")
    with monkeypatch.context() as patch:
        patch.setattr(grading.sys, "executable", str(tmp_path / "nowhere"))
        with pytest.raises(InfrastructureError, match="could not be started"):
            grader.grade(("5",), "5")
    assert grader.pids == ()


@pytest.mark.parametrize("end", ["pass", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"])
def test_no_child_outlives_its_process(end: str) -> None:
    program = (
        "from rtpo.rewards.grading import GRADER\n"
        "assert GRADER.grade(('5',), '5').reward == 1\n"
        f"print(*GRADER.pids, flush=True)\n{end}"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    ends(int(done.stdout))


def ends(pid: int) -> None:
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_forked_process_grades_with_children_of_its_own() -> None:
    """Forked while a lock is held, as another thread might; it leaves its parent's child alone as it ends."""
    program = (
        "import os\n"
        "from rtpo.rewards.grading import GRADER as grader\n"
        "assert grader.grade(('5',), '5').reward == 1\n"
        "before = grader.pids\n"
        "grader._lock.acquire()\n"
        "if not os.fork():\n"
        "    assert grader.pids == ()\n"
        "    assert grader.grade(('5',), '5').reward == 1\n"
        "    assert not set(grader.pids) & set(before)\n"
        "    print(*grader.pids, flush=True)\n"
        "    raise SystemExit\n"
        "grader._lock.release()\n"
        "assert os.waitstatus_to_exitcode(os.wait()[1]) == 0\n"
        "assert grader.grade(('5',), '5').reward == 1\n"
        "assert grader.pids == before\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    ends(int(done.stdout))


def test_a_benchmark_counts_and_times(grader: MathGrader) -> None:
    record = graded(grader, [("5", "5"), ("5", "6"), ("{", "5"), ("6", "6")])
    assert (record["right"], record["wrong"], record["ungradable"]) == (2, 1, 1)
    assert 0 < record["median_seconds"] <= record["p99_seconds"]
    assert record["grades_per_second"] == 4 / record["wall_seconds"]


@pytest.mark.skipif(not DATA, reason="set RTPO_DATA to a folder of real maths files")
def test_every_gold_of_math500_is_right_against_itself_and_none_takes_too_long(grader: MathGrader) -> None:
    golds = [json.loads(line)["answer"] for line in Path(DATA, "math500.jsonl").read_text().splitlines()]
    assert len(golds) == 500
    grader.seconds = 10
    rewards = grade_all(grader, [(gold, gold) for gold in golds])
    assert [gold for gold, reward in zip(golds, rewards, strict=True) if reward != 1] == []
