"""A study's plan (configs/study/): which runs it asks for, where their records go, and at which learning rate each.

A plan has

- `settings` of every run, and `decoding`, the mode of the evaluation after training that rates are chosen by;
- `rates`, their search: the `grid`, the part of it to `begin` with (all), `seeds`, `settings` besides, and what is
  `accepted` with its best rate at an end of the grid (`<task>/<configuration>`, `<task>/common`); `configurations`, on
  `tasks`, that are searched for and in no part; `places`, for a name that tasks share rates by: the task, warm start
  and seed of each run, in place of the task's first warm start and the `seeds`;
- `warm_starts` of each task, the first being that of the search;
- `tasks`, where one task of configs/task/ makes several: the `task` of each, `settings` of its own, and `rates_from`,
  the name whose rates it shares;
- parts of any other name: `tasks`, how many `warm_starts`, `seeds`, `configurations`, and `rate`: `own`, the best of
  each configuration (without the word), or `common`, the best of the core's configurations together. A configuration is
  one of configs/algorithm/, or a `label` with its `algorithm`, `settings` besides, `rate_of`, the label whose rate it
  has in place of its own, and `tokens_of`, the label of another whose run of the same task, warm start and seed, at
  its own rate, generated the tokens that its own may generate.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from analysis.load import MODES, Frames, find, is_kept, load_run, read_parquet
from rtpo.core.files import write_whole
from rtpo.core.names import nearest
from rtpo.errors import ConfigError, DataError
from rtpo.run.cli import composed
from rtpo.run.config import PROJECT, RunConfig, compose_run
from rtpo.run.records import RunFolder

STUDIES = PROJECT / "configs" / "study"
RATES, CORE, COMMON = "rates", "core", "common"
"""the part that is the search; the main part, if there is one; in place of a configuration: the core's together"""
NEEDED = ("decoding", "settings", RATES, "warm_starts")
NO_PARTS = (*NEEDED, "tasks")
RATES_FILE = "learning_rates.json"


@dataclass(frozen=True)
class StudyTask:
    """What a study calls a task: the `task=` that it composes, settings besides, and whose learning rates it shares."""

    name: str
    task: str
    settings: tuple[str, ...]
    rates_from: str


@dataclass(frozen=True)
class Configuration:
    """A label, the `algorithm=` it composes, settings besides, the label whose learning rate it has, and the
    configuration that it has the generated tokens of."""

    label: str
    algorithm: str
    settings: tuple[str, ...]
    rate_of: str
    tokens_of: str | None = None


@dataclass(frozen=True)
class Place:
    """A run: where its records go, and what it is composed of but for its learning rate."""

    experiment: str
    label: str
    row: StudyTask
    warm_start: str
    seed: int
    configuration: Configuration
    settings: tuple[str, ...]

    @property
    def task(self) -> str:
        return self.row.name

    def __str__(self) -> str:
        return f"{self.experiment}/{self.label}-seed{self.seed}"


Planned = tuple[Place, float | None]
"""a run with its learning rate; None where none was chosen yet"""


@dataclass(frozen=True)
class Choice:
    """The rates that a search has `tried` so far, from the lowest, and the `best` of them; None while a run is left."""

    tried: tuple[float, ...]
    best: float | None


def named(name: str, again: Path | None = None) -> "Study":
    """The study of configs/study/<name>.yaml, whose records are in results/<name>/; with `again`, run there once more,
    at the rates that those records chose. Raises ConfigError."""
    names = sorted(path.stem for path in STUDIES.glob("*.yaml"))
    if name not in names:
        raise ConfigError(f"{name!r} is no study of configs/study/: {nearest(name, names)}.")
    own = PROJECT / "results" / name
    return Study(STUDIES / f"{name}.yaml", own if again is None else again, own / RATES_FILE)


