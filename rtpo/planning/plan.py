"""What an experiment will cost: rollouts, tokens, rows, steps, synchronisations, memory and disk.

Counts come from the algorithms' own steps (`rtpo.planning.sketch`), memory from the model's shape
(`rtpo.planning.memory`). None is unknown.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from rtpo.data.reading import read_rows
from rtpo.data.registry import REGISTRY
from rtpo.planning.data import Episodes, Hardware, episodes, find_hardware, gpu_hours
from rtpo.planning.memory import (
    cache_a_path,
    gpu_memory,
    gpu_problems,
    host_memory,
    host_problems,
    mask_problems,
    saves,
    total,
    trains,
)
from rtpo.planning.sketch import course, expected_turns, sketch
from rtpo.run import archives
from rtpo.run.composition import composed
from rtpo.run.config import DataConfig, RunConfig
from rtpo.run.experiments import Element, load_experiment
from rtpo.run.records import RunFolder


@dataclass(frozen=True)
class Counts:
    """Of a run's training. per_task: rollouts a task. prompts: tasks that its steps take. rows: of updates, once each.
    generated: sampled tokens, without free, those sampled beside the budget; trained: those that carry loss, once each.
    Of the trainer's trees (`rtpo.core.trees`), scored: nodes of forward passes before updates; computed: of optimizer
    steps. in_rows, flattened: what these steps would compute of the same rows, and of the same turns in flattened
    history, one by one. at_once: paths of a step that go on together at most."""

    per_task: float | None = None
    steps: float | None = None
    prompts: float | None = None
    rows: float | None = None
    generated: float | None = None
    free: float | None = None
    trained: float | None = None
    scored: float | None = None
    computed: float | None = None
    in_rows: float | None = None
    flattened: float | None = None
    optimizer_steps: float | None = None
    syncs: float | None = None
    at_once: float | None = None


@dataclass(frozen=True)
class PlanRow:
    """`count` elements that differ in seed alone; every number is of one of them.

    rollouts: its budget. worst: rollouts of a task at most. data: tasks there are. evaluation_rollouts: of the run's
    own evaluations and of its benchmarks. hours: of training, of a GPU, tokens beside the budget at what those of its
    rollouts take, or of a machine without GPUs as the records beside its own have it. evaluation_hours: the same of
    evaluation, at what a rollout of training takes, or one of evaluation in the records. gpu, host: bytes, of each GPU
    and of a node. cache_a_path: tokens whose keys and values vLLM has room for, for each path that an engine runs at
    once. disk: bytes of its saves, of which `writing` are of the one being written. problems: why it does not fit.
    """

    label: str
    task: str
    model: str
    in_paper: bool
    count: int
    rollouts: int
    worst: int
    data: int | None
    counts: Counts
    evaluation_rollouts: int | None
    evaluation_tokens: float | None
    hours: float | None
    evaluation_hours: float | None
    gpu: float | None
    host: float | None
    cache_a_path: float | None
    disk: int | None
    writing: int | None
    problems: tuple[str, ...]

    @property
    def epochs(self) -> float | None:
        return self.counts.prompts / self.data if self.counts.prompts is not None and self.data else None


@dataclass(frozen=True)
class Plan:
    """hardware: the node that memory is held against; None for a profile without GPUs. memory_gb: asked of it.
    episodes: what they are taken to be, by task. results: the folder of the experiments, where the saves will be."""

    experiment: str
    profile: str
    hardware: Hardware | None
    memory_gb: int
    rows: tuple[PlanRow, ...]
    episodes: dict[str, Episodes | None]
    results: Path

    def sum(self, of: Callable[[PlanRow], float | None]) -> float | None:
        """Over all elements; None where one is unknown."""
        found = [(of(row), row.count) for row in self.rows]
        known = [value * count for value, count in found if value is not None]
        return sum(known) if len(known) == len(found) else None

    @property
    def disk_in_turn(self) -> float | None:
        """Bytes of all saves when one element runs after another, so that one save at a time is being written."""
        kept = self.sum(lambda row: None if row.disk is None or row.writing is None else row.disk - row.writing)
        return None if kept is None else kept + max(row.writing or 0 for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """As plain JSON; null is unknown."""
        rows = [asdict(row) | {"epochs": row.epochs} for row in self.rows]
        return asdict(self) | {"results": str(self.results), "rows": rows}


def plan(experiment: str, overrides: Sequence[str] = (), hardware: str | None = None) -> Plan:
    """The plan of an experiment's elements; `overrides` as of experiments/train.py.

    hardware: the machine, by its name in rtpo/planning/hardware.yaml; by default the profile's own. Raises ConfigError
    for an experiment, profile or machine that there is none of and for what no run could start with (a budget below one
    step), DataError for a model whose shape is not known.
    """
    chosen = find_hardware(hardware) if hardware is not None else None
    loaded = load_experiment(experiment, overrides)
    profile = loaded.elements[0].run.profile
    if profile.platform == "cpu":
        chosen = None
    elif chosen is None:
        chosen = find_hardware(profile.name)
    alike: dict[str, list[Element]] = defaultdict(list)
    for element in loaded.elements:
        alike[str(replace(element.run, seed=0))].append(element)
    asked = loaded.resources.memory_gb
    return Plan(
        experiment,
        loaded.profile,
        chosen,
        asked,
        tuple(_row(group, chosen, asked) for group in alike.values()),
        {element.run.task.name: episodes(element.run) for element in loaded.elements},
        Path(loaded.elements[0].run.results).absolute(),
    )


def _row(group: Sequence[Element], hardware: Hardware | None, asked: int) -> PlanRow:
    element = group[0]
    run, played = element.run, _evaluation_rollouts(element)
    size, counts = saves(run), _counts(run)
    hours, evaluation_hours = _hours(run, hardware, played, counts)
    return PlanRow(
        label=run.label,
        task=run.task.name,
        model=run.model.name,
        in_paper=element.in_paper,
        count=len(group),
        rollouts=run.budget.rollouts if trains(run) else 0,
        worst=run.descriptor.rollouts_per_task(run.algorithm_config, run.task.max_turns),
        data=task_count(run.task.train),
        counts=counts,
        evaluation_rollouts=played,
        evaluation_tokens=_played_tokens(run, played),
        hours=hours,
        evaluation_hours=evaluation_hours,
        gpu=gpu_memory(run, hardware).peak_bytes if hardware else None,
        host=total(host_memory(run, hardware)) if hardware else None,
        cache_a_path=cache_a_path(run, hardware, counts.at_once) if hardware and counts.at_once else None,
        disk=size.kept + size.writing if size else None,
        writing=size.writing if size else None,
        problems=(*gpu_problems(run, hardware), *host_problems(run, hardware, asked))
        if hardware
        else tuple(mask_problems(run, asked)),
    )


def _hours(
    run: RunConfig, hardware: Hardware | None, played: int | None, counts: Counts
) -> tuple[float | None, float | None]:
    """Of training, and of an evaluation of `played` rollouts."""
    trained = run.budget.rollouts if trains(run) else 0
    if hardware is not None:
        training = gpu_hours(run, hardware, trained) if trained else 0.0
        if training:
            beside, generated = counts.free, counts.generated
            training = None if beside is None or generated is None else training * (1 + beside / generated)
        return training, None if played is None else gpu_hours(run, hardware, played)
    for file in archives.find(run.folder.parent, f"{run.label}-seed*/manifest.json"):
        done = RunFolder(file.parent).manifest
        seconds, ledger = done["ledger"]["seconds"]["evaluate"], done["ledger"]
        training = (done["wall_seconds"] - seconds) / 3600 * trained / ledger["rollouts"] if trained else 0.0
        if played is None or not ledger["evaluation_rollouts"]:
            return training, None
        return training, seconds / 3600 * played / ledger["evaluation_rollouts"]
    return (None if trained else 0.0), None


def _counts(run: RunConfig) -> Counts:
    """What the algorithm's step does on some tasks, for as many as the budget has."""
    if not trains(run):
        return Counts(**{field.name: 0.0 for field in fields(Counts)})
    drawn = episodes(run)
    if drawn is None:
        return Counts()
    some = sketch(run, drawn)
    per_task, steps_each = some.rollouts / some.tasks, some.optimizer_steps / some.steps
    tokens = some.generated / some.tasks if drawn.tokens_per_turn is not None else None
    whole = course(run, per_task, tokens, steps_each)
    if whole is None:
        return Counts(per_task)
    share = whole.tasks / some.tasks
    has_contexts = None not in (drawn.tokens_per_turn, drawn.prompt_tokens, drawn.feedback_tokens)
    return Counts(
        per_task,
        whole.steps,
        whole.tasks,
        share * some.rows,
        share * some.generated if tokens is not None else None,
        share * some.free if tokens is not None else None,
        share * some.trained if tokens is not None else None,
        share * some.scored if has_contexts else None,
        share * some.computed if has_contexts else None,
        share * some.in_rows if has_contexts else None,
        share * some.flattened if has_contexts else None,
        whole.steps * steps_each,
        whole.steps * some.syncs / some.steps,
        run.budget.tasks_per_step * some.at_once,
    )


