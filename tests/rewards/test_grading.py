"""Grading by math-verify in child processes, and what becomes of grades when these fail."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from sympy.core.random import rng

from rtpo.errors import InfrastructureError
from rtpo.rewards import grading, grading_child
from rtpo.rewards.grading import MathGrader
from rtpo.types import Grade, GradeOutcome

ENDLESS = "9^{9^{9^9}}"
"""takes math-verify more time than there is"""
PAIRS = Path(__file__).parents[1] / "fixtures" / "grading.yaml"


@pytest.fixture(scope="module")
def grader() -> Iterator[MathGrader]:
    """With one child at a time: starting one takes longest here."""
    grader = MathGrader(seconds=60, workers=1)
    assert grader.pids == ()
    yield grader
    grader.close()
    assert grader.pids == ()


@pytest.fixture
def child(grader: MathGrader) -> int:
    grader.seconds = 60
    assert is_right(grader)
    (pid,) = grader.pids
    return pid


def is_right(grader: MathGrader) -> bool:
    """Whether 5 is graded as 5."""
    return grader.grade(("5",), "5") == Grade(GradeOutcome.GRADED, 1.0, "right")


def reward_and_fault(grade: Grade) -> tuple[float | None, bool]:
    """The reward, and whether the answer spoiled it. A reward that is missing has an outcome of its own."""
    assert (grade.outcome is GradeOutcome.UNGRADABLE) == (grade.reward is None)
    assert len(grade.detail) < 300
    return grade.reward, grade.spoiled


def is_gone(pid: int) -> bool:
    """Neither running nor a zombie."""
    return not Path(f"/proc/{pid}").exists()


def test_answers_are_compared_as_mathematics(grader: MathGrader) -> None:
    expected = {
        (pair["gold"], said): (reward, False)
        for pair in yaml.safe_load(PAIRS.read_text(encoding="utf-8"))
        for side, reward in (("right", 1), ("wrong", 0))
        for said in pair.get(side, ())
    }
    assert len(expected) > 60
    assert {(gold, said): reward_and_fault(grader.grade((gold,), said)) for gold, said in expected} == expected


def test_one_of_several_golds_is_enough_and_an_unreadable_gold_leaves_a_wrong_answer_without_reward(
    grader: MathGrader,
) -> None:
    cases = {("5", "6", "6"): 1, ("5", "6", "7"): 0, ("5", "{", "5"): 1, ("{", "5", "5"): 1, ("{", "5", "6"): None}
    cases |= {(gold, "5"): None for gold in ("", "{", "?", "%")}
    assert {case: reward_and_fault(grader.grade(case[:-1], case[-1]))[0] for case in cases} == cases
    said = [grader.grade(("5",), answer).detail for answer in ("6", "")]
    assert said == ["wrong", "the answer cannot be read as mathematics"]
    for golds in ((), "5"):
        with pytest.raises(ValueError, match="golds"):
            grader.grade(golds, "5")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="workers is 0"):
        MathGrader(workers=0)


def test_threads_share_a_child_whose_memory_and_hash_seed_are_fixed(grader: MathGrader, child: int) -> None:
    with ThreadPoolExecutor(4) as threads:
        grades = list(threads.map(lambda number: grader.grade(("5",), str(number)).reward, range(20)))
    assert (grades, grader.pids) == ([number == 5 for number in range(20)], (child,))
    limits = Path(f"/proc/{child}/limits").read_text().splitlines()
    (memory,) = [line for line in limits if line.startswith("Max address space")]
    assert memory.split()[3:5] == [str(grading_child.MEMORY_BYTES)] * 2
    assert b"PYTHONHASHSEED=0" in Path(f"/proc/{child}/environ").read_bytes().split(b"\0")


def test_a_busy_machine_takes_no_time_from_a_grade(grader: MathGrader, child: int) -> None:
    grader.seconds = 0.4
    os.kill(child, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        grade = threads.submit(is_right, grader)
        time.sleep(0.6)
        os.kill(child, signal.SIGCONT)
    assert grade.result()
    assert grader.pids == (child,)


def test_a_comparison_without_end_costs_its_own_time_and_child() -> None:
    """A spoiled zero for an answer that takes too long, while another child goes on."""
    grader = MathGrader(seconds=1, workers=2)
    with ThreadPoolExecutor(2) as threads:
        while len(before := grader.pids) < 2:
            assert all(threads.map(is_right, [grader] * 8))
        endless, others = threads.submit(grader.grade, ("5",), ENDLESS), 0
        while not endless.done():
            assert is_right(grader)
            others += not endless.done()
    assert reward_and_fault(endless.result()) == (0, True)
    assert others > 20
    assert any(map(is_gone, before))
    grader.close()
    assert all(map(is_gone, before))


def test_a_long_answer_that_takes_too_long_is_a_spoiled_zero_told_in_short(grader: MathGrader, child: int) -> None:
    grader.seconds = 1
    assert reward_and_fault(grader.grade(("5",), "{" * 20000)) == (0, True)


FAULTY_CHILD = """
import itertools, json, os, signal, sys, time
for line in itertools.chain(["{}"], sys.stdin):
    gold, answer = map(json.loads(line).get, ("gold", "answer"))
    if answer == "exits": os._exit(0)
    if answer == "crashes": os.abort()
    if answer == "killed": os.kill(os.getpid(), signal.SIGKILL)
    if gold == "slow" != answer: os.kill(os.getpid(), signal.SIGPROF)
    if answer == "waits": time.sleep(0.3)
    is_bad = answer == "raises" or gold == "raises"
    print(json.dumps("MemoryError" if is_bad else "right" if gold == answer else "wrong"), flush=True)
