"""An experiment's elements: the runs it is made of, composed and checked before any of them starts.

An experiment is a file of configs/experiment/. Hydra's multirun and the launchers both read its `hydra.sweeper.params`,
so they run the same elements. Its `launch` tree says how elements are evaluated. The profile's `launch` tree says which
tasks stand for the paper's, and what an element requests from a cluster.
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
from rtpo.core.names import counted, nearest
from rtpo.errors import ConfigError
from rtpo.run.building import build
from rtpo.run.cli import composed, configurations
from rtpo.run.config import LAUNCH, PROJECT, RunConfig, compose_run

EVALUATE = "evaluate."


@dataclass(frozen=True)
class Resources:
    """What an element requests from a cluster. A run that needs more time is requeued."""

    nodes: Count
    gpus: Natural  # on each node, as are cpus and memory_gb
    cpus: Count
    memory_gb: Count  # GB of 2^30 bytes
    minutes: Count  # of one job


@dataclass(frozen=True)
class Launch:
    """The `launch` trees of an experiment and its profile."""

    about: str  # the experiment in one line
    paper: tuple[str, ...]  # labels of the paper's tables and figures that use its runs
    models: dict[str, str]  # by role in the paper (main, credit, airline), a folder under models/
    model: str  # of the paper-scale math and search tasks
    trunks: Count  # M of methods with trunks
    tasks_per_step: dict[str, Count]  # by algorithm, where the experiment has its own
    minutes: dict[str, Count]  # of an element, by platform, where the experiment has its own
    tasks: dict[str, str]  # by task of the paper (math, search, airline), the task that stands for it
    benchmarks: dict[str, tuple[str, ...]]  # by task, what a trained policy is evaluated on
    shared: dict[str, str]  # by label, the other experiment that trains the run; this one only reads it
    not_in_paper: tuple[str, ...]  # labels of rows that the paper's table does not have
    matched_seconds: Positive  # of training, in compute-matched runs
    resources: Resources
    at_once: Count | None = None  # the most elements that SLURM runs at the same time; null: no limit
    keep: Literal["save", "weights", "nothing"] = "save"
    """what stays of the last save after evaluation: all of it, to resume from; weights in `export/`; nothing"""


@dataclass(frozen=True)
class Element:
    """One run of an experiment."""

    overrides: tuple[str, ...]  # of experiments/train.py, which make the run
    run: RunConfig
    benchmarks: tuple[str, ...]  # to evaluate it on
    owner: str = ""  # the other experiment that trains the run; empty if this one does


def split_overrides(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split overrides into those of experiments/train.py and, without their prefix `evaluate.`, those of
    experiments/evaluate.py."""
    training = [override for override in overrides if not override.startswith(EVALUATE)]
    return training, [override.removeprefix(EVALUATE) for override in overrides if override.startswith(EVALUATE)]


@dataclass(frozen=True)
class Experiment:
    """The elements of an experiment. `at_once` and `keep` are as in `Launch`."""

    name: str  # of its file in configs/experiment/
    profile: str
    resources: Resources  # of each element
    elements: tuple[Element, ...]
    at_once: int | None = None
    keep: Literal["save", "weights", "nothing"] = "save"


def load_experiment(name: str, overrides: Sequence[str] = ()) -> Experiment:
    """Load an experiment's elements, in the order of its sweep. overrides: of experiments/train.py, for every element.
    An override of a swept field, such as `seed=0` or `algorithm=rtpo,rtpo_off`, replaces the sweep's values. Raises
    ConfigError for an unknown name, for elements that experiments/train.py would refuse, and for two elements that
    would write to one folder."""
    with configurations("train"):
        tree, overridden = _swept(name, overrides)
        launch = read_launch(tree)
        swept = BasicSweeper.split_arguments(overridden, None)[0]  # as Hydra's own sweeper does
        elements = tuple(_element((f"experiment={name}", *chosen), launch) for chosen in swept)
    check_folders([element.run.folder for element in elements])
    return Experiment(name, elements[0].run.profile.name, launch.resources, elements, launch.at_once, launch.keep)


