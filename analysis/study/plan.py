"""A study: which runs its plan asks for, where their records are, and at which learning rate each run trains.

`analysis.study.plan_file` says what a plan holds.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import isnan, nan, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import pandas as pd

from analysis.load import load_run, read_parquet
from analysis.study.plan_file import CORE, GATE, RATES, Configuration, Part, Place, Search, StudyTask, load_plan
from rtpo.core.files import write_whole
from rtpo.core.names import nearest
from rtpo.errors import ConfigError, DataError
from rtpo.run.beside import check_place
from rtpo.run.cli import composed
from rtpo.run.config import PROJECT, RunConfig, compose_run
from rtpo.run.kept import is_kept
from rtpo.run.records import RunFolder

STUDIES = PROJECT / "configs" / "study"
RATES_FILE = "learning_rates.json"


@dataclass(frozen=True)
class StudyRun:
    """A run of a study, without its learning rate."""

    task: str  # as the plan names it
    experiment: str
    """the folder around the run's own: [rates_|gate_][TASK_]WARM_START; TASK is there if the plan defines the task"""
    label: str  # the configuration's; in the search with the rate
    seed: int
    configuration: Configuration
    settings: tuple[str, ...]  # its Hydra overrides

    def __str__(self) -> str:
        return f"{self.experiment}/{self.label}-seed{self.seed}"


PlannedRun = tuple[StudyRun, float | None]
"""a run with its learning rate, or None before one is chosen"""


class RunSuccess(NamedTuple):
    """Mean success of a run before and after training."""

    before: float  # NaN without an evaluation
    after: float  # NaN until the run is finished


class Choice(NamedTuple):
    """The state of a search for a learning rate."""

    tried: tuple[float, ...]  # from the lowest
    best: float | None  # None until all runs at these rates are finished


def standard_error(values: Sequence[float]) -> float:
    """The standard error of the mean; 0 of a single value."""
    return stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0


def load_study(name: str, results: Path | None = None) -> "Study":
    """The study of configs/study/<name>.yaml, with its records in results/<name>/. results: another folder, for the
    records of a repetition. The repetition uses the learning rates in results/<name>/. Raises ConfigError for an
    unknown name."""
    names = sorted(path.stem for path in STUDIES.glob("*.yaml"))
    if name not in names:
        raise ConfigError(f"{name!r} is no study of configs/study/: {nearest(name, names)}.")
    own = PROJECT / "results" / name
    return Study(STUDIES / f"{name}.yaml", own if results is None else results, own / RATES_FILE)


