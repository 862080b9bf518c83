"""What the runs of a study say of its comparisons: the tables of docs/results/when.md.

The outcome is success at temperature 1, which is what is trained. A difference pairs the runs of the same warm start,
seed and questions.
"""

from dataclasses import dataclass, replace
from functools import cache

import pandas as pd

from analysis.load import Frames, load
from analysis.looks import TASKS, title_of
from analysis.stats import Interval, holm, interval, normal, over_seeds, p_value
from analysis.study.plan import load_study
from analysis.study.predictions import CONTROL, Comparison, Prediction, comparisons_of, read_predictions
from analysis.tables import NO_VALUE, NOT_RUN, number, percent
from rtpo.run.config import PROJECT

OUTCOME = "sampled"
"""the decoding of the outcome: temperature 1"""
LEAST = 0.03
"""the smallest difference of interest"""
LEAST_STARTS = 4
"""fewer warm starts say nothing of others"""
POWER_80 = 0.8416
"""the normal quantile of 80 % power"""
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
class Gain:
    """A comparison as it was measured."""

    same_starts: Interval  # for other seeds of the same warm starts
    other_starts: Interval | None  # for other warm starts; None with fewer than LEAST_STARTS
    p: float  # of no difference, for the same warm starts; Holm's over the family, in the family

    @property
    def verdict(self) -> str:
        """`above` or `below` if p < 0.05 and the mean is at least LEAST in size, `level` if the interval lies within
        LEAST of 0, otherwise `undecided`."""
        if self.p < 0.05 and abs(self.same_starts.mean) >= LEAST:
            return "above" if self.same_starts.mean > 0 else "below"
        within = self.same_starts.low > -LEAST and self.same_starts.high < LEAST
        return "level" if within else "undecided"

    @property
    def seen(self) -> float:
        """The smallest difference that one such comparison alone shows with 80 % power."""
        return (self.same_starts.high - self.same_starts.low) / 2 * (1 + POWER_80 / normal())


class Records:
    """The finished runs of a study's parts."""

    def __init__(self, name: str) -> None:
        self.study = load_study(name)
        self.frames: Frames = load(PROJECT / "results" / name)
        planned = [run for part in self.study.compared_parts for run, _ in self.study.planned(part)]
        places = [(str(run), run.task, run.label, run.experiment, run.seed) for run in planned]
        self.places = pd.DataFrame(places, columns=["run", "task", "label", "warm_start", "seed"]).drop_duplicates()

    def answers(self, mode: str, when: str = "after") -> pd.DataFrame:
        """Success of each question, [(task, label, warm start, seed), question]."""
        values = self.frames.questions["success"].xs((mode, when), level=("mode", "when"))
        table = values.droplevel(["step", "split"]).unstack("question")
        joined = table.join(self.places.set_index("run"), on="run", how="inner")
        return joined.set_index(["task", "label", "warm_start", "seed"]).sort_index()

    def curves(self) -> pd.DataFrame:
        """The mean success over the steps of training, as a table of one column like `answers`."""
        means = self.frames.steps.drop_duplicates(["run", "step"]).groupby("run")["success"].mean().to_frame()
        return means.join(self.places.set_index("run"), how="inner").set_index(["task", "label", "warm_start", "seed"])


@cache
def records(name: str) -> Records:
    return Records(name)


def paired(table: pd.DataFrame, comparison: Comparison) -> pd.DataFrame:
    """The differences of a comparison's runs, [(warm start, seed), question]; empty without runs."""
    of_task = table.loc[[comparison.task]] if comparison.task in table.index else table.iloc[:0]
    by_label = dict(iter(of_task.droplevel("task").groupby("label")))
    if not {comparison.configuration, comparison.against} <= by_label.keys():
        return table.iloc[:0]
    ours, theirs = (by_label[label].droplevel("label") for label in (comparison.configuration, comparison.against))
    return (ours - theirs).dropna(how="all").dropna(axis="columns")


def family_of(name: str) -> tuple[Comparison, ...]:
    """The comparisons of a study that are judged together."""
    compared = comparisons_of(name)
    return compared.family if compared is not None else ()


def exploratory_of(name: str) -> list[Comparison]:
    """Every other configuration minus exact GRPO, in the plan's order."""
    places = records(name).places[["task", "label"]].drop_duplicates()
    every = (Comparison(label, CONTROL, task) for task, label in places.itertuples(index=False) if label != CONTROL)
    family = family_of(name)
    return [each for each in every if each not in family]


@cache
def gains(name: str) -> dict[Comparison, Gain]:
    """What was measured of a study's comparisons, for those that have runs."""
    table, family, measured = records(name).answers(OUTCOME), family_of(name), {}
    for comparison in (*family, *exploratory_of(name)):
        differences = paired(table, comparison)
        if len(differences):
            measured[comparison] = _gain(differences)
    judged = [comparison for comparison in family if comparison in measured]
    for comparison, p in zip(judged, holm([measured[each].p for each in judged]), strict=True):
        measured[comparison] = replace(measured[comparison], p=p)
    return measured


def _gain(differences: pd.DataFrame) -> Gain:
    values, warm_starts = differences.to_numpy(), list(differences.index.get_level_values("warm_start"))
    by_start = differences.mean(axis="columns").groupby("warm_start").mean()
    return Gain(
        interval(values, strata=warm_starts),
        over_seeds(by_start) if len(by_start) >= LEAST_STARTS else None,
        p_value([values / values.size], warm_starts),
    )


