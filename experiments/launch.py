"""Run the elements (training runs) of an experiment, by SLURM or one after another on this machine
(docs/run/runs.md, docs/cluster/slurm.md).

    python experiments/launch.py run main_table task=toy_math seed=1    run here, then make the tables
    python experiments/launch.py submit main_table profile=a100x8       submit to SLURM, as slurm/*.sh do
    python experiments/launch.py status                                 the state of every run
    python experiments/launch.py status main_table profile=a100x8       the state of all its elements
    python experiments/launch.py stop main_table seed=1                 let the runs with seed 1 save and end
    python experiments/launch.py tables main_table                      the tables of complete elements
    python experiments/launch.py element main_table 3                   the fourth element only
    python experiments/launch.py list                                   the names of all experiments

Experiments are files of configs/experiment/; a pattern such as 'ablate_*' names several. `status`
and `stop` take the arguments that started the elements, or a folder of runs. Settings after the experiment
hold for every element, and replace the values that the experiment varies:

    profile=toy                  the machine: a file of configs/profile/
    experiment_name=trial        the folder for your own runs; 'trial_${task.name}' if tasks vary
    budget.rollouts=512          any field of experiments/train.py
    evaluate.samples=8           any field of experiments/evaluate.py
"""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from analysis.paper import pages
from analysis.paper.tables import all_tables
from analysis.run_table import run_table, show
from analysis.summary import summarise
from experiments import following
from experiments.training import train
from rtpo.core.files import write_whole
from rtpo.core.names import counted
from rtpo.errors import ConfigError, DataError, MachineError, Stopped
from rtpo.evaluation.evaluate import evaluate
from rtpo.evaluation.panel import EvaluateConfig, compose_evaluation
from rtpo.planning import preflight
from rtpo.run.cli import (
    INTERRUPTED,
    STOPPED,
    TERMINATED,
    Parser,
    command,
    composed,
    each_in_turn,
    on_sigterm,
)
from rtpo.run.config import PROJECT, RunConfig
from rtpo.run.experiments import (
    Element,
    Experiment,
    check_places,
    experiments,
    load_experiment,
    of_evaluation,
    readers,
)
from rtpo.run.export import find_trained, write_model
from rtpo.run.records import RunFolder, no_run
from rtpo.run.run import StopRequest

STARTS = 3
"""an element that starts this often with nothing gained in between fails"""
TABLES_MINUTES = 30
COMMANDS = {
    "list": "List the experiments, one name per line (docs/run/experiments.md).",
    "submit": "Submit the incomplete elements to SLURM, and a job that makes the tables (docs/cluster/slurm.md).",
    "run": "Train and evaluate the incomplete elements on this machine, then make the tables (docs/run/runs.md).",
    "element": "Train and evaluate one element, by its index (docs/cluster/slurm.md).",
    "tables": "Make the tables of the complete elements, and list the incomplete ones (docs/run/runs.md).",
    "status": "Print a line for each run: state, rollouts, success, last save, time left, log (docs/run/runs.md).",
    "stop": "Let runs save and end, on this machine or under SLURM (docs/run/runs.md).",
}


@dataclass(frozen=True)
class Launched:
    """The elements of one or several experiments, in the order of their indices. name: of jobs and logs.
    evaluation: overrides of experiments/evaluate.py for each."""

    name: str
    experiments: tuple[Experiment, ...]
    evaluation: tuple[str, ...]

    @property
    def elements(self) -> list[Element]:
        return [element for experiment in self.experiments for element in experiment.elements]

    @property
    def incomplete(self) -> dict[int, list[str]]:
        """By index, what of an element is not done."""
        lacks = (following.missing(element.run.folder, element.benchmarks) for element in self.elements)
        return {index: what for index, what in enumerate(lacks) if what}

    @property
    def elsewhere(self) -> dict[int, str]:
        """By index, the experiment that trains an element's run, where it has not finished it."""
        owners = {index: self.elements[index].owner for index, what in self.incomplete.items() if "training" in what}
        return {index: owner for index, owner in owners.items() if owner}

    @property
    def first(self) -> Experiment:
        """Any, for the resources, which the profile gives."""
        return self.experiments[0]

    @property
    def logs(self) -> Path:
        return all_logs() / self.name


