"""Estimates what an experiment costs: rollouts, tokens, steps, hours, memory and disk.

Counts come from the algorithms' own steps (`rtpo.planning.sketch`), hours from the counts and stated assumptions,
memory from the model's shape (`rtpo.planning.memory`). Without GPUs hours are nan.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, nan
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from rtpo.core.names import counted, nearest
from rtpo.data.reading import read_rows
from rtpo.data.registry import REGISTRY
from rtpo.errors import ConfigError
from rtpo.planning import memory
from rtpo.planning.hardware import FILE, GIB, Hardware, TypicalEpisode, model_shape, planning_data
from rtpo.planning.sketch import Sketch, chance_of_ending, longest_path
from rtpo.run.cli import composed
from rtpo.run.config import DataConfig, RunConfig
from rtpo.run.experiments import Element, Resources, experiments, load_experiment, read_launch


@dataclass(frozen=True)
class Counts:
    """What a run does while it trains."""

    rollouts: float = 0.0
    steps: int = 0
    calls: float = 0.0  # of `rollout`, each with many paths
    generated: float = 0.0  # tokens that the budget counts
    free: float = 0.0  # generated tokens outside the budget
    trained: float = 0.0  # tokens
    optimizer_steps: float = 0.0
    syncs: float = 0.0
    saves: float = 0.0
    seconds: tuple[float, ...] = (0.0, 0.0, 0.0)  # generating, training, synchronising


@dataclass(frozen=True)
class Row:
    """Runs of an experiment that differ only in seed. Numbers are those of one run."""

    run: RunConfig
    run_count: int
    counts: Counts
    evaluation_rollouts: int
    hours: tuple[float, float]  # of training (with start-up and saves) and of evaluation; nan without GPUs
    saves: memory.Saves
    fits: bool  # whether the machine's memory is enough
    owner: str = ""  # the experiment that trains the run, if another one does
    spared: float = 0.0  # hours of training that count in the owner's plan, not here


@dataclass(frozen=True)
class CostEstimate:
    """The estimated cost of an experiment."""

    experiment: str  # a name, or a pattern that matches several
    node: Hardware | None  # of the profile; None without GPUs
    resources: Resources  # that one run requests of the cluster
    rows: tuple[Row, ...]
    at_once: int | None = None  # most runs at the same time; None: no limit
    keep: str = "save"  # what stays of a run's last save after evaluation: save, weights or nothing

    def sum(self, number: Callable[[Row], float]) -> float:
        """Sum a number over all runs."""
        return sum(number(row) * row.run_count for row in self.rows)

    @property
    def disk(self) -> float:
        """The most bytes that the runs' saves take together, including those that are being written."""
        return memory.peak_disk([row.saves for row in self.rows for _ in range(row.run_count)], self.at_once, self.keep)


def plan(experiment: str, overrides: Sequence[str] = ()) -> CostEstimate:
    """Estimate the cost of an experiment, or of all experiments that match a pattern. Raises ConfigError for an unknown
    name or an invalid setting, and DataError for a model of unknown shape."""
    loaded, machines = [load_experiment(name, overrides) for name in experiments(experiment)], planning_data().hardware
    profile = loaded[0].elements[0].run.profile
    if profile.platform != "cpu" and profile.name not in machines:
        raise ConfigError(f"profile is {profile.name}: not in {FILE.name}; {nearest(profile.name, machines)}.")
    node = machines[profile.name] if profile.platform != "cpu" else None
    groups: dict[str, list[Element]] = defaultdict(list)
    for element in (element for each in loaded for element in each.elements):
        groups[f"{element.owner} {replace(element.run, seed=0)}"].append(element)
    resources = max((each.resources for each in loaded), key=lambda each: each.minutes)
    rows = tuple(_row(elements, node, resources.memory_gb) for elements in groups.values())
    return CostEstimate(experiment, node, resources, rows, loaded[0].at_once, loaded[0].keep)


