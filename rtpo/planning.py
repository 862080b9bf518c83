"""What an experiment will cost: rollouts, tokens, memory, disk and hours, with where each comes from.

An estimate, not a measurement. Counts come from the algorithms' own steps (`rtpo.planning_sketch`), memory from the
model's shape (`rtpo.planning_memory`), hours from a model with one free parameter that is fitted to the paper's hours
(`rtpo.planning_time`). A profile without GPUs is planned from the records of runs like it (`rtpo.planning_records`).
None is unknown.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir

from rtpo.config import PROJECT, DataConfig, RunConfig
from rtpo.data.registry import REGISTRY
from rtpo.launch import Element, load_experiment
from rtpo.planning_data import (
    GIB,
    Assumption,
    End,
    Episodes,
    Hardware,
    Range,
    Shape,
    Target,
    Values,
    all_hardware,
    assumptions,
    episodes,
    find_hardware,
    live_search,
    model_shape,
    moved_episodes,
    stated,
    targets,
    values,
)
from rtpo.planning_memory import GpuMemory, checkpoint_bytes, gpu_memory, host_bytes, longest_row, trains
from rtpo.planning_records import Measured, Played, measured, played
from rtpo.planning_sketch import Course, EpisodeShape, Sketch, chance_of_ending, course, sketch
from rtpo.planning_time import (
    Seconds,
    envelope,
    fit_efficiency,
    machine,
    playing_seconds,
    saving_seconds,
    training_seconds,
)

__all__ = ["Plan", "PlanRow", "checkpoint_bytes", "gpu_memory", "host_bytes", "plan"]

Move = tuple[str, End]
MIDDLE: Move = ("", "mid")
EPISODE_RANGES = ("turns", "tokens_per_turn", "tool_seconds")
VALUE_RANGES = ("thinking_share", "training_mfu", "sync_seconds")


@dataclass(frozen=True)
class Fit:
    """Whether an element fits a machine, with what it lacks or needs. status: fits, does not fit, or on what host it
    fits where the machine's is not known."""

    hardware: str
    status: str
    why: str


@dataclass(frozen=True)
class Tokens:
    """Of a run's training. generated: sampled. trained: that carry loss, once each. scored: that go through a forward
    pass before updates, contexts included. recomputed: of contexts of forks that had been computed before."""

    generated: Range
    trained: Range
    scored: Range | None
    recomputed: Range | None


@dataclass(frozen=True)
class Evaluation:
    """Rollouts of the run's own evaluations and of its benchmarks, and what they generate. None is unknown."""

    own_rollouts: int | None
    benchmark_rollouts: int | None
    tokens: float | None

    @property
    def rollouts(self) -> int | None:
        if self.own_rollouts is None or self.benchmark_rollouts is None:
            return None
        return self.own_rollouts + self.benchmark_rollouts


@dataclass(frozen=True)
class Hours:
    """Wall-clock on one machine."""

    training: Range | None
    saving: Range | None
    evaluation: Range | None

    @property
    def total(self) -> Range | None:
        if self.training is None or self.saving is None or self.evaluation is None:
            return None
        return self.training + self.saving + self.evaluation


@dataclass(frozen=True)
class PlanRow:
    """`count` elements that differ in seed alone; every number is of one of them.

    budget: its rollouts. worst, per_task: rollouts of a task, in the worst case and expected. prompts: tasks its steps
    take; data: tasks there are. records: finished runs that tokens and hours are medians of, 0 for none.
    """

    label: str
    task: str
    model: str
    in_paper: bool
    count: int
    budget: int
    worst: int
    per_task: float | None
    steps: int | None
    prompts: int | None
    data: int | None
    tokens: Tokens | None
    optimizer_steps: float | None
    syncs: float | None
    memory: GpuMemory | None
    host: float | None
    host_asked: float
    disk: int | None
    evaluation: Evaluation
    hours: Hours
    gpus: int
    records: int
    fits: tuple[Fit, ...]
    unknown: tuple[str, ...]

    @property
    def epochs(self) -> float | None:
        return self.prompts / self.data if self.prompts is not None and self.data else None

    @property
    def gpu_hours(self) -> Range | None:
        """Of one element; of a profile without GPUs its wall-clock hours."""
        return self.hours.total.times(max(1, self.gpus)) if self.hours.total else None


@dataclass(frozen=True)
class Residual:
    """What the paper says that a run took, and what this model gives."""

    name: str
    paper: float
    modelled: float

    @property
    def error(self) -> float:
        return self.modelled / self.paper - 1


