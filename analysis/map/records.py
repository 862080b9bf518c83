"""The records of `experiments/map.py`: what was predicted of each point, and what was measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from analysis.intervals import Interval, student
from analysis.records import read_lines
from rtpo.core.files import sha256
from rtpo.errors import DataError
from rtpo.run.records import read_manifest
from rtpo.theory.luck import gradient
from rtpo.theory.mdp import Table
from rtpo.theory.mdps import uniform
from rtpo.theory.regimes import METHODS, Point, exact_noise, noise_ratio

SCHEMA = 1
COMMAND = "python experiments/map.py"
MANIFEST_KEYS = ("commits", "machine", "cpu_seconds", "measurements", "predicted_sha256", "sha256")
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
    """Each method's gradient at a frozen point, [seeds, K]: its mean for the right action, and its noise."""

    point: Point
    f: Table
    mean: Mapping[str, Table]
    measured: Mapping[str, Table]

    @cached_property
    def exact(self) -> Mapping[str, Table]:
        """What the noise is exactly, [K]."""
        return exact_noise(self.point)

    @cached_property
    def gradient(self) -> Table:
        """The exact one for the right action, [K]."""
        mdp = self.point.task.mdp()
        return gradient(mdp, uniform(mdp))[:, 0]

    def signal_to_noise(self, method: str) -> Table:
        """The squared length of the exact gradient, of both actions, by the measured noise, [K]."""
        return 2 * self.gradient**2 / self.measured[method].mean(0)

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
        raise DataError(f"{file} does not exist: restore it; {COMMAND} predict makes it before anything is measured.")
    manifest, lines = _measured(folder)
    checksum = sha256(file) if manifest is None else manifest["predicted_sha256"]
    predicted = {_point(line): line for line in read_lines(file, {file.name: checksum}, PREDICTED_KEYS)}
    nothing: Mapping[str, Sequence[float]] = dict.fromkeys(METHODS, ())
    trained = dict.fromkeys(predicted, nothing)
    by_task = {(point.task, point.group_size): np.array(line["f"]) for point, line in predicted.items()}
    noise = []
    for line in lines:
        point, of = _point(line), {method: line[method] for method in METHODS}
        task = point.task, point.group_size
        if task not in by_task or (line["kind"] == "trained" and point not in trained):
            raise DataError(
                f"{folder / 'map.jsonl'} has {point.name}, of which {file.name} says nothing: restore both."
            )
        if line["kind"] == "trained":
            trained[point] = of
        else:
            tables = [{m: np.array([one[key] for one in of[m]]) for m in METHODS} for key in ("mean", "noise")]
            noise.append(Noise(point, by_task[task], *tables))
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