def all_logs() -> Path:
    return Path(os.environ.get("LOGS", PROJECT / "outputs" / "slurm")).absolute()


def load(pattern: str, overrides: Sequence[str]) -> Launched:
    """Composed and checked, the evaluations too. Raises ConfigError, also for two elements of one folder."""
    ours, evaluation = of_evaluation(overrides)
    loaded = tuple(load_experiment(name, ours) for name in experiments(pattern))
    launch = Launched(pattern.strip("*_"), loaded, tuple(evaluation))
    check_places(launch.elements)
    for element in {element.benchmarks: element for element in launch.elements}.values():
        evaluation_of(launch, element)
    return launch


def evaluation_of(launch: Launched, element: Element) -> EvaluateConfig | None:
    """Of the trained element on its benchmarks, in the contexts it was trained with. Raises ConfigError."""
    if not element.benchmarks:
        return None
    run = element.run
    fields = {"checkpoint": run.folder, "results": run.results, "label": run.folder.name}
    quoted = [f"{name}='{str(value).replace(chr(39), chr(92) + chr(39))}'" for name, value in fields.items()]
    others = [f"experiment_name={run.experiment_name}", f"seed={run.seed}"]
    others += [
        f"benchmarks=[{','.join(element.benchmarks)}]",
        f"rollout_context={run.algorithm_config.rollout_context}",
    ]
    return compose_evaluation(composed("evaluate", [*quoted, *others, *launch.evaluation]))


def check(launch: Launched, *, here: bool = False) -> None:
    """Raises ConfigError for what is missing or cannot be; here: on this machine, which is to run them."""
    faults = [preflight.problems(each, here=here, evaluation=launch.evaluation) for each in launch.experiments]
    if any(faults):
        raise ConfigError("\n".join(dict.fromkeys(chain(*faults))))


def run_element(launch: Launched, index: int, stop: StopRequest) -> None:
    """Train and evaluate what is not done yet. Raises Stopped when `stop` was heard and the run was saved, and
    KeyboardInterrupt where that was outside of training."""
    element = launch.elements[index]
    print(f"element {index} of {len(launch.elements)}: {' '.join(element.overrides)}", flush=True)
    train(element.run, stop)
    if stop.reason:
        raise Stopped(f"stopped by {stop.reason} after {element.run.folder}. Run the same command to go on.")
    if (evaluation := evaluation_of(launch, element)) is not None:
        evaluate(evaluation, summarise)
    free_disk(element, launch.first.keep)


def free_disk(element: Element, keep: str) -> None:
    """Delete the saves of a finished run that no other experiment reads. keep: as of `rtpo.run.experiments.Launch`."""
    run, folder = element.run, RunFolder(element.run.folder)
    if keep == "save" or element.owner or not folder.is_finished:
        return
    if names := readers(run):
        print(f"{run.folder} keeps its save, which {', '.join(names)} may evaluate (launch.shared)", flush=True)
        return
    if keep == "weights" and not (run.folder / "export").exists():
        write_model(find_trained(run.folder), run.folder / "export")
    folder.delete_saves()


def gained(element: Element) -> str:
    """A word for how far an element has come, which changes with every save and every question played."""
    folder = element.run.folder
    pointer = folder / "checkpoints" / "latest"
    saved = pointer.read_text() if pointer.exists() else ""
    played = sum(file.stat().st_size for file in folder.glob("*/samples.jsonl"))
    return f"{saved} {RunFolder(folder).is_finished} {played}"


def check_gain(file: Path, now: str) -> None:
    """Write down how far an element has come. Raises MachineError at the third start from the same place."""
    starts = [*(json.loads(file.read_text()) if file.exists() else []), now]
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(starts).encode())
    if len(starts) >= STARTS and len(set(starts[-STARTS:])) == 1:
        raise MachineError(
            f"started {STARTS} times with nothing saved in between: a phase takes longer than the time that this "
            "element gets. Raise launch.resources.minutes, or choose a partition that is not preempted so soon, and "
            "launch it again."
        )


