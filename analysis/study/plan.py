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
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import isnan, nan
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import pandas as pd
import yaml

from analysis.load import find, load_run, read_parquet
from analysis.run_folder import MODES
from rtpo.core.files import write_whole
from rtpo.core.names import nearest
from rtpo.errors import ConfigError, DataError
from rtpo.run.cli import composed
from rtpo.run.config import PROJECT, RunConfig, compose_run
from rtpo.run.kept import is_kept
from rtpo.run.records import RunFolder

STUDIES = PROJECT / "configs" / "study"
RATES, CORE, COMMON = "rates", "core", "common"
"""the part that is the search; the main part, if there is one; in place of a configuration: the core's together"""
NEEDED = ("decoding", "settings", RATES, "warm_starts")
NO_PARTS = (*NEEDED, "tasks")
RATES_FILE = "learning_rates.json"


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
    """A run: its task as the plan calls it, where its records go, and what it is composed of but for its learning
    rate."""

    task: str
    experiment: str
    label: str
    seed: int
    configuration: Configuration
    settings: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.experiment}/{self.label}-seed{self.seed}"


Planned = tuple[Place, float | None]
"""a run with its learning rate; None where none was chosen yet"""


class Choice(NamedTuple):
    """The rates that a search has `tried` so far, from the lowest, and the `best` of them; None while a run is left."""

    tried: list[float]
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
        self._successes: dict[str, float] = {}
        self.decoding = str(self._plan["decoding"])
        self.trained = tuple(key for key in self._plan if key not in NO_PARTS)
        """the parts whose runs are compared, in the order of the file"""
        self.parts = (RATES, *self.trained)

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
            for task, configuration in product(settings["tasks"], settings["configurations"]):
                chosen = rates.get(self._task(task)["rates_from"], {})
                rate, label = chosen.get(configuration.rate_of), configuration.label
                if self.is_common(part) and (rate is None or rate != chosen.get(COMMON)):
                    rate, label = chosen.get(COMMON), f"{label}_{COMMON}"
                warm_start = self._plan["warm_starts"][self._task(task)["task"]][number]
                yield self._place(task, warm_start, seed, configuration, label), rate

    def _place(
        self, task: str, warm_start: str, seed: int, configuration: Configuration, label: str, is_search: bool = False
    ) -> Place:
        own, search = self._task(task), self._plan[RATES]
        base = own["task"]
        experiment = warm_start if base == task else f"{task}_{warm_start}"
        settings = (
            f"algorithm={configuration.algorithm}",
            f"task={base}",
            *([f"model={warm_start}"] if warm_start != base else []),  # else the task's own
            *self._plan["settings"],
            *own["settings"],
            *configuration.settings,
            *(search["settings"] if is_search else ()),
        )
        where = f"{RATES}_{experiment}" if is_search else experiment
        return Place(task, where, label, seed, configuration, settings)

    def folder(self, place: Place) -> RunFolder:
        return RunFolder(self.results / str(place))

    def is_finished(self, place: Place) -> bool:
        return str(place) in self._kept.index or self.folder(place).is_finished

    @property
    def has_runs(self) -> bool:
        """Whether a run is finished, in its folder or kept as Parquet."""
        return is_kept(self.results) or bool(find(self.results, "*/*/manifest.json"))

    def config(self, place: Place, rate: float) -> RunConfig:
        """Raises DataError unless the run whose generated tokens it has is finished, with several steps."""
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
        """As many as the other's but for a step's, since a run ends after the step that reaches its limit."""
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
                f"{place} may generate as many tokens as {other}, less one step's, and that has a single step: raise "
                "budget.rollouts of both."
            )
        return [f"budget.generated_tokens={tokens - tokens // steps}"]

    # the search for learning rates

    def search(self) -> Iterator[tuple[Place, float]]:
        """The runs of `rates`, one seed after another: at the first rates, and at the next one outward while the best
        of those run is at an edge."""
        tries = [
            (place, rate)
            for task, label in self._searched()
            for rate in self.choice(task, label).tried
            for place in self._tries(task, label, rate)
        ]
        yield from sorted(tries, key=lambda planned: (self._task(planned[0].task)["task"], planned[0].seed))

    def choice(self, task: str, label: str) -> Choice:
        """The best of what was tried from the first rates on outward: of one configuration, or of the core's where it
        is COMMON. A configuration whose search begins with what was tried for the core's has no best before the core's
        has."""
        core = list(dict.fromkeys(each.rate_of for each in self._plan.get(CORE, {}).get("configurations", ())))
        rates, is_open = self._plan[RATES], False
        grid = rates["grid"]
        tried = rates["begin"]
        if label in core and task in self._with_common():
            tried, best = self.choice(task, COMMON)
            is_open = best is None
        low, high = grid.index(tried[0]), grid.index(tried[-1])
        while True:
            tried = grid[low : high + 1]
            means = {rate: self._mean(task, core if label == COMMON else [label], rate) for rate in tried}
            if any(map(isnan, means.values())):
                return Choice(tried, None)
            best = max(tried, key=means.__getitem__)
            if best == tried[0] and low > 0:
                low -= 1
            elif best == tried[-1] and high < len(grid) - 1:
                high += 1
            else:
                return Choice(tried, None if is_open else best)

    def freeze(self) -> None:
        """Write, for each configuration whose search is over, the rate with the highest mean success after training on
        the validation split, and that of the core together where a part needs it; of equals the lowest.

        Raises DataError if a written one would change, before anything is written; after writing the others, for those
        whose best rate is at an end of the grid and not accepted by the plan.
        """
        searches = [*self._searched(), *((task, COMMON) for task in self._with_common())]
        accepted = set(self._plan[RATES].get("accepted", []))
        if unknown := sorted(accepted - {f"{task}/{label}" for task, label in searches}):
            raise DataError(f"rates.accepted of the plan has {', '.join(unknown)}, which has no search of its own.")
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
                    "may have been made at the first. Restore the records, or delete both."
                )
        if not chosen and not refused:
            raise DataError("no configuration has run at every rate yet: run the part rates first.")
        write_whole(self._rates_file, (json.dumps(chosen, indent=1, sort_keys=True) + "\n").encode())
        if refused:
            raise DataError(
                f"the best rate is at an end of the grid, of {', '.join(refused)}, and was not written down: give "
                "rates.grid of the plan another rate beyond it, or name it in rates.accepted."
            )

    def _rates(self) -> dict[str, dict[str, float]]:
        """The rates that `freeze` chose, by task and configuration."""
        return json.loads(self._rates_file.read_text()) if self._rates_file.exists() else {}

    def _searched(self) -> list[tuple[str, str]]:
        """The tasks and configurations whose rates are searched for, those of the core first."""
        searched = (
            (self._task(task)["rates_from"], configuration.rate_of)
            for part in sorted(self.parts, key=lambda part: (part != CORE, part == RATES))
            for configuration in self._plan[part]["configurations"]
            for task in self._plan[part]["tasks"]
            if part == CORE or not self.is_common(part)
        )
        return list(dict.fromkeys(searched))

    def _with_common(self) -> list[str]:
        """The tasks that need a common rate."""
        tasks = (task for part in self.trained if self.is_common(part) for task in self._plan[part]["tasks"])
        return list(dict.fromkeys(self._task(task)["rates_from"] for task in tasks))

    def _mean(self, task: str, labels: list[str], rate: float) -> float:
        """The mean success over the runs of these at a rate; NaN unless all are finished."""
        return fmean(self._success(place) for label in labels for place in self._tries(task, label, rate))

    def _tries(self, task: str, label: str, rate: float) -> list[Place]:
        """The runs of a configuration's search at one rate."""
        rates = self._plan[RATES]
        places = rates.get("places", {}).get(task) or [
            {"task": task, "warm_start": self._plan["warm_starts"][self._task(task)["task"]][0], "seed": seed}
            for seed in rates["seeds"]
        ]
        every = (configuration for part in self.parts for configuration in self._plan[part]["configurations"])
        own = next((each for each in every if each.label == label), _configuration(label))
        name = f"{label}_lr{rate:g}"
        return [self._place(**place, configuration=own, label=name, is_search=True) for place in places]

    def _success(self, place: Place) -> float:
        """The run's mean over questions after training, at the decoding of the study; NaN unless it is finished."""
        name, folder = str(place), self.folder(place).path
        if name not in self._successes and self.is_finished(place):
            frames = read_parquet(self.results) if name in self._kept.index else load_run(folder)
            chosen = frames.questions.query(f"when == 'after' and mode == {self.decoding!r}")["success"]
            self._successes |= {str(run): mean for run, mean in chosen.groupby("run").mean().items()}
            if name not in self._successes:
                raise DataError(f"{folder} has no evaluation {self.decoding!r} after training, to choose rates by.")
        return self._successes.get(name, nan)

    @cached_property
    def _kept(self) -> pd.DataFrame:
        """The runs that are kept as Parquet, by name."""
        return read_parquet(self.results).runs.set_index("run") if is_kept(self.results) else pd.DataFrame()

    def _task(self, name: str) -> dict[str, Any]:
        """What the plan says of a task: the `task` that it composes, its settings, and whose rates it shares."""
        return {"task": name, "settings": (), "rates_from": name, **self._plan.get("tasks", {}).get(name, {})}


