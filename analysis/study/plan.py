"""A study's plan (configs/study/): which runs it asks for, where their records go, and at which learning rate each.

A plan has

- `settings` of every run, and `decoding`, the mode of the evaluation after training that rates are chosen by;
- `rates`, their search: the `grid`, the part of it to `begin` with (all), `seeds`, `settings` besides, and what is
  `accepted` with its best rate at an end of the grid (`<task>/<configuration>`, `<task>/common`);
- `warm_starts` of each task, the first being that of the search;
- `tasks`, where one task of configs/task/ makes several: the `task` of each, `settings` of its own, and `rates_from`,
  the name whose rates it shares;
- parts of any other name: `tasks`, how many `warm_starts`, `seeds`, `configurations`, and `rate`: `own`, the best of
  each configuration (without the word), or `common`, the best of the core's configurations together. A configuration is
  one of configs/algorithm/, or a `label` with its `algorithm`, `settings` besides, `rate_of`, the algorithm whose rate
  it has in place of its own, and `tokens_of`, the label of another whose run of the same task, warm start and seed, at
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

from analysis.measures import held_out, mean_success
from analysis.records import MODES, RunGroup, load_run
from rtpo.core.files import write_whole
from rtpo.core.names import nearest
from rtpo.errors import ConfigError, DataError
from rtpo.run.composition import composed
from rtpo.run.config import PROJECT, RunConfig, compose_run
from rtpo.run.records import RunFolder

STUDIES = PROJECT / "configs" / "study"
TOY_STUDY, TOY_RESULTS = STUDIES / "toy.yaml", PROJECT / "results" / "toy"
RATES = "rates"
"""the part that is the search"""
NEEDED = ("decoding", "settings", RATES, "warm_starts")
NO_PARTS = (*NEEDED, "tasks")
COMMON = "common"
RATES_FILE = "learning_rates.json"
"""in place of a configuration: the core's together"""
CORE = "core"


@dataclass(frozen=True)
class Row:
    """What a study calls a task: the `task=` that it composes, settings besides, and whose learning rates it shares."""

    name: str
    task: str
    settings: tuple[str, ...]
    rates_from: str