def _evaluation_rollouts(element: Element) -> int | None:
    """Of the run itself, before, during and after, and of its benchmarks."""
    run, settings = element.run, _evaluate_settings(())
    evaluation, every = run.evaluation, run.evaluation.every_rollouts
    during = run.budget.rollouts // every if every and trains(run) else 0
    sampled = evaluation.samples * (1 + evaluation.paper)
    each = (1 + evaluation.before) * (sampled + evaluation.greedy) + during * sampled
    sizes = [(task_count(run.task.held_out), each)]
    for name in element.benchmarks:
        held_out = _evaluate_settings((f"benchmarks=[{name}]",))["benchmarks"][name]["held_out"]
        data = DataConfig(held_out["split"], held_out["count"], file=held_out["file"])
        sizes.append((task_count(data), int(settings["samples"])))
    known = [tasks * each for tasks, each in sizes if tasks is not None]
    return sum(known) if len(known) == len(sizes) else None


def _played_tokens(run: RunConfig, rollouts: int | None) -> float | None:
    drawn = episodes(run)
    if rollouts is None or drawn is None or drawn.tokens_per_turn is None:
        return None
    return rollouts * expected_turns(drawn.turns, run.task.max_turns) * drawn.tokens_per_turn


@cache
def _evaluate_settings(overrides: tuple[str, ...]) -> Any:
    return composed("evaluate", overrides)


def task_count(data: DataConfig) -> int | None:
    """Tasks of a data set: of its file, or, before it is prepared, of the registry's set of that name, `count` at
    most."""
    if data.file is None:
        return data.count
    file, known = Path(data.file), REGISTRY.get(Path(data.file).stem)
    if file.exists():
        rows = sum(1 for _ in read_rows(file))
    elif known is not None:
        rows = known.sample or known.rows
    else:
        return data.count
    return rows if data.count is None else min(rows, data.count)