def _configuration(entry: str | dict[str, Any]) -> Configuration:
    fields = {"label": entry} if isinstance(entry, str) else entry
    label, settings = fields["label"], tuple(fields.get("settings", []))
    return Configuration(**{"algorithm": label, "rate_of": label, **fields, "settings": settings})


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
    begin = plan[RATES].setdefault("begin", grid)
    if grid != sorted(set(grid)) or not begin or begin not in [grid[i : i + len(begin)] for i in range(len(grid))]:
        raise DataError(
            f"{file}: rates.grid holds rates from the lowest on, each once, and rates.begin some in a row of them."
        )
    parts = {name: part for name, part in plan.items() if name == RATES or name not in NO_PARTS}
    for name, part in parts.items():
        try:
            part["configurations"] = [_configuration(entry) for entry in part.get("configurations", [])]
        except (TypeError, KeyError) as error:  # names the field
            raise DataError(f"{file}: a configuration of {name} cannot be read: {error}.") from error
        if (rate := part.get("rate", "own")) not in ("own", COMMON):
            raise DataError(f"{file}: rate of {name} is {rate!r}: there are own and {COMMON}.")
    # at the common rate what a run is called depends on the rates; so another's tokens are those of its own rate
    at_own_rate = (part for name, part in parts.items() if name != RATES and part.get("rate") != COMMON)
    own = {each.label for part in at_own_rate for each in part["configurations"]}
    for each in (each for part in parts.values() for each in part["configurations"]):
        if each.tokens_of is not None and each.tokens_of not in (others := own - {each.label}):
            raise DataError(
                f"{file}: tokens_of of {each.label} is {each.tokens_of!r}, no other configuration that runs at its own "
                f"rate: {nearest(each.tokens_of, sorted(others))}."
            )
    return plan
