"""Grading by math-verify in child processes, and what becomes of grades when these fail."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sympy.core.random import rng

from rtpo.errors import InfrastructureError
from rtpo.rewards import grading, grading_child
from rtpo.rewards.grading import MathGrader
from rtpo.types import GradeOutcome

ENDLESS = "9^{9^{9^9}}"
"""takes math-verify more time than there is"""
COLUMN = "\\begin{pmatrix}1\\\\2\\end{pmatrix}"


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


def faulty_child(folder: Path, fault: str) -> Path:
    """A child that runs `fault` before it begins."""
    file = folder / "child.py"
    file.write_text(f"import os\nfrom rtpo.rewards import grading_child\n{fault}\ngrading_child.main()\n")
    return file


PAIRS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("3000", ("3,000",), ()),
    ("1000", ("1{,}000",), ()),
    ("5", ("x=5", "5.", "2+3=5", "a+b=5"), ("%", "6", "", "\\frac{", "}{", "a line\nand another")),
    ("x=5", ("5=x",), ()),
    ("18", ("\\$18", "18.0", "18\\text{ dollars}"), ()),
    ("25", ("25\\%", "25 % ", "25 percent", "25\\%."), ("26\\%",)),
    ("10\\%", ("10\\%",), ()),
    ("10%", ("10",), ()),
    ("90", ("90^\\circ",), ()),
    ("90°", ("90",), ()),
    ("1", (), ("1 4/5",)),
    ("\\frac{3}{4}", ("0.75",), ()),
    ("\\frac95", ("1 4/5",), ()),
    ("-\\frac95", ("-1 4/5",), ()),
    ("\\frac12", ("\\sin(30^{\\circ})", "{\\color{red}\\frac12}"), ()),
    ("\\tan 30^\\circ", ("\\frac{1}{\\sqrt3}",), ()),
    ("(1,4)", ("\\left(1, 4\\right)",), ()),
    ("(1,2)", ("x=1, y=2",), ("1,2", "\\{1,2\\}")),
    ("\\{-3, 3\\}", ("\\{3, -3\\}",), ()),
    ("x(x+2)", ("x^2+2x",), ()),
    ("(-\\infty,3)", ("x<3",), ("x\\le 3",)),
    ("[0,1)", ("0\\le x<1",), ("0<x<1",)),
    (COLUMN, ("(1,2)", f"\\begin{{pmatrix}}x\\\\y\\end{{pmatrix}}={COLUMN}"), ("(2,1)", "[1,2]", "(1,2,3)")),
    ("\\begin{pmatrix}1\\\\2\\\\3\\end{pmatrix}", ("(1,2,3)",), ()),
    ("\\text{Monday}", ("Monday",), ()),
    ("\\text{June 20}", ("June 20",), ("June 21",)),
    ("\\emptyset", ("\\varnothing",), ("0",)),
    ("x\\equiv 1\\pmod 3", ("x\\equiv 1\\pmod{3}",), ("x\\equiv 1\\pmod 5", "3")),
    ("1\\pmod{3}", ("1 (\\mod 3)",), ()),
    ("i", ("\\sqrt{-1}",), ("-\\sqrt{-1}",)),
    ("1+2i", ("1+2\\sqrt{-1}",), ()),
    ("73", ("73=x", "７３", "\\color{red}{73}", "\\textcolor{red}{73}", "73;"), ("72=73", "72=73=x")),
    ("73", (), ("73\\text{ apples and }12\\text{ pears}",)),
    ("3\\text{ feet }4\\text{ inches}", ("3\\text{ ft }4 \\text{ in}",), ("3\\text{ ft }5\\text{ in}",)),
    ("2516_8", ("2516_{8}", "1358=2516_8"), ("2516", "2516_7")),
    ("1358", ("2516_8=1358",), ()),
    ("2516", ("2516_8",), ()),
)
"""a gold, answers that equal it, and answers that do not"""


@pytest.mark.parametrize(("gold", "right", "wrong"), PAIRS)
def test_answers_are_compared_as_mathematics(
    grader: MathGrader, gold: str, right: tuple[str, ...], wrong: tuple[str, ...]
) -> None:
    for answer in (*right, *wrong):
        grade = grader.grade((gold,), answer)
        assert (answer, grade.outcome, grade.reward) == (answer, GradeOutcome.GRADED, answer in right)


def test_a_gold_that_cannot_be_read_gives_no_reward(grader: MathGrader) -> None:
    for gold in ("", "{", "?", "%"):
        grade = grader.grade((gold,), "5")
        assert (grade.outcome, grade.reward) == (GradeOutcome.UNGRADABLE, None)


def test_a_comparison_without_end_costs_its_own_time_and_child(grader: MathGrader) -> None:
    before = {pid: cpu_ticks(pid) for pid in grader.pids}
    with ThreadPoolExecutor(1) as threads:
        grader.seconds = 3
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
    assert (grade.outcome, grade.reward, grade.spoiled) == (GradeOutcome.GRADED, 0, True)
    assert others > 1
    assert all(map(is_gone, at_work))
    assert not set(grader.pids) & {*at_work}
    assert grade_all(grader, [("5", "5")] * 8) == [1] * 8


@pytest.mark.parametrize("answer", ["\\prod_{k=1}^{10^6} k", "{" * 20000])
def test_an_answer_that_alone_takes_too_long_is_a_spoiled_zero(grader: MathGrader, answer: str) -> None:
    grader.seconds = 1
    grade = grader.grade(("5",), answer)
    assert (grade.outcome, grade.reward, grade.spoiled) == (GradeOutcome.GRADED, 0, True)
    assert len(grade.detail) < 200


@pytest.mark.parametrize("golds", [(ENDLESS,), ("5", ENDLESS)])
def test_a_gold_that_takes_too_long_with_any_answer_gives_no_reward(grader: MathGrader, golds: tuple[str, ...]) -> None:
    """Against itself it takes no time."""
    grader.seconds = 1
    grade = grader.grade(golds, "6")
    assert (grade.outcome, grade.reward, grade.spoiled) == (GradeOutcome.UNGRADABLE, None, False)
    if "5" in golds:  # it does not hide the next
        assert grader.grade(golds[::-1], "5").reward == 1


@pytest.mark.parametrize(
    ("fault", "spoiled"), [("bytearray(2 << 30)", True), ("os.abort()", True), ("os.kill(os.getpid(), 9)", False)]
)
def test_only_what_the_answer_alone_does_is_a_zero(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str, spoiled: bool
) -> None:
    """Children in which reading the answer 6 fails for good, in one of them from outside."""
    failing = f"lambda text: {fault} if text == '6' else read(text)"
    child = faulty_child(tmp_path, f"read = grading_child.read\ngrading_child.read = {failing}")
    monkeypatch.setattr(grading, "CHILD", child)
    grader = MathGrader(seconds=60)
    grade = grader.grade(("5",), "6")
    assert (grade.spoiled, grade.reward) == (spoiled, 0 if spoiled else None)
    assert grader.grade(("6",), "5").outcome is GradeOutcome.UNGRADABLE
    grader.close()


def test_a_busy_machine_takes_no_time_from_a_grade() -> None:
    grader = MathGrader(seconds=1, workers=1)
    assert grader.grade(("5",), "5").reward == 1
    (child,) = grader.pids
    os.kill(child, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        grade = threads.submit(grader.grade, ("5",), "5")
        time.sleep(1.2)
        os.kill(child, signal.SIGCONT)
    assert grade.result().reward == 1
    assert grader.pids == (child,)
    grader.close()


def test_any_gold_will_do_and_a_zero_takes_all(grader: MathGrader) -> None:
    cases = {("5", "6", "6"): 1, ("5", "6", "7"): 0, ("5", "{", "5"): 1, ("{", "5", "5"): 1, ("{", "5", "6"): None}
    for (*golds, answer), reward in cases.items():
        grade = grader.grade(tuple(golds), answer)
        assert grade.reward == reward
        assert (grade.outcome is GradeOutcome.UNGRADABLE) == (reward is None)


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
    module, _, name = place.partition(".")
    no_memory = "lambda *given, **options: bytearray(1 << 60)"
    child = faulty_child(tmp_path, f"import math_verify.{module} as module\nmodule.{name} = {no_memory}")
    monkeypatch.setattr(grading, "CHILD", child)
    grader = MathGrader(seconds=60)
    grade = grader.grade(("5",), "6")
    assert (grade.outcome, grade.reward) == (GradeOutcome.UNGRADABLE, None)
    # what it still holds would be missing at its next grade
    assert grader.pids == ()


def test_a_child_has_little_memory_and_one_order_of_sets(grader: MathGrader) -> None:
    for pid in grader.pids:
        limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
        (memory,) = [line for line in limits if line.startswith("Max address space")]
        assert memory.split()[3:5] == [str(grading_child.MEMORY_BYTES)] * 2
        assert b"PYTHONHASHSEED=0" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def test_a_grade_has_a_clock_and_random_numbers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    between, within, draws = [], [], []
    verdict = grading_child.verdict

    def watched(gold: str, answer: str) -> str:
        within.append(0 < signal.getitimer(signal.ITIMER_PROF)[0] < 21)
        draws.append(rng.random())
        return verdict(gold, answer)

    def requests() -> Iterator[str]:
        for answer in ("5", "6"):
            between.append(signal.getitimer(signal.ITIMER_PROF)[0] > 0)
            yield json.dumps({"gold": "5", "answer": answer, "seconds": 20})

    monkeypatch.setattr(grading_child, "verdict", watched)
    assert list(grading_child.verdicts(requests())) == ["right", "wrong"]
    assert within == [True, True]
    assert draws[0] == draws[1]  # where sympy compares at random points, they are the same ones
    assert between == [False, False]
    assert signal.getitimer(signal.ITIMER_PROF)[0] == 0


def test_a_killed_child_is_replaced_and_its_grade_tried_once_more() -> None:
    grader = MathGrader(seconds=60, workers=1)
    assert grader.grade(("5",), "5").reward == 1
    (idle_child,) = grader.pids
    os.kill(idle_child, signal.SIGKILL)
    assert grader.grade(("5",), "5").reward == 1
    assert is_gone(idle_child)
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
    assert all(map(is_gone, killed))
    assert grader.grade(("5",), "5").reward == 1
    grader.close()


def test_a_child_that_stops_reading_is_given_up(grader: MathGrader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that its pipe cannot hold must not be waited for without end; the answer is not the cause."""
    monkeypatch.setattr(grading, "STALL", 1)
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
    for place, name in ((grading, "CHILD"), (grading.sys, "executable")):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, str(tmp_path / "missing.py"))
            with pytest.raises(InfrastructureError):
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
