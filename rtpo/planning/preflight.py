"""What an experiment lacks, in sentences, before a place in a queue is spent on it (docs/cluster/gpus.md)."""

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from rtpo.data.prepare import UNEQUAL_GOLDS
from rtpo.data.records import read_manifest
from rtpo.envs.airline.env import AirlineSettings
from rtpo.envs.airline.package import load_package
from rtpo.envs.registry import environment_facts
from rtpo.envs.search import SearchEnvSettings
from rtpo.errors import ConfigError, DataError, MachineError, RTPOError
from rtpo.evaluation.panel import compose_evaluation
from rtpo.planning.hardware import GIB, Hardware, known, model_shape
from rtpo.planning.memory import Saves, free_space, gpu_problems, memory_problems, room, saves, verl_setting
from rtpo.rewards.golds import UnequalGolds, unequal_golds
from rtpo.run.cli import composed
from rtpo.run.config import DataConfig, RunConfig, TaskConfig
from rtpo.run.differences import differences, some_of
from rtpo.run.experiments import Element, Experiment
from rtpo.run.kept import OWN_FOLDER, kept_run, kept_runs, places
from rtpo.run.lines import model_sha256
from rtpo.run.model_folder import chat_format, check_model_of, check_same_model
from rtpo.run.records import RunFolder
from rtpo.run.tasks import load_tasks
from rtpo.tools.search.bm25 import Bm25Index

USED_GIB = 1.0
"""what may be taken of a GPU's memory by others before it counts as in use"""


@dataclass(frozen=True)
class Gpu:
    """memory_gib: in all. used_gib: of it, by anyone."""

    index: int
    memory_gib: float
    used_gib: float


def problems(experiment: Experiment, *, here: bool = False, evaluation: Sequence[str] = ()) -> list[str]:
    """A sentence for each thing that is missing or does not fit; nothing is made or changed: files, packages, settings,
    whether an element fits the profile's machine where that is known (rtpo/planning/hardware.yaml) and the memory that
    is asked for, and room for all elements' saves. here: also whether this machine can run an element (GPUs, sandbox,
    servers), and room for one element's saves alone. evaluation: overrides of experiments/evaluate.py."""
    from rtpo.verl_harness.session import package_problems, settings_of  # brings Ray

    runs = [element.run for element in experiment.elements]
    faults: list[str] = []
    for run in runs:
        faults += _said(check_model_of, run)
        faults += _said(_check_folder, run)
        faults += _said(_check_beside, run)
    for run in {(run.model.path, run.algorithm_config.rollout_context): run for run in runs}.values():
        if not _said(check_model_of, run):
            faults += _said(chat_format, run)
            faults += _said(model_shape, run.model.name, run.model.path)
    benchmarks, refused = _benchmarks(experiment.elements, evaluation)
    faults += refused
    tasks = [run.task for run in runs]
    data = [(task, task.train) for task in tasks] + [(task, task.held_out) for task in [*tasks, *benchmarks]]
    for task, source in {(task.env, source): (task, source) for task, source in data if source.file}.values():
        faults += _said(load_tasks, task, source)
    for task in {(task.env, task.env_settings): task for task in [*tasks, *benchmarks]}.values():
        faults += _said(_check_tools, task, here)
    wrong = []
    for run in {repr(run.verl): run for run in runs}.values():
        wrong += _said(settings_of, run)
    if wrong:  # what follows reckons with these settings
        return list(dict.fromkeys([*faults, *wrong]))
    for run in runs:
        faults += [*_setting_problems(run, experiment), *package_problems(run.profile)]
    faults += _disk_problems([run for run in runs if not _is_done(run)], experiment, here)
    if here:
        faults += _machine_problems(runs)
    return list(dict.fromkeys(faults))