@dataclass(frozen=True)
class Calibration:
    """The fitted parameter, what it leaves, and hours that it was not fitted to."""

    parameter: str
    meaning: str
    value: float
    source: str
    residuals: tuple[Residual, ...]
    checks: tuple[Residual, ...]
    checks_source: str


@dataclass(frozen=True)
class Total:
    """Sums over all elements, of what is known; `left_out` says what that is not. disk: of all saves at once."""

    elements: int
    rollouts: int
    generated: Range | None
    evaluation_rollouts: int
    disk: int
    gpu_hours: Range | None
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """hardware: that the hours are of; None for a profile without GPUs."""

    experiment: str
    profile: str
    hardware: Hardware | None
    rows: tuple[PlanRow, ...]
    total: Total
    assumptions: tuple[Assumption, ...]
    episodes: Mapping[str, Episodes]
    calibration: Calibration | None

    def as_dict(self) -> dict[str, Any]:
        """As plain JSON; null is unknown."""
        rows = [
            asdict(row) | {"epochs": row.epochs, "gpu_hours": asdict(row.gpu_hours) if row.gpu_hours else None}
            for row in self.rows
        ]
        return asdict(self) | {"rows": rows}


def plan(experiment: str, overrides: Sequence[str] = (), hardware: str | None = None) -> Plan:
    """The plan of an experiment's elements; `overrides` as of experiments/train.py.

    hardware: the machine of the hours, by its name in rtpo/hardware.yaml; by default the profile's own. Raises
    ConfigError for an experiment, profile or machine that there is none of and for what no run could start with (a
    budget below one step), DataError for a model whose shape is not known.
    """
    chosen = find_hardware(hardware) if hardware is not None else None
    loaded = load_experiment(experiment, overrides)
    run = loaded.elements[0].run
    if run.profile.platform == "cpu":
        chosen = None
    elif chosen is None:
        chosen = find_hardware(run.profile.name)
    alike: dict[str, list[Element]] = defaultdict(list)
    for element in loaded.elements:
        alike[str(replace(element.run, seed=0))].append(element)
    rows = tuple(_row(group, chosen, loaded.resources.memory_gb * GIB) for group in alike.values())
    envs = {element.run.task.env: episodes(element.run.task.env) for element in loaded.elements}
    return Plan(
        experiment,
        loaded.profile,
        chosen,
        rows,
        _total(rows),
        assumptions() if chosen else (),
        {env: one for env, one in envs.items() if one is not None} if chosen else {},
        calibration() if chosen else None,
    )


# rows


def _row(group: Sequence[Element], hardware: Hardware | None, host_asked: float) -> PlanRow:
    element = group[0]
    run = element.run
    rows = _task_count(run.task.train)
    worst = run.descriptor.rollouts_per_task(run.algorithm_config, run.task.max_turns)
    shape = model_shape(run.model.name, run.model.path)
    memory = gpu_memory(run, hardware, shape) if hardware else None
    estimate = _estimated(element, shape, hardware) if hardware else _recorded(element)
    whole = estimate.whole
    return PlanRow(
        label=run.label,
        task=run.task.name,
        model=run.model.name,
        in_paper=element.in_paper,
        count=len(group),
        budget=run.budget.rollouts if worst else 0,
        worst=worst,
        per_task=whole.rollouts / whole.tasks if whole and whole.tasks else 0.0 if not worst else None,
        steps=whole.steps if whole else None,
        prompts=whole.tasks if whole else None,
        data=rows,
        tokens=estimate.tokens,
        optimizer_steps=estimate.optimizer_steps,
        syncs=estimate.syncs,
        memory=memory,
        host=host_bytes(run, hardware, shape) if hardware else None,
        host_asked=host_asked,
        disk=checkpoint_bytes(run),
        evaluation=estimate.evaluation,
        hours=estimate.hours,
        gpus=hardware.gpus if hardware else 0,
        records=estimate.records,
        fits=tuple(_fit(run, machine, shape) for machine in all_hardware().values()) if hardware else (),
        unknown=estimate.unknown,
    )


@dataclass(frozen=True)
class Estimate:
    """The part of a row that depends on what episodes are like."""

    whole: Course | None
    tokens: Tokens | None
    optimizer_steps: float | None
    syncs: float | None
    evaluation: Evaluation
    hours: Hours
    records: int = 0
    unknown: tuple[str, ...] = ()


