"""What our records have for the cells of the paper's tables: the complete runs of a profile with their evaluations, and
the settings that a run would have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml

from analysis.evaluation import (
    Evaluation,
    Sample,
    check_alike,
    first_paths,
    graded,
    held_out,
    incomplete_evaluations,
    load_evaluation,
    part,
)
from analysis.paper.estimates import Cells, Estimate, estimate, exact
from analysis.paper.quantities import (
    QUANTITIES,
    RUN_QUANTITIES,
    Quantity,
    cells_in_order,
    cells_of,
    run_cells,
    seeds_of,
)
from analysis.paper.reproduction import Source, load_reproduction
from analysis.records import Run, RunGroup, by_label, incomplete_runs, load_runs
from analysis.tables import NOT_RUN
from rtpo.data.registry import REGISTRY
from rtpo.errors import DataError
from rtpo.run import archives
from rtpo.run.composition import composed
from rtpo.run.config import PROJECT, RunConfig
from rtpo.run.experiments import Element, load_experiment, outline, read_launch
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


Outcome = Estimate | str | Missing


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
        """Incomplete runs and evaluations, and evaluations that a complete run lacks and another of its label has."""
        folders = list(self.incomplete)
        there = {one.folder for _, one in self._complete}
        for group in self.groups.values():
            runs = [run.folder for run in group.runs]
            names = {folder.name for folder in there if folder.parent in runs}
            for run in runs:
                lacking = {run / name for name in names} - there
                folders += sorted(lacking | set(incomplete_evaluations(run)))
        return [self._place(folder) for folder in folders]

    @property
    def not_final(self) -> list[str]:
        """Evaluations of a run's policy before its last."""
        return [
            f"{self._place(one.folder)} (version {one.manifest['checkpoint']['policy_version']} of "
            f"{run.manifest['policy_version']})"
            for run, one in self._complete
            if not _is_final(run, one)
        ]

    def _place(self, folder: Path) -> str:
        return folder.relative_to(self.folder.parent).as_posix()


def _is_final(run: Run, one: Evaluation) -> bool:
    return bool(one.manifest["checkpoint"]["policy_version"] == run.manifest["policy_version"])


class Records:
    """The complete runs of a profile under results/, read once."""

    def __init__(self, results: Path, profile: str) -> None:
        self.results, self.profile = results, profile
        self._conditions: dict[tuple[str, str], Condition | None] = {}
        self._samples: dict[Any, Any] = {}
        self._estimates: dict[Source, Outcome] = {}

    def has_runs(self, experiments: Sequence[str]) -> bool:
        """Whether there is a complete run of one of the experiments."""
        return any(
            archives.find(self.results, f"{experiment}_{self.profile}_*/*/manifest.json") for experiment in experiments
        )

    def started(self, experiment: str) -> bool:
        return bool(archives.find(self.results, f"{experiment}_{self.profile}_*/*/config.yaml"))

    def condition(self, experiment: str, role: str) -> Condition | None:
        """The runs of an experiment on the task that stands for a role in the paper; None where none was started."""
        key = (experiment, role)
        if key not in self._conditions:
            self._conditions[key] = self._load(*key) if self.started(experiment) else None
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

    def stand_in(self, source: Source) -> Source:
        """The source with the benchmark that stands for its own with this profile. Raises DataError."""
        if source.experiment is None or not self.started(source.experiment):
            return source
        return standing_in(source, stand_in(source, self.profile))

    def cells(self, source: Source) -> Cells | Missing:
        """What a quantity is a ratio of, over the complete runs of its label."""
        condition, group = self._group(source)
        if condition is None or group is None:
            return Missing(NOT_RUN)
        if source.quantity in RUN_QUANTITIES:
            return run_cells(RUN_QUANTITIES[str(source.quantity)], group.runs)
        quantity = QUANTITIES[str(source.quantity)]
        if source.benchmark:
            return self._of_benchmark(condition, source, quantity)
        read = first_paths if source.episodes == "first_paths" else held_out
        runs = [self._read((source.episodes, run.folder), lambda run=run: read(run)) for run in group.runs]
        seeds = seeds_of(group.runs)
        if not any(runs):
            return Missing(NOT_RUN)
        if source.episodes == "first_paths":
            ungraded = sum(len(run) - len(graded(run)) for run in runs)
            chosen = [part(run, source.part, PARTS) if source.part else run for run in runs]
            units = f"{PROMPTS} {condition.task} {source.part or ''}"
            return replace(cells_in_order(quantity, chosen, seeds, units), ungraded=ungraded)
        return cells_of(quantity, runs, seeds, f"{QUESTIONS} {condition.task} held out")

    def _of_benchmark(self, condition: Condition, source: Source, quantity: Quantity) -> Cells | Missing:
        found = condition.evaluations.get(str(source.benchmark), {})
        made = {seed: one for (label, seed), one in found.items() if label == source.label}
        if not made:
            return Missing(NOT_RUN)
        runs = [self._read(one.folder, lambda one=one: one.samples) for one in made.values()]
        chosen = [[one for one in run if _is_of(one, source.where)] for run in runs]
        if not any(chosen):
            wanted = ", ".join(f"{key} {value}" for key, value in source.where)
            raise DataError(f"{next(iter(made.values())).folder} has no question of {wanted}: evaluate again.")
        units = " ".join([QUESTIONS, str(source.benchmark), *(value for _, value in source.where)])
        return cells_of(quantity, chosen, tuple(made), units)

    def _read(self, key: Any, read: Any) -> list[Sample]:
        if key not in self._samples:
            self._samples[key] = read()
        samples: list[Sample] = self._samples[key]
        return samples

    def outcome(self, source: Source) -> Outcome:
        """What a source gives; not for a formula."""
        key = replace(source, benchmark_of=None, not_compared=None, title=None)
        if key not in self._estimates:
            self._estimates[key] = self._outcome(source)
        return self._estimates[key]

    def _outcome(self, source: Source) -> Outcome:
        if source.not_measured:
            return Missing(NOT_MEASURED, source.not_measured)
        if source.evaluate:
            return exact(_evaluation_setting(source.evaluate))
        if source.composed:
            return _composed(source, self.profile)
        if source.setting:
            return self._setting(source)
        cells = self.cells(source)
        if isinstance(cells, Missing):
            return cells
        found = estimate(cells)
        quantity = QUANTITIES.get(source.quantity or "")
        return exact(found.value) if quantity is not None and quantity.certain else found

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

    def _setting(self, source: Source) -> Outcome:
        _, group = self._group(source)
        return Missing(NOT_RUN) if group is None else _setting_value(_walk(group.first.config, str(source.setting)))

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


