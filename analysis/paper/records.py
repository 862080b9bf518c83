"""What our records have for the cells of the paper's tables: the complete runs of a profile with their evaluations, and
the settings that a run would have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml

from analysis.evaluation import (
    HELD_OUT,
    Evaluation,
    Sample,
    check_alike,
    decoded,
    first_paths,
    graded,
    held_out,
    incomplete_evaluations,
    load_evaluation,
    part,
)
from analysis.paper.estimates import Cells, Estimate, estimate, exact
from analysis.paper.quantities import QUANTITIES, RUN_QUANTITIES, by_order, cells_of, run_cells, seeds_of
from analysis.paper.reproduction import Source, load_reproduction
from analysis.records import Run, RunGroup, by_label, incomplete_runs, load_runs
from analysis.tables import NOT_RUN
from rtpo.data.registry import REGISTRY
from rtpo.errors import DataError
from rtpo.run import archives
from rtpo.run.composition import composed
from rtpo.run.config import PROJECT, RunConfig
from rtpo.run.experiments import load_experiment, outline, read_launch
from rtpo.run.records import SAFE_LOADER

PARTS = 5
NOT_MEASURED = "not measured"
AIRLINE = "airline"
"""role of the tasks whose user is a served model"""
SHORT_ANSWERS = ("f1", "span_f1", "hit_rate")
QUESTIONS, PROMPTS = "questions", "prompts"
"""kinds of what is drawn beside seeds"""
SCALE = ("budget.rollouts", "budget.seconds", "model.name")
"""settings of a run of the experiment's own scale"""
SERVER = ("task.settings.server.base_url=http://127.0.0.1:8000/v1", "task.settings.server.model=any")
"""which user's model serves is no part of an airline run's scale, and must be said to compose one"""


@dataclass(frozen=True)
class Missing:
    """Why a cell has no number: NOT_RUN, or NOT_MEASURED with its reason."""

    kind: str
    why: str = ""


Outcome = Estimate | Missing


@dataclass(frozen=True, eq=False)
class Condition:
    """The runs of results/<experiment>_<profile>_<task>/. incomplete: folders that started."""

    folder: Path
    task: str
    groups: Mapping[str, RunGroup]
    incomplete: tuple[Path, ...]

    @cached_property
    def evaluations(self) -> Mapping[str, Mapping[tuple[str, int], Evaluation]]:
        """The complete ones of complete runs' final policies, by benchmark, then label and seed. Raises DataError where
        two on one benchmark were not made alike."""
        found: dict[str, dict[tuple[str, int], Evaluation]] = {}
        for run, one in self._complete:
            if _is_final(run, one):
                found.setdefault(one.folder.name, {})[run.label, int(run.manifest["seed"])] = one
        for of_benchmark in found.values():
            check_alike(list(of_benchmark.values()))
        return found

    @cached_property
    def _complete(self) -> list[tuple[Run, Evaluation]]:
        """Complete evaluations of complete runs. Raises DataError for one of another run."""
        found = []
        for group in self.groups.values():
            for run in group.runs:
                for file in archives.find(run.folder, "*/manifest.json"):
                    one = load_evaluation(file.parent)
                    made_of = one.manifest["checkpoint"].get("run")
                    if made_of != f"{self.folder.name}/{run.folder.name}":
                        raise DataError(
                            f"{file} is an evaluation of {made_of!r}, not of the run whose folder it lies in: move it."
                        )
                    found.append((run, one))
        return found

    @property
    def left_out(self) -> list[str]:
        """Runs and evaluations that are not complete, evaluations that a run lacks and another of its label has, and
        those of a policy before the last."""
        folders = list(self.incomplete)
        there = {one.folder for _, one in self._complete}
        for group in self.groups.values():
            runs = [run.folder for run in group.runs]
            names = {folder.name for folder in there if folder.parent in runs}
            for run in runs:
                lacking = {run / name for name in names} - there
                folders += sorted(lacking | set(incomplete_evaluations(run)))
        told = dict.fromkeys(folders, "")
        told |= {one.folder: " (not of the trained policy)" for run, one in self._complete if not _is_final(run, one)}
        return [folder.relative_to(self.folder.parent).as_posix() + why for folder, why in told.items()]


def _is_final(run: Run, one: Evaluation) -> bool:
    return bool(one.manifest["checkpoint"]["policy_version"] == run.manifest["policy_version"])


