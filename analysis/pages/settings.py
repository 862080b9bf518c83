"""The tables of docs/run/experiments.md: what the experiments are, and where each setting's value comes from.

A source stands where the value does, as the comment beside it under configs/: `# paper: SECTION OR TABLE`, `# ours: row
N` (of docs/method/deviations.md), or both with a semicolon between, where the paper names the setting and leaves a part
open; `# other: WORDS` where a method is not among the paper's.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from rtpo.algorithms import algorithms, load_algorithm
from rtpo.run.config import portable
from rtpo.run.experiments import Outline, experiments, outline
from rtpo.verbs import AlgorithmConfig

PAPER_PROFILE = "profile=a100x8"
TASKS = ("math_paper", "search_paper", "airline")
METHODS = ("rtpo", "grpo", "seeupo", "seeupo_flat_recompute", "seeupo_flat", "arpo", "tree_grpo", "refuel")
GPU_PROFILES = ("a100x8", "a100x1", "h100x8", "h100x1", "h200x8", "h200x1")
PROFILES = (*GPU_PROFILES, "toy")
NOTHING = "-"
_SOURCE = re.compile(r"\s+# ((?:paper|ours|other): .*)$")


@dataclass(frozen=True)
class Setting:
    """A value under configs/. field: its place in the composed tree. value: as written. source: None where no comment
    names one."""

    field: str
    value: Any
    source: str | None


def read_settings(file: Path) -> list[Setting]:
    """The values of a file of configs/, in its order."""
    text = file.read_text(encoding="utf-8")
    prefix = "" if "# @package _global_" in text or file.parent.name == "configs" else f"{file.parent.name}."
    lines = [*text.splitlines(), ""]  # where a list of lines ends the file
    values = OmegaConf.load(file)
    settings = []
    for path, node in _leaves(yaml.compose(text, yaml.SafeLoader)):
        comment = _SOURCE.match(lines[node.end_mark.line][node.end_mark.column :])
        value = OmegaConf.to_container(values)
        for key in path:
            assert isinstance(value, dict)
            value = value[key]
        settings.append(Setting(prefix + ".".join(path), value, comment and comment[1]))
    return settings


def _leaves(node: yaml.Node | None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], yaml.Node]]:
    if node is None:
        return
    if not isinstance(node, yaml.MappingNode):
        yield path, node
        return
    for key, value in node.value:
        if key.value not in ("defaults", "hydra"):
            yield from _leaves(value, (*path, key.value))


# what there is


def experiments_table() -> list[tuple[str, ...]]:
    """Header and rows: those of the paper."""
    header = ("Experiment", "What", "Paper", "Tasks", "Algorithms", "Not in the paper's table", "Seeds", "Elements")
    return [(*header, "Evaluated on"), *(_experiment(one) for one in _outlines() if one.launch.paper)]


def _experiment(one: Outline) -> tuple[str, ...]:
    launch = one.launch
    evaluated = [name for task in one.sweep["task"] for name in launch.benchmarks.get(task, ())]
    return (
        f"`{one.name}`",
        launch.about,
        _listed(launch.paper),
        _listed(one.sweep["task"]),
        _listed([name for name in one.sweep["algorithm"] if name not in launch.not_in_paper]),
        _listed(launch.not_in_paper),
        ", ".join(one.sweep["seed"]),
        str(_count(one)),
        ", ".join(evaluated) or "in the run",
    )


def ablations_table() -> list[tuple[str, ...]]:
    """Header and rows."""
    rows = [
        (f"`{one.name}`", one.launch.about, _listed(one.sweep["algorithm"]), str(_count(one)))
        for one in _outlines()
        if not one.launch.paper
    ]
    return [("Experiment", "What", "Algorithms", "Elements"), *rows]


def profiles_table() -> list[tuple[str, ...]]:
    """Header and rows: what stands for the paper's tasks and models, and what an element asks for."""
    header = ("Profile", "Math", "Search", "Airline", "Models: main, credit, airline", "An element asks for")
    rows = []
    for profile in PROFILES:
        launch = outline("main_table", [f"profile={profile}"]).launch
        asks = launch.resources
        models = launch.models
        rows.append(
            (
                f"`{profile}`",
                *(f"`{launch.tasks[role]}`" for role in ("math", "search", "airline")),
                "as shipped" if profile == "toy" else ", ".join(models[role] for role in ("main", "credit", "airline")),
                f"{asks.nodes} node, {asks.gpus} GPUs, {asks.cpus} CPUs, {asks.memory_gb} GB, {asks.minutes} minutes",
            )
        )
    return [header, *rows]