class Study:
    """The study file, with where its records are, and the file of its chosen `rates`, which else is among them."""

    def __init__(self, file: Path, results: Path, rates: Path | None = None) -> None:
        self.name, self.results = file.stem, results
        self._plan = _read(file)
        self._rates_file = rates or results / RATES_FILE
        self._successes: dict[Place, float] = {}
        self.decoding = str(self._plan["decoding"])
        self.trained = tuple(key for key in self._plan if key not in NO_PARTS)
        """the parts whose runs are compared, in the order of the file"""
        self.parts = (RATES, *self.trained)
        self.seeds: tuple[int, ...] = tuple(self._plan[RATES]["seeds"])
        """those of the search"""

    def is_common(self, part: str) -> bool:
        """Whether a part's configurations share one rate on each task."""
        return bool(self._plan[part].get("rate") == COMMON)

    def planned(self, part: str) -> Iterator[Planned]:
        """The runs of a part in their order: all configurations of a seed and warm start before the next; at first
        warm starts take turns, so that every seed has run once before one runs twice.

        A run at the common rate is called so, but where that is its own rate, too: then it is one run of both parts.
        """
        if part == RATES:
            yield from self.search()
            return
        rates, settings = self._rates(), self._plan[part]
        pairs = product(settings["seeds"], range(settings["warm_starts"]))
        for seed, number in sorted(pairs, key=lambda pair: ((pair[0] + pair[1]) % settings["warm_starts"], pair[0])):
            for row, configuration in product(self._rows(part), self._configurations(part)):
                chosen = rates.get(row.rates_from, {})
                rate, label = chosen.get(configuration.rate_of), configuration.label
                if self.is_common(part) and (rate is None or rate != chosen.get(COMMON)):
                    rate, label = chosen.get(COMMON), f"{label}_{COMMON}"
                warm_start = self._plan["warm_starts"][row.task][number]
                where = _experiment(row, warm_start)
                yield Place(where, label, row, warm_start, seed, configuration, configuration.settings), rate

    def search(self) -> Iterator[tuple[Place, float]]:
        """The runs of `rates`, one seed after another: at the first rates, and at the next one outward while the best
        of those run is at an edge."""
        tries = [
            (place, rate)
            for row, label in self.searched()
            for rate in self.choice(row, label).tried
            for place in self._tries(row, label, rate)
        ]
        yield from sorted(tries, key=lambda planned: (planned[0].row.task, planned[0].seed))

    def searched(self) -> list[tuple[StudyTask, str]]:
        """The tasks and algorithms whose rates are searched for."""
        parts = sorted(self.trained, key=lambda part: part != CORE)
        parts += [RATES] if "configurations" in self._plan[RATES] else []
        places = (
            (self._row(row.rates_from), configuration.rate_of)
            for part in parts
            for row, configuration in product(self._rows(part), self._configurations(part))
            if part == CORE or not self.is_common(part)
        )
        return list(dict.fromkeys(places))

    def choice(self, row: StudyTask, algorithm: str) -> Choice:
        """Of one configuration, or of the core's where it is COMMON. A configuration whose search begins with what was
        tried for the core's has no best before the core's has."""
        of_core = self._configurations(CORE) if CORE in self._plan else []
        core = list(dict.fromkeys(configuration.rate_of for configuration in of_core))
        rates = self._plan[RATES]
        first = tuple(rates.get("begin", rates["grid"]))
        if algorithm == COMMON:
            return self._choice(row, core, first)
        if algorithm not in core or row not in self._with_common():
            return self._choice(row, [algorithm], first)
        common = self.choice(row, COMMON)
        own = self._choice(row, [algorithm], common.tried)
        return own if common.best is not None else replace(own, best=None)

    def folder(self, place: Place) -> RunFolder:
        return RunFolder(self.results / str(place))

    def is_finished(self, place: Place) -> bool:
        return str(place) in self._kept_runs or self.folder(place).is_finished

    @property
    def has_runs(self) -> bool:
        """Whether a run is finished, in its folder or kept as Parquet."""
        return is_kept(self.results) or bool(find(self.results, "*/*/manifest.json"))

    def config(self, place: Place, rate: float) -> RunConfig:
        """Raises DataError unless the run whose generated tokens it has is finished, with several steps."""
        overrides = [
            f"algorithm={place.configuration.algorithm}",
            f"task={place.row.task}",
            *([f"model={place.warm_start}"] if place.warm_start != place.row.task else []),  # else the task's own
            f"seed={place.seed}",
            f"results={self.results}",
            f"experiment_name={place.experiment}",
            f"algorithm.label={place.label}",
            f"optimizer.lr={rate:g}",
            *self._plan["settings"],
            *place.row.settings,
            *place.settings,
            *self._tokens(place),
        ]
        return compose_run(composed("train", overrides))

    def freeze(self) -> None:
        """Write, for each configuration whose search is over, the rate with the highest mean success after training on
        the validation split, and that of the core together where a part needs it; of equals the lowest.

        Raises DataError if a written one would change, before anything is written; after writing the others, for those
        whose best rate is at an end of the grid and not accepted by the plan.
        """
        places = [*self.searched(), *((row, COMMON) for row in self._with_common())]
        accepted = set(self._plan[RATES].get("accepted", []))
        if unknown := sorted(accepted - {f"{row.name}/{label}" for row, label in places}):
            raise DataError(f"rates.accepted of the plan has {', '.join(unknown)}, which has no search of its own.")
        chosen, refused = self._rates(), []
        for row, label in places:
            choice = self.choice(row, label)
            if choice.best is None:
                continue
            if choice.best in (choice.tried[0], choice.tried[-1]) and f"{row.name}/{label}" not in accepted:
                refused.append(f"{row.name}/{label} at {choice.best:g}")
            elif chosen.setdefault(row.name, {}).setdefault(label, choice.best) != choice.best:
                raise DataError(
                    f"{self._rates_file} has {chosen[row.name][label]:g} for {label} on {row.name} and the records now "
                    f"say {choice.best:g}: runs may have been made at the first. Restore the records, or delete both."
                )
        if not chosen and not refused:
            raise DataError("no configuration has run at every rate yet: run the part rates first.")
        write_whole(self._rates_file, (json.dumps(chosen, indent=1, sort_keys=True) + "\n").encode())
        if refused:
            raise DataError(
                f"the best rate is at an end of the grid, of {', '.join(refused)}, and was not written down: give "
                "rates.grid of the plan another rate beyond it, or name it in rates.accepted."
            )

    @cached_property
    def _kept_runs(self) -> dict[str, Any]:
        """The runs that are kept as Parquet."""
        runs = read_parquet(self.results).runs.itertuples() if is_kept(self.results) else ()
        return {str(row.run): row for row in runs}

    @cached_property
    def _kept_means(self) -> dict[str, float]:
        return self._means(read_parquet(self.results))

    def _means(self, frames: Frames) -> dict[str, float]:
        """Of each run the mean over questions after training, at the decoding of the study."""
        table = frames.questions["success"]
        when, mode = (table.index.get_level_values(level) for level in ("when", "mode"))
        chosen = table[(when == "after") & (mode == self.decoding)]
        return {str(run): float(successes.mean()) for run, successes in chosen.groupby("run", sort=False)}

    def _success(self, place: Place) -> float | None:
        """The run's mean; None unless it is finished."""
        name = str(place)
        if place not in self._successes and self.is_finished(place):
            folder = self.folder(place).path
            means = self._kept_means if name in self._kept_runs else self._means(load_run(folder))
            if name not in means:
                raise DataError(f"{folder} has no evaluation {self.decoding!r} after training, to choose rates by.")
            self._successes[place] = means[name]
        return self._successes.get(place)

    def _tokens(self, place: Place) -> list[str]:
        """As many as the other's but for a step's, since a run ends after the step that reaches its limit."""
        if place.configuration.tokens_of is None:
            return []
        other = replace(place, label=place.configuration.tokens_of)
        if not self.is_finished(other):
            raise DataError(f"{place} may generate as many tokens as {other}, which is not finished: run it first.")
        if (kept := self._kept_runs.get(str(other))) is not None:
            tokens, steps = int(kept.generated_tokens), int(kept.steps)
        else:
            manifest = self.folder(other).manifest
            tokens, steps = manifest["ledger"]["generated_tokens"], manifest["steps"]
        if steps == 1:
            raise DataError(
                f"{place} may generate as many tokens as {other}, less one step's, and that has a single step: raise "
                "budget.rollouts of both."
            )
        return [f"budget.generated_tokens={tokens - tokens // steps}"]

    def _choice(self, row: StudyTask, algorithms: Sequence[str], first: tuple[float, ...]) -> Choice:
        """The best of what was tried from the `first` rates on outward."""
        grid, tried = self._plan[RATES]["grid"], first
        while True:
            means = {rate: self._mean(row, algorithms, rate) for rate in tried}
            known = {rate: mean for rate, mean in means.items() if mean is not None}
            if len(known) < len(means):
                return Choice(tried, None)
            best = max(tried, key=known.__getitem__)
            low, high = grid.index(tried[0]), grid.index(tried[-1])
            if best == tried[0] and low > 0:
                tried = (grid[low - 1], *tried)
            elif best == tried[-1] and high < len(grid) - 1:
                tried = (*tried, grid[high + 1])
            else:
                return Choice(tried, best)

    def _mean(self, row: StudyTask, algorithms: Sequence[str], rate: float) -> float | None:
        """The mean success over the runs of these at a rate; None unless all are finished."""
        places = (place for algorithm in algorithms for place in self._tries(row, algorithm, rate))
        successes = [self._success(place) for place in places]
        known = [success for success in successes if success is not None]
        return fmean(known) if len(known) == len(successes) else None

    def _tries(self, row: StudyTask, label: str, rate: float) -> list[Place]:
        """The runs of a configuration's search at one rate."""
        places = [(place["task"], place["warm_start"], place["seed"]) for place in self._places(row.name)]
        if not places:
            places = [(row.name, self._plan["warm_starts"][row.task][0], seed) for seed in self.seeds]
        entries = (entry for part in self.parts for entry in self._plan[part].get("configurations", []))
        entry = next((entry for entry in entries if isinstance(entry, dict) and entry["label"] == label), label)
        configuration, name = _configuration(entry), f"{label}_lr{rate:g}"
        settings = (*configuration.settings, *self._plan[RATES]["settings"])
        rows = ((self._row(task), warm_start, seed) for task, warm_start, seed in places)
        return [
            Place(f"{RATES}_{_experiment(own, warm_start)}", name, own, warm_start, seed, configuration, settings)
            for own, warm_start, seed in rows
        ]

    def _places(self, name: str) -> list[dict[str, Any]]:
        places: list[dict[str, Any]] = self._plan[RATES].get("places", {}).get(name, [])
        return places

    def _with_common(self) -> list[StudyTask]:
        """The tasks that need a common rate."""
        rows = (row for part in self.trained if self.is_common(part) for row in self._rows(part))
        return list(dict.fromkeys(self._row(row.rates_from) for row in rows))

    def _configurations(self, part: str) -> list[Configuration]:
        return [_configuration(entry) for entry in self._plan[part]["configurations"]]

    def _rows(self, part: str) -> list[StudyTask]:
        return [self._row(name) for name in self._plan[part]["tasks"]]

    def _row(self, name: str) -> StudyTask:
        entry = self._plan.get("tasks", {}).get(name, {})
        task = "" if self._places(name) else entry.get("task", name)
        return StudyTask(name, task, tuple(entry.get("settings", [])), entry.get("rates_from", name))

    def _rates(self) -> dict[str, dict[str, float]]:
        """The rates that `freeze` chose, by task and configuration."""
        return json.loads(self._rates_file.read_text()) if self._rates_file.exists() else {}


