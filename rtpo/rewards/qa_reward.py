"""The reward of a question-answering task."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rtpo.rewards.judge import JudgeSettings, open_judge
from rtpo.rewards.qa import score
from rtpo.types import Grade, GradeOutcome


@dataclass(frozen=True)
class QASettings:
    """Settings of the reward."""

    kind: Literal["em", "f1", "judge"] = "em"  # exact match (0 or 1), token F1 in [0, 1], or a judge's verdict (0 or 1)
    judge: JudgeSettings | None = None  # for kind judge only

    def problems(self, path: str) -> list[str]:
        if (self.kind == "judge") != (self.judge is not None):
            judge = "null" if self.judge is None else "given"
            return [f"{path}.kind is {self.kind} and {path}.judge {judge}: give a judge for kind judge, and only then."]
        return [] if self.judge is None else self.judge.problems(f"{path}.judge")

    def check(self) -> dict[str, Any]:
        """Try the judge, if there is one; returns facts for the manifest. Raises what `JudgeSettings.check` raises."""
        return {"kind": self.kind} | ({"judge": self.judge.check()} if self.judge else {})


class QAReward:
    """Grades predictions. All instances with the same settings share one judge, so another instance is cheap."""

    def __init__(self, settings: QASettings) -> None:
        self._kind = settings.kind
        self._judge = open_judge(settings.judge) if settings.judge else None

    async def grade(self, question: str, answers: Sequence[str], prediction: str) -> Grade:
        """The reward of a prediction. UNGRADABLE if no accepted answer has a token or the judge gives no verdict.
        Raises DataError and InfrastructureError as `Judge.grade`."""
        try:
            scores = score(answers, prediction)
        except ValueError as error:
            return Grade(GradeOutcome.UNGRADABLE, None, str(error))
        if self._judge is not None:
            return await self._judge.grade(question, answers, prediction)
        return Grade(GradeOutcome.GRADED, float(scores.exact) if self._kind == "em" else scores.f1, self._kind)
