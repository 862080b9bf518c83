"""Checks an experiment before it is queued, for what is missing and what does not fit (docs/cluster/gpus.md)."""

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from rtpo.core.names import counted
from rtpo.data.manifest import read_manifest
from rtpo.envs.airline.env import AirlineSettings
from rtpo.envs.airline.package import load_package
from rtpo.envs.registry import environment_facts
from rtpo.envs.search import SearchEnvSettings
from rtpo.errors import ConfigError, DataError, MachineError, RTPOError
from rtpo.evaluation.panel import EvaluateConfig, Panel, compose_evaluation, identity
from rtpo.planning.hardware import GIB, Hardware, model_shape, planning_data
from rtpo.planning.memory import Saves, free_space, gpu_problems, memory_problems, peak_disk, saves, verl_setting
from rtpo.rewards.golds import unequal_golds
from rtpo.run.beside import check_evaluation, check_place
from rtpo.run.cli import composed
from rtpo.run.config import DataConfig, RunConfig, TaskConfig
from rtpo.run.experiments import Element, Experiment
from rtpo.run.kept import kept_run
from rtpo.run.model_folder import chat_format, check_contexts, check_run_model
from rtpo.run.records import RunFolder
from rtpo.run.tasks import load_tasks
from rtpo.tools.search.bm25 import Bm25Index

USED_GIB = 1.0
"""a GPU with more used memory than this counts as in use"""


@dataclass(frozen=True)
class Gpu:
    """A GPU as nvidia-smi reports it."""

    index: int
    memory_gib: float  # in total
    used_gib: float  # by all processes


def problems(experiment: Experiment, *, here: bool = False, evaluation: Sequence[str] = ()) -> list[str]:
    """List an experiment's problems, a sentence each. Checks files, packages, settings, memory and disk, and changes
    nothing.

    here: also check that this machine can run one element (GPUs, sandbox, servers). The disk then needs room for the
        saves of this run alone.
    evaluation: overrides of experiments/evaluate.py.
    """
    from rtpo.verl_harness.session import check_machine, check_trees, settings_of  # imports Ray

    runs = [element.run for element in experiment.elements]
    faults: list[str] = []
    for run in runs:
        faults += _refusals(check_run_model, run) or _refusals(check_contexts, run)
        faults += _refusals(check_place, run)
    for run in {(run.model.path, run.algorithm_config.rollout_context): run for run in runs}.values():
        if not _refusals(check_run_model, run):
            faults += _refusals(chat_format, run)
            faults += _refusals(model_shape, run.model.name, run.model.path)
    evaluate_config, refused = _evaluation(experiment.elements, evaluation)
    benchmarks = [*evaluate_config.benchmarks.values()] if evaluate_config else []
    faults += refused
    evaluations = [(each.run, name) for each in experiment.elements for name in each.benchmarks]
    unevaluated = {(run.folder.parent, name) for run, name in evaluations if not _is_evaluated(run, name)}
    for folder, name in sorted(unevaluated) if evaluate_config else ():
        faults += _refusals(_check_evaluation, folder, name, evaluate_config)
    tasks = [run.task for run in runs]
    data = [(task, task.train) for task in tasks] + [(task, task.held_out) for task in [*tasks, *benchmarks]]
    for task, source in {(task.env, source): (task, source) for task, source in data if source.file}.values():
        faults += _refusals(load_tasks, task, source)
    for task in {(task.env, task.env_settings): task for task in [*tasks, *benchmarks]}.values():
        faults += _refusals(_check_tools, task, here)
    invalid = []
    for run in {repr(run.verl): run for run in runs}.values():
        invalid += _refusals(settings_of, run)
    if invalid:  # the checks below need valid settings
        return list(dict.fromkeys([*faults, *invalid]))
    for run in runs:
        faults += [*_setting_problems(run, experiment), *_refusals(check_machine, run)]
        if Path(run.model.path, "config.json").is_file():
            faults += _refusals(check_trees, run)
    faults += _disk_problems([run for run in runs if not _is_done(run)], experiment, here)
    if here:
        faults += _machine_problems(runs)
    return list(dict.fromkeys(faults))