def chosen(experiment: str | None, overrides: Sequence[str]) -> dict[Path, tuple[str, ...]]:
    """Run folders with their benchmarks: of an experiment's elements, at or below the folder that is named, or, with
    neither, all that were submitted and all in the results. Raises ConfigError, and DataError for a missing folder."""
    if experiment is None or _is_setting(experiment):
        return dict.fromkeys(_all([*([experiment] if experiment else []), *overrides]), ())
    # one that is named with a `/` need not be there yet
    is_folder = "/" in experiment or (experiment not in ("", *experiments()) and Path(experiment).is_dir())
    if not is_folder:
        return {element.run.folder: element.benchmarks for element in load(experiment, overrides).elements}
    if overrides:
        raise ConfigError(f"{overrides[0]} beside {experiment}: a folder is taken as it is; name an experiment.")
    depths = (sorted(Path(experiment).glob(f"{'*/' * depth}config.yaml")) for depth in range(3))
    files = next(filter(None, depths), [])
    if not files and not Path(experiment).exists():
        raise DataError(f"{no_run(Path(experiment))} A run makes its folder once its settings are checked.")
    return {file.parent: () for file in files}


def _is_setting(word: str) -> bool:
    """Whether a first word is a setting: `results=/a/folder` is one, `results/mine/rtpo,lr=0.1-seed0` is a folder."""
    return "=" in word.partition("/")[0]


def _all(overrides: Sequence[str]) -> list[Path]:
    for word in overrides:
        if not word.startswith("results="):
            raise ConfigError(f"{word} without an experiment: name the experiment before it, or give results= alone.")
    results = Path(composed("train", overrides).results)
    folders = sorted(file.parent for file in results.glob("*/*/config.yaml"))
    return [*folders, *(folder for folder in following.submitted(all_logs()) if folder not in folders)]


def status(experiment: str | None, overrides: Sequence[str]) -> int:
    """Print how far the runs are that are meant; returns an exit status, 1 where SLURM does not say it of some."""
    runs = chosen(experiment, overrides)
    jobs, silence = following.jobs_of(runs, all_logs())
    where = (experiment or "results").removeprefix("results=")
    print(following.status(runs, jobs) if runs else f"no runs at {where} yet")
    if silence:
        print(f"error: {silence}", file=sys.stderr)
    return bool(silence)


def stop(experiment: str, overrides: Sequence[str]) -> int:
    """Ask what works on these runs to save and end, each that can be; returns an exit status, 1 where nothing does and
    where something was left alone."""
    if _is_setting(experiment):
        raise ConfigError(f"{experiment} without an experiment: name the experiment, or the folder, that is to stop.")
    runs = chosen(experiment, overrides)
    jobs, silence = following.jobs_of(runs, all_logs())
    refused, asked = [silence] if silence else [], 0
    for folder in runs:
        try:
            if said := following.stop(folder, jobs.get(folder)):
                asked += 1
                print(said)
        except MachineError as error:
            refused.append(str(error))
    if not asked and not refused:
        complete = [following.missing(*run) for run in runs.items()].count([])
        print(f"nothing to stop: none of these runs is at work or queued; complete: {complete} of {len(runs)}")
    for sentence in refused:
        print(f"error: {sentence}", file=sys.stderr)
    return bool(refused) or not asked


# on this machine


def run_one(launch: Launched, index: int) -> None:
    """An array job's element. Raises ConfigError for an index that there is none of."""
    count = len(launch.elements)
    if not 0 <= index < count:
        raise ConfigError(f"index is {index}: {launch.name} has elements 0 to {count - 1}.")
    element = launch.elements[index]
    check(replace(launch, experiments=(replace(launch.first, elements=(element,)),)), here=True)
    job = os.environ.get("SLURM_ARRAY_JOB_ID")
    if job is not None:
        check_gain(launch.logs / f"{job}_{index}.starts", gained(element))
    run_element(launch, index, StopRequest())
    print(f"records: {element.run.folder}")


def run_all(launch: Launched) -> int:
    """Every element, one after another, then the tables; returns an exit status. An element that fails does not keep
    the next from running."""
    check(launch, here=True)
    for results in {element.run.results for element in launch.elements}:
        Path(results).mkdir(parents=True, exist_ok=True)
    stop = StopRequest()
    ended = each_in_turn(lambda index: run_element(launch, index, stop), list(launch.incomplete))
    if ended in (STOPPED, INTERRUPTED, TERMINATED):
        return ended
    return write_tables(launch) or ended


