"""An imperfect solver of the toy keys.

It mostly asks the guide. At the signs of half of the people, and for the keys, it has a wrong habit: there one wrong
person is its most likely choice, so that a model that imitates it is wrong there even when it takes its most likely
reply, and sharpening does not help.
"""

from dataclasses import dataclass, replace

import numpy as np

from rtpo.envs.base import Env, Settings
from rtpo.envs.toy.keys import CHEST, KEEPERS, MAX_TURNS, PEOPLE, Problem, parse_question
from rtpo.toy.demonstrator import Demonstration, play_out
from rtpo.toy.knowledge_demonstrator import BASE_MODELS
from rtpo.toy.recipes import Recipe, WarmStart
from rtpo.toy.tokenizer import STOP
from rtpo.types import Task

ASKS_KEEPER = 0.45
SIGNS = PEOPLE[::2]
"""at which it has a wrong habit"""
HABITUAL, CORRECT = 0.48, 0.4
"""how often the habit's person is asked there, and how often the right one"""
KNOWN = 0.92
"""how often the right one is asked elsewhere"""


@dataclass(frozen=True, slots=True)
class _Belief:
    problem: Problem
    asked: str = ""  # in the hall
    shown: str = ""  # a crossing's sign, or what can be done at the place
    at: int = 0  # index of the present place on the way


def _person(right: str, has_habit: bool, rng: np.random.Generator) -> str:
    habit = PEOPLE[(PEOPLE.index(right) + 1) % len(PEOPLE)] if has_habit else None
    chance = rng.random()
    if habit is not None and chance < HABITUAL:
        return habit
    if chance < (KNOWN if habit is None else HABITUAL + CORRECT):
        return right
    return str(rng.choice([person for person in PEOPLE if person not in (right, habit)]))


def _reply(belief: _Belief, rng: np.random.Generator) -> tuple[str, _Belief]:
    problem, asked = belief.problem, belief.asked
    if not asked:
        doors = [problem.left, problem.right]
        if (rng.random() < ASKS_KEEPER) != (problem.left in KEEPERS):
            doors.reverse()
        person, looked = doors[0], problem.start
    elif belief.shown == "again":
        person, looked = str(rng.choice(PEOPLE)), belief.shown
    elif problem.way(asked)[belief.at] == CHEST:
        person, looked = _person(problem.right_call(asked, belief.at), True, rng), asked
    else:
        person = _person(problem.right_call(asked, belief.at), belief.shown in SIGNS, rng)
        looked = belief.shown
    return f"<think> {looked} so {person}</think><tool_call> {person}</tool_call>{STOP}", replace(
        belief, asked=asked or person
    )


def _learn(belief: _Belief, reply: str, content: str) -> _Belief:
    shown = content.split()[-1]
    is_first, is_aside = not belief.shown, shown == "again"
    return replace(belief, shown=shown, at=belief.at if is_first or is_aside else belief.at + 1)


async def demonstrate(task: Task, env: Env, rng: np.random.Generator, max_turns: int) -> Demonstration:
    """One episode of `task` in `env`. The same state of `rng` gives the same episode."""
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