@dataclass(frozen=True)
class Configuration:
    """A label, the `algorithm=` it composes, settings besides, the algorithm whose learning rate it has, and the
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
    row: Row
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

    @property
    def is_at_edge(self) -> bool:
        return self.best in (self.tried[0], self.tried[-1])


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
        self.name = file.stem
        self._file = _read(file)
        self._results = results
        self._rates_file = rates or results / RATES_FILE
        self._successes: dict[Place, float] = {}

    @property
    def decoding(self) -> str:
        return str(self._file["decoding"])

    @cached_property
    def trained(self) -> tuple[str, ...]:
        """The parts whose runs are compared, in the order of the file."""
        return tuple(key for key in self._file if key not in NO_PARTS)

    @property
    def parts(self) -> tuple[str, ...]:
        return (RATES, *self.trained)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Those of the search."""
        return tuple(self._file[RATES]["seeds"])

    def is_common(self, part: str) -> bool:
        """Whether a part's configurations share one rate on each task."""
        return bool(self._file[part].get("rate") == COMMON)

    def planned(self, part: str) -> Iterator[Planned]:
        """The runs of a part in their order: all configurations of a seed and warm start before the next; at first
        warm starts take turns, so that every seed has run once before one runs twice.

        A run at the common rate is called so, but where that is its own rate, too: then it is one run of both parts.
        """
        if part == RATES:
            yield from self.search()
            return
        rates, settings = self._rates(), self._file[part]
        pairs = product(settings["seeds"], range(settings["warm_starts"]))
        for seed, number in sorted(pairs, key=lambda pair: ((pair[0] + pair[1]) % settings["warm_starts"], pair[0])):
            for row, one in product(self._rows(part), self._configurations(part)):
                found = rates.get(row.rates_from, {})
                rate, label = found.get(one.rate_of), one.label
                if self.is_common(part) and (rate is None or rate != found.get(COMMON)):
                    rate, label = found.get(COMMON), f"{one.label}_{COMMON}"
                warm_start = self._file["warm_starts"][row.task][number]
                yield Place(_experiment(row, warm_start), label, row, warm_start, seed, one, one.settings), rate

    def search(self) -> Iterator[tuple[Place, float]]:
        """The runs of `rates`, by configuration, those of the core first: at the first rates, and at the next one
        outward while the best of those run is at an edge of them."""
        for row, algorithm in self.searched():
            for rate, seed in product(self.choice(row, algorithm).tried, self.seeds):
                yield self._try(row, algorithm, rate, seed), rate

    def searched(self) -> list[tuple[Row, str]]:
        """The tasks and algorithms whose rates are searched for."""
        parts = sorted(self.trained, key=lambda part: part != CORE)
        return list(
            dict.fromkeys(
                (self._row(row.rates_from), one.rate_of)
                for part in parts
                for row, one in product(self._rows(part), self._configurations(part))
                if part == CORE or not self.is_common(part)
            )
        )

    def choice(self, row: Row, algorithm: str) -> Choice:
        """Of one configuration, or of the core's where it is COMMON. A configuration whose search begins with what was
        tried for the core's has no best before the core's has."""
        if algorithm == COMMON:
            return self._choice(row, self._core(), self._first())
        if algorithm not in self._core() or row not in self._with_common():
            return self._choice(row, [algorithm], self._first())
        common = self.choice(row, COMMON)
        own = self._choice(row, [algorithm], common.tried)
        return own if common.best is not None else replace(own, best=None)

    def common_rates(self) -> dict[str, float]:
        """Those chosen for the core together, by the task that they were searched on."""
        chosen = self._rates()
        return {row.name: chosen[row.name][COMMON] for row in self._with_common() if COMMON in chosen.get(row.name, {})}

    def folder(self, place: Place) -> RunFolder:
        return RunFolder(self._results / str(place))

    def config(self, place: Place, rate: float) -> RunConfig:
        """Raises DataError where the run whose generated tokens it has is not finished, or has a single step."""
        overrides = [
            f"algorithm={place.configuration.algorithm}",
            f"task={place.row.task}",
            f"model={place.warm_start}",
            f"seed={place.seed}",
            f"results={self._results}",
            f"experiment_name={place.experiment}",
            f"algorithm.label={place.label}",
            f"optimizer.lr={rate:g}",
            *self._file["settings"],
            *place.row.settings,
            *place.settings,
            *self._tokens(place),
        ]
        return compose_run(composed("train", overrides))

    def _tokens(self, place: Place) -> list[str]:
        """About as many as the other's. A run ends after the step in which it reaches its limit, which is one of the
        other's steps less: it generates more in all only by what its own last step is longer."""
        if place.configuration.tokens_of is None:
            return []
        other = self.folder(replace(place, label=place.configuration.tokens_of))
        if not other.is_finished:
            raise DataError(
                f"{place} may generate as many tokens as {other.path}, which is not finished: run it first."
            )
        tokens, steps = other.manifest["ledger"]["generated_tokens"], other.manifest["steps"]
        if steps == 1:
            raise DataError(
                f"{place} may generate as many tokens as {other.path}, less one step's, and that has a single step: "
                "raise budget.rollouts of both."
            )
        return [f"budget.generated_tokens={tokens - tokens // steps}"]

    def freeze(self) -> None:
        """Write, for each configuration whose search is over, the rate with the highest mean success after training on
        the validation split, and that of the core together where a part needs it; of equals the lowest.

        Raises DataError if a written one would change, before anything is written; after writing the others, for those
        whose best rate is at an end of the grid and not accepted by the plan.
        """
        places = [*self.searched(), *((row, COMMON) for row in self._with_common())]
        accepted = set(self._file[RATES].get("accepted", []))
        if unknown := sorted(accepted - {f"{row.name}/{label}" for row, label in places}):
            raise DataError(f"rates.accepted of the plan has {', '.join(unknown)}, which has no search of its own.")
        chosen, refused = self._rates(), []
        for row, label in places:
            found = self.choice(row, label)
            if found.best is None:
                continue
            if found.is_at_edge and f"{row.name}/{label}" not in accepted:
                refused.append(f"{row.name}/{label} at {found.best:g}")
                continue
            if chosen.setdefault(row.name, {}).setdefault(label, found.best) != found.best:
                raise DataError(
                    f"{self._rates_file} has {chosen[row.name][label]:g} for {label} on {row.name} and the records now "
                    f"say {found.best:g}: runs may have been made at the first. Restore the records, or delete both."
                )
        if not chosen and not refused:
            raise DataError("no configuration has run at every rate yet: run the part rates first.")
        write_whole(self._rates_file, (json.dumps(chosen, indent=1, sort_keys=True) + "\n").encode())
        if refused:
            raise DataError(
                f"the best rate is at an end of the grid, of {', '.join(refused)}, and was not written down: give "
                "rates.grid of the plan another rate beyond it, or name it in rates.accepted."
            )

    def _choice(self, row: Row, algorithms: Sequence[str], first: tuple[float, ...]) -> Choice:
        """The best of what was tried from the `first` rates on outward."""
        grid, tried = self._file[RATES]["grid"], first
        while True:
            found = {rate: self._success(row, algorithms, rate) for rate in tried}
            known = {rate: value for rate, value in found.items() if value is not None}
            if len(known) < len(found):
                return Choice(tried, None)
            choice = Choice(tried, max(tried, key=known.__getitem__))
            low, high = grid.index(tried[0]), grid.index(tried[-1])
            if choice.best == tried[0] and low > 0:
                tried = (grid[low - 1], *tried)
            elif choice.best == tried[-1] and high < len(grid) - 1:
                tried = (*tried, grid[high + 1])
            else:
                return choice

    def _success(self, row: Row, algorithms: Sequence[str], rate: float) -> float | None:
        """The mean over the runs of these at a rate; None unless all are finished."""
        places = [self._try(row, algorithm, rate, seed) for algorithm, seed in product(algorithms, self.seeds)]
        if not all(place in self._successes or self.folder(place).is_finished for place in places):
            return None
        for place in places:
            if place not in self._successes:
                self._successes[place] = self._measured(place)
        return fmean(self._successes[place] for place in places)

    def _measured(self, place: Place) -> float:
        folder = self.folder(place).path
        evaluation = held_out(RunGroup(folder.name, (load_run(folder),)), "after", self.decoding)
        if evaluation is None:
            raise DataError(f"{folder} has no evaluation {self.decoding!r} after training, by which rates are chosen.")
        return mean_success(evaluation)

    def _try(self, row: Row, algorithm: str, rate: float, seed: int) -> Place:
        warm_start = self._file["warm_starts"][row.task][0]
        settings, label = tuple(self._file[RATES]["settings"]), f"{algorithm}_lr{rate:g}"
        experiment = f"{RATES}_{_experiment(row, warm_start)}"
        return Place(experiment, label, row, warm_start, seed, _configuration(algorithm), settings)

    def _first(self) -> tuple[float, ...]:
        """The rates that every search begins with."""
        rates = self._file[RATES]
        return tuple(rates.get("begin", rates["grid"]))

    def _with_common(self) -> list[Row]:
        """The tasks that need a common rate."""
        rows = (row for part in self.trained if self.is_common(part) for row in self._rows(part))
        return list(dict.fromkeys(self._row(row.rates_from) for row in rows))

    def _core(self) -> list[str]:
        return list(dict.fromkeys(one.rate_of for one in self._configurations(CORE)))

    def _configurations(self, part: str) -> list[Configuration]:
        return [_configuration(entry) for entry in self._file[part]["configurations"]]

    def _rows(self, part: str) -> list[Row]:
        return [self._row(name) for name in self._file[part]["tasks"]]

    def _row(self, name: str) -> Row:
        given = self._file.get("tasks", {}).get(name, {})
        settings = tuple(given.get("settings", []))
        return Row(name, given.get("task", name), settings, given.get("rates_from", name))

    def _rates(self) -> dict[str, dict[str, float]]:
        """By task and configuration, the rates chosen by `freeze`."""
        if not self._rates_file.exists():
            return {}
        chosen: dict[str, dict[str, float]] = json.loads(self._rates_file.read_text())
        return chosen