class Records:
    """The complete runs of a profile under results/, read once."""

    def __init__(self, results: Path, profile: str) -> None:
        self.results, self.profile = results, profile
        self._conditions: dict[tuple[str, str], Condition | None] = {}
        self._samples: dict[Any, list[Sample]] = {}
        self._estimates: dict[Source, Outcome] = {}

    def started(self, experiments: Sequence[str], file: str = "config.yaml") -> bool:
        """Whether a run of one of the experiments has the file, which every run begins with."""
        return any(archives.find(self.results, f"{name}_{self.profile}_*/*/{file}") for name in experiments)

    def condition(self, experiment: str, role: str) -> Condition | None:
        """The runs of an experiment on the task that stands for a role in the paper; None where none was started."""
        key = (experiment, role)
        if key not in self._conditions:
            self._conditions[key] = self._load(*key) if self.started([experiment]) else None
        return self._conditions[key]

    def _load(self, experiment: str, role: str) -> Condition:
        task = stand_ins(self.profile)[role]
        name = f"{experiment}_{self.profile}_{task}"
        runs = load_runs(self.results, name)
        for run in runs:
            for key, wanted in (("profile", self.profile), ("task", task)):
                if run.manifest[key] != wanted:
                    raise DataError(
                        f"{run.folder / 'manifest.json'} says {key} {run.manifest[key]!r} and lies in {name!r}, which "
                        f"is for {wanted!r}: run it again with another experiment_name, and delete it here."
                    )
        groups = {group.label: group for group in by_label(runs)}
        return Condition(self.results / name, task, groups, tuple(incomplete_runs(self.results, name)))

    def outcome(self, source: Source) -> Outcome:
        """What a source gives; not for a formula."""
        key = replace(source, names=None, not_compared=None, title=None)
        if key not in self._estimates:
            self._estimates[key] = self._outcome(source)
        return self._estimates[key]

    def _outcome(self, source: Source) -> Outcome:
        if source.not_measured:
            return Missing(NOT_MEASURED, source.not_measured)
        if source.setting:
            return _setting(source, self.profile)
        found = self._cells(source)
        if isinstance(found, Missing):
            return found
        cells, decoding = found
        number, quantity = estimate(cells), QUANTITIES.get(source.quantity or "")
        certain = quantity is not None and quantity.certain
        return exact(number.value) if certain else replace(number, decoding=decoding)

    def _cells(self, source: Source) -> tuple[Cells, tuple[str, ...]] | Missing:
        """What a quantity is a ratio of, over the complete runs of its label, and how its episodes were decoded."""
        condition, group = self._group(source)
        if condition is None or group is None:
            return Missing(NOT_RUN)
        if source.quantity in RUN_QUANTITIES:
            return run_cells(RUN_QUANTITIES[str(source.quantity)], group.runs), ()
        quantity, seeds = QUANTITIES[str(source.quantity)], seeds_of(group.runs)
        if source.benchmark:
            found = condition.evaluations.get(source.benchmark, {})
            made = {seed: one for (label, seed), one in found.items() if label == source.label}
            runs = [self._read(one.folder, lambda one=one: one.samples) for one in made.values()]
            chosen = [[one for one in run if _is_of(one, source.where)] for run in runs]
            if runs and not any(chosen):
                wanted = ", ".join(f"{key} {value}" for key, value in source.where)
                raise DataError(f"{next(iter(made.values())).folder} has no question of {wanted}: evaluate again.")
            units = " ".join([QUESTIONS, source.benchmark, *(value for _, value in source.where)])
            decoding = tuple(dict.fromkeys(decoded(one.manifest["decoding"]) for one in made.values()))
            return (cells_of(quantity, chosen, tuple(made), units), decoding) if runs else Missing(NOT_RUN)
        read = first_paths if source.episodes == "first_paths" else held_out
        runs = [self._read((source.episodes, run.folder), lambda run=run: read(run)) for run in group.runs]
        if not any(runs):
            return Missing(NOT_RUN)
        if read is held_out:
            return cells_of(quantity, runs, seeds, f"{QUESTIONS} {condition.task} held out"), (HELD_OUT,)
        ungraded = sum(len(run) - len(graded(run)) for run in runs)
        chosen = [by_order(part(run, int(source.part), PARTS) if source.part else run) for run in runs]
        cells = cells_of(quantity, chosen, seeds, f"{PROMPTS} {condition.task} {source.part or ''}")
        decoding = (f"{decoded(group.first.config['sampling'])}, in training",)
        return replace(cells, ungraded=ungraded), decoding

    def _read(self, key: Any, read: Any) -> list[Sample]:
        if key not in self._samples:
            self._samples[key] = read()
        return self._samples[key]

    def shortfall(self, source: Source) -> str | None:
        """In what the runs of a quantity, or their questions, are not of the experiment's scale; None in nothing."""
        condition, group = self._group(source)
        if source.quantity is None or condition is None or group is None:
            return None
        planned = _planned(str(source.experiment), self.profile, str(source.task))
        for path in SCALE:
            ours, wanted = _walk(group.first.config, path), _walk(planned, path)
            if ours != wanted:
                return f"{path} of {condition.folder.name}/{group.label} is {ours} and the experiment's {wanted}"
        if source.benchmark:
            evaluations = condition.evaluations.get(source.benchmark, {}).values()
            counts = [int(one.manifest["panel"]["questions"]) for one in evaluations]
            whole = _panel_size(source.benchmark)
        elif source.episodes == "held_out" and planned.task.held_out.count is not None:
            runs = [self._read((source.episodes, run.folder), lambda run=run: held_out(run)) for run in group.runs]
            counts = [len({one.unit for one in run}) for run in runs]
            whole = planned.task.held_out.count
        else:
            return None
        short = [count for count in counts if count != whole]
        return f"{short[0]:,} of {whole:,} questions of {source.benchmark or condition.task}" if short else None

    def _group(self, source: Source) -> tuple[Condition | None, RunGroup | None]:
        condition = self.condition(str(source.experiment), str(source.task))
        return condition, condition.groups.get(str(source.label)) if condition else None


