"""An imperfect solver of the toy knowledge task.

It searches for the relations one after another and then answers. It may slip at each turn, and it sometimes believes
distractors. So a model that imitates it succeeds now and then. There are two kinds: NOVICE slips often; WITH_HABITS
slips less but has wrong habits. A model imitates the habits at any temperature. So a policy of lower entropy is not
enough to solve the task.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from rtpo.envs.base import Env
from rtpo.envs.toy.knowledge import ENTITIES, MAX_TURNS, RELATIONS, Problem, parse_question
from rtpo.toy.demonstrator import Demonstration, play_out
from rtpo.toy.recipes import Recipe
from rtpo.toy.record import WarmStart
from rtpo.toy.tokenizer import STOP
from rtpo.types import Task


@dataclass(frozen=True, slots=True)
class ErrorRates:
    """How often a demonstrator makes each error."""

    search: float  # of slips at a turn that should search
    answer: float  # of slips at a turn that should answer
    other_relation: float  # of believing a distractor with another relation
    other_entity: float  # of believing a distractor with another entity
    habit: float = 0.0  # of searching for the relation in HABITS, if it does not slip


NOVICE = ErrorRates(search=0.2, answer=0.17, other_relation=0.7, other_entity=0.3)
WITH_HABITS = ErrorRates(search=0.1, answer=0.1, other_relation=0.3, other_entity=0.1, habit=0.65)
HABITS = {"rival": "friend", "parent": "teacher", "neighbour": "boss"}
"""relations with a wrong habit, and the relation that the demonstrator mostly searches for instead"""


@dataclass(frozen=True, slots=True)
class _Belief:
    """The demonstrator's beliefs."""

    problem: Problem
    at: str  # the entity that it has reached
    done: int = 0  # number of relations that it has followed
    following: int = 0  # what `done` becomes if the search in progress succeeds
    asked: str | None = None  # the query that led to `at`
    failed: bool = False  # its last call got an error
    doubted: bool = False  # it recognised the last answer as a distractor, so it asks again

    @property
    def next_relation(self) -> str | None:
        return self.problem.relations[self.done] if self.done < len(self.problem.relations) else None

    @property
    def recalled(self) -> str:
        """Its last result, as restated in its thinking."""
        if self.failed:
            return f" error again {self.at}"
        if self.doubted:
            return f" nothing again {self.at}"
        return f"{self.asked} is {self.at}" if self.asked else f" first {self.at}"


def _call(belief: _Belief, relation: str, called: str | None = None) -> str:
    called = called or f" search {belief.at} {relation}"
    return f"<think>{belief.recalled} then {relation}</think><tool_call>{called}</tool_call>{STOP}"


def _answer(belief: _Belief, entity: str) -> str:
    return f"<think>{belief.recalled} so answer {entity}</think> answer\\boxed{{ {entity}}}{STOP}"


def _entity(rng: np.random.Generator) -> str:
    return ENTITIES[rng.integers(len(ENTITIES))]


def _malformed(belief: _Belief, relation: str, rng: np.random.Generator) -> str:
    at = belief.at
    calls = [f" search {at}", f" {at} {relation}", f" search {relation} {at}", f" search {at} {relation} {relation}"]
    return str(rng.choice(calls))


def _slip_in_search(belief: _Belief, relation: str, rng: np.random.Generator) -> tuple[str, _Belief]:
    """A wrong reply at a turn that should search, and the belief after it."""
    slips = ["entity", "copy", "relation", "relation", "malformed", "malformed", "stop"]
    slip = rng.choice([*slips, "repeat"] if belief.asked else slips)
    if slip == "entity":
        belief = replace(belief, at=_entity(rng))
        return _call(belief, relation), belief
    if slip == "copy":
        return _call(belief, relation, f" search {_entity(rng)} {relation}"), belief
    if slip == "relation":
        other = str(rng.choice([name for name in RELATIONS if name != relation]))
        return _call(belief, other), belief
    if slip == "malformed":
        return _call(belief, relation, _malformed(belief, relation, rng)), belief
    if slip == "repeat":
        return _repeat(belief)
    return _answer(belief, belief.at), belief


def _repeat(belief: _Belief) -> tuple[str, _Belief]:
    """Repeat the last query, and believe that it leads to the same entity."""
    assert belief.asked is not None
    return _call(belief, belief.asked.split()[1], f" search{belief.asked}"), replace(belief, following=belief.done)


def _slip_in_answer(belief: _Belief, rng: np.random.Generator) -> tuple[str, _Belief]:
    """A wrong reply at a turn that should answer, and the belief after it."""
    assert belief.asked is not None
    slip = rng.choice(["entity", "early finding", "no box", "repeat"])
    if slip == "entity":
        return _answer(belief, _entity(rng)), belief
    if slip == "early finding":
        return _answer(belief, belief.asked.split()[0]), belief
    if slip == "no box":
        return f"<think>{belief.recalled} so answer {belief.at}</think> answer {belief.at}{STOP}", belief
    return _repeat(belief)


def _reply(belief: _Belief, rates: ErrorRates, rng: np.random.Generator) -> tuple[str, _Belief]:
    relation = belief.next_relation
    if relation is None:
        slips = rng.random() < rates.answer
        return _slip_in_answer(belief, rng) if slips else (_answer(belief, belief.at), belief)
    belief = replace(belief, following=belief.done + 1)
    if rng.random() < rates.search:
        return _slip_in_search(belief, relation, rng)
    if rates.habit and rng.random() < rates.habit:
        relation = HABITS.get(relation, relation)
    return _call(belief, relation), belief


def _learn(belief: _Belief, rates: ErrorRates, reply: str, content: str, rng: np.random.Generator) -> _Belief:
    if content == " error":
        return replace(belief, failed=True, doubted=False)
    query = reply.partition("<tool_call> search")[2].partition("</tool_call>")[0]
    subject, relation, reached = content.split()
    if (subject, relation) != tuple(query.split()):
        chance = rates.other_entity if query.endswith(f" {relation}") else rates.other_relation
        if rng.random() >= chance:
            return replace(belief, failed=False, doubted=True)
    return replace(belief, at=reached, done=belief.following, asked=query, failed=False, doubted=False)


async def demonstrate(
    task: Task, env: Env, rng: np.random.Generator, max_turns: int, rates: ErrorRates = WITH_HABITS
) -> Demonstration:
    """Play one episode of `task` in `env`. The same state of `rng` gives the same episode."""
    problem = parse_question(task.question)
    return await play_out(
        task,
        env,
        _Belief(problem, at=problem.start),
        lambda belief: _reply(belief, rates, rng),
        lambda belief, reply, content: _learn(belief, rates, reply, content, rng),
        max_turns,
    )


BASE_MODELS = ("warm_start_knowledge", "warm_start_knowledge_1")
"""shipped models that have already learnt to copy"""
RECIPES = {
    "knowledge": Recipe(
        settings=WarmStart(task="toy_knowledge", steps=800, cycles=2, full_history=0.03),
        demonstrate=partial(demonstrate, rates=NOVICE),
        max_turns=MAX_TURNS,
        turns=4,
    ),
    "knowledge_habits": Recipe(
        settings=WarmStart(task="toy_knowledge", steps=500, cycles=1, batch_size=32, full_history=0.03, held_out=400),
        demonstrate=demonstrate,
        max_turns=MAX_TURNS,
        turns=4,
        starts=BASE_MODELS,
    ),
}
