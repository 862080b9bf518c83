"""The study `fair` (configs/study/fair.yaml): its comparisons, from results/fair/predicted.json and the runs' frames,
and the tables of docs/results/when.md.

The page tests the comparisons of the primary family; all others are exploratory. Where a comparison has several tasks,
each warm start and seed counts once, with its mean over the tasks.
"""

import json
from dataclasses import dataclass, replace
from functools import cache
from math import isnan, nan
from pathlib import Path

import pandas as pd

from analysis.load import Frames, load
from analysis.looks import TASKS, title_of
from analysis.stats import Interval, holm, interval, over_seeds, p_value
from analysis.tables import NO_VALUE, NOT_RUN, number, percent
from rtpo.errors import DataError
from rtpo.run.config import PROJECT

RESULTS = PROJECT / "results" / "fair"
OUTCOMES = {
    "Success, T = 0.6": ("paper", "success"),
    "Mean reward, T = 0.6": ("paper", "reward"),
    "Success, T = 1": ("sampled", "success"),
    "Mean reward, T = 1": ("sampled", "reward"),
}
"""decoding and measure of each column of the table of outcomes"""
PLANNED = "Success, T = 0.6"
"""the outcome that the study was planned for"""
WALKS = ("walk_early", "walk_even", "walk_late")

LEAST = 0.03
"""the smallest success difference of interest"""
ROOM = 0.05
"""A task has room for credit if state values raise exact GRPO's success by at least this. The rollouts that estimate
them are not charged to the budget."""
FLATTENED = "grpo"
"""GRPO on flattened history. A comparison with it is about contexts, so it needs no room for credit."""
ROOM_COLUMNS = {
    "Untrained": ("before", "grpo_exact_room"),
    "Exact GRPO": ("after", "grpo_exact_room"),
    "State values": ("after", "state_values_room"),
}
"""when the run of a column of the table of room was evaluated, and the run's label"""
COST_COLUMNS = {
    "Rollouts": ("rollouts", 1.0),
    "Generated tokens, k": ("generated_tokens", 1e-3),
    "Trained tokens, k": ("trained_tokens", 1e-3),
    "Optimizer steps": ("optimizer_steps", 1.0),
    "Ties, %": ("ties", 100.0),
    "Seconds": ("training_seconds", 1.0),
}
"""column of `runs` and scale of each column of the table of costs"""


@dataclass(frozen=True)
class Comparison:
    """The success of one configuration minus that of another, predicted and measured. Only tasks and warm starts with
    room for credit count; if there are none, all count."""

    configuration: str
    against: str  # the configuration that is subtracted
    tasks: tuple[str, ...]  # success is the mean over these
    low: float = nan  # predicted range; NaN without a prediction
    high: float = nan
    in_family: bool = False  # whether it is in the primary family
    fixed_starts: Interval | None = None  # for other seeds of the same warm starts; None without runs
    random_starts: Interval | None = None  # for other warm starts
    p: float = nan  # of no difference, for the same warm starts
    adjusted: float | None = None  # p by Holm over the family; None outside the family
    has_room: bool = True  # whether any task and warm start has room for credit

    @property
    def verdict(self) -> str:
        """`above` or `below` if p < 0.05 and the mean is at least LEAST in size, `level` if the interval lies within
        LEAST of 0, otherwise `undecided`. `no room` without room for credit; NO_VALUE without runs."""
        if self.fixed_starts is None or not self.has_room:
            return NO_VALUE if self.fixed_starts is None else "no room"
        p = self.p if self.adjusted is None else self.adjusted
        if p < 0.05 and abs(self.fixed_starts.mean) >= LEAST:
            return "above" if self.fixed_starts.mean > 0 else "below"
        return "level" if self.fixed_starts.low > -LEAST and self.fixed_starts.high < LEAST else "undecided"

    @property
    def is_covered(self) -> bool:
        """Whether the mean lies in its predicted range."""
        return self.fixed_starts is not None and self.low <= self.fixed_starts.mean <= self.high


NOT_PREDICTED = [
    Comparison("anchored_forks_estimated", "rtpo", tasks) for tasks in (WALKS, ("walk_never",), ("knowledge_luck",))
]
"""comparisons that were added after the runs were seen"""


def load_comparisons(file: Path) -> list[Comparison]:
    """The comparisons of a JSON file. Raises DataError for another content."""
    try:
        return [Comparison(**entry | {"tasks": tuple(entry["tasks"])}) for entry in json.loads(file.read_bytes())]
    except (TypeError, KeyError, ValueError) as error:
        raise DataError(f"{file} is not a list of comparisons ({error}): restore it.") from error


