"""Submit elements as an array job of SLURM; each is started again while it makes progress (docs/cluster/slurm.md)."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments import following
from experiments.launched import LoadedExperiments, check
from rtpo.core.files import write_whole
from rtpo.core.names import counted
from rtpo.errors import ConfigError, MachineError
from rtpo.run.config import PROJECT
from rtpo.run.experiments import Element
from rtpo.run.records import RunFolder

STARTS = 3
"""the number of starts without progress at which an element fails"""
TABLES_MINUTES = 30


def submit(pattern: str, launch: LoadedExperiments, overrides: Sequence[str]) -> None:
    """Check all elements, also by SLURM's own test, and submit the incomplete ones as an array job, but none that has
    a job already, and none whose run another experiment must train first. A second job then makes the tables. Raises
    ConfigError, MachineError."""
    check(launch)
    _check_cpus(launch)
    ready, done = _ready(launch), len(launch.elements) - len(launch.incomplete)
    if not ready:
        return
    job, script = options(launch), (str(PROJECT / "slurm" / "element.sh"), pattern, *overrides)
    sbatch("--test-only", *job, *script)  # SLURM would accept an array that no node can run
    launch.logs.mkdir(parents=True, exist_ok=True)
    array = sbatch(
        *job,
        f"--job-name={launch.name}",  # by which `following.jobs_of` knows it
        f"--array={','.join(map(str, ready))}" + (f"%{launch.first.at_once}" if launch.first.at_once else ""),
        f"--output={launch.logs}/%A_%a.log",
        *script,
        ray_gpus=launch.elements[0].run.profile.processes,
    )
    folders = {str(index): folder for index, folder in ready.items()}
    following.note_jobs(launch.logs, array, folders)
    tables = [sys.executable, str(PROJECT / "experiments" / "launch.py"), "tables", pattern, *overrides]
    tables_job = sbatch(
        f"--job-name={launch.name}_tables",
        f"--dependency=afterany:{array}",
        f"--output={launch.logs}/{array}_tables.log",
        "--ntasks=1",
        "--mem=4G",
        f"--time={TABLES_MINUTES}",
        f"--wrap={shlex.join(tables)}",
    )
    _report(launch, array, tables_job, folders, done)


def _check_cpus(launch: LoadedExperiments) -> None:
    """Raises ConfigError if an element's job has fewer CPUs than its training processes need."""
    resources, needed = launch.first.resources, launch.elements[0].run.profile.required_cpus
    if resources.cpus * resources.nodes < needed:
        raise ConfigError(
            f"launch.resources.cpus is {resources.cpus} on each of {counted(resources.nodes, 'node')}, and the "
            f"training processes with their engines need {needed} in all: Ray would wait for ever. Ask for more."
        )


def _ready(launch: LoadedExperiments) -> dict[int, Path]:
    """The run folders of the elements to submit, by index. Prints why others are left out."""
    elements, owners = launch.elements, launch.unfinished_owners
    for owner in dict.fromkeys(owners.values()):
        runs = [elements[index].run.label for index, name in owners.items() if name == owner]
        print(
            f"{launch.name} reads {counted(len(runs), 'run')} of {owner} ({', '.join(dict.fromkeys(runs))}): submit "
            f"{owner} too, and {launch.name} again once it is finished, for what is left to evaluate"
        )
    folders = {index: elements[index].run.folder for index in launch.incomplete if index not in owners}
    jobs = following.unended(folders.values(), launch.logs)
    if jobs:
        print(f"left to the jobs that they have (scancel ends one): {', '.join(jobs.values())}")
    ready = {index: folder for index, folder in folders.items() if folder not in jobs}
    if not ready:
        complete_all = f"all of {counted(len(elements), 'element')} complete"
        left = f"{counted(len(owners), 'element')} left to other experiments" if owners else complete_all
        print(f"{launch.name}, profile {launch.first.profile}: {'nothing to submit' if jobs else left}")
    return ready