@cache
def _outlines() -> list[Outline]:
    return [outline(name, [PAPER_PROFILE]) for name in experiments()]


def _count(one: Outline) -> int:
    count = 1
    for values in one.sweep.values():
        count *= len(values)
    return count


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or NOTHING


# where values come from


def tasks_table(project: Path) -> list[tuple[str, ...]]:
    """Header and rows: tasks, budgets, optimizer, sampling."""
    trees = _composed(project, [_task(name) for name in TASKS])
    trunks = _of_train(project, "launch.trunks")
    read = [
        [*trunks, *(one for file in _task_files(name) for one in read_settings(project / "configs" / file))]
        for name in TASKS
    ]
    return [("Field", *(f"`{name}`" for name in TASKS), "Source"), *_rows(trees, read, TASKS)]


def _task(name: str) -> list[str]:
    return [PAPER_PROFILE, f"task={name}", *(["experiment=airline"] if name == "airline" else [])]


def _task_files(name: str) -> list[str]:
    return [f"task/{name}.yaml", f"budget/{name}.yaml", *(["experiment/airline.yaml"] if name == "airline" else [])]


def profiles_settings(project: Path) -> list[tuple[str, ...]]:
    """Header and rows: machines and models of the paper's size."""
    trees = _composed(project, [[f"profile={name}", "task=math_paper"] for name in GPU_PROFILES])
    read = [read_settings(project / "configs" / "profile" / f"{name}.yaml") for name in GPU_PROFILES]
    read[0] = [*_of_train(project, "launch.models."), *read[0]]
    return [("Field", *(f"`{name}`" for name in GPU_PROFILES), "Source"), *_rows(trees, read, GPU_PROFILES)]


def _of_train(project: Path, start: str) -> list[Setting]:
    return [one for one in read_settings(project / "configs" / "train.yaml") if one.field.startswith(start)]


def methods_settings(project: Path) -> list[tuple[str, ...]]:
    """Header and rows: the methods' own fields. One row where several have a value from one source."""
    trees = _composed(project, [[PAPER_PROFILE, "task=math_paper", f"algorithm={name}"] for name in METHODS])
    rows: dict[tuple[str, str, str], list[str]] = {}
    for name, tree in zip(METHODS, trees, strict=True):
        for one in read_settings(project / "configs" / "algorithm" / f"{name}.yaml"):
            if one.source is not None:
                rows.setdefault((one.field, _shown(tree, one.field), _linked(one.source)), []).append(name)
    ordered = sorted(rows.items(), key=lambda row: [field for field, _, _ in rows].index(row[0][0]))
    return [
        ("Field", "Value", "Configurations", "Source"),
        *((f"`{field}`", value, _listed(names), source) for (field, value, source), names in ordered),
    ]


def fields_table(project: Path, name: str) -> list[tuple[str, ...]]:
    """Header and rows: an algorithm's fields, on the paper's math task."""
    (tree,) = _composed(project, [[PAPER_PROFILE, "task=math_paper", f"algorithm={name}"]])
    means = _meanings(load_algorithm(name).config)
    rows = [
        (
            f"`{one.field.removeprefix('algorithm.')}`",
            _shown(tree, one.field),
            NOTHING if one.source is None else _linked(one.source),
            means[one.field.removeprefix("algorithm.")],
        )
        for one in read_settings(project / "configs" / "algorithm" / f"{name}.yaml")
    ]
    return [("Field", "Value", "Source", "Meaning"), *rows]