@cache
def _frames() -> Frames:
    return load(RESULTS)


@cache
def outcomes_of(mode: str, measure: str) -> pd.DataFrame:
    """Success or reward of each question at a decoding, [(when, task, label, warm start, seed), question]."""
    runs = _frames().runs.set_index("run")
    places = runs["experiment"].str.extract(r"^(?P<task>(?!rates_)\w+?)_(?P<warm_start>toy_\w+)$")
    values = _frames().questions[measure].xs(mode, level="mode").droplevel(["step", "split"]).unstack("question")
    table = values.join(places.join(runs[["label", "seed"]]).dropna(), on="run", how="inner")
    return table.set_index(["task", "label", "warm_start", "seed"], append=True).droplevel("run").sort_index()


def solved() -> pd.DataFrame:
    """`outcomes_of` success at the planned decoding."""
    return outcomes_of(*OUTCOMES[PLANNED])


@cache
def room_means() -> pd.DataFrame:
    """Success on validation questions, [(task, warm start), column of ROOM_COLUMNS]."""
    runs = solved().mean(axis="columns").rename("success").reset_index()
    means = runs.pivot_table("success", ["task", "warm_start"], ["when", "label"])
    return means.reindex(columns=list(ROOM_COLUMNS.values())).set_axis(list(ROOM_COLUMNS), axis="columns").dropna()


def places_with_room() -> pd.Index:
    """The tasks and warm starts with room for credit (ROOM)."""
    means = room_means()
    return means.index[(means["State values"] - means["Exact GRPO"]).round(6) >= ROOM]


@cache
def estimates() -> list[Comparison]:
    """All comparisons in their order, measured if they have runs. Raises as `load_comparisons`."""
    planned = load_comparisons(RESULTS / "predicted.json") + NOT_PREDICTED
    with_room = places_with_room()
    estimated = [_estimated(comparison, with_room) for comparison in planned]
    in_family = [place for place, each in enumerate(estimated) if each.in_family and each.fixed_starts]
    for place, adjusted in zip(in_family, holm([estimated[place].p for place in in_family]), strict=True):
        estimated[place] = replace(estimated[place], adjusted=adjusted)
    return estimated


def _estimated(comparison: Comparison, with_room: pd.Index, outcome: str = PLANNED) -> Comparison:
    tables, results = {}, outcomes_of(*OUTCOMES[outcome])
    for task in comparison.tasks:
        ours, theirs = (("after", task, label) for label in (comparison.configuration, comparison.against))
        if ours in results.index and theirs in results.index:
            difference = pd.DataFrame(results.xs(ours) - results.xs(theirs))
            tables[task] = difference.dropna(how="all").dropna(axis="columns")
    if not any(map(len, tables.values())):
        return comparison
    table = pd.concat(tables, names=["task"])
    is_counted = table.droplevel("seed").index.isin(with_room) | (comparison.against == FLATTENED)
    by_place = (table[is_counted] if is_counted.any() else table).groupby(["warm_start", "seed"])
    present = by_place.size()
    # without warm starts and seeds that lack a run on one of the tasks
    means = by_place.mean()[present == present.groupby("warm_start").transform("max")]
    values, warm_starts = means.to_numpy(), list(means.index.get_level_values("warm_start"))
    return replace(
        comparison,
        fixed_starts=interval(values, strata=warm_starts),
        random_starts=over_seeds(means.mean(axis="columns").groupby("warm_start").mean()),
        p=p_value([values / values.size], warm_starts),
        has_room=bool(is_counted.any()),
    )


# tables of docs/results/when.md


@cache
def _texts() -> pd.DataFrame:
    """One row per comparison, with the columns of the family's table. The last column, `in`, names the table that shows
    the row: family, walk or other."""
    rows = []
    for each in estimates():
        low, high = (number(end, 1, 100, sign=True) for end in (each.low, each.high))
        p = each.p if each.adjusted is None else each.adjusted
        row = {
            "Comparison": f"{title_of(each.configuration)} minus {title_of(each.against)}",
            "Task": "the three walks" if each.tasks == WALKS else ", ".join(TASKS[task] for task in each.tasks),
            "Predicted": "not predicted" if isnan(each.low) else f"{low} to {high}",
            "These warm starts": NOT_RUN if each.fixed_starts is None else percent(each.fixed_starts, sign=True),
            "Other warm starts": percent(each.random_starts, sign=True),
            "p": "< 0.001" if p < 0.001 else number(p, 3),
            "Verdict": each.verdict,
            "Covered": NO_VALUE if each.fixed_starts is None else "yes" if each.is_covered else "no",
        }
        is_of_one_walk = len(each.tasks) == 1 and each.tasks[0] in WALKS
        rows.append({**row, "in": "family" if each.in_family else "walk" if is_of_one_walk else "other"})
    return pd.DataFrame(rows)


