"""The study `fair` (configs/study/fair.yaml): its comparisons, from results/fair/predicted.json and the runs' frames,
and the tables of docs/results/when.md.

The family is what the page decides; every other comparison is exploratory. A comparison over several tasks is of their
mean, since the same warm starts and seeds run them all.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pandas as pd

from analysis.load import Frames, load
from analysis.looks import TASKS, title_of
from analysis.stats import Interval, holm, interval, over_seeds, p_value
from analysis.tables import NO_VALUE, NOT_RUN, number, percent
from rtpo.errors import DataError
from rtpo.run.config import PROJECT

RESULTS = PROJECT / "results" / "fair"
MODE = "paper"
WALKS = ("walk_early", "walk_even", "walk_late")

LEAST = 0.03
"""the smallest difference of interest"""
ROOM = 0.05
"""what state values that cost nothing add to exact GRPO, at least, where credit can be told"""
CONTEXTS_AGAINST = "grpo"
"""GRPO on flattened history: what is compared with it differs in contexts, which need no room for credit"""
Places = Set[tuple[str, str]]
"""tasks and warm starts"""
BEFORE, EXACT, CEILING = "grpo_exact_room", "grpo_exact_room", "state_values_room"
"""which run has each column of the table of room"""


@dataclass(frozen=True)
class Comparison:
    """configuration minus against, on the mean of tasks; predicted to lie from low to high, if predicted. in_family: of
    the family."""

    configuration: str
    against: str
    tasks: tuple[str, ...]
    low: float = math.nan
    high: float = math.nan
    in_family: bool = False

    @property
    def name(self) -> str:
        return f"{self.configuration} minus {self.against}, {' '.join(self.tasks)}"


NOT_PREDICTED = [
    Comparison("anchored_forks_estimated", "rtpo", tasks) for tasks in (WALKS, ("walk_never",), ("knowledge_luck",))
]
"""comparisons that were added when the runs had been seen"""


@dataclass(frozen=True)
class Compared:
    """of: the comparison. here: its interval for these warm starts. elsewhere: for others, warm starts being random.
    p: of no difference, for these. adjusted: by Holm over the family; None outside of it. has_room: whether a task and
    warm start has room for credit; where none has, all are shown."""

    of: Comparison
    here: Interval
    elsewhere: Interval
    p: float
    adjusted: float | None = None
    has_room: bool = True

    @property
    def verdict(self) -> str:
        """`above` or `below` where p decides and the mean is of interest, `level` where the interval is within what is
        not, `undecided` otherwise, and `no room` where credit cannot be told."""
        if not self.has_room:
            return "no room"
        p = self.p if self.adjusted is None else self.adjusted
        if p < 0.05 and abs(self.here.mean) >= LEAST:
            return "above" if self.here.mean > 0 else "below"
        return "level" if self.here.low > -LEAST and self.here.high < LEAST else "undecided"

    @property
    def is_covered(self) -> bool:
        """Whether the mean lies where it was predicted."""
        return self.of.low <= self.here.mean <= self.of.high


def load_comparisons(file: Path) -> list[Comparison]:
    """Raises DataError for what is no list of comparisons."""
    try:
        return [Comparison(**entry | {"tasks": tuple(entry["tasks"])}) for entry in json.loads(file.read_bytes())]
    except (TypeError, KeyError, ValueError) as error:
        raise DataError(f"{file} holds no comparisons ({error}): restore it.") from error


@cache
def by_question(frames: Frames, task: str, label: str, mode: str, when: str = "after") -> pd.DataFrame:
    """The share of a question's samples that were solved, [(warm start, seed), question]; runs without are left out."""
    runs = frames.runs[(frames.runs["label"] == label) & frames.runs["experiment"].str.startswith(f"{task}_toy")]
    solved = _solved(frames, mode, when).reindex(runs["run"]).dropna(axis="columns", how="all")
    warm_starts = runs["experiment"].str.removeprefix(f"{task}_")
    places = pd.MultiIndex.from_arrays([warm_starts, runs["seed"]], names=["warm_start", "seed"])
    return solved.set_axis(places).dropna(axis="index", how="all").sort_index()


@cache
def _solved(frames: Frames, mode: str, when: str) -> pd.DataFrame:
    """Of all tasks, [run, question]."""
    solved = frames.questions["success"].xs((mode, when), level=("mode", "when"))
    return solved.reset_index().pivot(index="run", columns="question", values="success")