def write_tables(launch: Launched) -> int:
    """Tables of the complete runs, below the paper's where these take them, and what is not complete by name; returns
    an exit status, 1 where a table could not be made."""
    status = 0
    for folder in dict.fromkeys(Path(run.results) for run in runs_in_paper(launch)):
        paper_tables, faults = all_tables(folder)
        status |= pages.save(paper_tables, folder / "tables" / "paper", faults)
    own = [element.run for element in launch.elements if not element.owner]
    places = dict.fromkeys((run.results, run.experiment_name) for run in own)
    for results, name in places:
        try:
            show(run_table(Path(results), name), Path(results) / "tables")
        except DataError as error:
            print(f"error: {error}", file=sys.stderr)
            status = 1
    elements, incomplete = launch.elements, launch.incomplete
    for index, what in incomplete.items():
        print(f"not complete: {elements[index].run.folder}: {', '.join(what)}")
    print(f"complete: {len(elements) - len(incomplete)} of {len(elements)} elements")
    return status


def runs_in_paper(launch: Launched) -> list[RunConfig]:
    """Those that the paper's tables take, which find them by name: no trials, which have names of their own."""
    return [
        element.run
        for experiment in launch.experiments
        for element in experiment.elements
        if element.run.experiment_name
        == f"{element.owner or experiment.name}_{experiment.profile}_{element.run.task.name}"
    ]


# with SLURM


def submit(pattern: str, launch: Launched, overrides: Sequence[str]) -> None:
    """Submit the incomplete elements as an array job, and the job of their tables after it, once all is checked, by
    SLURM too. Raises ConfigError, MachineError."""
    check(launch)
    elements, asked = launch.elements, launch.first.resources
    needed = elements[0].run.profile.required_cpus
    if asked.cpus * asked.nodes < needed:
        raise ConfigError(
            f"launch.resources.cpus is {asked.cpus} on each of {counted(asked.nodes, 'node')}, and the training "
            f"processes with their engines need {needed} in all: Ray would wait for ever. Ask for more."
        )
    elsewhere = launch.elsewhere
    for owner in dict.fromkeys(elsewhere.values()):
        runs = [elements[index].run.label for index, name in elsewhere.items() if name == owner]
        print(
            f"{launch.name} reads {counted(len(runs), 'run')} of {owner} ({', '.join(dict.fromkeys(runs))}): submit "
            f"{owner} too, and {launch.name} again once it is finished, for what is left to evaluate"
        )
    waiting = [index for index in launch.incomplete if index not in elsewhere]
    if not waiting:
        complete_all = f"all of {counted(len(elements), 'element')} complete"
        left = f"{counted(len(elsewhere), 'element')} left to other experiments" if elsewhere else complete_all
        print(f"{launch.name}, profile {launch.first.profile}: {left}")
        return
    job, script = options(launch), (str(PROJECT / "slurm" / "element.sh"), pattern, *overrides)
    sbatch("--test-only", *job, *script)  # an array that no node could run would be taken
    launch.logs.mkdir(parents=True, exist_ok=True)
    array = sbatch(
        *job,
        f"--job-name={launch.name}",  # by which `following.jobs_of` knows it
        f"--array={','.join(map(str, waiting))}" + (f"%{launch.first.at_once}" if launch.first.at_once else ""),
        f"--output={launch.logs}/%A_%a.log",
        *script,
        ray_gpus=elements[0].run.profile.processes,
    )
    folders = {str(index): elements[index].run.folder for index in waiting}
    following.note_jobs(launch.logs, array, folders)
    tables = [sys.executable, str(PROJECT / "experiments" / "launch.py"), "tables", pattern, *overrides]
    after = sbatch(
        f"--job-name={launch.name}_tables",
        f"--dependency=afterany:{array}",
        f"--output={launch.logs}/{array}_tables.log",
        "--ntasks=1",
        "--mem=4G",
        f"--time={TABLES_MINUTES}",
        f"--wrap={shlex.join(tables)}",
    )
    done = len(elements) - len(launch.incomplete)
    complete = f"; {done} of {len(elements)} are complete" if done else ""
    sent = counted(len(waiting), "element")
    print(f"{launch.name}, profile {launch.first.profile}: {sent} submitted as job {array}{complete}")
    print(
        f"each element: {counted(asked.nodes, 'node')} with {counted(asked.gpus, 'GPU')}, "
        f"{counted(asked.cpus, 'CPU')} and {asked.memory_gb} GB, "
        f"at most {asked.minutes} minutes before it is requeued"
    )
    print(f"tables: job {after}, after all elements have ended")
    for index, folder in folders.items():
        print(f"{array}_{index}: {folder}, log {launch.logs}/{array}_{index}.log")


