"""An imperfect solver of the toy walk.

At most places it mostly asks the right person. At places with a wrong habit, its most likely choice is a wrong person.
There even a greedy model that imitates the solver is wrong. So a policy of lower entropy does not help.
"""

from dataclasses import dataclass, replace

import numpy as np

from rtpo.envs.base import Env
from rtpo.envs.toy.knowledge import ENTITIES
from rtpo.envs.toy.luck import Luck
from rtpo.envs.toy.walk import LENGTH, PEOPLE, PLACES, Problem, WalkSettings, parse_question, right_person
from rtpo.toy.demonstrator import Demonstration, play_out
from rtpo.toy.knowledge_demonstrator import BASE_MODELS
from rtpo.toy.recipes import Recipe
from rtpo.toy.record import WarmStart
from rtpo.toy.tokenizer import STOP
from rtpo.types import Task

HABITS = (2, 5)
"""which of a turn's places have a wrong habit, as indices"""
HABIT_RATE, RIGHT_RATE = 0.55, 0.3
"""how often it asks the habit's person and the right person at such a place"""
RIGHT_RATE_WITHOUT_HABIT = 0.92
"""how often it asks the right person elsewhere"""


@dataclass(frozen=True, slots=True)
class _Belief:
    problem: Problem
    turn: int = 0


def habit(place: str) -> str | None:
    """The wrong person that the demonstrator mostly asks at a place; None where it has no habit."""
    if ENTITIES.index(place) % PLACES not in HABITS:
        return None
    return PEOPLE[(PEOPLE.index(right_person(place)) + 1) % len(PEOPLE)]


def _person(place: str, rng: np.random.Generator) -> str:
    right, wrong, chance = right_person(place), habit(place), rng.random()
    if wrong is not None and chance < HABIT_RATE:
        return wrong
    if chance < (RIGHT_RATE_WITHOUT_HABIT if wrong is None else HABIT_RATE + RIGHT_RATE):
        return right
    return str(rng.choice([person for person in PEOPLE if person not in (right, wrong)]))


def _reply(belief: _Belief, rng: np.random.Generator) -> tuple[str, _Belief]:
    place = belief.problem.places[belief.turn]
    person = _person(place, rng)
    return f"<think> {place} so {person}</think><tool_call> {person}</tool_call>{STOP}", belief


async def demonstrate(task: Task, env: Env, rng: np.random.Generator, max_turns: int) -> Demonstration:
    """Play one episode of `task` in `env`. The same state of `rng` gives the same episode."""
    return await play_out(
        task,
        env,
        _Belief(parse_question(task.question)),
        lambda belief: _reply(belief, rng),
        lambda belief, reply, content: replace(belief, turn=belief.turn + 1),
        max_turns,
    )


RECIPES = {
    "walk": Recipe(
        settings=WarmStart(task="toy_walk", steps=350, cycles=1, batch_size=32, full_history=0.03, held_out=400),
        demonstrate=demonstrate,
        max_turns=LENGTH,
        turns=LENGTH,
        starts=BASE_MODELS,
        decided={
            "early": WalkSettings(decided="early"),
            "even": WalkSettings(decided="even"),
            "late": WalkSettings(decided="late"),
            "even, luck after the first turn": WalkSettings(Luck((0,), 1.0), "even"),
        },
    )
}