def unusable_gold_notes(experiment: Experiment, *, evaluation: Sequence[str] = ()) -> list[str]:
    """A sentence for each file of mathematics with unusable golds, which are reference answers that no answer can
    equal. Skips files that `problems` reports."""
    evaluate_config, _ = _evaluation(experiment.elements, evaluation)
    benchmarks = [*evaluate_config.benchmarks.values()] if evaluate_config else []
    tasks = [element.run.task for element in experiment.elements]
    data = [(task, task.train) for task in tasks] + [(task, task.held_out) for task in [*tasks, *benchmarks]]
    files = {source.file: (task, source) for task, source in data if source.file and task.env == "math"}
    sentences = []
    for task, source in files.values():
        with suppress(RTPOError):
            sentences += _gold_sentences(task, source)
    return sentences


def _gold_sentences(task: TaskConfig, source: DataConfig) -> list[str]:
    file = Path(str(source.file))  # a prepared file's manifest says which golds are unusable
    manifest = read_manifest(file)
    if manifest is not None and manifest.unequal_golds != "unchecked":
        unequal = manifest.unequal_golds
    else:
        whole = replace(source, split="all", count=None)
        unequal = unequal_golds([each.answer for each in load_tasks(task, whole)])
    return [unequal.sentence(file)] if unequal else []


def _is_done(run: RunConfig) -> bool:
    """Whether the run is finished. A run with damaged records is not; another check reports the damage."""
    with suppress(DataError):
        return RunFolder(run.folder).is_finished or kept_run(run.folder) is not None
    return False


def _is_evaluated(run: RunConfig, benchmark: str) -> bool:
    """Whether the trained run's evaluation on a benchmark is recorded. Damaged records count as no record."""
    with suppress(DataError):
        kept = kept_run(run.folder)
        is_kept = kept is not None and benchmark in kept.benchmarks
        return is_kept or (run.folder / benchmark / "manifest.json").exists()
    return False


def _refusals(check: Callable[..., object], *arguments: object) -> list[str]:
    try:
        check(*arguments)
    except RTPOError as error:
        return str(error).splitlines()
    return []


# files


def _evaluation(elements: Sequence[Element], overrides: Sequence[str]) -> tuple[EvaluateConfig | None, list[str]]:
    """The configuration of the evaluation on the elements' benchmarks, and a sentence for each of its problems. The
    configuration is None if it is refused, or if there are no benchmarks."""
    names = list(dict.fromkeys(name for element in elements for name in element.benchmarks))
    if not names:
        return None, []
    settings = ["checkpoint=none", f"benchmarks=[{','.join(names)}]", *overrides]
    try:
        return compose_evaluation(composed("evaluate", settings)), []
    except ConfigError as error:
        return None, str(error).splitlines()


def _check_evaluation(folder: Path, name: str, evaluate_config: EvaluateConfig) -> None:
    """Raise DataError as `check_evaluation`. folder: the experiment's. name: the benchmark's."""
    task = evaluate_config.benchmarks[name]
    questions = tuple(load_tasks(task, task.held_out)[: evaluate_config.limit])
    check_evaluation(folder, identity(evaluate_config, Panel(name, task, questions, {}), {}))


def _check_tools(task: TaskConfig, here: bool) -> None:
    """Check a task's tools: whether they run here, or without `here` only their files and packages."""
    settings = task.env_settings
    if here:
        environment_facts(task.env, settings)
        return
    if isinstance(settings, SearchEnvSettings) and "bm25" in settings.search.backends:
        Bm25Index(Path(str(settings.search.bm25.index)))
    if isinstance(settings, AirlineSettings):
        load_package()


# settings


def _setting_problems(run: RunConfig, experiment: Experiment) -> Iterator[str]:
    profile, resources = run.profile, experiment.resources
    processes = profile.processes * profile.nodes
    if profile.platform == "cuda" and resources.gpus < profile.processes:
        yield f"launch.resources.gpus is {resources.gpus}, and profile.processes {profile.processes}: each needs a GPU."
    if resources.nodes != profile.nodes:
        both = f"launch.resources.nodes is {resources.nodes} and profile.nodes {profile.nodes}"
        yield f"{both}: give both the same number."
    parallel = int(verl_setting(run, "rollout.tensor_model_parallel_size", 1))
    if processes % parallel:
        name = "verl.actor_rollout_ref.rollout.tensor_model_parallel_size"
        yield f"{name} is {parallel}: use a divisor of the {counted(processes, 'training process')}."
    machine = planning_data().hardware.get(profile.name)
    if machine is not None:
        with suppress(DataError):  # an unknown model shape, which `problems` reports
            yield from memory_problems(run, replace(machine, gpus=profile.processes), resources.memory_gb)
    elif profile.platform == "cuda":
        yield f"profile {profile.name} is not in rtpo/planning/hardware.yaml: add it, or its memory is not checked."


