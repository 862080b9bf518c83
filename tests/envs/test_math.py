"""The maths environment: real tool, real grades."""

from pathlib import Path

import pytest
from episodes_played import play

from rtpo.envs.math import MathEnv, MathSettings
from rtpo.errors import InfrastructureError
from rtpo.rewards import grading
from rtpo.rewards.grading import MathGrader
from rtpo.tools.protocol import render_call
from rtpo.types import Feedback, Grade, GradeOutcome, Message, Task, ToolOutcome, ToolUse

TASK = Task("gsm8k/0", "A pen costs $3. What do 4 cost?", ("12",))


def graded(*replies: str, task: Task = TASK, grader: MathGrader = grading.GRADER) -> tuple[list[Feedback], Grade]:
    return play(MathEnv(MathSettings(), 4, grader), task, *replies)


@pytest.mark.needs("bwrap")
def test_calls_are_run_and_answers_graded() -> None:
    answer = "<think>\n12\n</think>\n\n\\boxed{12}"
    calls = [render_call("python", {"code": code}) for code in ("3*4", "1/0", "x = 1")]
    outputs = ("12", "ZeroDivisionError: division by zero (line 1)", "(no output)")
    outcomes = (ToolOutcome.OK, ToolOutcome.PROGRAM_ERROR, ToolOutcome.OK)
    told = [
        Feedback((Message("tool", output),), False, (ToolUse("python", outcome),))
        for output, outcome in zip(outputs, outcomes, strict=True)
    ]
    right = Grade(GradeOutcome.GRADED, 1.0, "right")
    assert graded(f"<think>\n3*4\n</think>\n\n{calls[0]}", *calls[1:], answer) == ([*told, Feedback((), True)], right)
    assert graded(calls[0]) == (told[:1], Grade(GradeOutcome.GRADED, 0.0, "no final reply"))


@pytest.mark.parametrize(
    ("reply", "detail"),
    [
        ("\\boxed{1} or \\boxed{\\frac{24}{2}}", "right"),
        ("\\boxed{12} or \\boxed{1}", "wrong"),
        ("<think>\\boxed{12}", "no answer in a box"),
    ],
)
def test_the_answer_is_the_last_box_after_thinking(reply: str, detail: str) -> None:
    _, grade = graded(reply)
    assert (grade.detail, grade.reward) == (detail, detail == "right")


def test_what_cannot_be_graded_is_no_zero(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, grade = graded("\\boxed{12}", task=Task("a", "?", ("{",)))
    assert grade.outcome is GradeOutcome.UNGRADABLE
    monkeypatch.setattr(grading, "CHILD", tmp_path / "missing.py")
    with pytest.raises(InfrastructureError):
        graded("\\boxed{12}", grader=MathGrader())