NOTHING = Tokens(*[Range(0, 0, 0)] * 4)
NEVER = Course(0, 0, 0.0)


def _estimated(element: Element, shape: Shape, hardware: Hardware) -> Estimate:
    """From assumptions, each moved to its ends with the others in their middle and the efficiency fitted anew."""
    run = element.run
    known = episodes(run.task.env)
    unknown = _unknowns(run, known)
    moves = _moves(run)
    shapes = {move: _drawn(known, *move) for move in moves}
    middle = shapes[MIDDLE]
    drawn_once = {drawn: sketch(run, drawn, hardware.gpus) for drawn in set(shapes.values()) if trains(run)}
    counts = {move: drawn_once[drawn] for move, drawn in shapes.items() if trains(run)}
    wholes = {move: _whole(run, one, known is None or known.tokens_per_turn is None) for move, one in counts.items()}
    whole = wholes.get(MIDDLE, None if trains(run) else NEVER)
    own, benchmarks = _evaluation_rollouts(element)
    turns = expected_turns(middle.turns, run.task.max_turns)
    tokens_known = known is not None and known.tokens_per_turn is not None
    evaluation = Evaluation(
        own,
        benchmarks,
        (own + benchmarks) * turns * middle.tokens_per_turn
        if tokens_known and own is not None and benchmarks is not None
        else None,
    )
    at_middle = counts.get(MIDDLE)
    steps_each = at_middle.optimizer_steps / at_middle.steps if at_middle else 0.0
    syncs_each = at_middle.syncs / at_middle.steps if at_middle else 0.0
    # a limit on seconds is itself what training takes, unless the rollouts end before
    limit = run.budget.seconds
    hours = Hours(Range(*[limit / 3600] * 3) if limit is not None else None, None, None)
    if not unknown and machine(run, shape, hardware, values()) is not None:
        hours = _hours(element, shape, hardware, shapes, counts, wholes, evaluation)
    tokens = NOTHING if not trains(run) else _tokens(counts, wholes) if tokens_known else None
    return Estimate(
        whole,
        tokens,
        whole.steps * steps_each if whole else None,
        whole.steps * syncs_each if whole else None,
        evaluation,
        hours,
        unknown=unknown,
    )


def _moves(run: RunConfig) -> list[Move]:
    known = episodes(run.task.env)
    names = [
        *(name for name in EPISODE_RANGES if known is not None and _is_wide(getattr(known, name))),
        *(one.name for one in assumptions() if one.name in VALUE_RANGES and _is_wide(one.range)),
    ]
    ends: tuple[End, End] = ("low", "high")
    return [MIDDLE, *((name, end) for name in names for end in ends)]


def _is_wide(value: Range | None) -> bool:
    return value is not None and value.low < value.high


def _drawn(known: Episodes | None, name: str = "", end: End = "mid") -> EpisodeShape:
    """What to draw episodes from, with one assumption at an end. Where tokens are not known a turn has 1."""
    assumed = values(name, end)
    if known is None:
        return EpisodeShape(1.0, 1.0, 1.0, 0.0, assumed.thinking_share, assumed.success)
    moved = moved_episodes(known, name, end) if name in EPISODE_RANGES else known
    tokens = moved.tokens_per_turn
    return EpisodeShape(
        moved.turns.mid,
        tokens.mid if tokens else moved.prompt_tokens,
        moved.prompt_tokens,
        moved.feedback_tokens,
        assumed.thinking_share,
        assumed.success,
    )


def expected_turns(mean: float, most: int) -> float:
    """The mean that `most` turns allow."""
    ends = chance_of_ending(mean, most)
    return sum((1 - ends) ** j for j in range(most))


def _whole(run: RunConfig, counts: Sketch, tokens_unknown: bool) -> Course | None:
    tokens = None if tokens_unknown else counts.generated / counts.tasks
    return course(run, counts.rollouts / counts.tasks, tokens, counts.optimizer_steps / counts.steps)


def _tokens(counts: Mapping[Move, Sketch], wholes: Mapping[Move, Course | None]) -> Tokens | None:
    def spread(of: Callable[[Sketch], float]) -> Range | None:
        found = {move: of(one) * whole.tasks / one.tasks for move, one in counts.items() if (whole := wholes[move])}
        return envelope(found[MIDDLE], found.values()) if MIDDLE in found else None

    generated, trained = spread(lambda one: one.generated), spread(lambda one: one.trained)
    if generated is None or trained is None:
        return None
    return Tokens(generated, trained, spread(lambda one: one.scored.tokens), spread(lambda one: one.recomputed))


