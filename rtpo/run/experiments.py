"""An experiment's elements: the runs it is made of, composed and checked before any of them starts.

An experiment is a file of configs/experiment/. Its `hydra.sweeper.params` say what varies, so that Hydra's multirun and
the launchers run the same elements; its `launch` tree says what it is and how its elements are evaluated. A profile's
`launch` tree says which tasks stand for the paper's and what an element asks of a cluster.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from rtpo.core.bounds import Count, Natural, Positive
from rtpo.core.names import nearest
from rtpo.errors import ConfigError
from rtpo.run.building import build
from rtpo.run.cli import composed, configurations
from rtpo.run.config import LAUNCH, PROJECT, RunConfig, compose_run

EVALUATE = "evaluate."


@dataclass(frozen=True)
class Resources:
    """What an element asks of a cluster: on each of `nodes` nodes `gpus`, `cpus` and `memory_gb` (GB of 2^30), for
    `minutes` at a time; a run that needs more is requeued."""

    nodes: Count
    gpus: Natural
    cpus: Count
    memory_gb: Count
    minutes: Count


@dataclass(frozen=True)
class Launch:
    """about: the experiment in a line. paper: labels of the paper's tables and figures that it is for. models: by role
    in the paper, folders under models/. model: that of the paper-scale math and search tasks. trunks: M of methods that
    have trunks. tasks_per_step: by algorithm, and minutes of an
    element, by platform: where an experiment has its own. tasks: by role in the paper, the task that
    stands for it. benchmarks: by task, what a trained policy is evaluated on. shared: by label, the experiment that
    trains the run, which this one reads. not_in_paper: labels of rows that the paper's table does not have.
    matched_seconds: of training, in compute-matched runs. at_once: elements that SLURM runs at the same time at most;
    null: as many as it can. keep: what is left of an element's last save once it is trained and evaluated: the save,
    from which training could go on, the exported weights alone (`export/` in the run's folder), or nothing."""

    about: str
    paper: tuple[str, ...]
    models: dict[str, str]
    model: str
    trunks: Count
    tasks_per_step: dict[str, Count]
    minutes: dict[str, Count]
    tasks: dict[str, str]
    benchmarks: dict[str, tuple[str, ...]]
    shared: dict[str, str]
    not_in_paper: tuple[str, ...]
    matched_seconds: Positive
    resources: Resources
    at_once: Count | None = None
    keep: Literal["save", "weights", "nothing"] = "save"


@dataclass(frozen=True)
class Element:
    """One run. overrides: of experiments/train.py, those that make it. benchmarks: to evaluate it on. owner: another
    experiment that trains it; empty where it is the element's own."""

    overrides: tuple[str, ...]
    run: RunConfig
    benchmarks: tuple[str, ...]
    owner: str = ""


def of_evaluation(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Overrides of experiments/train.py, and those of experiments/evaluate.py, which begin with `evaluate.`."""
    ours = [override for override in overrides if not override.startswith(EVALUATE)]
    return ours, [override.removeprefix(EVALUATE) for override in overrides if override.startswith(EVALUATE)]


@dataclass(frozen=True)
class Experiment:
    """name: of its file in configs/experiment/. resources: of each element. at_once, keep: as of `Launch`."""

    name: str
    profile: str
    resources: Resources
    elements: tuple[Element, ...]
    at_once: int | None = None
    keep: Literal["save", "weights", "nothing"] = "save"


def load_experiment(name: str, overrides: Sequence[str] = ()) -> Experiment:
    """The elements of an experiment in the order of its sweep. overrides: as of experiments/train.py, for every
    element; one of a swept field, such as `seed=0` or `algorithm=rtpo,rtpo_off`, replaces the sweep's. Raises
    ConfigError for an unknown name, elements that experiments/train.py would refuse, and two that would write to one
    place."""
    with configurations("train"):
        tree, overridden = _swept(name, overrides)
        launch = read_launch(tree)
        swept = BasicSweeper.split_arguments(overridden, None)[0]  # as Hydra's own sweeper does
        elements = tuple(_element((f"experiment={name}", *chosen), launch) for chosen in swept)
    check_places(elements)
    return Experiment(name, elements[0].run.profile.name, launch.resources, elements, launch.at_once, launch.keep)


def sweep(name: str, overrides: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
    """What varies, field to values, the last the fastest. overrides: as of `load_experiment`. Raises ConfigError."""
    with configurations("train"):
        return {
            override.get_key_element(): tuple(override.sweep_string_iterator())
            if override.is_sweep_override()
            else (override.get_value_element_as_str(),)
            for override in _swept(name, overrides)[1]
        }


def check_one_run(hydra: Any) -> None:
    """Raises ConfigError for an experiment without a value for each field that it varies. hydra: Hydra's tree of the
    run."""
    name = hydra.runtime.choices.get("experiment")
    typed = {override.partition("=")[0].lstrip("+") for override in hydra.overrides.task}
    varied: Any = OmegaConf.to_container(hydra.sweeper.params or OmegaConf.create(), resolve=True)
    missing = [f"{field}={values}" for field, values in varied.items() if field not in typed]
    if name is not None and missing:
        raise ConfigError(
            f"experiment is {name}, which varies {', '.join(missing)}: name one value of each, or train all with -m."
        )


def experiments(pattern: str = "*") -> list[str]:
    """The names of all experiments, or those of a pattern such as `ablate_*`. Raises ConfigError where it has none."""
    known = sorted(path.stem for path in (PROJECT / "configs" / "experiment").glob("[!_]*.yaml"))
    names = [name for name in known if fnmatch(name, pattern)]
    if not names:
        raise ConfigError(f"experiment is {pattern!r}: no such experiment; {nearest(pattern, known)}.")
    return names


def shared_runs(folder: str) -> dict[str, str]:
    """Of an experiment's folder of results, such as `drift_a100x8_search_paper`, by label the folder of the experiment
    that trains the run (`launch.shared`)."""
    name = max((name for name in experiments() if folder.startswith(f"{name}_")), key=len, default="")
    return {label: f"{owner}{folder.removeprefix(name)}" for label, owner in _shared(name).items()} if name else {}


def readers(run: RunConfig) -> list[str]:
    """The experiments that read a run which another one trains (`launch.shared`)."""
    owner = max((name for name in experiments() if run.experiment_name.startswith(f"{name}_")), key=len, default="")
    return [name for name in experiments() if owner and _shared(name).get(run.label) == owner]


def _shared(name: str) -> dict[str, str]:
    file = PROJECT / "configs" / "experiment" / f"{name}.yaml"
    shared: Any = OmegaConf.select(OmegaConf.load(file), f"{LAUNCH}.shared", default={})
    return {str(label): str(owner) for label, owner in shared.items()}


def _swept(name: str, overrides: Sequence[str]) -> tuple[DictConfig, list[Override]]:
    """The tree that the sweep is drawn from, and the overrides that Hydra's own sweeper would make elements of."""
    if name not in experiments():
        raise ConfigError(f"experiment is {name!r}: no such experiment; {nearest(name, experiments())}.")
    parser = OverridesParser.create()
    parsed = parser.parse_overrides(list(overrides))
    for override in parsed:
        if override.get_key_element() == "experiment":
            raise ConfigError(f"{override.input_line}: the experiment is {name!r} already; leave one of them out.")
    # the sweep is drawn from these; others may name fields that only a swept task has
    roots = ("profile", LAUNCH, "hydra")
    drawn = [each.input_line or "" for each in parsed if each.get_key_element().lstrip("+~").split(".")[0] in roots]
    tree = composed("train", [f"experiment={name}", *drawn], with_hydra=True)
    params: Any = OmegaConf.to_container(tree.hydra.sweeper.params or OmegaConf.create(), resolve=True)
    lines = [f"{key}={value}" for key, value in params.items()]
    return tree, parser.parse_overrides([*lines, *overrides])


def _element(overrides: tuple[str, ...], launch: Launch) -> Element:
    tree = composed("train", overrides)
    try:
        run = compose_run(tree)
    except ConfigError as error:
        raise ConfigError(f"{' '.join(overrides)}: {error}") from error
    owner = launch.shared.get(run.label, "")
    is_shared = bool(owner) and run.experiment_name == f"{owner}_{run.profile.name}_{run.task.name}"
    return Element(overrides, run, launch.benchmarks.get(run.task.name, ()), owner if is_shared else "")


def read_launch(tree: DictConfig) -> Launch:
    """The `launch` tree of a composed configuration. Raises ConfigError."""
    plain: Any = OmegaConf.to_container(tree[LAUNCH], resolve=True)
    launch: Launch = build(Launch, plain, LAUNCH)
    return launch


def check_places(elements: Sequence[Element]) -> None:
    """Raises ConfigError for elements that would write to one folder."""
    check_folders([element.run.folder for element in elements])


def check_folders(folders: Sequence[Path]) -> None:
    """Raises ConfigError for two runs of one folder."""
    ((place, count),) = Counter(folders).most_common(1)
    if count > 1:
        raise ConfigError(
            f"{count} runs would write to {place}: they differ in what names no folder; sweep algorithm, task or "
            "seed, or give each value an experiment_name or algorithm.label of its own."
        )