class Study:
    """A plan with the folder of its records. rates: the file of its chosen learning rates, by default in that folder.
    Raises as `load_plan` does."""

    def __init__(self, file: Path, results: Path, rates: Path | None = None) -> None:
        self.name, self.results = file.stem, results
        self._plan = load_plan(file)
        self._rates_file = rates or results / RATES_FILE
        self._successes: dict[str, RunSuccess] = {}
        self._configs: dict[tuple[StudyRun, float], RunConfig] = {}
        self.decoding = self._plan.decoding
        self.compared_parts = tuple(self._plan.parts)
        """the parts after the search for rates, in the order of the file"""
        self.parts = (RATES, *([GATE] if self._plan.gate else []), *self.compared_parts)

    def planned(self, part: str) -> Iterator[PlannedRun]:
        """The runs of a part in the order in which they are trained: all configurations at one place, then at the
        next. The part `rates` has the runs of `search`, and `gate` those of the gate's configuration."""
        if part in (RATES, GATE):
            yield from self.search() if part == RATES else self._gate()
            return
        rates, compared = self._rates(), self._plan.parts[part]
        for place, configuration in product(self._places(compared), compared.configurations):
            run = self._study_run(place, configuration, configuration.label)
            yield run, rates.get(place.task, {}).get(configuration.rate_from or configuration.label)

    def _places(self, part: Part) -> Sequence[Place]:
        """The places of a part. Without a list of them: each seed on each warm start. The first round then pairs each
        seed with one warm start, in rotation, and later rounds add the remaining pairs."""
        pairs = sorted(
            product(part.seeds, range(part.warm_starts)),
            key=lambda pair: ((pair[0] + pair[1]) % part.warm_starts, pair[0]),
        )
        return part.places or [
            Place(task, self.warm_starts(task)[number], seed) for seed, number in pairs for task in part.tasks
        ]

    def _study_run(self, place: Place, configuration: Configuration, label: str, part: str = "") -> StudyRun:
        """part: RATES or GATE, whose runs have folders and settings of their own."""
        task, warm_start = self._task(place.task), place.warm_start
        base = task.task
        experiment = warm_start if base == place.task else f"{place.task}_{warm_start}"
        settings = (
            f"algorithm={configuration.algorithm}",
            f"task={base}",
            # the file of configs/task/ sets the task's first warm start
            *([f"model={warm_start}"] if warm_start != base else []),
            *self._plan.settings,
            *task.settings,
            *configuration.settings,
            *(self._plan.rates.settings if part else ()),
            *(self._plan.gate.settings if self._plan.gate and part == GATE else ()),
        )
        where = f"{part}_{experiment}" if part else experiment
        return StudyRun(place.task, where, label, place.seed, configuration, settings)

    def folder(self, run: StudyRun) -> RunFolder:
        return RunFolder(self.results / str(run))

    def is_finished(self, run: StudyRun) -> bool:
        return str(run) in self._kept.index or self.folder(run).is_finished

    def config(self, run: StudyRun, rate: float) -> RunConfig:
        """All settings of a run at a learning rate, as `train` takes them. They are composed once."""
        if (run, rate) not in self._configs:
            self._configs[run, rate] = self._composed(run, rate)
        return self._configs[run, rate]

    def _composed(self, run: StudyRun, rate: float) -> RunConfig:
        overrides = [
            f"seed={run.seed}",
            f"results={self.results}",
            f"experiment_name={run.experiment}",
            f"algorithm.label={run.label}",
            f"optimizer.lr={rate:g}",
            *run.settings,
        ]
        return compose_run(composed("train", overrides))

    def configs(self, task: str, label: str) -> list[RunConfig]:
        """The `config` of one run on each warm start, sorted by the warm start's folder. Raises DataError without a
        learning rate, or if no part compares this label on this task."""
        by_start: dict[str, tuple[StudyRun, float | None]] = {}
        for run, rate in (each for part in self.compared_parts for each in self.planned(part)):
            if (run.task, run.label) == (task, label):
                by_start.setdefault(run.experiment, (run, rate))
        if not by_start:
            raise DataError(f"{label} on {task}: no part of {self.name} has it.")
        if None in {rate for _, rate in by_start.values()}:
            raise DataError(f"{label} on {task} has no learning rate yet: run the parts rates and freeze first.")
        return [self.config(run, rate) for _, (run, rate) in sorted(by_start.items()) if rate is not None]

    def warm_starts(self, task: str) -> tuple[str, ...]:
        """The names of a task's warm starts in the plan."""
        return self._plan.warm_starts[self._task(task).task]

    # the search for learning rates

    def search(self) -> Iterator[tuple[StudyRun, float]]:
        """The runs of the search with their rates, by task of configs/task/ and then by seed."""
        runs = [
            (run, rate)
            for task, label in self.searches()
            for rate in self.choice(task, label).tried
            for run in self._runs_at(task, label, rate)
        ]
        yield from sorted(runs, key=lambda planned: (self._task(planned[0].task).task, planned[0].seed))

    def choice(self, task: str, label: str) -> Choice:
        """The state of the search for one configuration. It begins with the rates of `begin`. As long as the rule's
        rate, or the rate with the highest mean, is the lowest or highest tried, the search also tries the next rate of
        the grid on that side."""
        grid, tried = self._plan.rates.grid, self._plan.rates.begin
        low, high = grid.index(tried[0]), grid.index(tried[-1])
        while True:
            tried = grid[low : high + 1]
            runs = {rate: self._searched(task, label, rate) for rate in tried}
            if any(isnan(run.after) for rate in tried for run in runs[rate]):
                return Choice(tried, None)
            highest, best = (self.best_of(runs, rule) for rule in ("best", self._plan.rates.rule))
            if tried[0] in (highest, best) and low > 0:
                low -= 1
            elif tried[-1] in (highest, best) and high < len(grid) - 1:
                high += 1
            else:
                return Choice(tried, best)

    @staticmethod
    def best_of(runs: Mapping[float, Sequence[RunSuccess]], rule: str) -> float:
        """The best rate. runs: by rate, from the lowest.

        Rule `best`: the rate with the highest mean after training; the lowest if several have it. Rule `steady`: leave
        out rates at which a run lost success, unless all rates have such a run. Take the lowest rate whose mean is
        within one standard error of the highest. The standard error is that of the highest mean.
        """
        means = {rate: fmean(run.after for run in each) for rate, each in runs.items()}
        if rule == "best":
            return max(means, key=means.__getitem__)
        steady = [rate for rate, each in runs.items() if not any(run.after < run.before for run in each)] or [*runs]
        highest = max(steady, key=means.__getitem__)
        error = standard_error([run.after for run in runs[highest]])
        return next(rate for rate in steady if means[rate] >= means[highest] - error)

    def search_success(self, task: str, label: str) -> dict[float, RunSuccess]:
        """Mean success in the search by rate, for the rates tried."""
        means = {}
        for rate in self.choice(task, label).tried:
            runs = self._searched(task, label, rate)
            means[rate] = RunSuccess(fmean(run.before for run in runs), fmean(run.after for run in runs))
        return means

    def gains_nothing(self, task: str, label: str, rate: float) -> bool:
        """Whether the mean gain of a finished search at a rate is at most one standard error above 0. False without
        evaluations before training."""
        gains = [run.after - run.before for run in self._searched(task, label, rate)]
        return not any(map(isnan, gains)) and fmean(gains) <= standard_error(gains)

    def rollout_ratio(self, task: str, label: str) -> float:
        """The rollouts of a configuration's run in the test divided by those of its run in the search. Raises DataError
        before its learning rate is chosen."""
        (searched, *_) = self._runs_at(task, label, self.rate_of(task, label))
        search, (test, *_) = self.config(searched, self.rate_of(task, label)), self.configs(task, label)
        return test.budget.rollouts / search.budget.rollouts

    def rate_of(self, task: str, label: str) -> float:
        """The chosen rate of a configuration. Raises DataError before a rate is chosen."""
        searched = next((each.rate_from for each in self._plan.configurations if each.label == label), None) or label
        rate = self._rates().get(task, {}).get(searched)
        if rate is None:
            raise DataError(f"{label} on {task} has no learning rate yet: run the parts rates and freeze first.")
        return rate

    def freeze(self) -> None:
        """Write the learning rate that each finished search chose (`choice`).

        Raises DataError before writing if the gate is closed, or if a rate already written would change. Raises
        DataError after writing all other rates if a best rate is an end of the grid. The lowest is written if nothing
        was gained at it (`gains_nothing`), since a method that gains nothing loses less at every lower rate.
        """
        self._check_gate()
        chosen, refused = self._rates(), []
        for task, label in self.searches():
            tried, best = self.choice(task, label)
            if best is None:
                continue
            if best == tried[-1] or (best == tried[0] and not self.gains_nothing(task, label, best)):
                refused.append(f"{task}/{label} at {best:g}")
            elif (written := chosen.setdefault(task, {}).setdefault(label, best)) != best:
                raise DataError(
                    f"{self._rates_file} has {written:g} for {label} on {task} and the records now say {best:g}: runs "
                    f"may have used {written:g}. Restore the records, or delete the file and those runs."
                )
        if not chosen and not refused:
            raise DataError("no configuration has run at every rate yet: run the part rates first.")
        write_whole(self._rates_file, (json.dumps(chosen, indent=1, sort_keys=True) + "\n").encode())
        if refused:
            raise DataError(
                f"the best rate is an end of the grid for {', '.join(refused)}, and was not written: add a rate beyond "
                "it to rates.grid of the plan."
            )

    def _gate(self) -> Iterator[PlannedRun]:
        """The runs of the gate's configuration, at the rate that its search has chosen."""
        if (gate := self._plan.gate) is None:
            return
        for place in gate.places:
            run = self._study_run(place, self._planned_as(gate.configuration), gate.configuration, GATE)
            yield run, self.choice(place.task, gate.configuration).best

    def _check_gate(self) -> None:
        """Raises DataError unless the gate's configuration has gained enough in its runs."""
        if (gate := self._plan.gate) is None:
            return
        for run, rate in self._gate():
            if rate is not None and self.is_finished(run):
                check_place(self.config(run, rate))  # it was trained at this rate
        runs = [self._success_of(run) for run, _ in self._gate()]
        if any(isnan(run.after) for run in runs):
            raise DataError(f"the gate needs its runs of {gate.configuration}: run the parts rates and gate first.")
        if not (gain := fmean(run.after - run.before for run in runs)) >= gate.least:
            raise DataError(
                f"the gate is closed: {gate.configuration} gains {100 * gain:.1f} points, and {100 * gate.least:g} are "
                "needed. Nothing was written: plan other tasks or warm starts."
            )

    def _rates(self) -> dict[str, dict[str, float]]:
        """The rates that `freeze` chose, by task and configuration."""
        return json.loads(self._rates_file.read_text()) if self._rates_file.exists() else {}

    def searches(self) -> list[tuple[str, str]]:
        """The searches, as pairs (task, label). A configuration with `rate_from` has none."""
        return [(task, each.label) for task, each in self.configurations() if each.rate_from is None]

    def configurations(self) -> list[tuple[str, Configuration]]:
        """All configurations with each of their tasks. Those of the part `core` come first."""
        ordered = sorted(self._plan.parts.items(), key=lambda item: item[0] != CORE)
        parts: list[Part | Search] = [*(part for _, part in ordered), self._plan.rates]
        first: dict[tuple[str, str], tuple[str, Configuration]] = {}
        for part in parts:
            for each, task in product(part.configurations, part.tasks):
                first.setdefault((task, each.label), (task, each))
        return list(first.values())

    def _runs_at(self, task: str, label: str, rate: float) -> list[StudyRun]:
        """The runs of a configuration's search at one rate."""
        rates = self._plan.rates
        places = rates.places.get(task) or [
            Place(task, self._plan.warm_starts[self._task(task).task][0], seed) for seed in rates.seeds
        ]
        configuration = self._planned_as(label)
        return [self._study_run(place, configuration, f"{label}_lr{rate:g}", RATES) for place in places]

    def _planned_as(self, label: str) -> Configuration:
        """The configuration that first has this label in the plan."""
        return next((each for each in self._plan.configurations if each.label == label), Configuration(label, label))

    def _searched(self, task: str, label: str, rate: float) -> list[RunSuccess]:
        return [self._success_of(run) for run in self._runs_at(task, label, rate)]

    def _success_of(self, run: StudyRun) -> RunSuccess:
        """A run's mean success at the study's decoding."""
        name, folder = str(run), self.folder(run).path
        if name not in self._successes and self.is_finished(run):
            frames = read_parquet(self.results) if name in self._kept.index else load_run(folder)
            chosen = frames.questions.query(f"mode == {self.decoding!r}")["success"].groupby(["when", "run"]).mean()
            starts, ends = (chosen.xs(when) if when in chosen.index else pd.Series() for when in ("before", "after"))
            for each, end in ends.items():
                self._successes[str(each)] = RunSuccess(float(starts.get(each, nan)), float(end))
            success = self._successes.get(name, RunSuccess(nan, nan))
            if isnan(success.after) or (isnan(success.before) and self._plan.rates.rule == "steady"):
                evaluation = f"evaluation {self.decoding!r} {'after' if isnan(success.after) else 'before'} training"
                raise DataError(f"{folder} has no {evaluation}: rates are chosen by it.")
        return self._successes.get(name, RunSuccess(nan, nan))

    @cached_property
    def _kept(self) -> pd.DataFrame:
        """The runs that are kept as Parquet, by name."""
        return read_parquet(self.results).runs.set_index("run") if is_kept(self.results) else pd.DataFrame()

    def _task(self, name: str) -> StudyTask:
        """A task of the plan, or of configs/task/ where the plan does not define one of this name."""
        return self._plan.tasks.get(name, StudyTask(name))