def _is_of(one: Sample, where: Sequence[tuple[str, str]]) -> bool:
    meta = one.meta or {}
    return all(str(meta.get(key)) == value for key, value in where)


@cache
def stand_ins(profile: str) -> Mapping[str, str]:
    """The tasks of a profile by their role in the paper. Raises ConfigError."""
    return read_launch(composed("train", [f"profile={profile}"])).tasks


def stand_in(source: Source, profile: str) -> Source:
    """The source with the benchmark that stands for its own with a profile, and accuracy where a toy one has no scores
    of short answers. Raises DataError."""
    task = stand_ins(profile)[str(source.task)] if source.benchmark else ""
    if not task or task == stand_ins(load_reproduction().profile)[str(source.task)]:
        return source
    there = _benchmarks(str(source.experiment), profile).get(task, ())
    if source.benchmark in there:
        return source
    if len(there) != 1:
        raise DataError(
            f"configs/experiment/{source.experiment}.yaml evaluates {task} on {len(there)} benchmarks "
            f"and none is {source.benchmark}: leave one, which stands in for it, or name it."
        )
    lacks = source.quantity in SHORT_ANSWERS and there[0].startswith("toy_")
    return replace(source, benchmark=there[0], quantity="pass_at_1" if lacks else source.quantity)


@cache
def _benchmarks(experiment: str, profile: str) -> Mapping[str, Sequence[str]]:
    """What an experiment evaluates on, by task."""
    return outline(experiment, [f"profile={profile}"]).launch.benchmarks


@cache
def _panel_size(benchmark: str) -> int:
    """Questions of a whole benchmark: as many as its configuration asks for, or all rows of its set."""
    count = _yaml(f"benchmarks/{benchmark}.yaml")["held_out"].get("count")
    return REGISTRY[benchmark].rows if count is None else int(count)


def _yaml(file: str) -> Any:
    return yaml.load((PROJECT / "configs" / file).read_text(encoding="utf-8"), Loader=SAFE_LOADER)


# the configurations that the launchers would run


@cache
def _planned(experiment: str, profile: str, role: str) -> RunConfig:
    """Of an experiment's runs the first: all have one scale."""
    first = outline(experiment, [f"profile={profile}"]).sweep["algorithm"][0]
    return _elements(experiment, profile, role, (first,))[first]


@cache
def _elements(experiment: str, profile: str, role: str, labels: tuple[str, ...]) -> Mapping[str, RunConfig]:
    task = stand_ins(profile)[role]
    server = SERVER if role == AIRLINE else ()
    chosen = [f"profile={profile}", f"task={task}", "seed=0", f"algorithm={','.join(labels)}", *server]
    return {one.run.label: one.run for one in load_experiment(experiment, chosen).elements}


def _setting(source: Source, profile: str) -> Outcome:
    path = str(source.setting)
    if path.startswith("evaluate."):
        return exact(float(_walk(_yaml("evaluate.yaml"), path.removeprefix("evaluate."))))
    # all that the tables ask of one experiment and role, so that it is composed once
    sources = [cell.source for plan in load_reproduction().tables.values() for cell in plan.cells]
    place = (source.experiment, source.task)
    labels = {str(one.label) for one in sources if one.setting and (one.experiment, one.task) == place}
    run = _elements(str(source.experiment), profile, str(source.task), tuple(sorted(labels)))[str(source.label)]
    if path == "rollouts_per_prompt":
        return exact(run.descriptor.rollouts_per_task(run.algorithm_config, run.task.max_turns))
    value = _walk(run, path)
    return Missing(NOT_MEASURED, "the setting is off") if value is None else exact(float(value))


def _walk(tree: Any, path: str) -> Any:
    for name in path.split("."):
        tree = tree[name] if isinstance(tree, Mapping) else getattr(tree, name)
    return tree
