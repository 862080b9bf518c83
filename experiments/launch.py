"""Run the elements (training runs) of an experiment, by SLURM or one after another on this machine
(docs/run/runs.md, docs/cluster/slurm.md).

    python experiments/launch.py run main_table results=outputs/trial   run here, then make the tables
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

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from analysis.paper import pages
from analysis.paper.tables import all_tables
from analysis.run_table import run_table, show
from analysis.summary import summarise
from experiments import following
from experiments.launched import LoadedExperiments, all_logs, check, evaluation_of, load, why_not_evaluated
from experiments.submission import check_progress, progress, submit
from experiments.training import train
from rtpo.core.names import counted
from rtpo.errors import ConfigError, DataError, MachineError, Stopped
from rtpo.evaluation.evaluate import evaluate
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
from rtpo.run.config import RunConfig
from rtpo.run.experiments import (
    Element,
    experiments,
    readers,
)
from rtpo.run.reading import why_no_run
from rtpo.run.records import RunFolder
from rtpo.run.stopping import StopRequest

COMMANDS = {
    "list": "List the experiments, one name per line (docs/run/experiments.md).",
    "submit": "Submit the incomplete elements to SLURM, and a job that makes the tables (docs/cluster/slurm.md).",
    "run": "Train and evaluate the incomplete elements on this machine, then make the tables (docs/run/runs.md).",
    "element": "Train and evaluate one element, by its index (docs/cluster/slurm.md).",
    "tables": "Make the tables of the complete elements, and list the incomplete ones (docs/run/runs.md).",
    "status": "Print a line for each run: state, rollouts, success, last save, time left, log (docs/run/runs.md).",
    "stop": "Let runs save and end, on this machine or under SLURM (docs/run/runs.md).",
}


def run_element(launch: LoadedExperiments, index: int, stop: StopRequest) -> None:
    """Train and evaluate an element, except for what is done. A stop during training saves the run and raises Stopped;
    a stop at another time raises KeyboardInterrupt."""
    element = launch.elements[index]
    print(f"element {index} of {len(launch.elements)}: {' '.join(element.overrides)}", flush=True)
    train(element.run, stop)
    if not RunFolder(element.run.folder).is_finished:  # it is kept as frames, without its weights
        if why := why_not_evaluated(element):
            raise DataError(why)
        return
    if (evaluation := evaluation_of(launch, element)) is not None:
        from rtpo.verl_harness.session import closed_on_failure  # imports Ray

        with closed_on_failure():
            evaluate(evaluation, summarise)
    free_disk(element, launch.first.keep)


def free_disk(element: Element, keep: str) -> None:
    """Delete the saves of a finished run, unless another experiment owns the run or reads its saves. keep: `save`
    deletes nothing, `weights` exports the policy first."""
    run, folder = element.run, RunFolder(element.run.folder)
    if keep == "save" or element.owner or not folder.is_finished:
        return
    if names := readers(run):
        print(f"{run.folder} keeps its save, which {', '.join(names)} may evaluate (launch.shared)", flush=True)
        return
    if keep == "weights" and not (run.folder / "export").exists():
        from rtpo.run.export import find_trained, write_model  # torch and transformers take seconds to load

        write_model(find_trained(run.folder), run.folder / "export")
    folder.delete_saves()


def chosen(experiment: str | None, overrides: Sequence[str]) -> dict[Path, tuple[str, ...]]:
    """The folders of the chosen runs, with their benchmarks. experiment: an experiment, or a folder of runs; None takes
    all submitted runs and all runs in the results folder. Raises ConfigError, and DataError for a missing folder."""
    if experiment is None or _is_setting(experiment):
        return dict.fromkeys(_all_runs([*([experiment] if experiment else []), *overrides]), ())
    # a name with a `/` is a folder, even if it does not exist yet
    is_folder = "/" in experiment or (experiment not in ("", *experiments()) and Path(experiment).is_dir())
    if not is_folder:
        return {element.run.folder: element.benchmarks for element in load(experiment, overrides).elements}
    if overrides:
        raise ConfigError(f"{overrides[0]} does not apply to the folder {experiment}: name an experiment.")
    depths = (sorted(Path(experiment).glob(f"{'*/' * depth}config.yaml")) for depth in range(3))
    files = next(filter(None, depths), [])
    if not files and not Path(experiment).exists():
        raise DataError(f"{why_no_run(Path(experiment))} A run makes its folder once its settings are checked.")
    return {file.parent: () for file in files}


def _is_setting(word: str) -> bool:
    """Whether a first word is a setting, such as `results=/a/folder`. `results/mine/rtpo,lr=0.1-seed0` is a folder."""
    return "=" in word.partition("/")[0]


def _all_runs(overrides: Sequence[str]) -> list[Path]:
    for word in overrides:
        if not word.startswith("results="):
            raise ConfigError(f"{word} without an experiment: name the experiment before it, or give results= alone.")
    results = Path(composed("train", overrides).results).absolute()
    folders = sorted(file.parent for file in results.glob("*/*/config.yaml"))
    return [*folders, *(folder for folder in following.submitted(all_logs()) if folder not in folders)]


def status(experiment: str | None, overrides: Sequence[str]) -> int:
    """Print the state of the chosen runs. Returns an exit status: 1 if SLURM does not answer."""
    runs = chosen(experiment, overrides)
    jobs, failure = following.jobs_of(runs, all_logs())
    where = (experiment or "results").removeprefix("results=")
    print(following.status(runs, jobs) if runs else f"no runs at {where} yet")
    if failure:
        print(f"error: {failure}", file=sys.stderr)
    return bool(failure)


def stop(experiment: str, overrides: Sequence[str]) -> int:
    """Ask jobs and processes of the chosen runs to save and end. Returns an exit status: 1 if none was asked, or one
    could not be asked."""
    if _is_setting(experiment):
        raise ConfigError(f"{experiment} without an experiment: name the experiment, or the folder, that is to stop.")
    runs = chosen(experiment, overrides)
    jobs, failure = following.jobs_of(runs, all_logs())
    refused, asked = [failure] if failure else [], 0
    for folder in runs:
        try:
            if answer := following.stop(folder, jobs.get(folder)):
                asked += 1
                print(answer)
        except MachineError as error:
            refused.append(str(error))
    if not asked and not refused:
        complete = sum(not following.missing(folder, benchmarks) for folder, benchmarks in runs.items())
        print(f"nothing to stop: none of these runs is at work or queued; complete: {complete} of {len(runs)}")
    for sentence in refused:
        print(f"error: {sentence}", file=sys.stderr)
    return bool(refused) or not asked


# on this machine


def run_one(launch: LoadedExperiments, index: int) -> None:
    """Run one element. In an array job, check its progress too. Raises ConfigError for an index out of range."""
    count = len(launch.elements)
    if not 0 <= index < count:
        raise ConfigError(f"index is {index}: {launch.name} has elements 0 to {count - 1}.")
    element = launch.elements[index]
    check(replace(launch, experiments=(replace(launch.first, elements=(element,)),)), here=True)
    job = os.environ.get("SLURM_ARRAY_JOB_ID")
    if job is not None:
        check_progress(launch.logs / f"{job}_{index}.starts", progress(element))
    run_element(launch, index, StopRequest())


def run_all(launch: LoadedExperiments) -> int:
    """Run every element in turn, then make the tables. Returns an exit status. After an element fails, the next one
    runs."""
    check(launch, here=True)
    for results in {element.run.results for element in launch.elements}:
        Path(results).mkdir(parents=True, exist_ok=True)
    stop = StopRequest()
    exit_status = each_in_turn(lambda index: run_element(launch, index, stop), list(launch.incomplete))
    if exit_status in (STOPPED, INTERRUPTED, TERMINATED):
        return exit_status
    return write_tables(launch) or exit_status


def write_tables(launch: LoadedExperiments) -> int:
    """Make the paper's tables that use these runs, then the tables of complete runs, and list incomplete elements.
    Returns an exit status: 1 if a table could not be made."""
    status = 0
    for folder in dict.fromkeys(Path(run.results) for run in runs_in_paper(launch)):
        paper_tables, faults = all_tables(folder)
        status |= pages.save(paper_tables, folder / "tables" / "paper", faults)
    own = [element.run for element in launch.elements if not element.owner]
    own_experiments = dict.fromkeys((run.results, run.experiment_name) for run in own)
    for results, name in own_experiments:
        try:
            show(run_table(Path(results), name), Path(results) / "tables")
        except DataError as error:
            print(f"error: {error}", file=sys.stderr)
            status = 1
    elements, incomplete = launch.elements, launch.incomplete
    for index, what in incomplete.items():
        print(f"not complete: {elements[index].run.folder}: {', '.join(what)}")
    print(f"complete: {len(elements) - len(incomplete)} of {counted(len(elements), 'element')}")
    return status


def runs_in_paper(launch: LoadedExperiments) -> list[RunConfig]:
    """The runs that the paper's tables use: those whose experiment_name was not changed."""
    return [
        element.run
        for experiment in launch.experiments
        for element in experiment.elements
        if element.run.experiment_name
        == f"{element.owner or experiment.name}_{experiment.profile}_{element.run.task.name}"
    ]


