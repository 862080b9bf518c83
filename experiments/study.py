"""Run a study of configs/study/: many configurations at equal rollouts, at learning rates chosen on validation
(docs/results/when.md).

    python experiments/study.py turns rates       the search: every configuration at several rates
    python experiments/study.py textworld gate    what must be gained before the test, if the plan has a gate
    python experiments/study.py turns freeze      write down the chosen rates, and what is predicted of the comparisons
    python experiments/study.py turns core        a part of the plan: its main configurations
    python experiments/study.py turns missing     list the runs that are missing

A run that fails by its numbers or its engine does not keep the next from running. To resume a part, give the same
command again. Several processes can share a part, ideally one on each core: each takes runs that no other process
holds. Records go to results/<study>/<warm start>/, or <task>_<warm start>/ for a task that the plan defines. Folders of
the parts `rates` and `gate` begin with these words. `freeze` writes the chosen rates to
results/<study>/learning_rates.json, and the predictions beside them, unless the plan's gate is closed. Parts after
`rates` and `gate` run only then, and only configurations with a chosen rate. If the best rate of a search is the lowest
or highest tried, `rates` also runs the next one beyond it. --results FOLDER repeats one of these later parts in another
folder, at the same rates.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from analysis.study.plan import PlannedRun, Study, StudyRun, load_study
from analysis.study.predictions import PREDICTED, comparisons_of, write_predictions
from experiments.training import train
from rtpo.core.names import counted, nearest
from rtpo.errors import (
    ConfigError,
    DataError,
    FolderInUse,
    InfrastructureError,
    NonFinite,
    StaleEngine,
    Stopped,
    TreeMismatch,
)
from rtpo.run.beside import check_place
from rtpo.run.cli import Parser, command, positive
from rtpo.run.stopping import StopRequest

FREEZE, MISSING = "freeze", "missing"
FAILURES = (InfrastructureError, NonFinite, StaleEngine, TreeMismatch)
"""by these a single run fails, and the next one may not"""


def train_part(
    study: Study, part: str, stop: StopRequest, *, task: str | None = None, only: str = "", minutes: float = 240
) -> None:
    """Train the missing runs of a part. task, only: as `selected` takes them. No run begins after `minutes`. Runs that
    another process holds are left out. Raises InfrastructureError in the end if a run failed (`FAILURES`). Otherwise
    raises as `train` and `selected`, and DataError if a finished run has another configuration."""
    begun = time.monotonic()
    failed: list[str] = []
    for run, rate in _in_turn(study, part, task, only):
        folder = study.folder(run)
        if study.is_finished(run):
            if rate is not None:
                check_place(study.config(run, rate))
            if folder.path.exists():
                with suppress(FolderInUse), folder.held():
                    folder.delete_saves()  # left by a stop right after the run's end
            continue
        if rate is None:
            print(f"{run} has no learning rate yet: run the parts rates and freeze first")
            continue
        if time.monotonic() - begun > 60 * minutes:
            print(f"{minutes:g} minutes are over; give the same command again to go on")
            break
        try:
            train(study.config(run, rate), stop)
        except FolderInUse:
            continue
        except Stopped:
            if folder.is_finished:
                folder.delete_saves()
            raise
        except FAILURES as error:
            if stop.reason:
                raise
            print(f"{run} failed, going on with the next: {error}", file=sys.stderr, flush=True)
            failed.append(str(run))
            continue
        folder.delete_saves()
    if failed:
        raise InfrastructureError(
            f"{counted(len(failed), 'run')} failed ({', '.join(failed)}): give the command again."
        )


def _in_turn(study: Study, part: str, task: str | None, only: str) -> Iterator[PlannedRun]:
    """Each planned run of a part once. The search plans further runs once others have ended."""
    seen: set[StudyRun] = set()
    while left := [each for each in selected(list(study.planned(part)), task, only) if each[0] not in seen]:
        seen |= {run for run, _ in left}
        yield from left


def selected(planned: Sequence[PlannedRun], task: str | None, only: str) -> list[PlannedRun]:
    """The planned runs of a task (None: of all tasks) whose configuration has one of the labels `only`, separated by
    commas ("": any). Raises ConfigError for unplanned names."""
    labels = only.split(",") if only else []
    for name, typed, known in [
        ("--task", [] if task is None else [task], {run.task for run, _ in planned}),
        ("--only", labels, {run.configuration.label for run, _ in planned}),
    ]:
        if unknown := sorted(set(typed) - known):
            raise ConfigError(f"{name} {', '.join(unknown)}: not in the plan; there are {', '.join(sorted(known))}.")
    return [
        (run, rate)
        for run, rate in planned
        if task in (None, run.task) and (not labels or run.configuration.label in labels)
    ]


def missing(study: Study, task: str | None = None, only: str = "") -> list[str]:
    """A line for each run that has not been finished. Raises as `selected`."""
    parts: dict[PlannedRun, str] = {}
    for part in study.parts:
        for planned in study.planned(part):
            parts.setdefault(planned, part)
    return [
        f"{parts[run, rate]}: {run}{'' if rate is not None else ', which has no learning rate yet'}"
        for run, rate in selected(list(parts), task, only)
        if not study.is_finished(run)
    ]


@command
def main(arguments: list[str] | None = None) -> None:
    parser = Parser(__doc__)
    parser.add_argument("study", type=load_study, help="name of a file in configs/study/, such as turns")
    parser.add_argument("part", help=f"{FREEZE}, {MISSING}, rates, or another part of the plan")
    parser.add_argument("--task", help="run only this task")
    parser.add_argument("--only", default="", help="run only these configurations, separated by commas")
    parser.add_argument(
        "--minutes", type=positive, default=240, help="start no further run after so many minutes; default: 240"
    )
    parser.add_argument("--results", type=Path, help="repeat the part in this folder, at the chosen rates")
    options = parser.parse_args(arguments)
    study: Study = options.study if options.results is None else load_study(options.study.name, options.results)
    if options.part == FREEZE:
        if options.task is not None or options.only or options.results is not None:
            parser.error("freeze takes all of the study's own records: leave --task, --only and --results out")
        study.freeze()
        write_predictions(study)
    elif options.part == MISSING:
        print("".join(f"{line}\n" for line in missing(study, options.task, options.only)), end="")
    elif options.part in study.parts:
        own = options.study.results / PREDICTED
        if options.part in study.compared_parts and comparisons_of(study.name) is not None and not own.exists():
            raise DataError(f"{own} is missing: run the parts rates and freeze to their ends first.")
        train_part(study, options.part, StopRequest(), task=options.task, only=options.only, minutes=options.minutes)
    else:
        raise ConfigError(
            f"{options.part!r} is not a part of the study: {nearest(options.part, [*study.parts, FREEZE, MISSING])}."
        )


if __name__ == "__main__":
    sys.exit(main())