"""
"""a child that compares text and fails as it is told to; `slow` takes too long with any other text"""


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[MathGrader]:
    (tmp_path / "child.py").write_text(FAULTY_CHILD)
    monkeypatch.setattr(grading, "CHILD", tmp_path / "child.py")
    grader = MathGrader(seconds=60, workers=2)
    yield grader
    grader.close()


def test_only_what_the_answer_alone_does_is_a_zero(faulty: MathGrader) -> None:
    """A gold that fails with any answer gives no reward, and does not hide the next gold."""
    zeros = [("5", "exits"), ("5", "crashes"), ("5", "raises")]
    missing = [("5", "killed"), ("raises", "5"), ("slow", "5"), ("5", "slow", "6")]
    cases = {**dict.fromkeys(zeros, (0, True)), **dict.fromkeys(missing, (None, False)), ("slow", "5", "5"): (1, False)}
    assert {case: reward_and_fault(faulty.grade(case[:-1], case[-1])) for case in cases} == cases
    faulty.grade(("5",), "killed")
    faulty.grade(("raises",), "6")
    # what a child still holds after it ran out of memory would be missing at its next grade
    assert faulty.pids == ()


@pytest.mark.parametrize("place", ["grader.sympy_expr_eq", "parser.get_extraction_regexes"])
def test_what_math_verify_raises_is_no_verdict(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """math-verify itself would turn the error into False, or into no answer."""
    monkeypatch.setattr(f"math_verify.{place}", lambda *arguments, **options: bytearray(1 << 60))
    assert grading_child.verdict("5", "6") == "MemoryError"


@pytest.mark.parametrize("error", [MemoryError, RecursionError])
@pytest.mark.parametrize(("gold", "answer"), [("5!", "6!"), ("2x", "3x"), ("2x<6", "x<4"), ("(2x,1)", "(3x,1)")])
def test_a_comparison_without_memory_or_stack_is_no_verdict(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], gold: str, answer: str
) -> None:
    """math-verify catches every exception of sympy, also around the sides of a relation, and counts it as wrong."""

    def fail(expression: object) -> None:
        raise error("far too much")

    monkeypatch.setattr("rtpo.rewards.math_verify_mends.simplify", fail)
    assert grading_child.verdict(gold, answer) == error.__name__
    assert grading_child.verdict(gold, gold) == "right"


def test_an_expression_that_cannot_be_simplified_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(expression: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr("rtpo.rewards.math_verify_mends.simplify", fail)
    assert grading_child.verdict("2x", "3x") == "wrong"


def test_children_that_are_killed_or_stop_reading_are_replaced(
    faulty: MathGrader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them at once. A request that a stopped child's pipe cannot hold is not waited for without end."""

    def two_children() -> tuple[int, ...]:
        while len(faulty.pids) < 2:
            with ThreadPoolExecutor(2) as threads:
                list(threads.map(lambda answer: faulty.grade(("5",), answer), ["waits"] * 2))
        return faulty.pids

    for sign in (signal.SIGKILL, signal.SIGSTOP):
        before = two_children()
        for pid in before:
            os.kill(pid, sign)
        faulty.seconds = 100
        monkeypatch.setattr(grading, "STALL", 0.05)
        text = "6" * (1 << 20)
        assert reward_and_fault(faulty.grade((text,), text)) == (1, False)
        assert all(map(is_gone, before))


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
    assert (within, between) == ([True, True], [False, False])
    assert draws[0] == draws[1]  # where sympy compares at random points, they are the same ones
    assert signal.getitimer(signal.ITIMER_PROF)[0] == 0


@pytest.mark.parametrize(("module", "name"), [(sys, "executable"), (grading, "CHILD")])
def test_a_child_that_cannot_be_started_or_ends_at_once_is_no_zero(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    monkeypatch.setattr(module, name, "/nowhere")
    grader = MathGrader()
    with pytest.raises(InfrastructureError):
        grader.grade(("5",), "5")
    assert grader.pids == ()


FORKED = """
import os, signal
from rtpo.rewards.grading import GRADER as grader
assert grader.grade(("5",), "5").reward == 1
before = grader.pids
grader._lock.acquire()
if not os.fork():
    assert grader.pids == ()
    assert grader.grade(("5",), "5").reward == 1
    assert not set(grader.pids) & set(before)
    print(*grader.pids, flush=True)
    raise SystemExit
grader._lock.release()
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
assert grader.grade(("5",), "5").reward == 1
assert grader.pids == before
print(*before, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_forked_process_grades_with_children_of_its_own_and_none_outlives_its_process() -> None:
    """Forked while a lock is held, as another thread might hold it. It leaves its parent's child alone as it ends, and
    the parent ends by SIGKILL."""
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, "")
    deadline = time.monotonic() + 60
    for pid in map(int, done.stdout.split()):
        while not is_gone(pid) and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