def differences(frames: Frames, of: Comparison, mode: str, counted: Places) -> pd.DataFrame:
    """[(warm start, seed), question], the mean over those tasks where the warm start is counted; warm starts and seeds
    that miss a run on one of these are left out."""
    tables = []
    for task in of.tasks:
        table = by_question(frames, task, of.configuration, mode) - by_question(frames, task, of.against, mode)
        kept = [(task, warm_start) in counted for warm_start in table.index.get_level_values("warm_start")]
        tables.append(table[kept].dropna(axis="index", how="all").dropna(axis="columns"))
    by_place = pd.concat(tables).groupby(level=["warm_start", "seed"])
    mean, present = by_place.mean(), by_place.size().to_numpy()
    warm_starts = mean.index.get_level_values("warm_start")
    wanted = [sum((task, warm_start) in counted for task in of.tasks) for warm_start in warm_starts]
    return mean[present == wanted]


def estimates(frames: Frames, comparisons: Sequence[Comparison], mode: str, with_room: Places) -> list[Compared]:
    """Of the comparisons that have runs, in their order."""
    estimated = list(_estimates(frames, comparisons, mode, with_room))
    family = [estimate for estimate in estimated if estimate.of.in_family]
    adjusted = dict(zip([estimate.of for estimate in family], holm([estimate.p for estimate in family]), strict=True))
    return [replace(each, adjusted=adjusted.get(each.of)) for each in estimated]


def _estimates(frames: Frames, comparisons: Sequence[Comparison], mode: str, with_room: Places) -> Iterator[Compared]:
    for of in comparisons:
        places = {(task, warm_start) for task in of.tasks for warm_start in _warm_starts(frames, task, of)}
        counted = places if of.against == CONTEXTS_AGAINST else places & with_room
        table = differences(frames, of, mode, counted or places)
        if len(table):
            values, warm_starts = table.to_numpy(), list(table.index.get_level_values("warm_start"))
            here = interval(values, strata=warm_starts)
            means = table.mean(axis="columns").groupby("warm_start").mean()
            p = p_value([values / values.size], warm_starts)
            yield Compared(of, here, over_seeds(means), p, has_room=bool(counted))


def _warm_starts(frames: Frames, task: str, of: Comparison) -> set[str]:
    """From which both configurations have runs."""
    runs = frames.runs[frames.runs["experiment"].str.startswith(f"{task}_toy")]
    ours, theirs = (set(runs["experiment"][runs["label"] == label]) for label in (of.configuration, of.against))
    return {experiment.removeprefix(f"{task}_") for experiment in ours & theirs}


def comparisons() -> list[Comparison]:
    """Those of the page. Raises as `load_comparisons`."""
    return load_comparisons(RESULTS / "predicted.json") + NOT_PREDICTED


@cache
def of_study() -> tuple[Frames, list[Compared]]:
    """The study's frames, and an estimate of each comparison that has runs."""
    frames = load(RESULTS)
    return frames, estimates(frames, comparisons(), MODE, places_with_room(frames))


def family() -> pd.DataFrame:
    """The primary family, in points."""
    estimated = _by_comparison()
    rows = [
        (_title(of), _places(of.tasks), _predicted(of), *_cells(estimated.get(of)))
        for of in comparisons()
        if of.in_family
    ]
    columns = ["Comparison", "Task", "Predicted", "These warm starts", "Other warm starts", "p", "Verdict", "Covered"]
    return pd.DataFrame(rows, columns=columns)


def by_walk() -> pd.DataFrame:
    """What the comparisons over the three walks are on each of them."""
    return _by_task(_is_of_one_walk)


def exploratory() -> pd.DataFrame:
    """All other comparisons outside of the family."""
    return _by_task(lambda of: not of.in_family and not _is_of_one_walk(of))


def _by_comparison() -> dict[Comparison, Compared]:
    return {each.of: each for each in of_study()[1]}


def _is_of_one_walk(of: Comparison) -> bool:
    return len(of.tasks) == 1 and of.tasks[0] in WALKS


def _by_task(is_shown: Callable[[Comparison], bool]) -> pd.DataFrame:
    """A row for each two configurations, a column for each task: the difference in points, and in brackets what was
    predicted."""
    estimated = _by_comparison()
    rows: dict[str, dict[str, str]] = {}
    for of in filter(is_shown, comparisons()):
        difference = percent(estimated[of].here, sign=True) if of in estimated else NOT_RUN
        if of in estimated and not estimated[of].has_room:
            difference += ", no room"
        row = rows.setdefault(_title(of), {"Comparison": _title(of)})
        row[_places(of.tasks)] = f"{difference} ({_predicted(of)})"
    return pd.DataFrame(list(rows.values())).fillna(NO_VALUE)


def _predicted(of: Comparison) -> str:
    if of in NOT_PREDICTED:
        return "not predicted"
    return f"{number(of.low, 1, 100, sign=True)} to {number(of.high, 1, 100, sign=True)}"


def _title(of: Comparison) -> str:
    return f"{title_of(of.configuration)} minus {title_of(of.against)}"