def rungs_table(project: Path) -> list[tuple[str, ...]]:
    """Header and rows: the fields that rungs of the ladder add to those of the method that they are built on."""
    rows = []
    for name in algorithms():
        if (algorithm := load_algorithm(name)).is_rung:
            (tree,) = _composed(project, [[PAPER_PROFILE, "task=math_paper", f"algorithm={name}"]])
            means = _meanings(algorithm.config)
            own = [field for field in means if field in vars(algorithm.config)["__annotations__"]]
            rows += [(f"`{name}`", f"`{field}`", _shown(tree, f"algorithm.{field}"), means[field]) for field in own]
    return [("Algorithm", "Field", "Value", "Meaning"), *rows]


def _meanings(config: type[AlgorithmConfig]) -> dict[str, str]:
    """By field, what the docstrings say of it (`name: text`, or `one, other: text`); a class's own come first."""
    names = "|".join(field.name for field in fields(config))
    start = re.compile(rf"(?:^|(?<=\. ))((?:{names})(?:, (?:{names}))*): ")
    found: dict[str, str] = {}
    for cls in config.__mro__:
        for paragraph in (cls.__doc__ or "").split("\n\n"):
            _, *parts = start.split(" ".join(paragraph.split()))
            for named, text in zip(parts[::2], parts[1::2], strict=True):
                for name in named.split(", "):
                    found.setdefault(name, text.strip().rstrip("."))
    return found


def evaluation_settings(project: Path) -> list[tuple[str, ...]]:
    """Header and rows."""
    files = [project / "configs" / name for name in ("evaluate.yaml", "benchmarks/gsm8k_audit.yaml")]
    with initialize_config_dir(str(project / "configs"), version_base=None):
        tree = compose("evaluate", ["checkpoint=x", "benchmarks=[gsm8k_audit]"])
    rows = []
    for file in files:
        for one in read_settings(file):
            field = one.field.replace("benchmarks.", "benchmarks.gsm8k_audit.")
            if one.source is not None:
                rows.append((f"`{field}`", _shown(tree, field), _linked(one.source)))
    return [("Field of the evaluation", "Value", "Source"), *rows]


def _composed(project: Path, choices: Sequence[Sequence[str]]) -> list[DictConfig]:
    with initialize_config_dir(str(project / "configs"), version_base=None):
        return [compose("train", list(overrides)) for overrides in choices]


def _rows(
    trees: Sequence[DictConfig], read: Sequence[Sequence[Setting]], names: Sequence[str]
) -> list[tuple[str, ...]]:
    """A row for each field that any of `read` names a source of, with its value in each tree."""
    sources: dict[str, dict[str, str]] = {}
    for name, settings in zip(names, read, strict=True):
        for one in settings:
            if one.source is not None:
                sources.setdefault(one.field, {})[name] = _linked(one.source)
    rows = []
    for field, by_name in sources.items():
        texts = list(dict.fromkeys(by_name.values()))
        named = len(texts) > 1
        source = "; ".join(
            (f"{', '.join(f'`{name}`' for name in by_name if by_name[name] == text)}: " if named else "") + text
            for text in texts
        )
        rows.append((f"`{field}`", *(_shown(tree, field) for tree in trees), source))
    return rows


def _shown(tree: DictConfig, field: str) -> str:
    parent, _, key = field.rpartition(".")
    node = OmegaConf.select(tree, parent) if parent else tree
    if not isinstance(node, DictConfig) or key not in node:
        return NOTHING
    values: Any = OmegaConf.to_container(node, resolve=True)
    text = yaml.safe_dump(portable(values[key]), default_flow_style=True, width=1000)
    return f"`{text.strip().removesuffix('...').strip()}`"


def _linked(source: str) -> str:
    plain = source.replace("paper: ", "").replace("other: ", "")
    return re.sub(r"ours: row (\w+)", r"ours ([row \1](../method/deviations.md))", plain)