def sweep(name: str, overrides: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
    """The swept fields with their values; the last one varies fastest. overrides: as in `load_experiment`. Raises
    ConfigError."""
    with configurations("train"):
        return {
            override.get_key_element(): tuple(override.sweep_string_iterator())
            if override.is_sweep_override()
            else (override.get_value_element_as_str(),)
            for override in _swept(name, overrides)[1]
        }


def check_one_run(hydra: Any) -> None:
    """Raises ConfigError if the command line lacks a value for a field that the experiment varies. hydra: Hydra's tree
    of the run."""
    name = hydra.runtime.choices.get("experiment")
    fields_set = {override.partition("=")[0].lstrip("+") for override in hydra.overrides.task}
    varied: Any = OmegaConf.to_container(hydra.sweeper.params or OmegaConf.create(), resolve=True)
    missing = [f"{field}={values}" for field, values in varied.items() if field not in fields_set]
    if name is not None and missing:
        raise ConfigError(
            f"experiment is {name}, which varies {', '.join(missing)}: name one value of each, or train all with -m."
        )


def experiments(pattern: str = "*") -> list[str]:
    """The names of all experiments, or those of a pattern such as `ablate_*`. Raises ConfigError if none matches."""
    known = sorted(path.stem for path in (PROJECT / "configs" / "experiment").glob("[!_]*.yaml"))
    names = [name for name in known if fnmatch(name, pattern)]
    if not names:
        raise ConfigError(f"experiment is {pattern!r}: no such experiment; {nearest(pattern, known)}.")
    return names


def shared_runs(folder: str) -> dict[str, str]:
    """By label, the results folder of the experiment that trains the run (`launch.shared`). folder: an experiment's
    results folder, such as `drift_a100x8_search_paper`."""
    name = max((name for name in experiments() if folder.startswith(f"{name}_")), key=len, default="")
    return {label: f"{owner}{folder.removeprefix(name)}" for label, owner in _shared(name).items()} if name else {}


def readers(run: RunConfig) -> list[str]:
    """The experiments that read this run instead of training it (`launch.shared`)."""
    owner = max((name for name in experiments() if run.experiment_name.startswith(f"{name}_")), key=len, default="")
    return [name for name in experiments() if owner and _shared(name).get(run.label) == owner]


def _shared(name: str) -> dict[str, str]:
    file = PROJECT / "configs" / "experiment" / f"{name}.yaml"
    shared: Any = OmegaConf.select(OmegaConf.load(file), f"{LAUNCH}.shared", default={})
    return {str(label): str(owner) for label, owner in shared.items()}


def _swept(name: str, overrides: Sequence[str]) -> tuple[DictConfig, list[Override]]:
    """The tree that defines the sweep, and the overrides that Hydra's own sweeper would expand into elements."""
    if name not in experiments():
        raise ConfigError(f"experiment is {name!r}: no such experiment; {nearest(name, experiments())}.")
    parser = OverridesParser.create()
    parsed = parser.parse_overrides(list(overrides))
    for override in parsed:
        if override.get_key_element() == "experiment":
            raise ConfigError(f"{override.input_line}: the experiment is {name!r} already; leave one of them out.")
    # leave out overrides of other parts: they do not decide the sweep, and may name a field that only a swept task has
    roots = ("profile", LAUNCH, "hydra")
    deciding = [line.input_line or "" for line in parsed if line.get_key_element().lstrip("+~").split(".")[0] in roots]
    tree = composed("train", [f"experiment={name}", *deciding], with_hydra=True)
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


def check_folders(folders: Sequence[Path]) -> None:
    """Raises ConfigError if two runs have the same folder."""
    ((place, count),) = Counter(folders).most_common(1)
    if count > 1:
        raise ConfigError(
            f"{counted(count, 'run')} would write to {place}: they differ only in fields that name no folder; sweep "
            "algorithm, task or seed, or give each value an experiment_name or algorithm.label of its own."
        )