def family() -> pd.DataFrame:
    """The primary family, in points."""
    texts = _texts()
    return texts.loc[texts["in"] == "family", "Comparison":"Covered"]


def outcomes() -> pd.DataFrame:
    """The primary family's differences, in points, in each outcome."""
    return _in_outcomes("family", [])


def exploratory() -> pd.DataFrame:
    """All other comparisons in each outcome, single walks first, with the prediction of the planned outcome."""
    return pd.concat([_in_outcomes(kind, ["Predicted"]) for kind in ("walk", "other")])


def _in_outcomes(kind: str, columns: list[str]) -> pd.DataFrame:
    texts, rows, with_room = _texts(), [], places_with_room()
    for (_, row), each in zip(texts.iterrows(), estimates(), strict=True):
        if row["in"] == kind:
            task = row["Task"] + ("" if each.has_room else ", no room")
            cells = {name: percent(_estimated(each, with_room, name).fixed_starts, sign=True) for name in OUTCOMES}
            rows.append({"Comparison": row["Comparison"], "Task": task, **row[columns], **cells})
    return pd.DataFrame(rows)


def score() -> pd.DataFrame:
    """How many means lie in their predicted range, and their mean distance from its middle, in points."""
    rows = []
    for name, in_family in (("The family", True), ("Exploratory", False)):
        chosen = [each for each in estimates() if each.in_family == in_family and not isnan(each.low)]
        errors = [abs(each.fixed_starts.mean - (each.low + each.high) / 2) for each in chosen if each.fixed_starts]
        if errors:
            covered = f"{sum(each.is_covered for each in chosen)} of {len(errors)}"
            rows.append((name, covered, number(sum(errors) / len(errors), 1, 100)))
    return pd.DataFrame(rows, columns=["Comparisons", "Covered", "Mean error"])


def room() -> pd.DataFrame:
    """Mean success on validation questions, and how much state values add on each warm start. Gains below ROOM are in
    brackets."""
    counted, rows = places_with_room(), []
    by_task = dict(iter(room_means().groupby("task")))
    for task in (task for task in TASKS if task in by_task):
        means = by_task[task]
        added = (means["State values"] - means["Exact GRPO"]).map(lambda points: number(points, 1, 100, sign=True))
        texts = added.where(means.index.isin(counted), "(" + added + ")")
        row = {title: number(mean, 1, 100) for title, mean in means.mean().items()}
        rows.append({"Task": TASKS[task], **row, "Room, by warm start": ", ".join(texts)})
    return pd.DataFrame(rows)


def costs() -> pd.DataFrame:
    """Mean outcomes and costs of a run on the three walks, for the configurations that the family compares there."""
    family = [each for each in estimates() if each.in_family and each.tasks == WALKS]
    labels = {label for each in family for label in (each.configuration, each.against)}
    runs = _frames().runs
    is_on_walk = runs["experiment"].str.startswith(tuple(f"{task}_toy" for task in WALKS))
    runs, ties = runs[is_on_walk & runs["label"].isin(labels)], _frames().steps.groupby("run")["ties"].mean()
    means = runs.assign(ties=runs["run"].map(ties)).groupby("label")[[name for name, _ in COST_COLUMNS.values()]].mean()
    by_run = {name: outcomes_of(*outcome).mean(axis="columns").loc["after"] for name, outcome in OUTCOMES.items()}
    by_label = {name: values.loc[list(WALKS)].groupby("label").mean() for name, values in by_run.items()}
    rows = []
    for label, row in means.iterrows():
        spent = {title: number(row[name], 0, scale) for title, (name, scale) in COST_COLUMNS.items()}
        results = {name: number(values[label], 1, 100) for name, values in by_label.items()}
        count = str((runs["label"] == label).sum())
        rows.append({"Configuration": title_of(str(label)), "Runs": count, **results, **spent})
    return pd.DataFrame(rows)
