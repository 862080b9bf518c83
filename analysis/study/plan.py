"""A study: which runs its plan asks for, where their records are, and at which learning rate each run trains.

`analysis.study.plan_file` says what a plan holds.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import isnan, nan, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import pandas as pd

from analysis.load import find, load_run, read_parquet
from analysis.study.plan_file import COMMON, CORE, RATES, Configuration, Part, Search, SearchRun, StudyTask, load_plan
from rtpo.core.files import write_whole
from rtpo.core.names import nearest
from rtpo.errors import ConfigError, DataError
from rtpo.run.cli import composed
from rtpo.run.config import PROJECT, RunConfig, compose_run
from rtpo.run.kept import is_kept
from rtpo.run.records import RunFolder

STUDIES = PROJECT / "configs" / "study"
RATES_FILE = "learning_rates.json"


@dataclass(frozen=True)
class Place:
    """A run: where its records are, and what it is composed of except its learning rate."""

    task: str  # as the plan names it
    experiment: str  # the folder of its task and warm start
    label: str
    seed: int
    configuration: Configuration
    settings: tuple[str, ...]  # all its Hydra overrides

    def __str__(self) -> str:
        return f"{self.experiment}/{self.label}-seed{self.seed}"


Planned = tuple[Place, float | None]
"""a run with its learning rate, or None before one is chosen"""


class Reached(NamedTuple):
    """Mean success of a run."""

    before: float  # NaN without an evaluation before training
    after: float  # NaN until the run is finished


class Choice(NamedTuple):
    """The state of a search for a learning rate."""

    tried: tuple[float, ...]  # from the lowest
    best: float | None  # None until all runs at these rates are finished


def named(name: str, again: Path | None = None) -> "Study":
    """The study of configs/study/<name>.yaml, with its records in results/<name>/. again: a folder in which it is
    repeated at the learning rates already chosen. Raises ConfigError for an unknown name."""
    names = sorted(path.stem for path in STUDIES.glob("*.yaml"))
    if name not in names:
        raise ConfigError(f"{name!r} is no study of configs/study/: {nearest(name, names)}.")
    own = PROJECT / "results" / name
    return Study(STUDIES / f"{name}.yaml", own if again is None else again, own / RATES_FILE)


class Study:
    """A plan with the folder of its records. rates: the file of its chosen learning rates, by default in that folder.
    Raises as `load_plan` does."""

    def __init__(self, file: Path, results: Path, rates: Path | None = None) -> None:
        self.name, self.results = file.stem, results
        self._plan = load_plan(file)
        self._rates_file = rates or results / RATES_FILE
        self._reached: dict[str, Reached] = {}
        self.decoding = self._plan.decoding
        self.trained = tuple(self._plan.parts)
        """the parts whose runs are compared, in the order of the file"""
        self.parts = (RATES, *self.trained)

    def is_common(self, part: str) -> bool:
        """Whether a part's configurations share one rate on each task."""
        return self._plan.parts[part].rate == COMMON

    def planned(self, part: str) -> Iterator[Planned]:
        """The runs of a part in order: all configurations at one seed and warm start, then at the next. Warm starts
        alternate, so every seed runs once before any seed runs twice.

        A run at the common rate has `_common` in its label. Where the common rate is also its own rate, both parts
        share one run, without `_common`.
        """
        if part == RATES:
            yield from self.search()
            return
        rates, plan = self._rates(), self._plan.parts[part]
        pairs = product(plan.seeds, range(plan.warm_starts))
        for seed, number in sorted(pairs, key=lambda pair: ((pair[0] + pair[1]) % plan.warm_starts, pair[0])):
            for task, configuration in product(plan.tasks, plan.configurations):
                chosen = rates.get(self._task(task).rates_from, {})
                rate, label = chosen.get(configuration.rate_of), configuration.label
                if self.is_common(part) and (rate is None or rate != chosen.get(COMMON)):
                    rate, label = chosen.get(COMMON), f"{label}_{COMMON}"
                warm_start = self._plan.warm_starts[self._task(task).task][number]
                yield self._place(SearchRun(task, warm_start, seed), configuration, label), rate

    def _place(self, run: SearchRun, configuration: Configuration, label: str, is_search: bool = False) -> Place:
        own, warm_start = self._task(run.task), run.warm_start
        base = own.task
        experiment = warm_start if base == run.task else f"{run.task}_{warm_start}"
        settings = (
            f"algorithm={configuration.algorithm}",
            f"task={base}",
            *([f"model={warm_start}"] if warm_start != base else []),  # a task names its first warm start itself
            *self._plan.settings,
            *own.settings,
            *configuration.settings,
            *(self._plan.rates.settings if is_search else ()),
        )
        where = f"{RATES}_{experiment}" if is_search else experiment
        return Place(run.task, where, label, run.seed, configuration, settings)

    def folder(self, place: Place) -> RunFolder:
        return RunFolder(self.results / str(place))

    def is_finished(self, place: Place) -> bool:
        return str(place) in self._kept.index or self.folder(place).is_finished

    @property
    def has_runs(self) -> bool:
        """Whether a run is finished, in its folder or kept as Parquet."""
        return is_kept(self.results) or bool(find(self.results, "*/*/manifest.json"))

    def config(self, place: Place, rate: float) -> RunConfig:
        """The configuration of a run. Raises DataError unless the run that limits its tokens (`tokens_of`) is finished
        and has at least two steps."""
        overrides = [
            f"seed={place.seed}",
            f"results={self.results}",
            f"experiment_name={place.experiment}",
            f"algorithm.label={place.label}",
            f"optimizer.lr={rate:g}",
            *place.settings,
            *self._tokens(place),
        ]
        return compose_run(composed("train", overrides))

    def _tokens(self, place: Place) -> list[str]:
        """The limit on generated tokens: those of the run of `tokens_of`, minus their mean per step, since a run ends
        after the step in which it reaches its limit."""
        if place.configuration.tokens_of is None:
            return []
        other = f"{place.experiment}/{place.configuration.tokens_of}-seed{place.seed}"
        folder = RunFolder(self.results / other)
        if other in self._kept.index:
            tokens, steps = (int(self._kept[column].loc[other]) for column in ("generated_tokens", "steps"))
        elif folder.is_finished:
            tokens, steps = folder.manifest["ledger"]["generated_tokens"], folder.manifest["steps"]
        else:
            raise DataError(f"{place} may generate as many tokens as {other}, which is not finished: run it first.")
        if steps == 1:
            raise DataError(
                f"{place} may generate the tokens of {other} minus one step's, but {other} has a single step: raise "
                "budget.rollouts of both."
            )
        return [f"budget.generated_tokens={tokens - tokens // steps}"]

    # the search for learning rates

    def search(self) -> Iterator[tuple[Place, float]]:
        """The runs of the search, seed by seed. It tries the rates of `begin`, then the next rate of the grid beyond
        the lowest or highest tried for as long as that one is the best."""
        tries = [
            (place, rate)
            for task, label in self._searched()
            for rate in self.choice(task, label).tried
            for place in self._tries(task, label, rate)
        ]
        yield from sorted(tries, key=lambda planned: (self._task(planned[0].task).task, planned[0].seed))

    def choice(self, task: str, label: str) -> Choice:
        """The state of the search for one configuration, or for the mean over the core's configurations (COMMON). Where
        a task needs a common rate, the search of a core configuration begins at all rates that the common search tried,
        and has no best before that one has."""
        parts, is_open = self._plan.parts, False
        core = list(dict.fromkeys(each.rate_of for each in parts[CORE].configurations)) if CORE in parts else []
        grid, tried = self._plan.rates.grid, self._plan.rates.begin
        if label in core and task in self._with_common():
            tried, best = self.choice(task, COMMON)
            is_open = best is None
        low, high = grid.index(tried[0]), grid.index(tried[-1])
        while True:
            tried = grid[low : high + 1]
            labels = core if label == COMMON else [label]
            runs = {
                rate: [self._reached_by(place) for name in labels for place in self._tries(task, name, rate)]
                for rate in tried
            }
            if any(isnan(run.after) for rate in tried for run in runs[rate]):
                return Choice(tried, None)
            highest, best = (self.best_of(runs, rule) for rule in ("best", self._plan.rates.rule))
            if tried[0] in (highest, best) and low > 0:
                low -= 1
            elif tried[-1] in (highest, best) and high < len(grid) - 1:
                high += 1
            else:
                return Choice(tried, None if is_open else best)

    @staticmethod
    def best_of(runs: Mapping[float, Sequence[Reached]], rule: str) -> float:
        """The best rate, given its runs by rate from the lowest. best: the highest mean after training, the lowest of
        equals. steady: only rates of which no run ends below its start, unless every rate has one; then the lowest
        whose mean is within one standard error of the highest mean, the error being that of the highest."""
        means = {rate: fmean(run.after for run in each) for rate, each in runs.items()}
        if rule == "best":
            return max(means, key=means.__getitem__)
        steady = [rate for rate, each in runs.items() if not any(run.after < run.before for run in each)] or [*runs]
        highest = max(steady, key=means.__getitem__)
        ends = [run.after for run in runs[highest]]
        error = stdev(ends) / sqrt(len(ends)) if len(ends) > 1 else 0.0
        return next(rate for rate in steady if means[rate] >= means[highest] - error)

    def freeze(self) -> None:
        """Write the chosen learning rate of each search that is over: the best by the plan's rule, in success after
        training on the validation split.

        Raises DataError before writing if a rate already written would change. Raises DataError after writing all other
        rates if a best rate is an end of the grid and the plan does not accept it.
        """
        searches = [*self._searched(), *((task, COMMON) for task in self._with_common())]
        accepted = set(self._plan.rates.accepted)
        if unknown := sorted(accepted - {f"{task}/{label}" for task, label in searches}):
            raise DataError(f"rates.accepted of the plan names {', '.join(unknown)}: there is no such search.")
        chosen, refused = self._rates(), []
        for task, label in searches:
            tried, best = self.choice(task, label)
            if best is None:
                continue
            if best in (tried[0], tried[-1]) and f"{task}/{label}" not in accepted:
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
                "it to rates.grid of the plan, or name the search in rates.accepted."
            )

    def _rates(self) -> dict[str, dict[str, float]]:
        """The rates that `freeze` chose, by task and configuration."""
        return json.loads(self._rates_file.read_text()) if self._rates_file.exists() else {}

    def _searched(self) -> list[tuple[str, str]]:
        """The tasks (by the name that shares rates) and labels to search, those of the core first."""
        parts = sorted(self._plan.parts.items(), key=lambda item: item[0] != CORE)
        own: list[Part | Search] = [part for name, part in parts if name == CORE or part.rate != COMMON]
        searched = (
            (self._task(task).rates_from, configuration.rate_of)
            for part in (*own, self._plan.rates)
            for configuration in part.configurations
            for task in part.tasks
        )
        return list(dict.fromkeys(searched))

    def _with_common(self) -> list[str]:
        """The tasks that need a common rate."""
        tasks = (task for part in self._plan.parts.values() if part.rate == COMMON for task in part.tasks)
        return list(dict.fromkeys(self._task(task).rates_from for task in tasks))

    def _tries(self, task: str, label: str, rate: float) -> list[Place]:
        """The runs of a configuration's search at one rate."""
        rates = self._plan.rates
        runs = rates.places.get(task) or [
            SearchRun(task, self._plan.warm_starts[self._task(task).task][0], seed) for seed in rates.seeds
        ]
        planned = {each.label: each for each in reversed(self._plan.configurations)}
        own = planned.get(label, Configuration(label, label, label))
        return [self._place(run, own, f"{label}_lr{rate:g}", is_search=True) for run in runs]

    def _reached_by(self, place: Place) -> Reached:
        """A run's mean success at the study's decoding."""
        name, folder = str(place), self.folder(place).path
        if name not in self._reached and self.is_finished(place):
            frames = read_parquet(self.results) if name in self._kept.index else load_run(folder)
            chosen = frames.questions.query(f"mode == {self.decoding!r}")["success"].groupby(["when", "run"]).mean()
            before, after = (chosen.xs(when) if when in chosen.index else pd.Series() for when in ("before", "after"))
            self._reached |= {str(run): Reached(float(before.get(run, nan)), float(after[run])) for run in after.index}
            if name not in self._reached:
                raise DataError(f"{folder} has no evaluation {self.decoding!r} after training: rates are chosen by it.")
        return self._reached.get(name, Reached(nan, nan))

    @cached_property
    def _kept(self) -> pd.DataFrame:
        """The runs that are kept as Parquet, by name."""
        return read_parquet(self.results).runs.set_index("run") if is_kept(self.results) else pd.DataFrame()

    def _task(self, name: str) -> StudyTask:
        """A task of the plan, or of configs/task/ where the plan does not define one of this name."""
        task = self._plan.tasks.get(name, StudyTask(name))
        return replace(task, rates_from=task.rates_from or name)
