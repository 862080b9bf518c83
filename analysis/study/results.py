"""A study's finished runs beside its plan, and two of its configurations compared."""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import metrics
from analysis.load import Frames, load, over_warm_starts
from analysis.looks import styles
from analysis.stats import Interval, verdict
from analysis.study.plan import Study, load_study
from analysis.tables import NOT_RUN
from rtpo.errors import DataError
from rtpo.run.config import PROJECT

RESULTS = PROJECT / "results"
TOKEN_LIMIT = ("budget.generated_tokens",)
"""the setting that differs between the runs of a configuration with `tokens_of`"""
DECODINGS = {"sampled": "temperature 1", "paper": "paper's decoding", "greedy": "greedy"}
Key = tuple[str, str, bool]
KEY = ["task", "configuration", "is_common"]
"""is_common: whether the runs use the common learning rate"""


@dataclass(frozen=True, eq=False)
class StudyResults:
    """A study with its finished runs."""

    study: Study
    planned: Mapping[Key, Set[tuple[str, int]]]  # experiment (warm start) and seed of each planned run
    groups: Mapping[Key, Frames]  # the finished runs, in the order of the plan

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(task for task, *_ in self.planned))

    def measures(self, measure: str) -> dict[str, tuple[str, bool]]:
        """Columns of a claim's verdicts by title: a key of MEASURES, and whether the runs use the common learning rate.
        Success has a column for each decoding, the study's own first, and one for the common rate."""
        if measure != "success":
            return {"Verdict": (measure, False)}
        own = self.study.decoding
        others = {DECODINGS[mode].capitalize(): (mode, False) for mode in DECODINGS if mode != own}
        return {"Verdict": (own, False), **others, "One rate": (own, True)}


def of_study(name: str, results: Path = RESULTS) -> StudyResults:
    """The study of configs/study/<name>.yaml with the runs under <results>/<name>/. Raises DataError as `analysis.load`
    does, and for a run whose learning rate differs from the chosen one."""
    return _of_study(name, results)


@cache
def _of_study(name: str, results: Path) -> StudyResults:
    study = load_study(name, results / name)
    rows = [
        (place.task, place.configuration.label, study.is_common(part), part, place, str(place), rate)
        for part in study.compared_parts
        for place, rate in study.planned(part)
    ]
    planned = pd.DataFrame(rows, columns=[*KEY, "part", "place", "run", "rate"])
    frames = load(study.results) if study.has_runs else None
    rates = {} if frames is None else dict(zip(frames.runs["run"], frames.runs["learning_rate"], strict=True))
    for run, rate in planned[["run", "rate"]].dropna().itertuples(index=False):
        if rates.get(run, rate) != rate:
            raise DataError(
                f"{run} was trained at the learning rate {rates[run]:g} and is planned at {rate:g}: restore "
                "learning_rates.json, or delete the run."
            )
    of_key = planned.groupby(KEY, sort=False)["place"]
    places: dict[Any, Any] = {key: {(place.experiment, place.seed) for place in group} for key, group in of_key}
    finished = planned[planned["run"].isin(rates)].drop_duplicates([*KEY, "run"])
    return StudyResults(study, places, {} if frames is None else _groups(frames, finished))


def _groups(frames: Frames, finished: pd.DataFrame) -> dict[Key, Frames]:
    groups: dict[Key, Frames] = {}
    has_tokens = finished["place"].map(lambda place: place.configuration.tokens_of is not None)
    for (task, is_common, is_limited), runs in finished.groupby(["task", "is_common", has_tokens]):
        titles = {place.label: place.configuration.label for place in runs["place"]}
        alike = over_warm_starts(frames.select(runs["run"]), TOKEN_LIMIT if is_limited else ())
        groups |= {(str(task), titles[label], bool(is_common)): group for label, group in alike.items()}
    kinds = zip(finished["configuration"], finished["is_common"], strict=True)
    parts = dict(zip(kinds, pd.factorize(finished["part"])[0], strict=True))
    looks = styles(finished["configuration"])
    return dict(sorted(groups.items(), key=lambda item: (parts[item[0][1:]], looks[item[0][1]].rank)))


# comparisons


def _success(mode: str, first: Frames, second: Frames) -> Interval | None:
    of_second, of_first = metrics.held_out(second, "after", mode), metrics.held_out(first, "after", mode)
    return None if of_second is None or of_first is None else metrics.difference(of_second, of_first)


def less(value: Callable[[Frames], "pd.Series[float]"], first: Frames, second: Frames) -> Interval | None:
    """The mean of the first's value minus the second's, by paired run."""
    return metrics.run_interval(first, value(first).to_numpy() - value(second).to_numpy())


def _saved(column: str, first: Frames, second: Frames) -> Interval | None:
    return metrics.run_interval(first, 1 - first.runs[column].to_numpy(float) / second.runs[column].to_numpy(float))


MEASURES: Mapping[str, tuple[str, Callable[[Frames, Frames], Interval | None]]] = {
    **{mode: (f"success, {title}, points", partial(_success, mode)) for mode, title in DECODINGS.items()},
    "ratio": ("ratio from contexts alone, × 100", partial(less, metrics.context_ratio)),
    "ties": ("zero advantages, points fewer", partial(less, lambda group: -metrics.mean_over_steps(group, "ties"))),
    "seconds": ("training seconds saved, %", partial(_saved, "training_seconds")),
    "tokens": ("generated tokens saved, %", partial(_saved, "generated_tokens")),
}
"""by key: title, and the difference of two groups from `metrics.paired`, which is positive where the first is better"""


@dataclass(frozen=True)
class Difference:
    """The first of two configurations minus the second, on a task."""

    interval: Interval | None
    pairs: int  # finished pairs of runs
    planned: int  # planned pairs
    verdict: str  # of `stats.verdict`; NOT_RUN without a finished pair


@cache
def compare(
    study: StudyResults, task: str, first: str, second: str, measure: str, *, is_common: bool = False
) -> Difference | None:
    """Two configurations by a key of MEASURES, at their own learning rates or at the common one. None on a task for
    which the study does not plan both."""
    keys = [(task, label, is_common) for label in (first, second)]
    if not study.planned.keys() >= {*keys}:
        return None
    planned = len(study.planned[keys[0]] & study.planned[keys[1]])
    groups = [study.groups.get(key) for key in keys]
    pair = metrics.paired(*groups) if all(groups) else None
    pairs = len(pair[0].runs) if pair else 0
    difference = MEASURES[measure][1](*pair) if pair and pairs else None
    if not pairs or (difference is None and measure in DECODINGS):
        return Difference(None, 0, planned, NOT_RUN)
    return Difference(difference, pairs, planned, verdict(difference, runs=pairs))
