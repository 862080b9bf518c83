"""Runs as they lie under results/ (results/README.md), checked as they are read."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.looks import styles
from rtpo.core.names import nearest
from rtpo.errors import DataError
from rtpo.run import archives
from rtpo.run.records import SCHEMA, json_object, read_config, read_manifest, require

MANIFEST_KEYS = (
    "experiment",
    "run",
    "label",
    "algorithm",
    "task",
    "seed",
    "profile",
    "rollout_context",
    "training_context",
    "model",
    "model_sha256",
    "steps",
    "policy_version",
    "wall_seconds",
    "ledger",
    "files",
)
LEDGER_KEYS = ("budget", "rollouts", "generated_tokens", "optimizer_steps", "seconds")
STEP_KEYS = ("step", "rollouts", "generated_tokens", "seconds", "wall_seconds", "success", "updates")
UPDATE_KEYS = ("rows", "trained_turns", "trained_tokens")
TRAINED_KEYS = ("mismatch/kl_k1", "mismatch/context/kl_k1", "zero_advantage")
EVALUATION_KEYS = ("when", "step", "rollouts", "split", "mode", "task", "sample", "grade", "reward")
EPISODE_KEYS = ("grade", "reward", "detail", "termination", "turns", "cut_turns", "generated_tokens", "calls")
"""of an ended episode's line"""
ANSWER_KEYS = (*EVALUATION_KEYS, *EPISODE_KEYS[2:])
PATH_KEYS = ("step", "parent", "start_k", "task", *EPISODE_KEYS)
WHEN = ("before", "during", "after")
MODES = ("sampled", "paper", "greedy")
OWN_SETTINGS = ("seed", "results")
"""settings in which the runs of one label may differ"""
WARM_START = (
    "experiment_name",
    "model",
    "model_sha256",
    "verl.trainer.experiment_name",
    "verl.actor_rollout_ref.model.path",
)
"""those that say where a run started from"""
ADDED = {"evaluation": {"before": True}}
"""settings that runs of earlier versions do not have, and what these did"""
Check = Callable[[str, Mapping[str, Any]], None]
"""raises DataError for a line, given its place"""


@dataclass(frozen=True, eq=False)
class Run:
    """A complete run. `config`, `steps` and `evaluations` hold the files of these names."""

    folder: Path
    manifest: Mapping[str, Any]
    config: Mapping[str, Any]
    steps: list[Mapping[str, Any]]
    evaluations: pd.DataFrame

    @property
    def label(self) -> str:
        return str(self.manifest["label"])

    @property
    def profile(self) -> str:
        return str(self.manifest["profile"])

    @property
    def ledger(self) -> Mapping[str, Any]:
        ledger: Mapping[str, Any] = self.manifest["ledger"]
        return ledger

    @cached_property
    def answers(self) -> list[Mapping[str, Any]]:
        """The lines of `evaluations.jsonl` with all their keys. Raises DataError where they lack ANSWER_KEYS."""
        return read_lines(self.folder / "evaluations.jsonl", self.manifest["files"], ANSWER_KEYS)

    @cached_property
    def paths(self) -> list[Mapping[str, Any]]:
        """The lines of `paths.jsonl`. Raises DataError where the run has no such file, or a line lacks PATH_KEYS."""
        return read_lines(self.folder / "paths.jsonl", self.manifest["files"], PATH_KEYS)

    @cached_property
    def by_question(self) -> Mapping[tuple[str, str], pd.DataFrame]:
        """By when and mode, a row for each step, split and task: how many `samples`, how many `graded`, and the share
        of these with reward 1, `success`, NaN without any."""
        reward = self.evaluations["reward"]
        solved = (reward == 1).astype(float).where(reward.notna())
        grouped = solved.groupby([self.evaluations[key] for key in ("when", "mode", "step", "split", "task")])
        table = pd.DataFrame({"samples": grouped.size(), "graded": grouped.count(), "success": grouped.mean()})
        return {
            (str(when), str(mode)): part.droplevel(["when", "mode"])
            for (when, mode), part in table.groupby(level=["when", "mode"])
        }


@dataclass(frozen=True, eq=False)
class RunGroup:
    """The runs of one configuration, by seed; those of several warm starts by experiment first."""

    label: str
    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        """Any of them, for what they share."""
        return self.runs[0]


def load_runs(results: Path, experiment: str | None = None) -> list[Run]:
    """The complete runs, of one experiment or of all, by experiment and run.

    Raises DataError for a run of another schema, a file changed since the run ended, and a line that is malformed.
    """
    return [load_run(file.parent) for file in archives.find(results, f"{experiment or '*'}/*/manifest.json")]


