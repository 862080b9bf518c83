"""The toy study (configs/study/toy.yaml): many configurations at equal rollouts, each at a learning rate of its own
(docs/results/toy_study.md).

    python experiments/toy_study.py rates       every configuration at every rate, one seed
    python experiments/toy_study.py freeze      choose each configuration's rate and write it down
    python experiments/toy_study.py core        the main configurations
    python experiments/toy_study.py rest        the others
    python experiments/toy_study.py controls    equal optimizer steps and equal tokens
    python experiments/toy_study.py missing     what has not been run

A part goes on where it was left, and several processes can work on it at once, best one a core: a run belongs to the
process that holds its folder. Records go to results/toy/<warm start>/, those of `rates` to results/toy/rates_<warm
start>/; the chosen rates stand in results/toy/learning_rates.json. A configuration without one there is not run.
"""

import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from rtpo.run.command import Parser, command, positive

from analysis.toy_study.plan import PARTS, Planned, Study
from experiments.training import train
from rtpo.errors import ConfigError, Held, Stopped
from rtpo.run.run import StopRequest


def train_part(
    study: Study, part: str, stop: StopRequest, *, task: str | None = None, only: str = "", minutes: float = 240
) -> None:
    """Run what is missing of a part, on one `task` or all, of `only` these configurations (labels, by commas) or all;
    begin nothing after `minutes`.

    Raises as `train` and `chosen` do, Stopped also when `stop` was heard as a run ended.
    """
    begun = time.monotonic()
    for place, rate in chosen(list(study.planned(part)), task, only):
        folder = study.folder(place)
        if folder.is_finished:
            with suppress(Held), folder.held():
                folder.delete_saves()  # where a stop came between the run's end and this
            continue
        if rate is None:
            print(f"{place} has no learning rate yet: run the parts rates and freeze first")
            continue
        if time.monotonic() - begun > 60 * minutes:
            print(f"{minutes:g} minutes are over; the same command goes on")
            return
        try:
            train(study.config(place, rate), stop)
        except Held:
            continue
        folder.delete_saves()
        if stop.reason:
            raise Stopped(f"stopped by {stop.reason} after {folder.path}. Run the same command to go on.")


def chosen(planned: Sequence[Planned], task: str | None, only: str) -> list[Planned]:
    """Those on one `task` or all, of `only` these configurations (labels, by commas) or all. Raises ConfigError for a
    task or label that there is none of."""
    labels = only.split(",") if only else []
    for name, given, known in [
        ("--task", [] if task is None else [task], {place.task for place, _ in planned}),
        ("--only", labels, {place.configuration.label for place, _ in planned}),
    ]:
        if unknown := sorted(set(given) - known):
            raise ConfigError(f"{name} {', '.join(unknown)}: not in the plan; there are {', '.join(sorted(known))}.")
    return [
        (place, rate)
        for place, rate in planned
        if task in (None, place.task) and (not labels or place.configuration.label in labels)
    ]


def missing(study: Study, task: str | None = None, only: str = "") -> list[str]:
    """A line for each run that has not been finished. Raises as `chosen`."""
    parts = [(part, one) for part in PARTS for one in study.planned(part)]
    wanted = chosen([one for _, one in parts], task, only)
    return [f"{part}: {one[0]}" for part, one in parts if one in wanted and not study.folder(one[0]).is_finished]


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(__doc__)
    parser.add_argument("part", choices=[*PARTS, "freeze", "missing"])
    parser.add_argument("--task", help="only this one")
    parser.add_argument("--only", default="", help="only these configurations, by commas")
    parser.add_argument("--minutes", type=positive, default=240, help="begin no run after this long")
    given = parser.parse_args(arguments)
    study = Study()
    if given.part == "freeze":
        if given.task is not None or given.only:
            parser.error("freeze takes all tasks and configurations: leave --task and --only out")
        study.freeze()
    elif given.part == "missing":
        print("".join(f"{line}\n" for line in missing(study, given.task, given.only)), end="")
    else:
        train_part(study, given.part, StopRequest(), task=given.task, only=given.only, minutes=given.minutes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
