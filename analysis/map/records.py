"""The records of `experiments/map.py`: what was predicted of each point, and what was measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from analysis.intervals import Interval, student
from analysis.records import read_lines
from rtpo.errors import DataError
from rtpo.run.records import json_object, read_manifest
from rtpo.theory.mdp import Table
from rtpo.theory.regimes import METHODS, Point, exact_noise, noise_ratio

SCHEMA = 1
COMMAND = "python experiments/map.py"
MANIFEST_KEYS = ("commits", "machine", "cpu_seconds", "lines", "sha256")
PREDICTED_KEYS = (*(field.name for field in fields(Point)), *("rtpo", "grpo", "cost", "gain", "excess", "f"))


@dataclass(frozen=True)
class Place:
    """A point with what the closed form says of it, and the successes of both methods by seed, none where it was not
    measured."""

    point: Point
    predicted: Mapping[str, Any]
    measured: Mapping[str, Sequence[float]]

    @property
    def expected(self) -> float:
        """RTPO's success less GRPO's, predicted."""
        return float(self.predicted["rtpo"] - self.predicted["grpo"])

    @cached_property
    def found(self) -> Interval:
        """The same, measured, with a t interval over seeds."""
        siblings, chains = (np.array(self.measured[method]) for method in METHODS)
        return over_seeds(siblings - chains)

    @property
    def is_decided(self) -> bool:
        """Whether the measured interval is on one side of 0."""
        return self.found.low > 0 or self.found.high < 0


@dataclass(frozen=True, eq=False)
class Noise:
    """The noise of each method's gradient at a frozen point, [seeds, K], and what it is exactly, [K]."""

    point: Point
    f: Table
    measured: Mapping[str, Table]
    exact: Mapping[str, Table]

    @property
    def simple(self) -> Table:
        """Formula (2): RTPO's by GRPO's, [K]."""
        return noise_ratio(self.f, self.point.group_size, self.point.chains)


@dataclass(frozen=True)
class Records:
    """`manifest` is None, and nothing measured, where the measurement was not finished."""

    places: tuple[Place, ...]
    noise: tuple[Noise, ...]
    manifest: Mapping[str, Any] | None


def over_seeds(values: Table) -> Interval:
    """The mean, with its 95 % t interval; alike values have one without width."""
    half = student(len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return Interval(float(values.mean()), float(values.mean() - half), float(values.mean() + half), len(values), 1)


def load(folder: Path) -> Records:
    """Raises DataError for predictions that are missing, and for damaged records."""
    file = folder / "predicted.jsonl"
    if not file.exists():
        raise DataError(f"{file} does not exist: {COMMAND} predict makes it.")
    predicted = {
        _point(line): line
        for number, text in enumerate(file.read_bytes().splitlines(), 1)
        for line in [json_object(text, f"{file} line {number}", PREDICTED_KEYS)]
    }
    manifest, lines = _measured(folder)
    trained: dict[Point, dict[str, list[float]]] = {point: {method: [] for method in METHODS} for point in predicted}
    frozen: dict[Point, dict[str, list[Any]]] = {}
    for line in lines:
        point = _point(line)
        if line["kind"] == "frozen":
            of = frozen.setdefault(point, {method: [] for method in METHODS})
        elif point in trained:
            of = trained[point]
        else:
            raise DataError(
                f"{folder / 'map.jsonl'} has {point.name}, of which {file.name} says nothing: restore both."
            )
        for method in METHODS:
            of[method].append(line[method]["noise"] if line["kind"] == "frozen" else line[method])
    by_task = {(point.task, point.group_size): np.array(line["f"]) for point, line in predicted.items()}
    noise = [
        Noise(point, by_task[point.task, point.group_size], {m: np.array(of[m]) for m in METHODS}, exact_noise(point))
        for point, of in frozen.items()
    ]
    places = [Place(point, line, trained[point]) for point, line in predicted.items()]
    return Records(tuple(places), tuple(noise), manifest)


def _measured(folder: Path) -> tuple[Mapping[str, Any] | None, Sequence[Mapping[str, Any]]]:
    path, records = folder / "map.json", folder / "map.jsonl"
    if not path.exists():
        return None, []
    manifest = read_manifest(path, SCHEMA, MANIFEST_KEYS)
    keys = ("kind", "seed", *METHODS, *(field.name for field in fields(Point)))
    return manifest, read_lines(records, {records.name: manifest["sha256"]}, keys)


def _point(line: Mapping[str, Any]) -> Point:
    return Point(**{field.name: line[field.name] for field in fields(Point)})