def options(launch: Launched) -> tuple[str, ...]:
    """Of sbatch, for the elements alone; the variable ELEMENTS has more of them. Raises ConfigError."""
    try:
        own = shlex.split(os.environ.get("ELEMENTS", ""))
    except ValueError as error:
        raise ConfigError(f"ELEMENTS has no options of sbatch, such as --partition=gpu ({error}).") from error
    asked = launch.first.resources
    warning = min(3600, max(60, asked.minutes * 6))  # seconds in which an element ends its phase and saves
    return (
        *(f"--nodes={asked.nodes}", "--ntasks-per-node=1", f"--cpus-per-task={asked.cpus}"),
        *(f"--mem={asked.memory_gb}G", f"--time={asked.minutes}"),
        *([f"--gpus-per-node={asked.gpus}"] if asked.gpus else []),
        *(f"--signal=B:USR1@{warning}", "--requeue", "--open-mode=append"),
        *own,
    )


def sbatch(*arguments: str, ray_gpus: int = 0) -> str:
    """Submit a job of this interpreter; returns its id. ray_gpus: what Ray is told each node has; verl counts a GPU for
    each training process, on CPUs too. Raises MachineError with SLURM's words."""
    # an own job's variables would be taken for those of the submitted one
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
    if "SLURM_CONF" in os.environ:
        environment["SLURM_CONF"] = os.environ["SLURM_CONF"]
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment["RAY_GPUS"] = str(ray_gpus)
    # a cluster, or the reader's SBATCH_EXPORT, may be set to export nothing
    command = ["sbatch", "--parsable", "--export=ALL", f"--chdir={PROJECT}", *arguments]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        here = "run all elements on this machine with python experiments/launch.py run"
        raise MachineError(f"there is no sbatch here: submit on a machine of the cluster, or {here}.") from None
    if done.returncode != 0:
        raise MachineError(f"SLURM refuses the job: {' '.join(done.stderr.split())}")
    return done.stdout.strip().partition(";")[0]


@command
def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, about in COMMANDS.items():
        command = commands.add_parser(name, description=f"{about}\n\n    python experiments/launch.py {name} ...")
        if name == "list":
            continue
        of_runs = name in ("status", "stop")
        what = "an experiment, or a pattern of names" + ", or a folder of runs" * of_runs
        settings = "the settings that started the elements" if of_runs else "settings for every element"
        command.add_argument("experiment", nargs="?" if name == "status" else None, help=what)
        if name == "element":
            command.add_argument("index", type=int, help="index of the element, from 0")
        command.add_argument("overrides", nargs="*", default=[], help=f"{settings}, such as seed=1")
    typed = parser.parse_args(arguments)
    if typed.command == "list":
        print("\n".join(experiments()))
        return 0
    if typed.command in ("status", "stop"):
        return (status if typed.command == "status" else stop)(typed.experiment, typed.overrides)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, on_sigterm)
    try:
        launch = load(typed.experiment, typed.overrides)
        if typed.command == "submit":
            submit(typed.experiment, launch, typed.overrides)
        elif typed.command == "element":
            run_one(launch, typed.index)
        else:
            return run_all(launch) if typed.command == "run" else write_tables(launch)
    except KeyboardInterrupt as stopped:
        raise Stopped("stopped: run the same command to go on") from stopped
    return 0


if __name__ == "__main__":
    sys.exit(main())