def _unknowns(run: RunConfig, known: Episodes | None) -> tuple[str, ...]:
    """What hours would need and nobody knows."""
    if known is None:
        return (f"episodes of the environment {run.task.env}",)
    found = []
    if known.tokens_per_turn is None:
        found.append(f"tokens of a turn of {run.task.env}")
    if known.tool_seconds is None:
        found.append(f"latency of what answers in {run.task.env}")
    backend = run.task.settings.get("search", {}).get("backend")
    if backend in live_search():
        found.append("latency of live search")
    if run.budget.seconds is not None:
        found.append("steps within budget.seconds")
    return tuple(found)


def _hours(
    element: Element,
    shape: Shape,
    hardware: Hardware,
    shapes: Mapping[Move, EpisodeShape],
    counts: Mapping[Move, Sketch],
    wholes: Mapping[Move, Course | None],
    evaluation: Evaluation,
) -> Hours:
    run = element.run
    known = episodes(run.task.env)
    assert known is not None
    training, playing = {}, {}
    for move, drawn in shapes.items():
        where = machine(run, shape, hardware, values(*move))
        assert where is not None
        moved = moved_episodes(known, *move) if move[0] in EPISODE_RANGES else known
        tools = moved.tool_seconds.mid if moved.tool_seconds else 0.0
        efficiency = fitted(*move)[0]
        whole = wholes.get(move)
        if whole is not None:
            training[move] = training_seconds(run, where, counts[move], whole, tools).at(efficiency) / 3600
        turns = expected_turns(drawn.turns, run.task.max_turns)
        parts = [(evaluation.own_rollouts, evaluation.own_rollouts), (evaluation.benchmark_rollouts, _in_flight())]
        playing[move] = sum(
            playing_seconds(where, drawn, paths, at_once or paths, tools, turns).at(efficiency) / 3600
            for paths, at_once in parts
            if paths
        )
    nothing = Range(0.0, 0.0, 0.0)
    steps = wholes[MIDDLE].steps if trains(run) and wholes[MIDDLE] else 0  # type: ignore[union-attr]
    disk = next(one.range for one in assumptions() if one.name == "disk_gb")
    saving = [saving_seconds(run, shape, steps, speed) / 3600 for speed in (disk.high, disk.mid, disk.low)]
    return Hours(
        (_widened(envelope(training[MIDDLE], training.values())) if MIDDLE in training else None)
        if trains(run)
        else nothing,
        Range(*saving),
        _widened(envelope(playing[MIDDLE], playing.values())) if evaluation.rollouts is not None else None,
    )


def _widened(hours: Range) -> Range:
    """By the calibration's largest error both ways, and by the margin upwards."""
    _, residuals = fitted()
    error = max(max(one.modelled / one.paper, one.paper / one.modelled) for one in residuals)
    return Range(hours.low / error, hours.mid, hours.high * max(error, values("margin", "high").margin))


# calibration


@cache
def fitted(name: str = "", end: End = "mid") -> tuple[float, tuple[Residual, ...]]:
    """The decode efficiency with one assumption moved to an end, and what it leaves."""
    hardware, calibrated = targets("calibration")
    assumed, runs = values(name, end), []
    for target in calibrated:
        run = _target_run(target)
        known = episodes(run.task.env)
        assert known is not None
        runs.append((_target_seconds(target, known, hardware, assumed, name, end), target.hours))
    efficiency = fit_efficiency(runs)
    return efficiency, tuple(
        Residual(target.name, target.hours, seconds.at(efficiency) / 3600)
        for target, (seconds, _) in zip(calibrated, runs, strict=True)
    )


@cache
def calibration() -> Calibration:
    """At the middle of all assumptions, with the checks."""
    efficiency, residuals = fitted()
    hardware, checked = targets("checks")
    checks = []
    for target in checked:
        run = _target_run(target)
        known = episodes(run.task.env)
        assert known is not None
        assert target.tokens is not None
        # as many tokens a turn as make the paper's in all
        counts = sketch(run, _drawn(known), hardware.gpus)
        whole = _whole(run, counts, tokens_unknown=True)
        assert whole is not None
        each = target.tokens / (counts.turns * whole.tasks / counts.tasks)
        told = replace(known, tokens_per_turn=Range(each, each, each), tool_seconds=Range(0, 0, 0))
        seconds = _target_seconds(target, told, hardware, values(), "", "mid")
        checks.append(Residual(target.name, target.hours, seconds.at(efficiency) / 3600))
    return Calibration(
        stated("calibration", "parameter"),
        stated("calibration", "meaning"),
        efficiency,
        stated("calibration", "source"),
        residuals,
        tuple(checks),
        stated("checks", "source"),
    )


