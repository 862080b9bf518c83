"""The environments, by name, each with where its tasks come from."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

from rtpo.data.records import read_records
from rtpo.envs.airline.env import AirlineEnv, AirlineSettings, official_tasks, read_airline
from rtpo.envs.base import Env, NoSettings, Settings
from rtpo.envs.booking import tasks as booking_tasks
from rtpo.envs.booking.env import BookingEnv
from rtpo.envs.math import MathEnv, MathSettings
from rtpo.envs.search import SearchEnv, SearchEnvSettings
from rtpo.envs.toy import knowledge_problems, math_problems
from rtpo.envs.toy.knowledge import ToyKnowledgeEnv
from rtpo.envs.toy.math import ToyMathEnv
from rtpo.errors import ConfigError
from rtpo.types import Task


@dataclass(frozen=True, slots=True)
class Environment:
    """make: a fresh environment, from its settings and K. read: the tasks of a data file; raises DataError naming the
    line. generate: `count` tasks of a split, (split, count, seed); None where tasks come from files alone. split_key:
    what a task's split is a function of (`rtpo.core.splits`), wherever the task comes from. settings: the type of its
    settings."""

    make: Callable[[Any, int], Env]
    read: Callable[[Path], list[Task]]
    generate: Callable[[str, int, int], list[Task]] | None = None
    split_key: Callable[[Task], str] = attrgetter("question")
    settings: type[Settings] = NoSettings


ENVIRONMENTS: dict[str, Environment] = {
    "airline": Environment(
        lambda settings, max_turns: AirlineEnv(settings), read_airline, official_tasks, settings=AirlineSettings
    ),
    "booking": Environment(
        lambda settings, max_turns: BookingEnv(),
        booking_tasks.read_tasks,
        booking_tasks.generate,
        booking_tasks.split_key,
    ),
    "math": Environment(MathEnv, read_records, settings=MathSettings),
    "search": Environment(SearchEnv, read_records, settings=SearchEnvSettings),
    "toy_knowledge": Environment(
        lambda settings, max_turns: ToyKnowledgeEnv(),
        knowledge_problems.read_problems,
        knowledge_problems.problems,
        lambda task: knowledge_problems.parse_question(task.question).key,
    ),
    "toy_math": Environment(
        lambda settings, max_turns: ToyMathEnv(),
        math_problems.read_problems,
        math_problems.problems,
        lambda task: math_problems.parse_question(task.question).key,
    ),
}


def make_env(name: str, settings: Settings, max_turns: int) -> Env:
    """A fresh environment. Raises ConfigError for a name that is not registered."""
    if name not in ENVIRONMENTS:
        raise ConfigError(f"environment {name!r} does not exist: use one of {', '.join(sorted(ENVIRONMENTS))}")
    return ENVIRONMENTS[name].make(settings, max_turns)


@cache
def environment_facts(name: str, settings: Settings) -> dict[str, Any]:
    """What the environment's check at the start says; made once a process."""
    return settings.check()