def notes(experiment: Experiment, *, evaluation: Sequence[str] = ()) -> list[str]:
    """A sentence for each file of mathematics with golds that no answer can equal; none for files that `problems`
    refuses. A prepared file's manifest says it, of others all golds are graded."""
    benchmarks, _ = _benchmarks(experiment.elements, evaluation)
    tasks = [element.run.task for element in experiment.elements]
    data = [(task, task.train) for task in tasks] + [(task, task.held_out) for task in [*tasks, *benchmarks]]
    files = {source.file: (task, source) for task, source in data if source.file and task.env == "math"}
    sentences = []
    for task, source in files.values():
        with suppress(RTPOError):
            sentences += _gold_sentences(task, source)
    return sentences


def _gold_sentences(task: TaskConfig, source: DataConfig) -> list[str]:
    file = Path(str(source.file))
    manifest = read_manifest(file)
    if manifest is not None and UNEQUAL_GOLDS in manifest:
        known = manifest[UNEQUAL_GOLDS]
        unequal = UnequalGolds(**known) if known else None
    else:
        whole = replace(source, split="all", count=None)
        unequal = unequal_golds([each.answer for each in load_tasks(task, whole)])
    return [unequal.sentence(file)] if unequal else []


def _is_done(run: RunConfig) -> bool:
    """Damaged frames are said elsewhere."""
    with suppress(DataError):
        return RunFolder(run.folder).is_finished or kept_run(run.folder) is not None
    return False


def _said(check: Callable[..., object], *arguments: object) -> list[str]:
    try:
        check(*arguments)
    except RTPOError as error:
        return str(error).splitlines()
    return []


# files


def _check_folder(run: RunConfig) -> None:
    """Raises DataError for a run of another configuration, in its folder or kept as frames, and for a finished one of
    another model's weights."""
    folder = RunFolder(run.folder)
    if (run.folder / "config.yaml").exists() and folder.has_trained:
        folder.check(run.as_dict())
        if Path(run.model.path).is_dir() and folder.is_finished:
            check_same_model(run, folder.manifest, _weights_sha256(run.model.path))
    elif (kept := kept_run(run.folder)) is not None:
        kept.check(run.as_dict())


def _check_beside(run: RunConfig) -> None:
    """Raises DataError where a run of the same label in the same experiment has other settings: no table takes both."""
    known: dict[str, Mapping[str, Any]] = {
        kept.name: kept.config for place in places(run.folder) for kept in kept_runs(place).values()
    }
    for file in sorted(run.folder.parent.glob(f"{run.label}-seed*/config.yaml")):
        if RunFolder(file.parent).has_trained:
            known[f"{file.parent.parent.name}/{file.parent.name}"] = RunFolder(file.parent).config
    label = f"{run.folder.parent.name}/{run.label}-seed"
    for name, config in known.items():
        if name.rpartition("-seed")[0] + "-seed" != label or name.endswith(f"/{run.folder.name}"):
            continue
        if different := differences(config, run.as_dict()):
            raise DataError(
                f"{name} in {run.results} is of the same label and experiment, and tables would take both together; "
                f"different: {some_of(different)}. {OWN_FOLDER}"
            )


@cache
def _weights_sha256(folder: str) -> dict[str, str]:
    return model_sha256(folder)


def _benchmarks(elements: Sequence[Element], overrides: Sequence[str]) -> tuple[list[TaskConfig], list[str]]:
    """The tasks of all benchmarks that elements are evaluated on, and why they are refused where they are."""
    names = list(dict.fromkeys(name for element in elements for name in element.benchmarks))
    if not names:
        return [], []
    settings = ["checkpoint=none", f"benchmarks=[{','.join(names)}]", *overrides]
    try:
        return list(compose_evaluation(composed("evaluate", settings)).benchmarks.values()), []
    except ConfigError as error:
        return [], str(error).splitlines()


