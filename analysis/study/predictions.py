"""What a study compares (analysis/study/comparisons.yaml), and a rule that predicts the differences.

The rule knows the measured turns of a task (`Turns`) and exact GRPO's success in the search. f_k is the share of the
return's variance that turn k and later turns cause (`rtpo.toy.variance`). The rule:

1. The noise of a method's gradient of turn k, exact GRPO's being 1, is `noise`.
2. A method's speed is the mean of 1 / sqrt(noise) over turns. Weights are the shares of paths that reach each turn.
3. Training shrinks the share of failures. Where exact GRPO multiplies it by q, a method of speed s multiplies it by
   q^s, and in r times the rollouts by q^(r s). Exact GRPO's success before and after training is that of the search,
   at its chosen rate; r is the rollouts of a run of the test over those of the search.
4. A predicted range is the predicted difference plus or minus 5 points.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import yaml

from analysis.study.plan import Study
from rtpo.core.files import write_whole
from rtpo.errors import ConfigError, DataError
from rtpo.run.building import build
from rtpo.run.config import PROJECT
from rtpo.theory.noise import noise_ratio
from rtpo.toy.record import TurnRecord, read_record
from rtpo.warm_starts.recipes import SHIPPED, TURNS, read_adapter, read_turns

FILE = PROJECT / "analysis" / "study" / "comparisons.yaml"
PREDICTED = "predicted.json"
"""the file of predictions, in the folder of a study's records"""
CONTROL = "grpo_exact"
"""the method whose noise and speed are 1"""
MARGIN = 0.05
LEAST_F = 0.02
"""smaller measured f_k are set to this value: the measurement cannot tell them from 0"""


@dataclass(frozen=True)
class Comparison:
    """The success of one configuration minus that of another, on a task of the study's plan."""

    configuration: str
    against: str  # the configuration that is subtracted
    task: str


@dataclass(frozen=True)
class Comparisons:
    """What a study compares."""

    measured_turns: dict[str, str]
    """by task: the measurement's name in `WarmStartRecord.decided`, or TURNS, the measured turns of shipped adapters"""
    family: tuple[Comparison, ...]  # judged together, by Holm's method, and predicted


@dataclass(frozen=True)
class Turns:
    """What was measured of a task's turns before training. If a record has only f_k, `reached` and `recurring` are 1 at
    every turn."""

    left: list[float]  # f_k
    reached: list[float]  # share of the paths
    recurring: list[float]  # share of the paths at turn k whose state another path of the prompt has too


@dataclass(frozen=True)
class Prediction:
    """The range in which the rule expects a difference."""

    comparison: Comparison
    low: float
    high: float


def comparisons_of(name: str) -> Comparisons | None:
    """The comparisons of a study; None if the file has none of it. Raises ConfigError for an invalid entry."""
    entry = yaml.safe_load(FILE.read_bytes()).get(name)
    return None if entry is None else build(Comparisons, entry, f"{FILE.name}, {name}")


def read_predictions(folder: Path) -> list[Prediction]:
    """The predictions in a study's folder. Raises DataError if the file is missing or invalid."""
    file = folder / PREDICTED
    try:
        return [build(Prediction, entry, file.name) for entry in json.loads(file.read_bytes())]
    except (OSError, ValueError, TypeError, ConfigError) as error:
        raise DataError(f"{file} is not a list of predictions ({error}): restore it.") from error


def write_predictions(study: Study) -> None:
    """Write the predictions of a study's family, once. Raises DataError as `predict` does, and if the predictions that
    are already written would change."""
    compared = comparisons_of(study.name)
    if compared is None:
        return
    predicted = [predict(study, compared, each) for each in compared.family]
    text = (json.dumps([asdict(each) for each in predicted], indent=1) + "\n").encode()
    file = study.results / PREDICTED
    if file.exists() and file.read_bytes() != text:
        raise DataError(f"{file} has other predictions: they are not changed after a run. Restore the records.")
    write_whole(file, text)