@cache
def _elements(experiment: str, profile: str, role: str, labels: tuple[str, ...]) -> Mapping[str, Element]:
    task = stand_ins(profile)[role]
    server = SERVER if role == AIRLINE else ()
    chosen = [f"profile={profile}", f"task={task}", "seed=0", f"algorithm={','.join(labels)}", *server]
    return {one.run.label: one for one in load_experiment(experiment, chosen).elements}


@cache
def _planned(experiment: str, profile: str, role: str) -> RunConfig:
    """Of an experiment's runs the first: all have one scale."""
    first = outline(experiment, [f"profile={profile}"]).sweep["algorithm"][0]
    (element,) = _elements(experiment, profile, role, (first,)).values()
    return element.run


def _composed_labels(source: Source) -> tuple[str, ...]:
    """All that the tables ask of one experiment and role, so that it is composed once."""
    plans = load_reproduction().tables.values()
    sources = [cell.source for plan in plans for cell in plan.cells if cell.source.composed]
    same = [one for one in sources if (one.experiment, one.task) == (source.experiment, source.task)]
    return tuple(sorted({str(one.label) for one in same}))


def _composed(source: Source, profile: str) -> Outcome:
    """Of the configuration that the launchers would run."""
    element = _elements(str(source.experiment), profile, str(source.task), _composed_labels(source))[str(source.label)]
    run = element.run
    if isinstance(source.composed, tuple):
        return ", ".join(f"{path.rpartition('.')[2]}={_walk(run, path)}" for path in source.composed)
    if source.composed == "plan":
        return run.descriptor.plan
    if source.composed == "rollouts_per_prompt":
        return exact(run.descriptor.rollouts_per_task(run.algorithm_config, run.task.max_turns))
    return _setting_value(_walk(run, str(source.composed)))


def _setting_value(value: Any) -> Outcome:
    return Missing(NOT_MEASURED, "the setting is off") if value is None else exact(float(value))


def _evaluation_setting(path: str) -> float:
    return float(_walk(_yaml("evaluate.yaml"), path))


def _walk(tree: Any, path: str) -> Any:
    for name in path.split("."):
        tree = tree[name] if isinstance(tree, Mapping) else getattr(tree, name)
    return tree


# tasks and benchmarks that stand in


def standing_in(source: Source, benchmark: str | None) -> Source:
    """With the benchmark that stands in, and accuracy where a toy one has no scores of short answers."""
    quantity = source.quantity
    if benchmark != source.benchmark and quantity in SHORT_ANSWERS and str(benchmark).startswith("toy_"):
        quantity = "pass_at_1"
    return replace(source, benchmark=benchmark, quantity=quantity)


def stand_in(source: Source, profile: str) -> str | None:
    if source.benchmark is None:
        return None
    task = stand_ins(profile)[str(source.task)]
    if task == stand_ins(load_reproduction().profile)[str(source.task)]:
        return source.benchmark
    there = _benchmarks(str(source.experiment), profile).get(task, ())
    if source.benchmark in there:
        return source.benchmark
    if len(there) != 1:
        raise DataError(
            f"configs/experiment/{source.experiment}.yaml evaluates {task} on {len(there)} benchmarks "
            f"and none is {source.benchmark}: leave one, which stands in for it, or name it."
        )
    return there[0]
