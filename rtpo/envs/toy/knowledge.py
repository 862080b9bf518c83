"""The toy knowledge environment: a search tool that answers one query a call, sometimes beside the point."""

from rtpo.envs.toy.env import Exchange, ToyEnv
from rtpo.envs.toy.knowledge_problems import ENTITIES, PROBLEMS, RELATIONS, parse_question
from rtpo.types import Task

Query = tuple[str, str]


def _query(call: str) -> Query | None:
    """Subject and relation of a call ` search e5 boss`; None when it is no search."""
    match call.split():
        case "search", subject, relation if subject in ENTITIES and relation in RELATIONS:
            return subject, relation
    return None


class ToyKnowledgeEnv(ToyEnv):
    """A call is one search, ` search e5 boss`; it finds a fact, ` e5 boss e17`. The answer is an entity. Whether a
    query meets a distractor depends on the problem, the query and whether it was asked before in the episode, and on
    nothing else."""

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