def _experiment(row: StudyTask, warm_start: str) -> str:
    return warm_start if row.name == row.task else f"{row.name}_{warm_start}"


def _configuration(entry: str | dict[str, Any]) -> Configuration:
    if isinstance(entry, str):
        return Configuration(entry, entry, (), entry)
    label, settings = entry["label"], tuple(entry.get("settings", []))
    return Configuration(
        label, entry.get("algorithm", label), settings, entry.get("rate_of", label), entry.get("tokens_of")
    )


def _read(file: Path) -> dict[str, Any]:
    """Raises DataError for what is no plan of a study."""
    try:
        plan = yaml.safe_load(file.read_bytes())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DataError(f"{file} is not YAML ({' '.join(str(error).split())}): give the plan of a study.") from error
    if not isinstance(plan, dict) or not {*NEEDED} <= plan.keys():
        raise DataError(f"{file} is no plan of a study: it needs {', '.join(NEEDED)}.")
    if plan["decoding"] not in MODES:
        raise DataError(f"{file} has decoding {plan['decoding']!r}: there are {', '.join(MODES)}.")
    grid = plan[RATES]["grid"]
    begin = plan[RATES].get("begin", grid)
    if grid != sorted(set(grid)) or not begin or begin not in [grid[i : i + len(begin)] for i in range(len(grid))]:
        raise DataError(
            f"{file}: rates.grid holds rates from the lowest on, each once, and rates.begin some in a row of them."
        )
    at_own_rate: set[str] = set()
    configurations: list[Configuration] = []
    for part in plan.keys() - {*NO_PARTS}:
        if (rate := plan[part].get("rate", "own")) not in ("own", COMMON):
            raise DataError(f"{file}: rate of {part} is {rate!r}: there are own and {COMMON}.")
        of_part = [_configuration(entry) for entry in plan[part]["configurations"]]
        configurations += of_part
        at_own_rate |= {configuration.label for configuration in of_part} if rate == "own" else set()
    # at the common rate what a run is called depends on the rates; so another's tokens are those of its own rate
    for one in configurations:
        others = at_own_rate - {one.label}
        if one.tokens_of is not None and one.tokens_of not in others:
            raise DataError(
                f"{file}: tokens_of of {one.label} is {one.tokens_of!r}, no other configuration that runs at its own "
                f"rate: {nearest(one.tokens_of, sorted(others))}."
            )
    return plan
