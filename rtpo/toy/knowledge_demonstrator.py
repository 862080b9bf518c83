"""An imperfect solver of the toy knowledge task.

It searches for the relations one after another and then answers. It slips at every turn in one of several ways, and
takes distractors for what it asked, so that a model that imitates it succeeds now and then. It errs in one of two
manners: a novice slips often; one of habit slips less and has wrong habits, which a model that imitates it has at every
temperature, so that it has more to learn than to be sharp.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from rtpo.envs.base import Env
from rtpo.envs.toy.knowledge import ENTITIES, MAX_TURNS, RELATIONS, Problem, parse_question
from rtpo.toy.demonstrator import Demonstration, play_out
from rtpo.toy.recipes import Recipe, WarmStart
from rtpo.toy.tokenizer import STOP
from rtpo.types import Task


@dataclass(frozen=True, slots=True)
class Manner:
    """How a demonstrator errs.

    search, answer: how often it slips at a turn, by what the turn should do. other_relation, other_entity: how often it
    takes a fact of another relation, or of another entity, for the one it asked for. habit: how often, where it does
    not slip, it asks for the relation that is its wrong habit, if the right one has any.
    """

    search: float
    answer: float
    other_relation: float
    other_entity: float
    habit: float = 0.0


NOVICE = Manner(search=0.2, answer=0.17, other_relation=0.7, other_entity=0.3)
OF_HABIT = Manner(search=0.1, answer=0.1, other_relation=0.3, other_entity=0.1, habit=0.65)
HABITS = {"rival": "friend", "parent": "teacher", "neighbour": "boss"}
"""relations that have a wrong habit, and what is mostly asked for in their place"""


@dataclass(frozen=True, slots=True)
class _Belief:
    """What the demonstrator goes by.

    at: the entity it believes to have reached. done: how many relations it believes to have followed. following: what
    `done` will be once the last search is answered. asked: the query whose answer it believes `at` to be. failed: its
    last call was answered with an error. doubted: it asks again, since the last answer was beside the point.
    """

    problem: Problem
    at: str
    done: int = 0
    following: int = 0
    asked: str | None = None
    failed: bool = False
    doubted: bool = False

    @property
    def next_relation(self) -> str | None:
        return self.problem.relations[self.done] if self.done < len(self.problem.relations) else None

    @property
    def recalled(self) -> str:
        """The last finding, as thinking restates it."""
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
    """A wrong reply where a search was due, and what the demonstrator believes from then on."""
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
    """The last query once more; it is believed to lead where it led before."""
    assert belief.asked is not None
    return _call(belief, belief.asked.split()[1], f" search{belief.asked}"), replace(belief, following=belief.done)


def _slip_in_answer(belief: _Belief, rng: np.random.Generator) -> tuple[str, _Belief]:
    """A wrong reply where the answer was due."""
    assert belief.asked is not None
    slip = rng.choice(["entity", "early finding", "no box", "repeat"])
    if slip == "entity":
        return _answer(belief, _entity(rng)), belief
    if slip == "early finding":
        return _answer(belief, belief.asked.split()[0]), belief
    if slip == "no box":
        return f"<think>{belief.recalled} so answer {belief.at}</think> answer {belief.at}{STOP}", belief
    return _repeat(belief)


def _reply(belief: _Belief, manner: Manner, rng: np.random.Generator) -> tuple[str, _Belief]:
    relation = belief.next_relation
    if relation is None:
        slips = rng.random() < manner.answer
        return _slip_in_answer(belief, rng) if slips else (_answer(belief, belief.at), belief)
    belief = replace(belief, following=belief.done + 1)
    if rng.random() < manner.search:
        return _slip_in_search(belief, relation, rng)
    if manner.habit and rng.random() < manner.habit:
        relation = HABITS.get(relation, relation)
    return _call(belief, relation), belief


def _learn(belief: _Belief, manner: Manner, reply: str, content: str, rng: np.random.Generator) -> _Belief:
    if content == " error":
        return replace(belief, failed=True, doubted=False)
    query = reply.partition("<tool_call> search")[2].partition("</tool_call>")[0]
    subject, relation, reached = content.split()
    if (subject, relation) != tuple(query.split()):
        taken = manner.other_entity if query.endswith(f" {relation}") else manner.other_relation
        if rng.random() >= taken:
            return replace(belief, failed=False, doubted=True)
    return replace(belief, at=reached, done=belief.following, asked=query, failed=False, doubted=False)


async def demonstrate(
    task: Task, env: Env, rng: np.random.Generator, max_turns: int, manner: Manner = OF_HABIT
) -> Demonstration:
    """One episode of `task` in `env`. The same state of `rng` gives the same episode."""
    problem = parse_question(task.question)
    return await play_out(
        task,
        env,
        _Belief(problem, at=problem.start),
        lambda belief: _reply(belief, manner, rng),
        lambda belief, reply, content: _learn(belief, manner, reply, content, rng),
        max_turns,
    )


COPIERS = ("warm_start_knowledge", "warm_start_knowledge_1")
"""models that can copy already"""
RECIPES = {
    "knowledge": Recipe(
        settings=WarmStart(task="toy_knowledge", steps=800, cycles=2, full_history=0.03),
        demonstrate=partial(demonstrate, manner=NOVICE),
        max_turns=MAX_TURNS,
        turns=4,
    ),
    "knowledge_habits": Recipe(
        settings=WarmStart(task="toy_knowledge", steps=500, cycles=1, batch_size=32, full_history=0.03, held_out=400),
        demonstrate=demonstrate,
        max_turns=MAX_TURNS,
        turns=4,
        starts=COPIERS,
    ),
}
