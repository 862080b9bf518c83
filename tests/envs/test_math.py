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
def test_calls_are_run_and_the_last_box_after_thinking_is_graded() -> None:
    failing, silent = (render_call("python", {"code": code}) for code in ("1/0", "x = 1"))
    answer = "<think>\n\\boxed{1}\n</think>\n\n\\boxed{1} or \\boxed{\\frac{24}{2}}"
    feedback, grade = graded(failing, silent, answer)
    assert feedback == [
        Feedback(
            (Message("tool", "ZeroDivisionError: division by zero (line 1)"),),
            False,
            (ToolUse("python", ToolOutcome.PROGRAM_ERROR),),
        ),
        Feedback((Message("tool", "(no output)"),), False, (ToolUse("python", ToolOutcome.OK),)),
        Feedback((), True),
    ]
    assert grade == Grade(GradeOutcome.GRADED, 1.0, "right")
    _, grade = graded("<think>\\boxed{12}")
    assert grade == Grade(GradeOutcome.GRADED, 0.0, "no answer in a box")


def test_what_cannot_be_graded_is_no_zero(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, grade = graded("\\boxed{12}", task=Task("a", "?", ("{",)))
    assert grade.outcome is GradeOutcome.UNGRADABLE
    monkeypatch.setattr(grading, "CHILD", tmp_path / "missing.py")
    with pytest.raises(InfrastructureError):
        graded("\\boxed{12}", grader=MathGrader())