def incomplete_runs(results: Path, experiment: str | None = None) -> list[Path]:
    """The folders of runs that started and have no manifest."""
    return without_manifest(archives.find(results, f"{experiment or '*'}/*/config.yaml"))


def without_manifest(configs: Iterable[Path]) -> list[Path]:
    """The folders, among those of these files, that have none."""
    return [file.parent for file in configs if not archives.exists(file.with_name("manifest.json"))]


def complete_groups(results: Path, experiment: str) -> list[RunGroup]:
    """The complete runs of an experiment by label. Raises DataError when there are none."""
    runs = load_runs(results, experiment)
    if not runs:
        others = sorted({file.parents[1].name for file in archives.find(results, "*/*/manifest.json")})
        why = f"{results / experiment} holds no complete run"
        if not (incomplete := ", ".join(folder.name for folder in incomplete_runs(results, experiment))):
            raise DataError(f"{why} and none that began: of experiments with some, {nearest(experiment, others)}.")
        raise DataError(
            f"{why} (incomplete: {incomplete}). Finish one by giving its training command again, or choose an "
            f"--experiment that has some ({', '.join(others) or 'there is none'})."
        )
    return by_label(runs)


def by_label(runs: Iterable[Run], own: Collection[str] = OWN_SETTINGS) -> list[RunGroup]:
    """Runs grouped by label, in the order of `analysis.looks`.

    Raises DataError when a label's runs differ in a setting that is not in `own`, or in the model's weights, or when
    two of an experiment share a seed.
    """
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.label].append(run)
    for group in groups.values():
        _check_group(group, own)
    return [RunGroup(label, tuple(sorted(groups[label], key=_place))) for label in styles(groups)]


def over_warm_starts(runs: Iterable[Run], own: Collection[str] = ()) -> list[RunGroup]:
    """Runs of one task grouped by label, an experiment being a warm start. Raises DataError as `by_label` does, but for
    differences in WARM_START between experiments, or in a setting in `own`, and when an experiment has several models.
    """
    runs = list(runs)
    models: dict[str, Run] = {}
    for run in runs:
        first = models.setdefault(str(run.manifest["experiment"]), run)
        if first.manifest["model_sha256"] != run.manifest["model_sha256"]:
            raise DataError(
                f"{first.folder} and {run.folder} started from different weights and lie in one experiment: give each "
                "warm start an experiment of its own."
            )
    return by_label(runs, (*OWN_SETTINGS, *WARM_START, *own))


def _place(run: Run) -> tuple[str, int]:
    return str(run.manifest["experiment"]), int(run.manifest["seed"])


def _check_group(group: list[Run], own: Collection[str]) -> None:
    first, places = group[0], {_place(group[0]): group[0]}
    for run in group[1:]:
        different = "; ".join(_differences(_shared(first), _shared(run), own))
        if different:
            raise DataError(
                f"{first.folder} and {run.folder} have the label {run.label!r} and differ in {different}: give them "
                "different labels or experiments."
            )
        twin = places.setdefault(_place(run), run)
        if twin is not run:
            raise DataError(
                f"{twin.folder} and {run.folder} have the same label and seed {run.manifest['seed']}: delete one."
            )


def _shared(run: Run) -> dict[str, Any]:
    """What the runs of one label have in common, but for their own settings."""
    earlier = {name: {**settings, **run.config.get(name, {})} for name, settings in ADDED.items()}
    return {**run.config, **earlier, "model_sha256": run.manifest["model_sha256"]}


def _differences(one: Any, other: Any, own: Collection[str], path: str = "") -> Iterator[str]:
    if path in own:
        return
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            yield from _differences(one.get(key), other.get(key), own, f"{path}.{key}".lstrip("."))
    elif one != other:
        yield f"{path}, {one!r} and {other!r}"


def load_run(folder: Path) -> Run:
    """A complete run. Raises DataError as `load_runs` does."""
    manifest = _manifest(folder)
    file = folder / "config.yaml"
    config = read_config(file, unchanged(file, manifest["files"]))
    steps = read_lines(folder / "steps.jsonl", manifest["files"], STEP_KEYS, _check_step)
    evaluations = read_lines(folder / "evaluations.jsonl", manifest["files"], EVALUATION_KEYS, _check_evaluation)
    if len(steps) != manifest["steps"]:
        raise DataError(f"{folder / 'steps.jsonl'} has {len(steps)} lines and the manifest {manifest['steps']} steps.")
    if any("mean_reward" not in step for step in steps) and any(
        one["reward"] not in (0, 1, None) for one in evaluations
    ):
        raise DataError(
            f"{folder / 'steps.jsonl'} has lines without mean_reward, of an earlier version, whose success is the mean "
            "reward, and the run has rewards other than 0 and 1: run again."
        )
    return Run(folder, manifest, config, steps, pd.DataFrame(evaluations, columns=pd.Index(EVALUATION_KEYS)))


