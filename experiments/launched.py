"""Compose and check the elements of experiments, for launch.py to run or submit."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from experiments import following
from rtpo.errors import ConfigError
from rtpo.evaluation.panel import EvaluateConfig, compose_evaluation
from rtpo.planning import preflight
from rtpo.run.cli import composed
from rtpo.run.config import PROJECT
from rtpo.run.experiments import Element, Experiment, check_folders, experiments, load_experiment, split_overrides
from rtpo.run.kept import kept_run
from rtpo.run.records import RunFolder


@dataclass(frozen=True)
class LoadedExperiments:
    """The elements of one or several experiments, in the order of their indices."""

    name: str  # of jobs and logs
    experiments: tuple[Experiment, ...]
    evaluation: tuple[str, ...]  # overrides of experiments/evaluate.py for each element

    @property
    def elements(self) -> list[Element]:
        return [element for experiment in self.experiments for element in experiment.elements]

    @property
    def incomplete(self) -> dict[int, list[str]]:
        """By index, the unfinished parts of each incomplete element."""
        lacks = (following.missing(element.run.folder, element.benchmarks) for element in self.elements)
        return {index: what for index, what in enumerate(lacks) if what}

    @property
    def unfinished_owners(self) -> dict[int, str]:
        """The experiment that must train an element's run first, by the element's index. Only elements that take their
        run from another experiment are included."""
        owners = {index: self.elements[index].owner for index, what in self.incomplete.items() if "training" in what}
        return {index: owner for index, owner in owners.items() if owner}

    @property
    def first(self) -> Experiment:
        """The first experiment, whose resources, `at_once` and `keep` are those of all. Raises ConfigError if they are
        not."""
        if len({(each.resources, each.at_once, each.keep) for each in self.experiments}) > 1:
            names = ", ".join(each.name for each in self.experiments)
            raise ConfigError(f"{names} differ in launch.resources, at_once or keep: give one of them at a time.")
        return self.experiments[0]

    @property
    def logs(self) -> Path:
        return all_logs() / self.name


def all_logs() -> Path:
    return Path(os.environ.get("LOGS", PROJECT / "outputs" / "slurm")).absolute()


def load(pattern: str, overrides: Sequence[str]) -> LoadedExperiments:
    """Load experiments and check their elements and evaluations. Raises ConfigError, also if two share a
    folder."""
    training, evaluation = split_overrides(overrides)
    loaded = tuple(load_experiment(name, training) for name in experiments(pattern))
    launch = LoadedExperiments(pattern.strip("*_"), loaded, tuple(evaluation))
    check_folders([element.run.folder for element in launch.elements])
    for element in {element.benchmarks: element for element in launch.elements}.values():
        evaluation_of(launch, element)
    return launch


def evaluation_of(launch: LoadedExperiments, element: Element) -> EvaluateConfig | None:
    """The evaluation of a trained element in its own rollout context; None without benchmarks. Raises ConfigError."""
    if not element.benchmarks:
        return None
    run = element.run
    fields = {"checkpoint": run.folder, "results": run.results, "label": run.folder.name}
    quoted = [f"{name}='{str(value).replace(chr(39), chr(92) + chr(39))}'" for name, value in fields.items()]
    settings = [f"experiment_name={run.experiment_name}", f"seed={run.seed}"]
    settings += [
        f"benchmarks=[{','.join(element.benchmarks)}]",
        f"rollout_context={run.algorithm_config.rollout_context}",
    ]
    return compose_evaluation(composed("evaluate", [*quoted, *settings, *launch.evaluation]))


def why_not_evaluated(element: Element) -> str:
    """A sentence if an element's run is kept without its weights, and lacks an evaluation; else ""."""
    folder = element.run.folder
    left = following.missing(folder, element.benchmarks)
    if not left or RunFolder(folder).is_finished or kept_run(folder) is None:
        return ""
    return (
        f"{folder} is kept without its weights, so it cannot be evaluated on {', '.join(left)}: train it again in "
        "another folder, such as results=outputs/trial."
    )


def check(launch: LoadedExperiments, *, here: bool = False) -> None:
    """Raises ConfigError for all that is missing or invalid. here: also if this machine cannot run the elements."""
    faults = [preflight.problems(each, here=here, evaluation=launch.evaluation) for each in launch.experiments]
    faults.append([why for element in launch.elements if (why := why_not_evaluated(element))])
    if any(faults):
        raise ConfigError("\n".join(dict.fromkeys(chain(*faults))))