def predict(study: Study, compared: Comparisons, comparison: Comparison) -> Prediction:
    """The rule of this module. Raises DataError if a configuration of the comparison, or exact GRPO, has no learning
    rate on the task yet."""
    turns = measured_turns(study, comparison.task, compared.measured_turns[comparison.task])
    before, after = study.search_success(comparison.task, CONTROL)[study.rate_of(comparison.task, CONTROL)]
    shrinking, ends = ((1 - after) / (1 - before)) ** study.rollout_ratio(comparison.task, CONTROL), []
    for label in (comparison.configuration, comparison.against):
        algorithm = study.configs(comparison.task, label)[0].algorithm
        ends.append(1 - (1 - before) * shrinking ** speed(noise(algorithm, turns), turns))
    gain = ends[0] - ends[1]
    return Prediction(comparison, round(gain - MARGIN, 3), round(gain + MARGIN, 3))


def noise(algorithm: Mapping[str, Any], turns: Turns) -> list[float]:
    """The noise of a method's gradient by turn, exact GRPO's being 1. algorithm: that of a run's configuration.

    RTPO's is `rtpo.theory.noise`. A state baseline multiplies the noise that it acts on by f_k. If it acts on a share w
    of the noise, w f_k + 1 - w is left. For GiGPO, w is the share of recurring paths. For anchored baselines, w is the
    weight of the other path where only one other path goes through the state, 1 / (1 + shrinkage). For other methods,
    w is 0.
    """
    if algorithm["name"].startswith("rtpo"):
        trunks, group, count = algorithm["trunks"], algorithm["group_size"], len(turns.left)
        return list(noise_ratio(np.array(turns.left), group, trunks * (1 + count * (group - 1))))
    if "shrinkage" in algorithm:
        shares = [1 / (1 + algorithm["shrinkage"])] * len(turns.left)
    else:
        shares = turns.recurring if algorithm["name"] == "gigpo" else [0.0] * len(turns.left)
    return [1 - share * (1 - left) for share, left in zip(shares, turns.left, strict=True)]


def speed(noises: Sequence[float], turns: Turns) -> float:
    """The mean of 1 / sqrt(noise) over the turns, weighted by the share of paths that reach them."""
    weights = zip(noises, turns.reached, strict=True)
    return sum(share / sqrt(of_turn) for of_turn, share in weights) / sum(turns.reached)


def measured_turns(study: Study, task: str, measurement: str) -> Turns:
    """The measured turns of a task, averaged over the records of its warm starts. Raises DataError if no toy's record
    has this measurement, or if one of a language model's adapters lacks it."""
    measured = _adapters_turns(study, task) if measurement == TURNS else _toys_turns(study, task, measurement)
    if not measured:
        raise DataError(f"no warm start of {task} has the measurement {measurement!r} in its record.")

    def means(name: str) -> list[float]:
        every = [getattr(each, name) or [1.0] * len(each.left) for each in measured]
        return [fmean(values) for values in zip(*every, strict=True)]

    return Turns([max(left, LEAST_F) for left in means("left")], means("reached"), means("recurring"))


def _toys_turns(study: Study, task: str, measurement: str) -> list[TurnRecord]:
    records = [read_record(Path(config.model.path)).decided or {} for config in study.configs(task, CONTROL)]
    return [record[measurement] for record in records if measurement in record]


def _adapters_turns(study: Study, task: str) -> list[TurnRecord]:
    """Raises DataError if an adapter has no such measurement, or one of other weights or of another task."""
    measured = []
    for folder in (SHIPPED / name for name in study.warm_starts(task)):
        if not (folder / TURNS).is_file():
            raise DataError(f"{folder / TURNS} is missing: experiments/maintenance/turns.py measures it.")
        turns = read_turns(folder)
        if turns.sha256 != read_adapter(folder).sha256:
            raise DataError(f"{folder / TURNS} was measured of other weights: remove it, and measure the adapter's.")
        if turns.task != task:
            raise DataError(f"{folder / TURNS} was measured of the task {turns.task}: remove it, and measure {task}.")
        measured.append(turns.measured)
    return measured
