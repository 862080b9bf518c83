"""The toy walk: a path through eight places. At each place, one of six people is the right one to ask.

A place's right person is the same in every problem, so the policy can memorise it, but only from rewards. Each turn has
its own places, so learning one turn does not help at another.
"""

import re
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from rtpo.core.splits import word_hash
from rtpo.envs.toy.env import Exchange, ToyEnv
from rtpo.envs.toy.knowledge import ENTITIES, RELATIONS
from rtpo.envs.toy.luck import ToySettings
from rtpo.envs.toy.problems import Problems
from rtpo.types import Feedback, Grade, GradeOutcome, Message, Task, ToolUse

PEOPLE = RELATIONS
LENGTH = 8
PLACES = len(ENTITIES) // LENGTH
"""number of places per turn"""
NUMBERS = 100
"""a problem's two numbers are below this"""
_QUESTION = re.compile(r" start (e\d{1,2}) from (\d{1,2}) (\d{1,2})")


@dataclass(frozen=True, slots=True)
class Problem:
    """One walk: its first place, and two numbers that distinguish walks with the same first place."""

    start: int
    first: int
    second: int

    @property
    def question(self) -> str:
        return f" start {ENTITIES[self.start]} from {self.first} {self.second}"

    @property
    def key(self) -> str:
        """The problem without spaces, for uids."""
        return self.question.removeprefix(" start").replace(" ", "")

    @property
    def places(self) -> tuple[str, ...]:
        """The place of each turn. A hash of the problem decides all after the first."""
        numbers = (self.start, *(word_hash(self.key, turn) for turn in range(1, LENGTH)))
        return tuple(ENTITIES[PLACES * turn + number % PLACES] for turn, number in enumerate(numbers))

    @property
    def answer(self) -> str:
        """The right person of each turn."""
        return " ".join(right_person(place) for place in self.places)


def right_person(place: str) -> str:
    return PEOPLE[word_hash("right", place) % len(PEOPLE)]


def _read(question: str) -> Problem | None:
    if match := _QUESTION.fullmatch(question):
        problem = Problem(int(match[1].removeprefix("e")), int(match[2]), int(match[3]))
        return problem if problem.start < PLACES else None
    return None


def _draw(rng: np.random.Generator) -> Problem:
    first, second = (int(number) for number in rng.integers(NUMBERS, size=2))
    return Problem(int(rng.integers(PLACES)), first, second)


FORM = f"a place from e0 to e{PLACES - 1}, and two numbers from 0 to {NUMBERS - 1}"
PROBLEMS = Problems("toy_walk", " start e3 from 37 12", FORM, _read, _draw)
problems, parse_question, read_problems = PROBLEMS.generate, PROBLEMS.parse, PROBLEMS.read_file


@dataclass(frozen=True)
class WalkSettings(ToySettings):
    """Settings of the toy walk. `early` gives the first turn as much weight as all others, `late` the last."""

    decided: Literal["early", "even", "late"] = "even"  # which turns carry most of the return

    @property
    def weights(self) -> tuple[int, ...]:
        others, heavy = (1,) * (LENGTH - 1), LENGTH - 1
        return {"early": (heavy, *others), "even": (1, *others), "late": (*others, heavy)}[self.decided]


class ToyWalkEnv(ToyEnv):
    """A call names a person, such as ` friend`; the answer is the next place. The walk ends after the last place. A
    call that names nobody gets ` error`, and the walk continues. The reward is the weighted share of right turns. A
    final reply earns nothing."""

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
        place = parse_question(self._current_task().question).places[len(past)]
        return Feedback((Message("tool", f"{content} {place}"),), done=False, calls=uses)

    async def _grade(self) -> Grade:
        right = self._current_task().answer.split()
        asked = [call.strip() for call, _ in self._state.past]
        are_right = [person == expected for person, expected in zip(asked, right, strict=False)]
        earned = sum(weight for weight, is_right in zip(self._weights, are_right, strict=False) if is_right)
        share = earned / sum(self._weights)
        return Grade(GradeOutcome.GRADED, share, f"{sum(are_right)} of {LENGTH} right")


ENVIRONMENT = PROBLEMS.environment(ToyWalkEnv, WalkSettings)
