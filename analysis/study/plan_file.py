"""The plan of a study as it is written in configs/study/<name>.yaml, as typed data."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from rtpo.core.names import nearest
from rtpo.errors import ConfigError, DataError
from rtpo.run.building import build

RATES, GATE, CORE = "rates", "gate", "core"
"""keys of a plan: the search for learning rates, the gate after it, and the main part"""


@dataclass(frozen=True)
class Configuration:
    """A configuration of a part or of the search. An entry that is only a name gives it to label and algorithm."""

    label: str  # begins the names of its runs' folders
    algorithm: str  # a file of configs/algorithm/
    settings: tuple[str, ...] = ()  # further Hydra overrides
    rate_from: str | None = None  # the configuration whose search gives its learning rate; None: its own


@dataclass(frozen=True)
class Place:
    """The task, warm start and seed of a run."""

    task: str
    warm_start: str
    seed: int


@dataclass(frozen=True)
class Part:
    """Runs that are compared with each other. Each configuration runs at every place."""

    tasks: tuple[str, ...]  # names of the plan's `tasks`, or of configs/task/
    configurations: tuple[Configuration, ...]
    warm_starts: int = 0  # how many of each task's, from the first
    seeds: tuple[int, ...] = ()  # on each of these warm starts
    places: tuple[Place, ...] = ()
    """they replace warm_starts and seeds"""


@dataclass(frozen=True)
class Search:
    """The search for learning rates on the validation split."""

    grid: tuple[float, ...]  # rates, from the lowest
    seeds: tuple[int, ...]  # on the task's first warm start
    settings: tuple[str, ...]  # further Hydra overrides of its runs
    rule: Literal["best", "steady"] = "best"  # how a rate is chosen (`Study.best_of`)
    begin: tuple[float, ...] = ()  # neighbours in the grid that are tried first; default: the whole grid
    tasks: tuple[str, ...] = ()  # on which `configurations` are searched
    configurations: tuple[Configuration, ...] = ()  # configurations that are searched and belong to no part
    places: dict[str, tuple[Place, ...]] = field(default_factory=dict)
    """runs by task; they replace the runs at `seeds`"""


@dataclass(frozen=True)
class StudyTask:
    """A task of configs/task/ with other settings, under another name."""

    task: str  # the file of configs/task/
    settings: tuple[str, ...] = ()  # further Hydra overrides


@dataclass(frozen=True)
class Gate:
    """What a configuration must gain before the parts after the search may be trained. Its runs have the search's
    questions and settings, and the rate that the search chose."""

    configuration: str
    least: float  # mean success after training minus that before it
    places: tuple[Place, ...]
    settings: tuple[str, ...] = ()  # further Hydra overrides


@dataclass(frozen=True)
class StudyPlan:
    """The whole file. Keys without a field here are names of parts."""

    decoding: Literal["sampled", "paper", "greedy"]
    """the decoding of the evaluations by which rates are chosen"""
    settings: tuple[str, ...]  # Hydra overrides of every run
    rates: Search
    warm_starts: dict[str, tuple[str, ...]]  # by task of configs/task/; `rates.seeds` uses the first
    tasks: dict[str, StudyTask] = field(default_factory=dict)
    gate: Gate | None = None
    parts: dict[str, Part] = field(default_factory=dict)

    @property
    def configurations(self) -> list[Configuration]:
        """The configurations of the search and of all parts."""
        parts: list[Search | Part] = [self.rates, *self.parts.values()]
        return [configuration for part in parts for configuration in part.configurations]


def load_plan(file: Path) -> StudyPlan:
    """Raises DataError for a file that is not YAML, and ConfigError, naming the field, for an invalid plan."""
    try:
        source = yaml.safe_load(file.read_bytes())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DataError(f"{file} is not YAML ({' '.join(str(error).split())}): give the plan of a study.") from error
    if not isinstance(source, dict) or not isinstance(source.get(RATES), dict):
        raise ConfigError(f"{file} is not the plan of a study: it has no search for learning rates, `{RATES}`.")
    top = {name: source.pop(name) for name in StudyPlan.__dataclass_fields__ if name in source}
    for part in (each for each in (top[RATES], *source.values()) if isinstance(each, dict)):
        entries = part.setdefault("configurations", [])
        if isinstance(entries, list):
            part["configurations"] = [_with_defaults(entry) for entry in entries]
    top[RATES].setdefault("begin", top[RATES].get("grid"))
    plan: StudyPlan = build(StudyPlan, top | {"parts": source}, str(file))
    _check(plan, file)
    return plan


def _with_defaults(entry: Any) -> Any:
    fields = {"label": entry} if isinstance(entry, str) else entry
    if not isinstance(fields, dict) or "label" not in fields:
        return fields
    return {"algorithm": fields["label"], **fields}


def _check(plan: StudyPlan, file: Path) -> None:
    if problems := [*_problems_of_rates(plan), *_problems_of_parts(plan)]:
        raise ConfigError(f"{file}: {problems[0]}")


def _problems_of_rates(plan: StudyPlan) -> Iterator[str]:
    grid, begin = plan.rates.grid, plan.rates.begin
    neighbours = [grid[i : i + len(begin)] for i in range(len(grid))]
    if grid != tuple(sorted(set(grid))) or not begin or begin not in neighbours:
        yield "rates.grid must be increasing, and rates.begin must be neighbours in it."
    for task in {task for task, each in _pairs(plan) if each.rate_from is None}:
        places, known = plan.rates.places.get(task, ()), _warm_starts(plan, task)
        if not places and not plan.rates.seeds:
            yield f"the search on {task} has no run: give rates.places.{task} or rates.seeds."
        if any(place.task != task or place.warm_start not in known for place in places):
            yield f"rates.places.{task} must name the task {task} and its warm starts, {', '.join(known)}."
    for task, each in _pairs(plan):
        searched = {other.label for name, other in _pairs(plan) if name == task and other.rate_from is None}
        if each.rate_from is not None and each.rate_from not in searched:
            yield f"rate_from of {each.label} on {task} is {each.rate_from}: {nearest(each.rate_from, searched)}."


def _problems_of_parts(plan: StudyPlan) -> Iterator[str]:
    for name, part in plan.parts.items():
        for task in part.tasks:
            if (known := len(_warm_starts(plan, task))) < part.warm_starts:
                yield f"{name}.warm_starts is {part.warm_starts}, and {task} has {known} of them."
        if (bool(part.places), bool(part.warm_starts), bool(part.seeds)) not in (
            (True, False, False),
            (False, True, True),
        ):
            yield f"{name} has no run, or two lists of runs: give places, or warm_starts and seeds."
        places = {*part.places}
        if places and (len(places) < len(part.places) or {place.task for place in places} != {*part.tasks}):
            yield f"{name}.places must have each place once, and those of {', '.join(part.tasks)} alone."
        for place in part.places:
            if place.warm_start not in (names := _warm_starts(plan, place.task)):
                yield f"{name}.places has the warm start {place.warm_start}: {nearest(place.warm_start, names)}."
    by_label = {each.label: each for _, each in _pairs(plan)}
    for _, each in _pairs(plan):
        if each != by_label[each.label]:
            yield f"two configurations have the label {each.label}: give them different ones."
    searched = {each.label for _, each in _pairs(plan) if each.rate_from is None}
    if (gate := plan.gate) is None:
        return
    if gate.configuration not in searched:
        yield f"gate.configuration is {gate.configuration}: {nearest(gate.configuration, searched)}."
    for place in gate.places:
        if place.warm_start not in (names := _warm_starts(plan, place.task)):
            yield f"gate.places has the warm start {place.warm_start}: {nearest(place.warm_start, names)}."
    if not gate.places:
        yield "gate.places is empty: the gate needs runs."


def _pairs(plan: StudyPlan) -> list[tuple[str, Configuration]]:
    """Each task with each configuration of it, in the search and in all parts."""
    parts: list[Search | Part] = [plan.rates, *plan.parts.values()]
    return [(task, each) for part in parts for each in part.configurations for task in part.tasks]


def _warm_starts(plan: StudyPlan, task: str) -> tuple[str, ...]:
    return plan.warm_starts.get(plan.tasks.get(task, StudyTask(task)).task, ())