def _places(tasks: Sequence[str]) -> str:
    return "the three walks" if tuple(tasks) == WALKS else ", ".join(TASKS[task] for task in tasks)


def _cells(each: Compared | None) -> tuple[str, str, str, str, str]:
    if each is None:
        return NOT_RUN, NO_VALUE, NO_VALUE, NO_VALUE, NO_VALUE
    p = each.p if each.adjusted is None else each.adjusted
    covered = "yes" if each.is_covered else "no"
    return (
        percent(each.here, sign=True),
        percent(each.elsewhere, sign=True),
        f"{p:.3f}" if p >= 0.001 else "< 0.001",
        each.verdict,
        covered,
    )


def score() -> pd.DataFrame:
    """How well the means were predicted: how many lie where they should, and the mean distance from the middle of the
    prediction, in points."""
    rows = []
    for name, in_family in (("The family", True), ("Exploratory", False)):
        predicted = [each for each in of_study()[1] if each.of not in NOT_PREDICTED]
        if estimated := [each for each in predicted if each.of.in_family == in_family]:
            errors = [abs(each.here.mean - (each.of.low + each.of.high) / 2) for each in estimated]
            covered = f"{sum(each.is_covered for each in estimated)} of {len(estimated)}"
            rows.append((name, covered, number(sum(errors) / len(errors), 1, 100)))
    return pd.DataFrame(rows, columns=["Comparisons", "Covered", "Mean error"])


def places_with_room(frames: Frames) -> set[tuple[str, str]]:
    """Where state values that cost nothing add ROOM to exact GRPO."""
    rows = _means(frames).to_dict("records")
    return {(row["task"], row["warm_start"]) for row in rows if round(row["ceiling"] - row["exact"], 6) >= ROOM}


def _means(frames: Frames) -> pd.DataFrame:
    """task, warm_start, and success on validation questions: before training, of exact GRPO, of state values."""
    tables = []
    for task in TASKS:
        columns = {
            name: by_question(frames, task, label, MODE, when).mean(axis="columns").groupby("warm_start").mean()
            for name, label, when in (
                ("before", BEFORE, "before"),
                ("exact", EXACT, "after"),
                ("ceiling", CEILING, "after"),
            )
        }
        tables.append(pd.DataFrame(columns).dropna().rename_axis("warm_start").reset_index().assign(task=task))
    return pd.concat(tables, ignore_index=True)


def room() -> pd.DataFrame:
    """Success on validation questions, the mean over warm starts, and what state values that cost nothing add on each
    of them, in their order; in brackets where that is not counted."""
    frames, _ = of_study()
    counted = places_with_room(frames)
    rows = []
    for task, means in _means(frames).groupby("task", sort=False):
        added = [
            number(row["ceiling"] - row["exact"], 1, 100, sign=True)
            if (task, row["warm_start"]) in counted
            else f"({number(row['ceiling'] - row['exact'], 1, 100, sign=True)})"
            for row in means.to_dict("records")
        ]
        shown = (number(means[column].mean(), 1, 100) for column in ("before", "exact", "ceiling"))
        rows.append((TASKS[str(task)], *shown, ", ".join(added)))
    return pd.DataFrame(rows, columns=["Task", "Untrained", "Exact GRPO", "State values", "Room, by warm start"])


def costs() -> pd.DataFrame:
    """Of a run on the three walks, the mean: of what the family compares there."""
    frames = of_study()[0]
    runs = frames.runs
    family = [of for of in comparisons() if of.in_family and of.tasks == WALKS]
    is_on_walk = runs["experiment"].str.startswith(tuple(f"{task}_toy" for task in WALKS))
    runs = runs[is_on_walk & runs["label"].isin({label for of in family for label in (of.configuration, of.against)})]
    ties = frames.steps.groupby("run")["ties"].mean()
    rows = []
    for label, group in runs.groupby("label"):
        means = group[["rollouts", "generated_tokens", "trained_tokens", "optimizer_steps", "training_seconds"]].mean()
        tied = ties.reindex(group["run"]).mean()
        solved = pd.concat([by_question(frames, task, str(label), MODE).mean(axis="columns") for task in WALKS])
        rows.append(
            (
                title_of(str(label)),
                number(solved.mean(), 1, 100),
                number(means["rollouts"], 0),
                number(means["generated_tokens"], 0, 1e-3),
                number(means["trained_tokens"], 0, 1e-3),
                number(means["optimizer_steps"], 0),
                number(tied, 0, 100),
                number(means["training_seconds"], 0),
            )
        )
    spent = ("Rollouts", "Generated tokens, k", "Trained tokens, k", "Optimizer steps", "Ties, %", "Seconds")
    return pd.DataFrame(rows, columns=["Configuration", "Success, %", *spent])