def _row(elements: Sequence[Element], node: Hardware | None, memory_gb: int) -> Row:
    run = elements[0].run
    if run.task.env not in planning_data().episodes:
        raise ConfigError(f"task.env is {run.task.env}: add what its episodes are assumed to be to {FILE}.")
    episode = planning_data().episodes[run.task.env]
    counts, rollouts, size = run_counts(run, episode, node), _evaluations(elements[0]), memory.saves(run)
    hours = nan, nan
    if node is not None:
        saving = counts.saves * size.writing / (planning_data().assumptions["disk_gb_s"] * 1e9)
        training = sum(counts.seconds) + saving + planning_data().assumptions["start_s"] if memory.trains(run) else 0.0
        chance = max(chance_of_ending(episode.turns, run.task.max_turns), 1e-9)
        turns = [np.random.default_rng(0).geometric(chance, n).clip(max=run.task.max_turns).tolist() for n in rollouts]
        hours = training / 3600, sum(call_seconds(run, node, episode, call) for call in turns) / 3600
    owner, spared, fits = elements[0].owner, 0.0, not memory.memory_problems(run, node, memory_gb)
    if owner:
        spared, hours, counts, size = hours[0], (0.0 if node else nan, hours[1]), Counts(), memory.Saves(0, 0)
    return Row(run, len(elements), counts, sum(rollouts), hours, size, fits, owner, spared)


