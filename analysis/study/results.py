"""A study's finished runs beside its plan, and two of its configurations compared."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import pandas as pd

from analysis import metrics
from analysis.load import Frames, load, over_warm_starts
from analysis.looks import styles
from analysis.stats import Interval, verdict
from analysis.study.plan import Place, Study, named
from analysis.tables import NOT_RUN
from rtpo.errors import DataError

OF_ANOTHER = ("budget.generated_tokens",)
"""a run's own setting where it has the generated tokens of another's"""
DECODINGS = {"sampled": "temperature 1", "paper": "paper's decoding", "greedy": "greedy"}
Groups = Mapping[str, Mapping[str, Frames]]
"""the finished runs by task and configuration"""


@dataclass(frozen=True, eq=False)
class StudyResults:
    """planned: the runs of each part. own: the finished ones at each configuration's own rate, in the order of the
    plan; common: those at the rate that all share."""

    study: Study
    planned: Mapping[str, tuple[Place, ...]]
    own: Groups
    common: Groups

    @property
    def tasks(self) -> list[str]:
        return list(self.own)

    def places(self, task: str, label: str, *, is_common: bool = False) -> list[Place]:
        """The planned runs of a configuration at its own rate, or at the common one."""
        parts = [part for part in self.study.trained if self.study.is_common(part) == is_common]
        places = [place for part in parts for place in self.planned[part]]
        return [place for place in places if (place.task, place.configuration.label) == (task, label)]

    def group(self, task: str, label: str, *, is_common: bool = False) -> Frames | None:
        """The finished runs of a configuration; None without any."""
        return (self.common if is_common else self.own)[task].get(label)


@cache
def of_study(name: str) -> StudyResults:
    """The study of configs/study/<name>.yaml with the runs under results/<name>/. Raises DataError as
    `analysis.load` does, and for a run with another learning rate than was chosen for it."""
    return results_of(named(name))


def results_of(study: Study) -> StudyResults:
    """As `of_study`."""
    planned = {part: list(study.planned(part)) for part in study.parts}
    frames = load(study.results) if study.has_runs else None
    rates = {} if frames is None else dict(zip(frames.runs["run"], frames.runs["learning_rate"], strict=True))
    for place, rate in (each for part in study.trained for each in planned[part]):
        if rate is not None and rates.get(str(place), rate) != rate:
            raise DataError(
                f"{place} was trained at the learning rate {rates[str(place)]:g} and is planned at {rate:g}: "
                "restore learning_rates.json, or delete the run."
            )
    places = {part: tuple(place for place, _ in planned[part]) for part in study.parts}
    return StudyResults(study, places, *(_grouped(study, places, frames, is_common) for is_common in (False, True)))


def _grouped(
    study: Study, planned: Mapping[str, Sequence[Place]], frames: Frames | None, is_common: bool
) -> dict[str, dict[str, Frames]]:
    finished = set() if frames is None else set(frames.names)
    parts = [part for part in study.trained if study.is_common(part) == is_common]
    order = {place.configuration.label: rank for rank, part in enumerate(parts) for place in planned[part]}
    places = [place for part in parts for place in planned[part] if str(place) in finished]
    by_task: dict[str, dict[str, Frames]] = {}
    for task in dict.fromkeys(place.task for part in study.trained for place in planned[part]):
        here = [place for place in dict.fromkeys(places) if place.task == task]
        titles = {place.label: place.configuration.label for place in here}
        groups: dict[str, Frames] = {}
        for own, has_tokens in (((), False), (OF_ANOTHER, True)):
            names = [str(place) for place in here if (place.configuration.tokens_of is not None) == has_tokens]
            if frames is not None and names:
                alike = over_warm_starts(frames.of(names), own)
                groups |= {titles[label]: group for label, group in alike.items()}
        by_task[task] = {label: groups[label] for label in sorted(styles(groups), key=order.__getitem__)}
    return by_task


# comparisons


def _success(mode: str, first: Frames, second: Frames) -> Interval | None:
    one, other = metrics.held_out(second, "after", mode), metrics.held_out(first, "after", mode)
    return None if one is None or other is None else metrics.difference(one, other)


def _less(value: Callable[[Frames], "pd.Series[float]"], first: Frames, second: Frames) -> Interval | None:
    """By how much the first has more."""
    return metrics.run_interval(first, value(first).to_numpy() - value(second).to_numpy())


def _saved(column: str, first: Frames, second: Frames) -> Interval | None:
    return metrics.run_interval(first, 1 - first.runs[column].to_numpy(float) / second.runs[column].to_numpy(float))


MEASURES: Mapping[str, tuple[str, Callable[[Frames, Frames], Interval | None]]] = {
    **{mode: (f"success, {title}, points", partial(_success, mode)) for mode, title in DECODINGS.items()},
    "ratio": ("context ratio × 100", partial(_less, metrics.context_ratio)),
    "ties": ("zero advantages, points fewer", partial(_less, lambda group: -metrics.mean_over_steps(group, "ties"))),
    "seconds": ("training seconds saved, %", partial(_saved, "training_seconds")),
    "tokens": ("generated tokens saved, %", partial(_saved, "generated_tokens")),
}
"""by key: what is compared, and the difference of two groups from `metrics.paired`: above 0 the first does better"""


@dataclass(frozen=True)
class Difference:
    """The first of two configurations less the second on a task. verdict: NOT_RUN where no pair of runs is finished,
    else that of `stats.verdict`."""

    interval: Interval | None
    pairs: int
    planned: int
    verdict: str


@cache
def compare(
    study: StudyResults, task: str, first: str, second: str, measure: str, *, is_common: bool = False
) -> Difference | None:
    """Two configurations in a key of MEASURES, at rates of their own or at the common one; None on a task where the
    study does not plan one of them."""
    places = [study.places(task, label, is_common=is_common) for label in (first, second)]
    if not all(places):
        return None
    planned = len(set.intersection(*({(place.experiment, place.seed) for place in each} for each in places)))
    groups = [study.group(task, label, is_common=is_common) for label in (first, second)]
    if groups[0] is None or groups[1] is None:
        return Difference(None, 0, planned, NOT_RUN)
    pair = metrics.paired(groups[0], groups[1])
    difference, pairs = MEASURES[measure][1](*pair) if len(pair[0].runs) else None, len(pair[0].runs)
    if not pairs or (difference is None and measure in DECODINGS):
        return Difference(None, 0, planned, NOT_RUN)
    return Difference(difference, pairs, planned, verdict(difference, runs=pairs))
