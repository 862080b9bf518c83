"""The toy walk environment: eight places, one after another, and one person to ask at each."""

from dataclasses import dataclass, replace
from typing import Literal

from rtpo.envs.toy.env import Exchange, ToyEnv
from rtpo.envs.toy.luck import ToySettings
from rtpo.envs.toy.walk_problems import LENGTH, PEOPLE, PROBLEMS, parse_question
from rtpo.types import Feedback, Grade, GradeOutcome, Message, Task, ToolUse


@dataclass(frozen=True)
class WalkSettings(ToySettings):
    """decided: where most of the return is. `even`: each turn is worth the same; `early`, `late`: the first or the last
    is worth as much as all the others together."""

    decided: Literal["early", "even", "late"] = "even"

    @property
    def weights(self) -> tuple[int, ...]:
        others, heavy = (1,) * (LENGTH - 1), LENGTH - 1
        return {"early": (heavy, *others), "even": (1, *others), "late": (*others, heavy)}[self.decided]


class ToyWalkEnv(ToyEnv):
    """A call is a person, ` friend`; it is answered with the next place, and after the last the walk is over. A call
    that is nobody is answered ` error`, and the walk goes on. The reward is the share of right turns, by their weights.
    What a final reply says earns nothing."""

    tool = "ask"

    def __init__(self, settings: WalkSettings | None = None, max_turns: int | None = None) -> None:
        settings = settings or WalkSettings()
        super().__init__(settings, max_turns)
        self._weights = settings.weights

    def _use_tool(self, task: Task, call: str, earlier: tuple[Exchange, ...]) -> str | None:
        return "" if call.removeprefix(" ") in PEOPLE else None

    def _read_answer(self, boxed: str) -> None:
        return None

    def _answer(self, call: str, content: str, *uses: ToolUse) -> Feedback:
        past = (*self._state.past, (call, content))
        if len(past) == LENGTH:
            self._state = replace(self._state, past=past, final="")
            return Feedback((), done=True, calls=uses)
        self._state = replace(self._state, past=past)
        place = parse_question(self._begun().question).places[len(past)]
        return Feedback((Message("tool", f"{content} {place}"),), done=False, calls=uses)

    async def _grade(self) -> Grade:
        right = self._begun().answer.split()
        asked = [call.strip() for call, _ in self._state.past]
        earned = [person == wanted for person, wanted in zip(asked, right, strict=False)]
        share = sum(weight for weight, has in zip(self._weights, earned, strict=False) if has) / sum(self._weights)
        return Grade(GradeOutcome.GRADED, share, f"{sum(earned)} of {LENGTH} right")


ENVIRONMENT = PROBLEMS.environment(ToyWalkEnv, WalkSettings)
