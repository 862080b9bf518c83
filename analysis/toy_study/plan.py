"""The toy study's plan: which runs configs/study/toy.yaml asks for, where their records go, and at which rate each."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from analysis.measures import HeldOut, held_out, mean_success
from analysis.records import RunGroup, load_run
from rtpo.core.files import write_whole
from rtpo.errors import DataError
from rtpo.run.composition import composed
from rtpo.run.config import PROJECT, RunConfig, compose_run
from rtpo.run.records import RunFolder

STUDY = PROJECT / "configs" / "study" / "toy.yaml"
RESULTS = PROJECT / "results" / "toy"
PARTS = ("rates", "core", "rest", "controls")


@dataclass(frozen=True)
class Configuration:
    """A label, the `algorithm=` it composes, whose learning rate it shares, and settings besides."""

    label: str
    algorithm: str
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """A run: where its records go, and what it is composed of but for its learning rate."""

    experiment: str
    label: str
    task: str
    warm_start: str
    seed: int
    configuration: Configuration
    settings: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.experiment}/{self.label}-seed{self.seed}"


Planned = tuple[Place, float | None]
"""a run with its learning rate; None where none was chosen yet"""


class Study:
    """The study file, with where its records are."""

    def __init__(self, file: Path = STUDY, results: Path = RESULTS) -> None:
        self._file = _read(file)
        self._results = results
        self._rates_file = results / "learning_rates.json"

    def places(self, part: str) -> Iterator[Place]:
        """The runs of a part in their order: all configurations of a seed and warm start before the next; at first
        warm starts take turns, so that every seed has run once before one runs twice."""
        settings = self._file[part]
        pairs = product(settings["seeds"], range(settings["warm_starts"]))
        for seed, number in sorted(pairs, key=lambda pair: ((pair[0] + pair[1]) % settings["warm_starts"], pair[0])):
            for task in settings["tasks"]:
                warm_start = self._file["warm_starts"][task][number]
                for entry in settings["configurations"]:
                    one = _configuration(entry)
                    yield Place(warm_start, one.label, task, warm_start, seed, one, one.settings)

    def search(self) -> Iterator[tuple[Place, float]]:
        """The runs of `rates`, by configuration, those of the core first."""
        once = {(place.task, place.configuration): place for part in ("core", "rest") for place in self.places(part)}
        for task, one in once:
            warm_start = self._file["warm_starts"][task][0]
            for rate in self._file["learning_rates"]:
                label = f"{one.label}_lr{rate:g}"
                settings = tuple(self._file["validation"])
                yield Place(f"rates_{warm_start}", label, task, warm_start, 0, one, settings), rate

    def planned(self, part: str) -> Iterator[Planned]:
        """The runs of any part."""
        if part == "rates":
            yield from self.search()
            return
        rates = self._rates()
        for place in self.places(part):
            yield place, rates.get(place.task, {}).get(place.configuration.algorithm)

    def folder(self, place: Place) -> RunFolder:
        return RunFolder(self._results / str(place))

    def config(self, place: Place, rate: float) -> RunConfig:
        overrides = [
            f"algorithm={place.configuration.algorithm}",
            f"task={place.task}",
            f"model={place.warm_start}",
            f"seed={place.seed}",
            f"results={self._results}",
            f"experiment_name={place.experiment}",
            f"algorithm.label={place.label}",
            f"optimizer.lr={rate:g}",
            *self._file["settings"],
            *place.settings,
        ]
        return compose_run(composed("train", overrides))

    def freeze(self) -> None:
        """Write, for each configuration with all its rates run, the one with the highest sampled success after
        training on the validation split; of equals the lowest. Raises DataError if a written one would change."""
        success: dict[tuple[str, str], dict[float, float]] = {}
        for place, rate in self.search():
            folder = self.folder(place)
            if folder.is_finished:
                success.setdefault((place.task, place.configuration.label), {})[rate] = _success(folder.path)
        chosen = self._rates()
        for (task, label), found in success.items():
            if len(found) == len(self._file["learning_rates"]):
                best = max(sorted(found), key=lambda rate: found[rate])
                if chosen.setdefault(task, {}).setdefault(label, best) != best:
                    raise DataError(
                        f"{self._rates_file} has {chosen[task][label]:g} for {label} on {task} and the records now say "
                        f"{best:g}: runs may have been made at the first. Restore the records, or delete both."
                    )
        if not chosen:
            raise DataError("no configuration has run at every rate yet: run the part rates first.")
        write_whole(self._rates_file, (json.dumps(chosen, indent=1, sort_keys=True) + "\n").encode())

    def _rates(self) -> dict[str, dict[str, float]]:
        """By task and configuration, the rates chosen by `freeze`."""
        if not self._rates_file.exists():
            return {}
        chosen: dict[str, dict[str, float]] = json.loads(self._rates_file.read_text())
        return chosen


def _read(file: Path) -> dict[str, Any]:
    """Raises DataError for what is no plan of a study."""
    try:
        plan = yaml.safe_load(file.read_bytes())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DataError(f"{file} is not YAML ({' '.join(str(error).split())}): give the plan of a study.") from error
    needed = {"settings", "learning_rates", "validation", "warm_starts", "core", "rest", "controls"}
    if not isinstance(plan, dict) or not needed <= plan.keys():
        raise DataError(f"{file} is no plan of a study: it needs {', '.join(sorted(needed))}.")
    return plan


def _configuration(entry: str | dict[str, Any]) -> Configuration:
    if isinstance(entry, str):
        return Configuration(entry, entry)
    return Configuration(entry["label"], entry["algorithm"], tuple(entry["settings"]))


def _success(folder: Path) -> float:
    evaluation = held_out(RunGroup(folder.name, (load_run(folder),)), "after", "sampled")
    assert isinstance(evaluation, HeldOut)
    return mean_success(evaluation)
