"""What was predicted of a study (predicted.json among its records) beside what its runs say."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.claims.rule import LEAST_PAIRS, equality
from analysis.intervals import Interval
from analysis.looks import TASKS, title_of
from analysis.study.findings import Finding, finding
from analysis.study.records import StudyRecords
from analysis.tables import (
    CONTRADICTED,
    INTERVALS,
    MINUS,
    NO_VALUE,
    NOT_RUN,
    SUPPORTED,
    UNDECIDED,
    Table,
    number,
    said,
)
from rtpo.core.names import nearest
from rtpo.errors import DataError
from rtpo.run.records import require
from rtpo.theory.walk import BUDGETS, NONE

FILE = "predicted.json"
KEYS = ("task", "configuration", "against", "sign", "low", "high")
OWN = "rtpo"
HIT, MISSED, REACHED = "as predicted", "missed", "reached"
WORDS = {SUPPORTED: HIT, CONTRADICTED: MISSED, UNDECIDED: UNDECIDED}
SIGNS = {1: "+", 0: "0", -1: MINUS}
RULE = (
    "A predicted sign is missed where the whole interval lies on the other side of 0, is as predicted where it lies on "
    f"the side that was predicted, and is undecided otherwise. 0 stands for less than {100 * NONE:g} points: it is "
    "missed where the interval lies beyond that, as predicted where the interval comes within it and neither side of "
    "it is wider than that, and undecided otherwise. A range that holds 0, or is of a difference predicted as 0, is no "
    "prediction of a size; any other is as predicted where the mean lies in it, reached where only the interval comes "
    "into it, and missed otherwise. "
    f"Fewer than {LEAST_PAIRS} pairs decide nothing."
)


@dataclass(frozen=True)
class Prediction:
    """A configuration's success less another's, from `low` to `high`, and its sign, -1, 0 or 1."""

    task: str
    configuration: str
    against: str
    sign: int
    low: float
    high: float

    @property
    def has_size(self) -> bool:
        return self.sign != 0 and not self.low <= 0 <= self.high


@dataclass(frozen=True)
class Outcome:
    """What the runs say of a prediction. sign: HIT, MISSED, UNDECIDED or NOT_RUN; size: HIT, REACHED, MISSED, UNDECIDED
    or NOT_RUN; NO_VALUE where none was predicted."""

    prediction: Prediction
    found: Finding
    sign: str
    size: str


def load_predictions(results: Path) -> list[Prediction]:
    """Raises DataError without the file, and for one that holds something else."""
    file = results / FILE
    if not file.exists():
        raise DataError(f"{file} is missing: restore it, or write it by python experiments/map.py walk or anchors.")
    try:
        given = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file} is not JSON ({error}): restore it.") from error
    if not isinstance(given, list):
        raise DataError(f"{file} holds no list of predictions: restore it.")
    return [_prediction(one, f"{file}, prediction {place}") for place, one in enumerate(given)]


def _prediction(given: Any, place: str) -> Prediction:
    if not isinstance(given, dict):
        raise DataError(f"{place} is no object: restore the file.")
    require(given, KEYS, place)
    if unknown := sorted(given.keys() - KEYS):
        raise DataError(f"{place} has {unknown[0]}: {nearest(unknown[0], KEYS)}.")
    is_range = all(isinstance(given[end], int | float) for end in ("low", "high")) and given["low"] <= given["high"]
    if given["sign"] not in SIGNS or not is_range:
        raise DataError(f"{place} needs a sign of -1, 0 or 1, and numbers from low to high: restore the file.")
    return Prediction(**{key: given[key] for key in KEYS})


def outcomes(records: StudyRecords, predictions: Sequence[Prediction]) -> list[Outcome]:
    """Raises DataError for a task or a configuration that the study does not plan."""
    return [_outcome(records, one) for one in predictions]


def _outcome(records: StudyRecords, one: Prediction) -> Outcome:
    found = finding(records, one.task, (one.configuration, one.against), records.study.decoding)
    if found is None:
        raise DataError(f"{FILE} has {_unplanned(records, one)}.")
    if found.outcome == NOT_RUN:
        return Outcome(one, found, NOT_RUN, NOT_RUN)
    interval, pairs = found.difference, found.pairs
    if interval is None or pairs < LEAST_PAIRS:
        return Outcome(one, found, UNDECIDED, UNDECIDED if one.has_size else NO_VALUE)
    if one.sign == 0:
        sign = WORDS[equality(interval, pairs, 0.0, NONE)]
    else:
        turned = {SUPPORTED: 1, CONTRADICTED: -1, UNDECIDED: 0}[found.outcome] * one.sign
        sign = {1: HIT, -1: MISSED, 0: UNDECIDED}[turned]
    return Outcome(one, found, sign, _size(one, interval) if one.has_size else NO_VALUE)


def _unplanned(records: StudyRecords, one: Prediction) -> str:
    if one.task not in records.tasks:
        return f"the task {one.task!r}, which the study does not plan: {nearest(one.task, records.tasks)}"
    places = [place for part in records.study.trained for place in records.planned[part] if place.task == one.task]
    labels = list(dict.fromkeys(place.configuration.label for place in places))
    name = next(name for name in (one.configuration, one.against) if not records.places(one.task, name))
    return f"{name!r} on {one.task}, which the study does not plan there: {nearest(name, labels)}"


def _size(one: Prediction, found: Interval) -> str:
    if one.low <= found.mean <= one.high:
        return HIT
    return REACHED if found.low <= one.high and found.high >= one.low else MISSED


def predicted_table(found: Sequence[Outcome], name: str) -> Table:
    """A row a prediction."""
    rows = [
        (
            TASKS[one.prediction.task],
            _compared(one.prediction),
            _range(one.prediction),
            *_cells(one),
        )
        for one in found
    ]
    caption = (
        "What the map says of success at the paper's decoding after training, in points, written down and committed "
        "before any run of the study, though after trials of the walk, and what was found. Predicted: the sign at "
        f"{BUDGETS[1]:,} rollouts of the closed form, of which the trials set the number, and the range over "
        f"{', '.join(f'{budget:,}' for budget in BUDGETS)}. Brackets: 95 % intervals over runs and questions. "
        f"{INTERVALS} {RULE}"
    )
    header = ("Task", "Difference", "Predicted", "Found", "Sign", "Size")
    return Table(f"{name}_predicted", header, tuple(rows), caption, (), labels=2)


def _range(one: Prediction) -> str:
    low, high = (number(end, 1, scale=100, sign=True) for end in (one.low, one.high))
    return f"{SIGNS[one.sign]}, {low} to {high}"


def _compared(one: Prediction) -> str:
    return f"{title_of(one.configuration)} less {title_of(one.against)}"


def _cells(one: Outcome) -> tuple[str, str, str]:
    if one.sign == NOT_RUN:
        return NOT_RUN, NO_VALUE, NO_VALUE
    return one.found.shown, said(one.sign, [one.found.pairs]), one.size


def summary(found: Sequence[Outcome]) -> str:
    """How many predictions came true, those that did not, and all of RTPO itself."""
    run = [one for one in found if one.sign != NOT_RUN]
    if not run:
        return f"Of {len(found)} predictions none has been run yet.\n"

    def count(of: Callable[[Outcome], str], word: str) -> int:
        return sum(of(one) == word for one in run)

    signs = ", ".join(f"{count(lambda one: one.sign, word)} {word}" for word in (HIT, MISSED, UNDECIDED))
    sizes = ", ".join(f"{count(lambda one: one.size, word)} {word}" for word in (HIT, REACHED, MISSED, UNDECIDED))
    lines = [
        f"- {TASKS[one.prediction.task]}, {_compared(one.prediction)}: predicted {_range(one.prediction)}; found "
        f"{_cells(one)[0]}: sign {one.sign}, size {one.size}.\n"
        for one in run
        if MISSED in (one.sign, one.size) or one.prediction.configuration == OWN
    ]
    has_own = any(one.prediction.configuration == OWN for one in run)
    shown = "All of RTPO itself, and those missed in sign or in size" if has_own else "Missed, in sign or in size"
    higher = [one for one in run if one.prediction.sign > 0]
    above = ", ".join(
        f"{title_of(label)} on {sum(one.sign == HIT for one in of)} of {len(of)} tasks"
        for label in dict.fromkeys(one.prediction.configuration for one in higher)
        if (of := [one for one in higher if one.prediction.configuration == label])
    )
    first = f"Predicted to end higher, and found to: {above}.\n\n" if above else ""
    told = f"{shown}:\n\n{''.join(lines)}" if lines else "None was missed.\n"
    return f"{first}Of {len(found)} predictions {len(run)} have been run. Signs: {signs}. Sizes: {sizes}. {told}"