@command
def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, about in COMMANDS.items():
        subparser = commands.add_parser(name, description=f"{about}\n\n    python experiments/launch.py {name} ...")
        if name == "list":
            continue
        takes_folders = name in ("status", "stop")
        what = "an experiment, or a pattern of names" + ", or a folder of runs" * takes_folders
        settings = "the settings that started the elements" if takes_folders else "settings for every element"
        subparser.add_argument("experiment", nargs="?" if name == "status" else None, help=what)
        if name == "element":
            subparser.add_argument("index", type=int, help="index of the element, from 0")
        subparser.add_argument("overrides", nargs="*", default=[], help=f"{settings}, such as seed=1")
    options = parser.parse_args(arguments)
    if options.command == "list":
        print("\n".join(experiments()))
        return 0
    if options.command in ("status", "stop"):
        return (status if options.command == "status" else stop)(options.experiment, options.overrides)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, on_sigterm)
    try:
        launch = load(options.experiment, options.overrides)
        if options.command == "submit":
            submit(options.experiment, launch, options.overrides)
        elif options.command == "element":
            run_one(launch, options.index)
        else:
            return run_all(launch) if options.command == "run" else write_tables(launch)
    except KeyboardInterrupt as stopped:
        raise Stopped("stopped: run the same command to go on") from stopped
    return 0


if __name__ == "__main__":
    sys.exit(main())
