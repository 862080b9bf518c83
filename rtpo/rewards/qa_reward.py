"""The reward of a question with accepted answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rtpo.rewards.judge import JudgeSettings, open_judge
from rtpo.rewards.qa import score
from rtpo.types import Grade, GradeOutcome


@dataclass(frozen=True)
class QASettings:
    """kind: `em` (exact match) and `judge` give 0 or 1, `f1` gives token F1, in [0, 1]. judge: for kind judge alone."""

    kind: Literal["em", "f1", "judge"] = "em"
    judge: JudgeSettings | None = None

    def problems(self, path: str) -> list[str]:
        if (self.kind == "judge") != (self.judge is not None):
            judge = "null" if self.judge is None else "given"
            return [f"{path}.kind is {self.kind} and {path}.judge {judge}: give a judge for kind judge, and only then."]
        return [] if self.judge is None else self.judge.problems(f"{path}.judge")

    def check(self) -> dict[str, Any]:
        """Try the judge, where there is one; returns facts for the manifest. Raises as `JudgeSettings.check`."""
        return {"kind": self.kind} | ({"judge": self.judge.check()} if self.judge else {})


class QAReward:
    """Grades predictions. Those with the same settings share the process's one judge, so that one costs nothing to
    make."""

    def __init__(self, settings: QASettings) -> None:
        self._kind = settings.kind
        self._judge = open_judge(settings.judge) if settings.judge else None

    async def grade(self, question: str, answers: Sequence[str], prediction: str) -> Grade:
        """R of a prediction. UNGRADABLE where no accepted answer has a token, or the judge gave no verdict.

        Raises InfrastructureError when the judge cannot be had.
        """
        try:
            scores = score(answers, prediction)
        except ValueError as error:
            return Grade(GradeOutcome.UNGRADABLE, None, str(error))
        if self._judge is not None:
            return await self._judge.grade(question, answers, prediction)
        return Grade(GradeOutcome.GRADED, float(scores.exact) if self._kind == "em" else scores.f1, self._kind)