def _report(launch: LoadedExperiments, array: str, tables_job: str, folders: Mapping[str, Path], done: int) -> None:
    """Print what was submitted. folders: the array job's run folders, by index. done: the number of complete elements
    before."""
    resources, elements = launch.first.resources, launch.elements
    complete = f"; {done} of {len(elements)} are complete" if done else ""
    sent = counted(len(folders), "element")
    print(f"{launch.name}, profile {launch.first.profile}: {sent} submitted as job {array}{complete}")
    print(
        f"each element: {counted(resources.nodes, 'node')} with {counted(resources.gpus, 'GPU')}, "
        f"{counted(resources.cpus, 'CPU')} and {resources.memory_gb} GB, "
        f"at most {resources.minutes} minutes before it is requeued"
    )
    print(f"tables: job {tables_job}, after these elements have ended")
    for index, folder in folders.items():
        print(f"{array}_{index}: {folder}, log {launch.logs}/{array}_{index}.log")


def options(launch: LoadedExperiments) -> tuple[str, ...]:
    """Options of sbatch for the elements; the environment variable ELEMENTS adds more. Raises ConfigError."""
    try:
        user_options = shlex.split(os.environ.get("ELEMENTS", ""))
    except ValueError as error:
        raise ConfigError(f"ELEMENTS must hold options of sbatch, such as --partition=gpu ({error}).") from error
    resources = launch.first.resources
    warning = min(3600, max(60, resources.minutes * 6))  # seconds in which an element ends its phase and saves
    return (
        *(f"--nodes={resources.nodes}", "--ntasks-per-node=1", f"--cpus-per-task={resources.cpus}"),
        *(f"--mem={resources.memory_gb}G", f"--time={resources.minutes}"),
        *([f"--gpus-per-node={resources.gpus}"] if resources.gpus else []),
        *(f"--signal=B:USR1@{warning}", "--requeue", "--open-mode=append"),
        *user_options,
    )


def sbatch(*arguments: str, ray_gpus: int = 0) -> str:
    """Submit a job with this interpreter; returns its id. ray_gpus: the GPUs of a node, as Ray counts them. verl asks
    for one for each training process, also on CPUs. Raises MachineError with SLURM's message."""
    # inside a job, its own variables would reach the submitted one
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
    if "SLURM_CONF" in os.environ:
        environment["SLURM_CONF"] = os.environ["SLURM_CONF"]
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment["RAY_GPUS"] = str(ray_gpus)
    # a cluster, or the user's SBATCH_EXPORT, may be set to export nothing
    command = ["sbatch", "--parsable", "--export=ALL", f"--chdir={PROJECT}", *arguments]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        here = "run all elements on this machine with python experiments/launch.py run"
        raise MachineError(f"there is no sbatch here: submit on a machine of the cluster, or {here}.") from None
    if done.returncode != 0:
        raise MachineError(f"SLURM refuses the job: {' '.join(done.stderr.split())}")
    return done.stdout.strip().partition(";")[0]


def progress(element: Element) -> str:
    """An element's progress as text, which changes with every save and every question played."""
    folder = element.run.folder
    pointer = folder / "checkpoints" / "latest"
    saved = pointer.read_text() if pointer.exists() else ""
    played = sum(file.stat().st_size for file in folder.glob("*/samples.jsonl"))
    return f"{saved} {RunFolder(folder).is_finished} {played}"


def check_progress(file: Path, state: str) -> None:
    """Record an element's progress. Raises MachineError at the third start without progress."""
    starts = [*(json.loads(file.read_text()) if file.exists() else []), state]
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(starts).encode())
    if len(starts) >= STARTS and len(set(starts[-STARTS:])) == 1:
        raise MachineError(
            f"started {STARTS} times with nothing saved in between: a phase takes longer than the time that this "
            "element gets. Raise launch.resources.minutes, or choose a partition that is not preempted so soon, and "
            "launch it again."
        )