# tables of docs/results/when.md


def family(name: str) -> pd.DataFrame:
    """The family, in points of success at temperature 1, with what was predicted."""
    predictions, rows = {each.comparison: each for each in read_predictions(PROJECT / "results" / name)}, []
    for comparison in family_of(name):
        predicted, gain = predictions[comparison], gains(name).get(comparison)
        low, high = (number(end, 1, 100, sign=True) for end in (predicted.low, predicted.high))
        covered = NO_VALUE if gain is None else "yes" if is_covered(predicted, gain) else "no"
        rows.append({**_named(comparison), "Predicted": f"{low} to {high}", **_texts(gain), "Covered": covered})
    return pd.DataFrame(rows)


def exploratory(name: str) -> pd.DataFrame:
    """The exploratory comparisons, like `family`."""
    return pd.DataFrame([{**_named(each), **_texts(gains(name).get(each))} for each in exploratory_of(name)])


def is_covered(predicted: Prediction, gain: Gain) -> bool:
    """Whether the mean lies in the predicted range."""
    return predicted.low <= gain.same_starts.mean <= predicted.high


def _named(comparison: Comparison) -> dict[str, str]:
    title = f"{title_of(comparison.configuration)} minus {title_of(comparison.against)}"
    return {"Comparison": title, "Task": TASKS[comparison.task]}


def _texts(gain: Gain | None) -> dict[str, str]:
    if gain is None:
        return {"Pairs": "0", "These warm starts": NOT_RUN} | dict.fromkeys(
            ("Other warm starts", "p", "Verdict", "80 % power"), NO_VALUE
        )
    return {
        "Pairs": str(gain.same_starts.runs),
        "These warm starts": percent(gain.same_starts, sign=True),
        "Other warm starts": NO_VALUE if gain.other_starts is None else percent(gain.other_starts, sign=True),
        "p": "< 0.001" if gain.p < 0.001 else number(gain.p, 3),
        "Verdict": gain.verdict,
        "80 % power": number(gain.seen, 1, 100),
    }


def secondary(name: str) -> pd.DataFrame:
    """The family's differences in the other outcomes, in points, and how many runs end below their start."""
    source = records(name)
    outcomes = {
        "Success, T = 1": source.answers(OUTCOME),
        "Success, T = 0.6": source.answers("paper"),
        "Success, greedy": source.answers("greedy"),
        "Mean success in training": source.curves(),
    }
    below, rows = ended_below(source), []
    for comparison in family_of(name):
        cells = {}
        for title, table in outcomes.items():
            differences = paired(table, comparison)
            starts = list(differences.index.get_level_values("warm_start"))
            cells[title] = percent(interval(differences, strata=starts), sign=True) if starts else NOT_RUN
        ends = (
            below.get((comparison.task, label), NOT_RUN) for label in (comparison.configuration, comparison.against)
        )
        rows.append({**_named(comparison), **cells, "Runs that end below their start": " and ".join(ends)})
    return pd.DataFrame(rows)


def ended_below(source: Records) -> dict[tuple[str, str], str]:
    """By task and label, how many of its runs have less success after training than before, at temperature 1."""
    before, after = (source.answers(OUTCOME, when).mean(axis="columns") for when in ("before", "after"))
    is_below = (after < before.reindex(after.index)).groupby(["task", "label"])
    return {(str(task), str(label)): f"{int(each.sum())} of {len(each)}" for (task, label), each in is_below}


def rates(name: str) -> pd.DataFrame:
    """What the search chose, by task and configuration: the rate, the rates that were tried, and its runs' success on
    validation questions, before and after training."""
    study, rows = records(name).study, []
    for task, label in study.searches():
        choice = study.choice(task, label)
        if choice.best is not None:
            before, after = study.searched(task, label)
            row = {"Task": TASKS[task], "Configuration": title_of(label), "Rate": f"{choice.best:g}"}
            row["Rates tried"] = f"{choice.tried[0]:g} to {choice.tried[-1]:g}"
            rows.append(row | {"Before, %": number(before, 1, 100), "After, %": number(after, 1, 100)})
    return pd.DataFrame(rows)


def costs(name: str) -> pd.DataFrame:
    """Mean success at temperature 1 and costs of a run, by task and configuration."""
    source = records(name)
    columns = [column for column, _ in COST_COLUMNS.values()]
    ties = source.frames.steps.groupby("run")["ties"].mean().rename("ties")
    spent = source.frames.runs.join(ties, on="run").set_index("run")[columns]
    success = source.answers(OUTCOME).mean(axis="columns").groupby(["task", "label"]).mean().to_dict()
    rows = []
    for (task, label), group in source.places.join(spent, on="run", how="inner").groupby(["task", "label"], sort=False):
        means = group[columns].mean()
        row = {"Task": TASKS[str(task)], "Configuration": title_of(str(label)), "Runs": str(len(group))}
        row["Success, %"] = number(success[task, label], 1, 100)
        rows.append(row | {title: number(means[column], 0, scale) for title, (column, scale) in COST_COLUMNS.items()})
    return pd.DataFrame(rows)
