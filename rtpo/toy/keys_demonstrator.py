"""An imperfect solver of the toy keys (`rtpo.envs.toy.keys` tells the rules).

It asks the right person most of the time, but has wrong habits at some crossings and at the chest. There its most
likely choice is a wrong person. A greedy model that imitates the solver is wrong there too. So a policy of lower
entropy does not help.
"""

from dataclasses import dataclass, replace

import numpy as np

from rtpo.envs.base import Env, Settings
from rtpo.envs.toy.keys import CHEST, KEEPERS, MAX_TURNS, PEOPLE, Problem, parse_question
from rtpo.toy.demonstrator import Demonstration, play_out
from rtpo.toy.knowledge_demonstrator import BASE_MODELS
from rtpo.toy.recipes import Recipe
from rtpo.toy.record import WarmStart
from rtpo.toy.tokenizer import STOP
from rtpo.types import Task

KEEPER_RATE = 0.45
"""how often it asks a keeper in the hall, not the guide"""
HABIT_SIGNS = PEOPLE[::2]
"""signs of the crossings with a wrong habit"""
HABIT_RATE, RIGHT_RATE = 0.48, 0.4
"""how often it asks the habit's person and the right person where it has a habit"""
RIGHT_RATE_WITHOUT_HABIT = 0.92
"""how often it asks the right person elsewhere"""


@dataclass(frozen=True, slots=True)
class _Belief:
    problem: Problem
    asked: str = ""  # the person that it asked in the hall
    shown: str = ""  # last word of the environment's answer, such as a crossing's sign
    at: int = 0  # index of its place on the way


def _person(right_person: str, has_habit: bool, rng: np.random.Generator) -> str:
    habit = PEOPLE[(PEOPLE.index(right_person) + 1) % len(PEOPLE)] if has_habit else None
    draw = rng.random()
    if habit is not None and draw < HABIT_RATE:
        return habit
    if draw < (RIGHT_RATE_WITHOUT_HABIT if habit is None else HABIT_RATE + RIGHT_RATE):
        return right_person
    return str(rng.choice([person for person in PEOPLE if person not in (right_person, habit)]))


def _reply(belief: _Belief, rng: np.random.Generator) -> tuple[str, _Belief]:
    problem, asked = belief.problem, belief.asked
    if not asked:
        doors = [problem.left, problem.right]
        if (rng.random() < KEEPER_RATE) != (problem.left in KEEPERS):
            doors.reverse()
        person, reason = doors[0], problem.start
    elif belief.shown == "again":
        person, reason = str(rng.choice(PEOPLE)), belief.shown
    elif problem.way(asked)[belief.at] == CHEST:
        person, reason = _person(problem.right_call(asked, belief.at), True, rng), asked
    else:
        person = _person(problem.right_call(asked, belief.at), belief.shown in HABIT_SIGNS, rng)
        reason = belief.shown
    return f"<think> {reason} so {person}</think><tool_call> {person}</tool_call>{STOP}", replace(
        belief, asked=asked or person
    )


def _learn(belief: _Belief, reply: str, content: str) -> _Belief:
    shown = content.split()[-1]
    is_first, asks_again = not belief.shown, shown == "again"
    return replace(belief, shown=shown, at=belief.at if is_first or asks_again else belief.at + 1)


async def demonstrate(task: Task, env: Env, rng: np.random.Generator, max_turns: int) -> Demonstration:
    """Play one episode of `task` in `env`. The same state of `rng` gives the same episode."""
    belief = _Belief(parse_question(task.question))
    return await play_out(task, env, belief, lambda now: _reply(now, rng), _learn, max_turns)


RECIPES = {
    "keys": Recipe(
        settings=WarmStart(task="toy_keys", steps=200, cycles=1, batch_size=32, full_history=0.03, held_out=400),
        demonstrate=demonstrate,
        max_turns=MAX_TURNS,
        turns=4,
        starts=BASE_MODELS,
        decided={"keys": Settings()},
    )
}