# room


def _disk_problems(runs: Sequence[RunConfig], experiment: Experiment, here: bool) -> Iterator[str]:
    """Yield a sentence if the disk lacks room for the saves of all `runs`, or of the largest run if `here`."""
    sizes, largest = [], 0
    for run in runs:
        size = Saves(0, 0)
        with suppress(DataError):  # an unknown model shape, which `problems` reports
            size = saves(run)
        on_disk = sum(file.stat().st_size for file in (run.folder / "checkpoints").rglob("*") if file.is_file())
        sizes.append(Saves(max(0, size.kept - on_disk), size.writing))
        largest = max(largest, size.kept + size.writing - on_disk)
    disk, free = free_space(runs[0].results if runs else ".")
    needed = largest if here else peak_disk(sizes, experiment.at_once, experiment.keep)
    if needed > free:
        subject = "an element" if here else f"{counted(len(runs), 'element')} not finished"
        subject += f", {experiment.at_once} at once" if experiment.at_once and not here else ""
        size_text = f"estimated at {needed / GIB:,.0f} GiB and {disk} has {free / GIB:,.0f} GiB free"
        remedy = "lower save.keep or launch.at_once, set launch.keep=weights or nothing"
        yield f"the saves of {subject} are {size_text}: {remedy}, name another results folder, or make room."


# this machine


def _machine_problems(runs: Sequence[RunConfig]) -> Iterator[str]:
    yield from _ray_problems(runs[0])
    if all(run.profile.platform == "cpu" for run in runs):
        return
    try:
        available = gpus()
        for run in runs:
            yield from _gpu_problems(run, available)
    except MachineError as error:
        yield str(error)


def _gpu_problems(run: RunConfig, available: Sequence[Gpu]) -> Iterator[str]:
    profile = run.profile
    if len(available) < profile.processes:
        needed = f"profile {profile.name} needs {counted(profile.processes, 'GPU')} on a node"
        yield f"{needed}, and {len(available)} can be seen here: ask for more, or choose another profile."
        return
    for gpu in available[: profile.processes]:
        if gpu.used_gib > USED_GIB:
            yield f"GPU {gpu.index} is in use: {gpu.used_gib:.1f} of {gpu.memory_gib:.0f} GiB are taken; free it."
    node = Hardware("this machine", profile.processes, min(gpu.memory_gib for gpu in available))
    with suppress(DataError):  # an unknown model shape, which `problems` reports
        yield from gpu_problems(run, node)


def _ray_problems(run: RunConfig) -> Iterator[str]:
    address = os.environ.get("RAY_ADDRESS")
    if address:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except (OSError, ValueError) as error:
            yield f"RAY_ADDRESS is {address}, and nothing can be reached there ({error}): start Ray, or unset it."
    cpus = os.environ.get("SLURM_CPUS_ON_NODE")
    needed = run.profile.required_cpus
    if cpus is not None and int(cpus) * run.profile.nodes < needed:
        yield f"this allocation has {cpus} CPUs on a node, and {needed} are needed in all: raise launch.resources.cpus."


def gpus() -> list[Gpu]:
    """The GPUs that a process here may use, as nvidia-smi reports them; none without nvidia-smi. Raises MachineError if
    nvidia-smi fails."""
    command = ["nvidia-smi", "--query-gpu=index,memory.total,memory.used", "--format=csv,noheader,nounits"]
    if shutil.which(command[0]) is None:
        return []
    query = subprocess.run(command, capture_output=True, text=True, check=False)
    if query.returncode != 0:
        raise MachineError(f"nvidia-smi fails ({(query.stderr or query.stdout).strip()}): check the driver.")
    try:
        rows = [tuple(map(int, line.split(","))) for line in query.stdout.splitlines() if line.strip()]
        all_gpus = [Gpu(index, total / 1024, used / 1024) for index, total, used in rows]
    except ValueError:
        raise MachineError(f"nvidia-smi says {query.stdout.strip()!r} (MIG, or a lost GPU): mend that first.") from None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return all_gpus
    # CUDA sees none from the first negative number on
    chosen = [*takewhile(lambda word: not word.startswith("-"), (word.strip() for word in visible.split(",")))]
    chosen = [word for word in chosen if word]
    if all(map(str.isdigit, chosen)):
        return [gpu for gpu in all_gpus if str(gpu.index) in chosen]
    return all_gpus[: len(chosen)]  # they are chosen by UUID, which the query above does not ask for