def is_finished(folder: Path) -> bool:
    """Whether a run has its manifest."""
    return archives.exists(folder / "manifest.json")


def load_begun(folder: Path) -> Run:
    """A run, finished or not: one that is not with the whole lines that it has written, and of its manifest what its
    configuration says. Raises DataError for a folder that is no run's, and for damaged lines."""
    folder = folder.absolute()
    if is_finished(folder):
        return load_run(folder)
    file = folder / "config.yaml"
    if not archives.exists(file):
        raise DataError(archives.no_run(folder))
    config = read_config(file, file.read_bytes())
    require(config, ("algorithm", "seed", "budget", "profile"), f"{file}, which is no run's,")

    def lines(name: str, keys: Collection[str], check: Check) -> list[Mapping[str, Any]]:
        path = folder / name
        written = path.read_bytes() if path.exists() else b""
        return _lines(path, written[: written.rfind(b"\n") + 1], keys, check)

    steps = lines("steps.jsonl", STEP_KEYS, _check_step)
    evaluations = lines("evaluations.jsonl", EVALUATION_KEYS, _check_evaluation)
    # one may be written before the line of its step
    evaluations = [line for line in evaluations if line["step"] <= len(steps)]
    manifest = {"experiment": folder.parent.name, "label": config["algorithm"]["label"], "seed": config["seed"]}
    manifest["profile"] = config["profile"]["name"]
    return Run(folder, manifest, config, steps, pd.DataFrame(evaluations, columns=pd.Index(EVALUATION_KEYS)))


def read_lines(
    path: Path, checksums: Mapping[str, str], keys: Collection[str], check: Check = lambda place, line: None
) -> list[Mapping[str, Any]]:
    """The lines of a file that is as its manifest's checksum says, each with `keys` and passing `check`.

    Raises DataError for another file, and for damaged lines: the first is named, all are counted.
    """
    return _lines(path, unchanged(path, checksums), keys, check)


def _lines(path: Path, data: bytes, keys: Collection[str], check: Check) -> list[Mapping[str, Any]]:
    lines: list[Mapping[str, Any]] = []
    damaged: list[str] = []
    text = data.splitlines()
    for number, given in enumerate(text, start=1):
        place = f"{path} line {number}"
        try:
            line = json_object(given, place, keys)
            check(place, line)
            lines.append(line)
        except DataError as error:
            damaged.append(str(error))
    if damaged:
        count = "" if len(damaged) == 1 else f" {len(damaged)} of the {len(text)} lines are damaged."
        raise DataError(damaged[0] + count)
    return lines


def _manifest(folder: Path) -> Mapping[str, Any]:
    path = folder / "manifest.json"
    manifest = read_manifest(path, SCHEMA, MANIFEST_KEYS)
    require(manifest["ledger"], LEDGER_KEYS, f"{path}, ledger")
    for name, place in (("experiment", folder.parent), ("run", folder)):
        if manifest[name] != place.name:
            raise DataError(
                f"{path} says {name} {manifest[name]!r} and lies in {place.name!r}: move the run back to its folder."
            )
    return manifest


def unchanged(path: Path, checksums: Mapping[str, str]) -> bytes:
    """A file, packed or not, that is as its manifest's checksum says. Raises DataError for another."""
    require(checksums, (path.name,), f"{path.parent / 'manifest.json'}, files")
    if not archives.exists(path):
        raise DataError(f"{path} is missing: restore it, or run again.")
    data = archives.read(path)
    if hashlib.sha256(data).hexdigest() != checksums[path.name]:
        raise DataError(
            f"{path} is not the file the run left: its sha256 differs from the manifest's. Restore it, or run again."
        )
    return data


def _check_step(place: str, line: Mapping[str, Any]) -> None:
    for number, update in enumerate(line["updates"]):
        require(update, UPDATE_KEYS, f"{place}, updates[{number}]")
        if update["rows"]:
            require(update, TRAINED_KEYS, f"{place}, updates[{number}]")


def _check_evaluation(place: str, line: Mapping[str, Any]) -> None:
    for key, known in (("when", WHEN), ("mode", MODES)):
        if line[key] not in known:
            raise DataError(f"{place} has {key} {line[key]!r}: no such value; there are {', '.join(known)}.")
    if (line["reward"] is not None) != (line["grade"] == "graded"):
        raise DataError(f"{place}: reward {line['reward']!r} does not go with grade {line['grade']!r}.")