@cache
def _target_run(target: Target) -> RunConfig:
    return load_experiment(target.experiment, target.overrides).elements[0].run


@cache
def _target_sketch(target: Target, drawn: EpisodeShape, engines: int) -> Sketch:
    return sketch(_target_run(target), drawn, engines)


def _target_seconds(
    target: Target, known: Episodes, hardware: Hardware, assumed: Values, name: str, end: End
) -> Seconds:
    run = _target_run(target)
    moved = moved_episodes(known, name, end) if name in EPISODE_RANGES else known
    counts = _target_sketch(target, _drawn(known, name, end), hardware.gpus)
    whole = _whole(run, counts, tokens_unknown=False)
    where = machine(run, model_shape(run.model.name, run.model.path), hardware, assumed)
    assert whole is not None
    assert where is not None
    return training_seconds(run, where, counts, whole, moved.tool_seconds.mid if moved.tool_seconds else 0.0)


# records


def _recorded(element: Element) -> Estimate:
    """From the medians of runs with the same algorithm on the same task and model; without any, from a sketch with
    measured episodes, and unknown hours."""
    run = element.run
    seen, whole_episodes = measured(run), played(run)
    own, benchmarks = _evaluation_rollouts(element)
    evaluation = _recorded_evaluation(own, benchmarks, whole_episodes)
    playing = None
    if whole_episodes is not None and evaluation.rollouts is not None:
        playing = whole_episodes.seconds.times(evaluation.rollouts / 3600)
    saving = Range(0.0, 0.0, 0.0)
    if not trains(run):
        return Estimate(NEVER, NOTHING, 0.0, 0.0, evaluation, Hours(saving, saving, playing))
    if seen is not None:
        return _from_records(run, seen, evaluation, playing)
    if whole_episodes is None:
        unknown = (f"tokens and seconds of {run.task.name}: there is no record of it",)
        return Estimate(None, None, None, None, evaluation, Hours(None, saving, playing), unknown=unknown)
    drawn = replace(
        _drawn(None),
        turns=whole_episodes.turns,
        tokens_per_turn=whole_episodes.tokens_per_turn,
        success=whole_episodes.success,
    )
    counts = sketch(run, drawn, 1)
    whole = _whole(run, counts, tokens_unknown=False)
    tokens = _tokens({MIDDLE: counts}, {MIDDLE: whole})
    return Estimate(
        whole,
        replace(tokens, scored=None, recomputed=None) if tokens else None,
        whole.steps * counts.optimizer_steps / counts.steps if whole else None,
        whole.steps * counts.syncs / counts.steps if whole else None,
        evaluation,
        Hours(None, saving, playing),
        unknown=(f"seconds of {run.label} on {run.task.name}: there is no record of it",),
    )


def _from_records(run: RunConfig, seen: Measured, evaluation: Evaluation, playing: Range | None) -> Estimate:
    whole = course(run, seen.rollouts_per_task, seen.rollouts_per_task * seen.generated, seen.steps_each)
    if whole is None:
        unknown = ("steps within budget.seconds",)
        return Estimate(None, None, None, None, evaluation, Hours(None, None, playing), seen.records, unknown)
    generated, trained = seen.generated * whole.rollouts, seen.trained * whole.rollouts
    return Estimate(
        whole,
        Tokens(Range(*[generated] * 3), Range(*[trained] * 3), None, None),
        whole.steps * seen.steps_each,
        whole.steps * seen.syncs_each,
        evaluation,
        Hours(seen.seconds.times(whole.rollouts / 3600), Range(0.0, 0.0, 0.0), playing),
        seen.records,
    )


def _recorded_evaluation(own: int | None, benchmarks: int | None, seen: Played | None) -> Evaluation:
    known = seen is not None and own is not None and benchmarks is not None
    tokens = (own + benchmarks) * seen.turns * seen.tokens_per_turn if known else None  # type: ignore[operator,union-attr]
    return Evaluation(own, benchmarks, tokens)


# evaluation


