"""The toy keys: a house in which each call decides the next place.

In the hall stand a keeper and a guide. The first call names the one to ask, and so decides which later calls are right.

- The keeper's way is long: a crossing, a chest and two more crossings. At the chest a call takes one person's key. The
  gate at the end opens only to one key, which depends on the keeper.
- The guide's way is short: one crossing. The gate at its end has no lock, and is open in half of the problems.

At a crossing one person is right. On the guide's way a wrong call leads out of the house. On the keeper's way it leads
to a place aside, from where any call leads to the next place; MAX_TURNS leaves time for one such detour. No answer says
whether a key was right. So the keeper is the better choice only for a policy that is right later on.

A hash of the whole problem decides its names, signs and gates, so a policy cannot memorise places. What it can learn is
the same in all problems: who is a keeper, who is right at a sign, and whose key a keeper's gate needs.
"""

import re
from dataclasses import dataclass, replace

import numpy as np

from rtpo.core.splits import word_hash
from rtpo.envs.base import Environment
from rtpo.envs.episode import Answering
from rtpo.envs.toy.env import Exchange, ToyEnv
from rtpo.envs.toy.knowledge import ENTITIES, RELATIONS
from rtpo.envs.toy.problems import Problems
from rtpo.types import Feedback, Grade, GradeOutcome, Message, Opening, Task, ToolUse

PEOPLE = RELATIONS
KEEPERS, GUIDES = PEOPLE[:3], PEOPLE[3:]
OPEN_ONE_IN = 2  # of this many gates on guides' ways, one is open
MAX_TURNS = 6
NUMBERS = 100  # a house's two numbers are below this
CROSSING, CHEST, ASIDE = "crossing", "chest", "aside"
KEEPERS_WAY = (CROSSING, CHEST, CROSSING, CROSSING)
GUIDES_WAY = (CROSSING,)
_QUESTION = re.compile(r" start (e\d{1,2}) left ([a-z]+) right ([a-z]+) from (\d{1,2}) (\d{1,2})")


def right_person(sign: str) -> str:
    """Who is right at a crossing with this sign."""
    return PEOPLE[(PEOPLE.index(sign) + 2) % len(PEOPLE)]


def right_key(keeper: str) -> str:
    """Whose key opens this keeper's gate."""
    return PEOPLE[(PEOPLE.index(keeper) + 4) % len(PEOPLE)]


@dataclass(frozen=True, slots=True)
class Problem:
    """One house: the hall's name, who stands on its left and right, and two numbers that distinguish houses."""

    start: str
    left: str
    right: str
    first: int
    second: int

    @property
    def question(self) -> str:
        return f" start {self.start} left {self.left} right {self.right} from {self.first} {self.second}"

    @property
    def key(self) -> str:
        """The problem without spaces, for uids."""
        return self.question.removeprefix(" start").replace(" ", "")

    @property
    def keeper(self) -> str:
        return self.left if self.left in KEEPERS else self.right

    @property
    def is_open(self) -> bool:
        """Whether the gate at the end of the guide's way is open."""
        return word_hash(self.key, "gate") % OPEN_ONE_IN == 0

    def way(self, asked: str) -> tuple[str, ...]:
        """The kinds of the places on this person's way, after the hall."""
        return KEEPERS_WAY if asked in KEEPERS else GUIDES_WAY

    def sign(self, asked: str, at: int) -> str:
        """The sign of the crossing that is place `at` on this person's way."""
        return PEOPLE[word_hash(self.key, asked, at, "sign") % len(PEOPLE)]

    def place(self, asked: str, at: int, kind: str) -> str:
        """What the environment says at a place: its name, then a crossing's sign or what can be done there."""
        name = ENTITIES[word_hash(self.key, asked, at, kind) % len(ENTITIES)]
        shown = {CHEST: "find", ASIDE: "again"}.get(kind) or self.sign(asked, at)
        return f" {name} {shown}"

    @property
    def answer(self) -> str:
        """The right calls on the keeper's way."""
        return " ".join([self.keeper, *(self.right_call(self.keeper, at) for at in range(len(KEEPERS_WAY)))])

    def right_call(self, asked: str, at: int) -> str:
        is_chest = self.way(asked)[at] == CHEST
        return right_key(asked) if is_chest else right_person(self.sign(asked, at))