def run_counts(run: RunConfig, episode: TypicalEpisode, node: Hardware | None) -> Counts:
    """Count what a whole run does, from a sketch of a few steps (`Sketch`) and the limits of the run's budget. Raises
    ConfigError for a limit in seconds without GPUs."""
    if not memory.trains(run):
        return Counts()
    budget = run.budget
    if budget.seconds and node is None:
        raise ConfigError("budget.seconds is set: how many steps that is on a CPU is unknown; plan without it.")
    sketch = Sketch(run, episode).take_steps()
    ledger, seconds = sketch.ledger, _step_seconds(run, episode, sketch, node) if node else (nan, nan, nan)
    most_rollouts = run.descriptor.rollouts_per_task(run.algorithm_config, run.task.max_turns)
    generated = ledger.generated_tokens * episode.tokens_per_turn / sketch.tasks
    steps, tasks, rollouts = 0, 0, 0.0
    while taken := min(budget.tasks_per_step, int((budget.rollouts - rollouts) // most_rollouts)):
        steps, tasks, rollouts = steps + 1, tasks + taken, rollouts + taken * ledger.rollouts / sketch.tasks
        if (
            tasks * generated >= (budget.generated_tokens or inf)
            or steps * ledger.optimizer_steps / sketch.steps >= (budget.optimizer_steps or inf)
            or steps >= (budget.steps or inf)
            or steps * sum(seconds) >= (budget.seconds or inf)
        ):
            break
    step_interval, phase_interval, per_sketch_step = run.save.every_steps, run.save.every_phases, steps / sketch.steps
    tokens = tasks / sketch.tasks * episode.tokens_per_turn
    return Counts(
        rollouts=rollouts,
        steps=steps,
        calls=per_sketch_step * sketch.calls,
        generated=tasks * generated,
        free=tokens * ledger.free_tokens,
        trained=tokens * ledger.trained_tokens,
        optimizer_steps=per_sketch_step * ledger.optimizer_steps,
        syncs=per_sketch_step * ledger.syncs + 1,  # for the evaluation after training
        saves=(ceil(steps / step_interval) if step_interval else 1)
        + (steps * (sketch.phases / sketch.steps // phase_interval) if phase_interval else 0),
        seconds=tuple(steps * phase for phase in seconds),
    )


def _step_seconds(run: RunConfig, episode: TypicalEpisode, sketch: Sketch, node: Hardware) -> tuple[float, ...]:
    """Seconds of generation, training and synchronisation in a step. Assumes that calls of `rollout` run one after
    another, and that training computes each trained token once and no context."""
    assumed, gpus = planning_data().assumptions, node.gpus * run.profile.nodes
    parameters, scale = model_shape(run.model.name, run.model.path).parameters, run.budget.tasks_per_step / sketch.tasks
    # operations for each parameter and token: 2 forward, 4 backward, and 2 more where layers are recomputed
    backward = 8 if memory.verl_setting(run, "model.enable_gradient_checkpointing", True) else 6
    operations = parameters * episode.tokens_per_turn * (backward * sketch.trained + 2 * sketch.scored) * scale
    offloaded = 4 * memory.offloads(run, "param") + memory.ADAM_BYTES * memory.offloads(run, "optimizer")
    moved = 2 * parameters * offloaded / gpus  # bytes, to the GPU and back
    calls = (turns * max(1, round(scale * sketch.steps)) for turns in sketch.path_turns)
    return (
        sum(call_seconds(run, node, episode, turns) for turns in calls) / sketch.steps,
        operations / (gpus * node.tflops * 1e12 * assumed["flops_share"]),
        (assumed["sync_s"] + moved / (assumed["offload_gb_s"] * 1e9)) * sketch.ledger.syncs / sketch.steps,
    )


def call_seconds(run: RunConfig, node: Hardware, episode: TypicalEpisode, turns: Sequence[int]) -> float:
    """Seconds of one call of `rollout`. Each decoding step reads all weights; each token reads its keys and values.
    turns: number of turns of each path."""
    shape, assumed = model_shape(run.model.name, run.model.path), planning_data().assumptions
    parallel = int(memory.verl_setting(run, "rollout.tensor_model_parallel_size", 1))
    seconds_per_byte = 1 / (parallel * node.memory_tb_s * 1e12 * assumed["bandwidth_share"])
    seconds_per_token = 2 * shape.parameters / (parallel * node.tflops * 1e12 * assumed["flops_share"])
    # a step for each token of the longest path, or more if the engines cannot take all paths at the same time
    longest = longest_path(turns, episode.tokens_per_turn, run.task.max_turn_tokens)
    tokens = sum(turns) * episode.tokens_per_turn * parallel / (node.gpus * run.profile.nodes)  # of an engine
    decoding_steps = max(longest, tokens / float(memory.verl_setting(run, "rollout.max_num_seqs", 256)))
    context = episode.prompt_tokens + episode.tokens_per_turn
    return decoding_steps * 2 * shape.parameters * seconds_per_byte + tokens * (
        shape.cache_bytes * context * seconds_per_byte + seconds_per_token
    )


def _evaluations(element: Element) -> list[int]:
    """Rollouts of each evaluation of a run: before, during and after training, and on its benchmarks. If another
    experiment trains the run, this one only evaluates it on further benchmarks."""
    run, evaluation = element.run, element.run.evaluation
    during = run.budget.rollouts // evaluation.every_rollouts if evaluation.every_rollouts and memory.trains(run) else 0
    samples = [evaluation.samples] * (1 + evaluation.paper)
    start_and_end = (1 + evaluation.before) * (samples + [1] * evaluation.greedy)
    rollouts = [task_count(run.task.held_out) * n for n in (*start_and_end, *during * samples)]
    names = element.benchmarks
    if element.owner:
        profile = [f"profile={run.profile.name}"]
        owner_benchmarks = read_launch(composed("train", [f"experiment={element.owner}", *profile])).benchmarks.get(
            run.task.name, ()
        )
        names, rollouts = tuple(name for name in names if name not in owner_benchmarks), []
    if not names:
        return rollouts
    panel: Any = composed("evaluate", [f"benchmarks=[{','.join(names)}]"])
    held_out = (panel["benchmarks"][name]["held_out"] for name in names)
    data = (DataConfig(held["split"], held["count"], file=held["file"]) for held in held_out)
    return rollouts + [task_count(held) * int(panel["samples"]) for held in data]


def task_count(data: DataConfig) -> int:
    """How many tasks a data set has, at most `data.count`. All rows of a file count, whatever the split. The registry
    gives the number for a file that is not prepared yet. Raises DataError if the registry lacks a missing file."""
    if data.file is None:
        return data.count or 0
    file, entry = Path(data.file), REGISTRY.get(Path(data.file).stem)
    rows = entry.sample or entry.rows if entry and not file.exists() else sum(1 for _ in read_rows(file))
    return rows if data.count is None else min(rows, data.count)


def summary(estimate: CostEstimate) -> str:
    """The cost estimate as text of about ten lines."""
    rows, run, total = estimate.rows, estimate.rows[0].run, estimate.sum
    count, misfits = sum(row.run_count for row in rows), total(lambda row: not row.fits)
    models = ", ".join(dict.fromkeys(row.run.model.name for row in rows))
    _, free = memory.free_space(run.results)
    by_owner = {row.owner: sum(each.run_count for each in rows if each.owner == row.owner) for row in rows if row.owner}
    shortages = [f"{misfits} of {counted(count, 'element')}"] * (misfits > 0) + ["disk"] * (estimate.disk > free)
    lines = [
        f"Plan of {estimate.experiment}, profile {run.profile.name}: {counted(count, 'element')} of {models}. An "
        "estimate, nothing was measured.",
        f"Rollouts: {total(lambda row: row.counts.rollouts):,.0f} of training, "
        f"{total(lambda row: row.evaluation_rollouts):,.0f} of evaluation",
        f"Tokens: {total(lambda row: row.counts.generated + row.counts.free) / 1e6:,.1f} M generated in training, "
        f"{total(lambda row: row.counts.trained) / 1e6:,.1f} M trained",
        f"Optimizer steps: {total(lambda row: row.counts.optimizer_steps):,.0f}; synchronisations: "
        f"{total(lambda row: row.counts.syncs):,.0f}",
        *(
            f"Read from {owner}: the runs of {counted(number, 'element')}, which are trained there and not counted here"
            for owner, number in by_owner.items()
        ),
        *(_gpu_lines(estimate, estimate.node) if estimate.node else ["GPU-hours: none; hours on CPUs are unknown"]),
        f"Disk: {estimate.disk / GIB:,.1f} GiB for the saves of all elements; {free / GIB:,.0f} GiB are free",
        f"Does not fit: {', '.join(shortages)} (preflight.py says why)" if shortages else "Fits: yes",
    ]
    return "\n".join(lines) + "\n"


def _gpu_lines(estimate: CostEstimate, node: Hardware) -> list[str]:
    runs, resources = [row.run for row in estimate.rows], estimate.resources
    gpus, total = node.gpus * runs[0].profile.nodes, estimate.sum
    spared = total(lambda row: row.spared)
    training, evaluation = gpus * total(lambda row: row.hours[0]), gpus * total(lambda row: row.hours[1])
    hours: dict[str, list[str]] = defaultdict(list)
    for row in (row for row in estimate.rows if not row.owner or row.evaluation_rollouts):
        hours[row.run.task.name].append(f"{row.run.label}\N{NO-BREAK SPACE}{sum(row.hours):.1f}")
    gpu = max(max(memory.gpu_memory(run, node)[:2]) for run in runs) / GIB
    host = max(memory.host_memory(run, node) for run in runs) / GIB
    return [
        f"GPU-hours on {node.title}: {training:,.0f} of training, {evaluation:,.0f} of evaluation; a job may take "
        f"{resources.minutes / 60:g} h and is requeued",
        *([f"Spared by reading them: {gpus * spared:,.0f} GPU-hours of training"] if spared else []),
        *(
            fill(f"Hours of an element of {task}: {', '.join(labels)}", 100, subsequent_indent="    ")
            for task, labels in hours.items()
        ),
        f"Memory: {gpu:.0f} of {node.memory_gib:.0f} GiB a GPU; {host:.0f} of the {resources.memory_gb} GiB asked of a "
        "node",
    ]