def _evaluation_rollouts(element: Element) -> tuple[int | None, int | None]:
    """Of the run itself, and of the benchmarks afterwards."""
    run = element.run
    tasks, samples = _task_count(run.task.held_out), run.evaluation.samples
    every = run.evaluation.every_rollouts
    during = run.budget.rollouts // every if every and trains(run) else 0
    own = tasks * (2 * (samples + run.evaluation.greedy) + during * samples) if tasks is not None else None
    counts = [_benchmark_tasks(name) for name in element.benchmarks]
    if any(count is None for count in counts):
        return own, None
    return own, sum(count for count in counts if count is not None) * int(_evaluate_settings()["samples"])


@cache
def _evaluate_settings() -> Any:
    with initialize_config_dir(str(PROJECT / "configs"), version_base=None):
        return compose("evaluate")


def _in_flight() -> int:
    """Paths at once of a benchmark."""
    settings = _evaluate_settings()
    return int(settings["batch"]) * int(settings["samples"])


@cache
def _benchmark_tasks(name: str) -> int | None:
    with initialize_config_dir(str(PROJECT / "configs"), version_base=None):
        held_out = compose("evaluate", [f"benchmarks=[{name}]"])["benchmarks"][name]["held_out"]
    return _task_count(DataConfig(held_out["split"], held_out["count"], file=held_out["file"]))


def _task_count(data: DataConfig) -> int | None:
    """Tasks of a data set: of its file, or, before it is prepared, of the registry's set of that name, `count` at
    most."""
    if data.file is None:
        return data.count
    file, known = Path(data.file), REGISTRY.get(Path(data.file).stem)
    if file.exists():
        rows = len(file.read_text(encoding="utf-8").splitlines())
    elif known is not None:
        rows = known.sample or known.rows
    else:
        return data.count
    return rows if data.count is None else min(rows, data.count)


# machines and sums


def _fit(run: RunConfig, hardware: Hardware, shape: Shape) -> Fit:
    memory, host = gpu_memory(run, hardware, shape), host_bytes(run, hardware, shape)
    assert memory is not None
    assert host is not None
    if memory.cache_tokens < run.task.max_context_tokens:
        return Fit(
            hardware.name,
            "does not fit",
            f"vLLM's share has room for {max(0, memory.cache_tokens):,} cached tokens, below task.max_context_tokens "
            f"{run.task.max_context_tokens:,}",
        )
    over = memory.peak_bytes - hardware.memory_bytes
    if over > 0:
        return Fit(hardware.name, "does not fit", f"GPU memory by {over / GIB:.1f} GiB{_shorter(run, memory)}")
    need = f"{host / GIB:.0f} GiB of host memory"
    if hardware.host_gib is None:
        return Fit(hardware.name, f"fits if the host has {host / GIB:.0f} GiB", "fits GPU memory")
    if host > hardware.host_gib * GIB:
        return Fit(hardware.name, "does not fit", f"host memory by {host / GIB - hardware.host_gib:.0f} GiB")
    return Fit(hardware.name, "fits", f"needs {need}")


def _shorter(run: RunConfig, memory: GpuMemory) -> str:
    if not memory.longest_batch:
        return ""
    row = longest_row(run)
    beyond = f", and the longest row may have {row:,}" if row > memory.longest_batch else ""
    return f"; up to {memory.longest_batch:,} tokens a micro-batch fit{beyond}"


def _total(rows: Iterable[PlanRow]) -> Total:
    generated: Range | None = None
    hours: Range | None = None
    disk, played_rollouts, left_out = 0, 0, []
    rows = list(rows)
    for row in rows:
        name = f"{row.label} on {row.task}"
        if row.tokens is None:
            left_out.append(f"tokens of {name}")
        else:
            mine = row.tokens.generated.times(row.count)
            generated = mine if generated is None else generated + mine
        if row.gpu_hours is None:
            left_out.append(f"hours of {name}")
        else:
            mine = row.gpu_hours.times(row.count)
            hours = mine if hours is None else hours + mine
        if row.disk is None:
            left_out.append(f"disk of {name}")
        else:
            disk += row.disk * row.count
        if row.evaluation.rollouts is None:
            left_out.append(f"evaluation of {name}")
        else:
            played_rollouts += row.evaluation.rollouts * row.count
    return Total(
        sum(row.count for row in rows),
        sum(row.budget * row.count for row in rows),
        generated,
        played_rollouts,
        disk,
        hours,
        tuple(left_out),
    )