def _check_tools(task: TaskConfig, here: bool) -> None:
    """Whatever can be tried: on a machine that an element runs on all of it, elsewhere files and packages alone."""
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
    profile, asked = run.profile, experiment.resources
    processes = profile.processes * profile.nodes
    if profile.platform == "cuda" and asked.gpus < profile.processes:
        yield f"launch.resources.gpus is {asked.gpus}, and profile.processes {profile.processes}: each needs a GPU."
    if asked.nodes != profile.nodes:
        yield f"launch.resources.nodes is {asked.nodes} and profile.nodes {profile.nodes}: give both the same number."
    parallel = int(verl_setting(run, "rollout.tensor_model_parallel_size", 1))
    if processes % parallel:
        name = "verl.actor_rollout_ref.rollout.tensor_model_parallel_size"
        yield f"{name} is {parallel}: use a divisor of the {processes} training process(es)."
    machine = known().hardware.get(profile.name)
    if machine is not None or profile.platform == "cpu":
        node = None if machine is None else replace(machine, gpus=profile.processes)
        with suppress(DataError):  # of a model whose shape is not known, which `problems` says
            yield from memory_problems(run, node, asked.memory_gb)


# room


def _disk_problems(runs: Sequence[RunConfig], experiment: Experiment, here: bool) -> Iterator[str]:
    """Of the runs, `launch.at_once` write a save at one time, beside those that are kept."""
    sizes, most = [], 0
    for run in runs:
        size = Saves(0, 0)
        with suppress(DataError):  # of a model whose shape is not known, which `problems` says
            size = saves(run)
        there = sum(file.stat().st_size for file in (run.folder / "checkpoints").rglob("*") if file.is_file())
        sizes.append(Saves(max(0, size.kept - there), size.writing))
        most = max(most, size.kept + size.writing - there)
    place, free = free_space(runs[0].results if runs else ".")
    needed = most if here else room(sizes, experiment.at_once, experiment.keep)
    if needed > free:
        whose = "an element" if here else f"{len(runs)} element(s) that are not finished"
        whose += f", {experiment.at_once} at once" if experiment.at_once and not here else ""
        size_text = f"estimated at {needed / GIB:,.0f} GiB and {place} has {free / GIB:,.0f} GiB free"
        remedy = "lower save.keep or launch.at_once, set launch.keep=weights or nothing"
        yield f"the saves of {whose} are {size_text}: {remedy}, name another results folder, or make room."


# this machine


def _machine_problems(runs: Sequence[RunConfig]) -> Iterator[str]:
    yield from _ray_problems(runs[0])
    if all(run.profile.platform == "cpu" for run in runs):
        return
    try:
        there = gpus()
        for run in runs:
            yield from _gpu_problems(run, there)
    except MachineError as error:
        yield str(error)


def _gpu_problems(run: RunConfig, there: Sequence[Gpu]) -> Iterator[str]:
    profile = run.profile
    if len(there) < profile.processes:
        needed = f"profile {profile.name} needs {profile.processes} GPU(s) on a node"
        yield f"{needed}, and {len(there)} can be seen here: ask for more, or choose another profile."
        return
    for gpu in there[: profile.processes]:
        if gpu.used_gib > USED_GIB:
            yield f"GPU {gpu.index} is in use: {gpu.used_gib:.1f} of {gpu.memory_gib:.0f} GiB are taken; free it."
    here = Hardware("this machine", profile.processes, min(gpu.memory_gib for gpu in there))
    with suppress(DataError):  # of a model whose shape is not known, which `problems` says
        yield from gpu_problems(run, here)


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
    """Those that a process here may use, as nvidia-smi says; none without it. Raises MachineError when it fails."""
    command = ["nvidia-smi", "--query-gpu=index,memory.total,memory.used", "--format=csv,noheader,nounits"]
    if shutil.which(command[0]) is None:
        return []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MachineError(f"nvidia-smi fails ({(done.stderr or done.stdout).strip()}): have the driver looked at.")
    try:
        rows = [tuple(map(int, line.split(","))) for line in done.stdout.splitlines() if line.strip()]
        all_gpus = [Gpu(index, total / 1024, used / 1024) for index, total, used in rows]
    except ValueError:
        raise MachineError(f"nvidia-smi says {done.stdout.strip()!r} (MIG, or a lost GPU): mend that.") from None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return all_gpus
    chosen = [word.strip() for word in visible.split(",") if word.strip()]
    if all(map(str.isdigit, chosen)):
        return [gpu for gpu in all_gpus if str(gpu.index) in chosen]
    return all_gpus[: len(chosen)]  # by names that nvidia-smi's list does not have
