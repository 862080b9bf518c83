"""The toy knowledge task: follow a chain of two to four relations from an entity, by searching.

A hash of the whole problem decides its facts, so a policy cannot memorise them. The first search for a query returns a
distractor with probability `DISTRACTED`: a true fact about another relation or entity. A hash of problem and query
decides this too, so a problem's facts and distractors are the same in all episodes.
"""

import re
from dataclasses import dataclass

import numpy as np

from rtpo.core.names import counted
from rtpo.core.splits import word_hash
from rtpo.envs.toy.env import Exchange, ToyEnv
from rtpo.envs.toy.problems import Problems
from rtpo.errors import DataError
from rtpo.types import Task

RELATIONS = ("boss", "rival", "friend", "parent", "teacher", "neighbour")
ENTITIES = tuple(f"e{number}" for number in range(60))
WORLDS = 100
HOPS = (2, 3, 4)
MAX_TURNS = 6
DISTRACTED = 0.2
_QUESTION = re.compile(r" find (e\d{1,2})((?: [a-z]+){2,4}) from (\d{1,2})")


@dataclass(frozen=True, slots=True)
class Fact:
    """`object` is the `relation` of `subject`."""

    subject: str
    relation: str
    object: str

    @property
    def text(self) -> str:
        return f" {self.subject} {self.relation} {self.object}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: follow `relations`, all different, one after another from `start`."""

    start: str
    relations: tuple[str, ...]
    world: int  # distinguishes problems with the same start and relations

    @property
    def question(self) -> str:
        return f" find {self.start} {' '.join(self.relations)} from {self.world}"

    @property
    def key(self) -> str:
        """The problem without spaces, for uids."""
        return self.question.removeprefix(" find").replace(" ", "")

    def fact(self, subject: str, relation: str) -> Fact:
        """The fact about a subject and a relation; its object differs from the subject."""
        return Fact(subject, relation, _other(ENTITIES, subject, word_hash(self.key, "fact", subject, relation)))

    def distractor(self, subject: str, relation: str) -> Fact | None:
        """The distractor that the first search returns; None if it returns the fact."""
        if word_hash(self.key, "distracted", subject, relation) % 1000 >= 1000 * DISTRACTED:
            return None
        number = word_hash(self.key, "distractor", subject, relation)
        if number % 2:
            return self.fact(subject, _other(RELATIONS, relation, number // 2))
        return self.fact(_other(ENTITIES, subject, number // 2), relation)

    def search(self, subject: str, relation: str, *, again: bool) -> Fact:
        """The result of a search. again: the episode has searched for this before."""
        return (None if again else self.distractor(subject, relation)) or self.fact(subject, relation)

    @property
    def chain(self) -> tuple[Fact, ...]:
        """The facts that lead to the answer."""
        chain: list[Fact] = []
        for relation in self.relations:
            chain.append(self.fact(chain[-1].object if chain else self.start, relation))
        return tuple(chain)

    @property
    def answer(self) -> str:
        return self.chain[-1].object

    @property
    def turns_needed(self) -> int:
        """Turns of a perfect policy: one per fact, one more per distractor on the chain, and one for the answer."""
        distractors = [self.distractor(fact.subject, fact.relation) for fact in self.chain]
        return len(distractors) + sum(distractor is not None for distractor in distractors) + 1


def _other(words: tuple[str, ...], word: str, number: int) -> str:
    others = [other for other in words if other != word]
    return others[number % len(others)]


def _read(question: str) -> Problem | None:
    """The problem that a question states, if any. Raises DataError if the problem needs more than MAX_TURNS turns."""
    match = _QUESTION.fullmatch(question)
    if match is None:
        return None
    problem = Problem(match[1], tuple(match[2].split()), int(match[3]))
    is_known = problem.start in ENTITIES and set(problem.relations) <= set(RELATIONS)
    if not is_known or len(set(problem.relations)) < len(problem.relations):
        return None
    if problem.turns_needed > MAX_TURNS:
        raise DataError(
            f"question {question!r} needs {counted(problem.turns_needed, 'turn')} and the task has {MAX_TURNS}: "
            "choose another number after 'from'"
        )
    return problem


def _draw(rng: np.random.Generator) -> Problem:
    hops = rng.choice(HOPS)
    while True:
        start = ENTITIES[rng.integers(len(ENTITIES))]
        relations = rng.permutation(RELATIONS)[:hops]
        problem = Problem(start, tuple(str(relation) for relation in relations), int(rng.integers(WORLDS)))
        if problem.turns_needed <= MAX_TURNS:
            return problem


FORM = (
    f"an entity from e0 to e{len(ENTITIES) - 1}, two to four different relations of {', '.join(RELATIONS)}, and a "
    f"number from 0 to {WORLDS - 1}"
)
PROBLEMS = Problems("toy_knowledge", " find e53 boss rival friend from 37", FORM, _read, _draw)
problems, parse_question, read_problems = PROBLEMS.generate, PROBLEMS.parse, PROBLEMS.read_file


def _query(call: str) -> tuple[str, str] | None:
    """Subject and relation of a call such as ` search e5 boss`; None for any other call."""
    match call.split():
        case "search", subject, relation if subject in ENTITIES and relation in RELATIONS:
            return subject, relation
    return None


class ToyKnowledgeEnv(ToyEnv):
    """A call is one search, ` search e5 boss`, and its result a fact, ` e5 boss e17`. The answer is an entity. The
    result depends only on the problem, the query and whether the episode asked it before."""

    tool = "search"

    def _use_tool(self, task: Task, call: str, earlier: tuple[Exchange, ...]) -> str | None:
        query = _query(call)
        if query is None:
            return None
        again = any(_query(asked) == query for asked, _ in earlier)
        return parse_question(task.question).search(*query, again=again).text

    def _read_answer(self, boxed: str) -> str | None:
        words = boxed.split()
        return words[0] if len(words) == 1 and words[0] in ENTITIES else None


ENVIRONMENT = PROBLEMS.environment(ToyKnowledgeEnv)