def _read(question: str) -> Problem | None:
    if (match := _QUESTION.fullmatch(question)) and match[1] in ENTITIES:
        people = {match[2], match[3]}
        if len(people.intersection(KEEPERS)) == len(people.intersection(GUIDES)) == 1:
            return Problem(match[1], match[2], match[3], int(match[4]), int(match[5]))
    return None


def _draw(rng: np.random.Generator) -> Problem:
    people = [str(rng.choice(KEEPERS)), str(rng.choice(GUIDES))]
    left, right = people if rng.random() < 0.5 else reversed(people)
    first, second = (int(number) for number in rng.integers(NUMBERS, size=2))
    return Problem(str(rng.choice(ENTITIES)), left, right, first, second)


FORM = f"a place from e0 to e{len(ENTITIES) - 1}, one of {KEEPERS} and one of {GUIDES}, and two numbers below {NUMBERS}"
PROBLEMS = Problems("toy_keys", " start e3 left boss right teacher from 37 12", FORM, _read, _draw)
problems, parse_question, read_problems = PROBLEMS.generate, PROBLEMS.parse, PROBLEMS.read_file


@dataclass(frozen=True, slots=True)
class Standing(Answering):
    """The state. `past` stays empty: paths that come to the same place by different calls share a state."""

    asked: str = ""  # the person asked in the hall; empty before
    at: int = 0  # index of the present place on this person's way
    is_aside: bool = False  # at the place aside, from where any call leads to the next place
    key: str = ""  # taken from the chest


class ToyKeysEnv(ToyEnv):
    """A call names a person, such as ` friend`; the answer is the next place, such as ` e12 rival`. A call that names
    nobody who can be asked there gets ` error`, and the state stays the same. The episode ends at a gate or outside the
    house. The reward is 1 if a gate opens, else 0. A final reply earns nothing."""

    tool = "ask"
    _state: Standing

    async def reset(self, task: Task) -> Opening:
        self._task, self._state = task, Standing(task.uid)
        return Opening((Message("user", task.question),))

    def _use_tool(self, task: Task, call: str, earlier: tuple[Exchange, ...]) -> str | None:
        problem, person = parse_question(task.question), call.removeprefix(" ")
        return "" if person in (PEOPLE if self._state.asked else (problem.left, problem.right)) else None

    def _read_answer(self, boxed: str) -> None:
        return None

    def _answer(self, call: str, content: str, *uses: ToolUse) -> Feedback:
        problem = parse_question(self._current_task().question)
        if call:
            self._state = state_after(problem, self._state, call.removeprefix(" "))
        asked, at, way = self._state.asked, self._state.at, problem.way(self._state.asked)
        if not asked:
            return Feedback((Message("tool", content),), done=False, calls=uses)
        if at == len(way) or self._state.ended:
            self._state = replace(self._state, final="")
            return Feedback((), done=True, calls=uses)
        place = problem.place(asked, at, ASIDE if self._state.is_aside else way[at])
        return Feedback((Message("tool", f"{content}{place}"),), done=False, calls=uses)

    async def _grade(self) -> Grade:
        problem, state = parse_question(self._current_task().question), self._state
        if not state.asked or state.at < len(problem.way(state.asked)):
            return Grade(GradeOutcome.GRADED, 0.0, "did not come to a gate")
        is_through = state.key == right_key(state.asked) if state.asked in KEEPERS else problem.is_open
        which = "keeper" if state.asked in KEEPERS else "guide"
        return Grade(GradeOutcome.GRADED, float(is_through), f"the {which}'s gate, {'open' if is_through else 'shut'}")


def state_after(problem: Problem, state: Standing, person: str) -> Standing:
    """The state after a call that names `person`."""
    if not state.asked:
        return replace(state, asked=person)
    kind = problem.way(state.asked)[state.at]
    if kind == CROSSING and not state.is_aside and person != problem.right_call(state.asked, state.at):
        is_lost = state.asked in GUIDES
        return replace(state, final="" if is_lost else None, is_aside=not is_lost)
    key = person if kind == CHEST else state.key
    return replace(state, at=state.at + 1, is_aside=False, key=key)


ENVIRONMENT = Environment(lambda settings, max_turns: ToyKeysEnv(), read_problems, problems, PROBLEMS.key)