def _experiment(row: Row, warm_start: str) -> str:
    return warm_start if row.name == row.task else f"{row.name}_{warm_start}"


def _read(file: Path) -> dict[str, Any]:
    """Raises DataError for what is no plan of a study."""
    try:
        plan = yaml.safe_load(file.read_bytes())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DataError(f"{file} is not YAML ({' '.join(str(error).split())}): give the plan of a study.") from error
    if not isinstance(plan, dict) or not {*NEEDED, CORE} <= plan.keys():
        raise DataError(f"{file} is no plan of a study: it needs {', '.join((*NEEDED, CORE))}.")
    if plan["decoding"] not in MODES:
        raise DataError(f"{file} has decoding {plan['decoding']!r}: there are {', '.join(MODES)}.")
    grid = plan[RATES]["grid"]
    begin = plan[RATES].get("begin", grid)
    if grid != sorted(set(grid)) or not begin or begin not in [grid[i : i + len(begin)] for i in range(len(grid))]:
        raise DataError(
            f"{file}: rates.grid holds rates from the lowest on, each once, and rates.begin some in a row of them."
        )
    for part in plan.keys() - {*NO_PARTS}:
        if (rate := plan[part].get("rate", "own")) not in ("own", COMMON):
            raise DataError(f"{file}: rate of {part} is {rate!r}: there are own and {COMMON}.")
    _check_tokens(file, plan)
    return plan


def _check_tokens(file: Path, plan: dict[str, Any]) -> None:
    """At the common rate what a run is called depends on the rates; so another's tokens are those of its own rate."""
    parts = [plan[part] for part in plan if part not in NO_PARTS]
    ones = [(_configuration(entry), part.get("rate") != COMMON) for part in parts for entry in part["configurations"]]
    for one, _ in ones:
        others = {other.label for other, has_own_rate in ones if has_own_rate} - {one.label}
        if one.tokens_of is not None and one.tokens_of not in others:
            raise DataError(
                f"{file}: tokens_of of {one.label} is {one.tokens_of!r}, no other configuration that runs at its own "
                f"rate: {nearest(one.tokens_of, sorted(others))}."
            )


def _configuration(entry: str | dict[str, Any]) -> Configuration:
    if isinstance(entry, str):
        return Configuration(entry, entry, (), entry)
    algorithm = entry.get("algorithm", entry["label"])
    rate_of, tokens_of = entry.get("rate_of", algorithm), entry.get("tokens_of")
    return Configuration(entry["label"], algorithm, tuple(entry.get("settings", [])), rate_of, tokens_of)
