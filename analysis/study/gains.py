"""A study's comparisons, measured on its finished runs: the tables of docs/results/when.md, and others.

The outcome is success at temperature 1. A difference pairs the runs of the same warm start,
seed and questions. "The test" is the runs of all parts of the plan but the search and the gate.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import nan
from pathlib import Path

import pandas as pd

from analysis.load import Frames, load
from analysis.looks import TASKS, title_of
from analysis.metrics import mean_success
from analysis.stats import Interval, holm, interval, normal, p_value
from analysis.study.plan import StudyRun, load_study
from analysis.study.plan_file import GATE
from analysis.study.predictions import CONTROL, Comparison, Prediction, comparisons_of, read_predictions
from analysis.tables import NO_VALUE, NOT_RUN, number, percent
from rtpo.errors import DataError
from rtpo.run.config import PROJECT

OUTCOME = "sampled"
"""the decoding of the outcome: temperature 1"""
LEAST = 0.03
"""the smallest difference of interest"""
LEAST_PAIRS = 8
"""a comparison of fewer pairs of runs is not judged"""
LEAST_STARTS = 4
"""with fewer warm starts, no interval for other warm starts is given"""
PLACE = ["task", "warm_start", "seed"]
"""what two runs have in common whose success is compared"""
POWER_80 = 0.8416
"""the normal quantile of 80 % power"""
COST_COLUMNS = {
    "Generated tokens, k": ("generated_tokens", 1e-3),
    "Trained tokens, k": ("trained_tokens", 1e-3),
    "Optimizer steps": ("optimizer_steps", 1.0),
    "Ties, %": ("ties", 100.0),
}
"""by title: a column of `Frames.runs`, and the factor to show it by. `ties` is the share of rows whose group's
advantages are all 0: a row is a turn, or a path of GRPO on flattened history"""


@dataclass(frozen=True)
class Gain:
    """A comparison as it was measured."""

    same_starts: Interval  # for new seeds on the same warm starts
    other_starts: Interval | None  # for new warm starts; None with fewer than LEAST_STARTS
    p: float  # of no difference on the same warm starts; in the family, adjusted by Holm's method; 1 if not judged

    @property
    def is_judged(self) -> bool:
        return self.same_starts.runs >= LEAST_PAIRS

    @property
    def verdict(self) -> str:
        """`above` or `below` if p < 0.05 and the mean is at least LEAST in size. `level` if the interval lies within
        LEAST of 0. Otherwise `undecided`. With fewer than LEAST_PAIRS, `too few pairs`."""
        if not self.is_judged:
            return "too few pairs"
        if self.p < 0.05 and abs(self.same_starts.mean) >= LEAST:
            return "above" if self.same_starts.mean > 0 else "below"
        within = self.same_starts.low > -LEAST and self.same_starts.high < LEAST
        return "level" if within else "undecided"

    @property
    def detectable(self) -> float:
        """The smallest difference that a single comparison with this interval detects with 80 % power."""
        return (self.same_starts.high - self.same_starts.low) / 2 * (1 + POWER_80 / normal())


class StudyRuns:
    """The finished runs of a study. places: run, task, label, warm start (`StudyRun.experiment`) and seed of
    each planned run of the test."""

    def __init__(self, name: str) -> None:
        self.study = load_study(name)
        self.frames: Frames = load(_folder(name))
        self.places = _places([run for part in self.study.compared_parts for run, _ in self.study.planned(part)])

    def answers(self, mode: str, when: str = "after") -> pd.DataFrame:
        """Success of each question, [(task, label, warm start, seed), question]. mode: sampled, paper or greedy
        decoding. when: before or after training. Raises DataError if runs of a task were asked other questions."""
        return self._success(mode, when, self.places)

    def searched(self, rate: float, when: str = "after") -> pd.DataFrame:
        """Success of each validation question in the search's runs at a rate, like `answers`."""
        return self.validated([run for run, tried in self.study.search() if tried == rate], when)

    def validated(self, runs: Sequence[StudyRun], when: str) -> pd.DataFrame:
        """Success of each validation question in these runs of the search or of the gate, like `answers`."""
        return self._success(OUTCOME, when, _places(runs))

    def _success(self, mode: str, when: str, places: pd.DataFrame) -> pd.DataFrame:
        success = self.frames.questions["success"]
        of_mode = (success.index.get_level_values("mode") == mode) & (success.index.get_level_values("when") == when)
        series = success[of_mode].droplevel(["mode", "when", "step", "split"])
        asked = series.reset_index("question").groupby("run")["question"].agg(frozenset).rename("asked")
        for task, of_task in places.join(asked, on="run", how="inner").groupby("task"):
            unlike = of_task["run"][of_task["asked"] != of_task["asked"].mode()[0]]
            if len(unlike):
                raise DataError(f"runs of {task} were asked other questions than the rest: {', '.join(unlike)}.")
        joined = series.unstack("question").join(places.set_index("run"), on="run", how="inner")
        return joined.set_index(["task", "label", "warm_start", "seed"]).sort_index()

    def curves(self) -> pd.DataFrame:
        """The mean success over training (`metrics.mean_success`), as a table of one column like `answers`."""
        by_run = self.frames.steps.drop_duplicates(["run", "step"]).groupby("run")
        means = pd.DataFrame({"success": {run: mean_success(steps) for run, steps in by_run}}).rename_axis("run")
        return means.join(self.places.set_index("run"), how="inner").set_index(["task", "label", "warm_start", "seed"])


def _places(runs: Sequence[StudyRun]) -> pd.DataFrame:
    places = [(str(run), run.task, run.configuration.label, run.experiment, run.seed) for run in runs]
    return pd.DataFrame(places, columns=["run", "task", "label", "warm_start", "seed"]).drop_duplicates()


def _folder(name: str) -> Path:
    return PROJECT / "results" / name


@cache
def runs_of(name: str) -> StudyRuns:
    return StudyRuns(name)


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
    """Each configuration minus exact GRPO, in the plan's order, without the comparisons of the family."""
    places = runs_of(name).places[["task", "label"]].drop_duplicates()
    compared = (Comparison(label, CONTROL, task) for task, label in places.itertuples(index=False) if label != CONTROL)
    judged = {frozenset((each.configuration, each.against, each.task)) for each in family_of(name)}
    return [each for each in compared if frozenset((each.configuration, each.against, each.task)) not in judged]


@cache
def gains(name: str) -> dict[Comparison, Gain]:
    """What was measured of a study's comparisons, for those that have runs."""
    table, family, measured = runs_of(name).answers(OUTCOME), family_of(name), {}
    for comparison in (*family, *exploratory_of(name)):
        differences = paired(table, comparison)
        if len(differences):
            measured[comparison] = _gain(differences)
    # a comparison without runs counts with p = 1, so its later runs cannot raise the others' adjusted p
    adjusted = holm([measured[each].p if each in measured else 1.0 for each in family])
    return measured | {
        each: replace(measured[each], p=p) for each, p in zip(family, adjusted, strict=True) if each in measured
    }


def _gain(differences: pd.DataFrame) -> Gain:
    values, warm_starts = differences.to_numpy(), list(differences.index.get_level_values("warm_start"))
    by_start = differences.groupby("warm_start").mean().to_numpy()
    return Gain(
        _over_seeds(differences),
        interval(by_start) if len(by_start) >= LEAST_STARTS else None,
        p_value([values / values.size], warm_starts) if len(values) >= LEAST_PAIRS else 1.0,
    )


def _over_seeds(differences: pd.DataFrame) -> Interval:
    """The mean of these pairs, with its interval for new seeds; without one if no warm start has two pairs."""
    starts = list(differences.index.get_level_values("warm_start"))
    mean = interval(differences, strata=starts)
    return mean if len(set(starts)) < len(starts) else replace(mean, low=nan, high=nan)


# tables


def family(name: str) -> pd.DataFrame:
    """The family, in points of success at temperature 1, with what was predicted."""
    predictions, rows = {each.comparison: each for each in read_predictions(_folder(name))}, []
    for comparison in family_of(name):
        predicted, gain = predictions[comparison], gains(name).get(comparison)
        low, high = (number(end, 1, 100, sign=True) for end in (predicted.low, predicted.high))
        covered = NO_VALUE if gain is None or not gain.is_judged else "yes" if is_covered(predicted, gain) else "no"
        rows.append({**_named(comparison), "Predicted": f"{low} to {high}", **_texts(gain), "Covered": covered})
    return pd.DataFrame(rows)


def score(name: str) -> pd.DataFrame:
    """How many predictions came true, of the judged comparisons. A range without 0 predicts a sign."""
    measured = {comparison: gain for comparison, gain in gains(name).items() if gain.is_judged}
    predictions = read_predictions(_folder(name))
    judged = [(each, measured[each.comparison]) for each in predictions if each.comparison in measured]
    signs = [(each.low > 0) == (gain.same_starts.mean > 0) for each, gain in judged if each.low > 0 or each.high < 0]
    sizes = [is_covered(each, gain) for each, gain in judged]
    rows = [
        {"Predicted": title, "Right": f"{sum(right)} of {len(right)}"}
        for title, right in [("sign", signs), ("size", sizes)]
    ]
    return pd.DataFrame(rows)


def exploratory(name: str) -> pd.DataFrame:
    """The exploratory comparisons, like `family` but without predictions. p is not adjusted."""
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
        "p": NO_VALUE if not gain.is_judged else "< 0.001" if gain.p < 0.001 else number(gain.p, 3),
        "Verdict": gain.verdict,
        "80 % power": number(gain.detectable, 1, 100),
    }


def secondary(name: str) -> pd.DataFrame:
    """The family's differences in the other outcomes, in points, and how many runs end below their start. A column
    "Search at RATE" has the differences in the search at that rate, where both configurations were tried at it."""
    source = runs_of(name)
    outcomes = {
        "Success, T = 0.6": source.answers("paper"),
        "Success, greedy": source.answers("greedy"),
        "Mean success in training": source.curves(),
    }
    searched = {f"Search at {rate:g}": source.searched(rate) for rate in _tried(name)}
    below, rows = ended_below(source), []
    for comparison in family_of(name):
        cells = {title: _difference(table, comparison, NOT_RUN) for title, table in outcomes.items()}
        cells |= {title: _difference(table, comparison, NO_VALUE) for title, table in searched.items()}
        ends = (
            below.get((comparison.task, label), NOT_RUN) for label in (comparison.configuration, comparison.against)
        )
        rows.append({**_named(comparison), **cells, "Runs that end below their start": " and ".join(ends)})
    return pd.DataFrame(rows).loc[:, lambda shown: (shown != NO_VALUE).any()]


def _difference(table: pd.DataFrame, comparison: Comparison, without: str) -> str:
    """A difference for new seeds on the same warm starts, in points. without: the text without runs."""
    differences = paired(table, comparison)
    return percent(_over_seeds(differences), sign=True) if len(differences) else without


def ended_below(source: StudyRuns) -> dict[tuple[str, str], str]:
    """By task and label, how many of its runs have less success after training than before, at temperature 1. A run
    that was not evaluated before training takes the success of those with the same warm start and seed."""
    before, after = (source.answers(OUTCOME, when).mean(axis="columns") for when in ("before", "after"))
    runs = pd.DataFrame({"after": after, "own": before.reindex(after.index)})
    runs = runs.join(before.groupby(PLACE).mean().rename("others"), on=PLACE)
    runs["before"] = runs["own"].fillna(runs["others"])
    by_label = runs.dropna(subset="before").groupby(["task", "label"])
    return {
        (str(task), str(label)): f"{int((each['after'] < each['before']).sum())} of {len(each)}"
        for (task, label), each in by_label
    }


def runs(name: str) -> pd.DataFrame:
    """Rates, success and costs by task and configuration. From the search: the chosen rate, and success on validation
    questions before training and after training at each rate that was tried. From the test: mean costs of a run."""
    source, costs, rows = runs_of(name), _costs(name), []
    for task, configuration in source.study.configurations():
        searched = configuration.rate_from or configuration.label
        chosen, means = source.study.choice(task, searched).best, source.study.search_success(task, searched)
        if chosen is None:
            continue
        row = {"Task": TASKS[task], "Configuration": title_of(configuration.label), "Chosen": f"{chosen:g}"}
        if configuration.rate_from is None:
            row["Before"] = number(means[chosen].before, 1, 100)
            row |= {f"{rate:g}": number(means[rate].after, 1, 100) for rate in means}
        else:
            row["Chosen"] += f", from {title_of(searched)}"
        without = {"Runs": "0"} | dict.fromkeys(COST_COLUMNS, NO_VALUE)
        rows.append(row | costs.get((task, configuration.label), without))
    columns = ["Task", "Configuration", "Chosen", "Before", *(f"{rate:g}" for rate in _tried(name)), "Runs"]
    return pd.DataFrame(rows, columns=[*columns, *COST_COLUMNS]).fillna(NO_VALUE)


def search(name: str) -> pd.DataFrame:
    """What the finished runs of the search, and then of the gate, gained on validation questions, by task,
    configuration and rate. Intervals take the runs as independent."""
    source, rows = runs_of(name), []
    parts = {f"{rate:g}": [run for run, tried in source.study.search() if tried == rate] for rate in _tried(name)}
    trained_at = source.frames.runs.set_index("run")["learning_rate"]
    gate = [run for run, _ in source.study.planned(GATE) if str(run) in trained_at]
    for rate in sorted({trained_at[str(run)] for run in gate}):
        parts[f"{rate:g}, gate"] = [run for run in gate if trained_at[str(run)] == rate]
    for part, runs in parts.items():
        before, after = (source.validated(runs, when) for when in ("before", "after"))
        for (task, label), gained in (after - before).groupby(level=["task", "label"]):
            gained = gained.dropna(axis="columns")  # questions of other runs, and questions without a grade
            asked = (each.loc[gained.index, gained.columns] for each in (before, after))
            means = (number(each.to_numpy().mean(), 1, 100) for each in asked)
            row = {"Task": TASKS[str(task)], "Configuration": title_of(str(label)), "Rate": part}
            row |= {"Runs": str(len(gained))} | dict(zip(("Before, %", "After, %"), means, strict=True))
            rows.append(row | {"Gain": percent(interval(gained.to_numpy()), sign=True) if gained.size else NO_VALUE})
    columns = ["Task", "Configuration", "Rate", "Runs", "Before, %", "After, %", "Gain"]
    return pd.DataFrame(rows, columns=columns).sort_values(columns[:2], kind="stable", ignore_index=True)


def _tried(name: str) -> list[float]:
    """All rates of the search."""
    return sorted({rate for _, rate in runs_of(name).study.search()})


def _costs(name: str) -> dict[tuple[str, str], dict[str, str]]:
    """Mean costs of a run of the test, by task and label."""
    source = runs_of(name)
    rows = source.frames.steps.groupby("run")[["tied_rows", "rows"]].sum().astype(float)
    ties = (rows["tied_rows"] / rows["rows"]).rename("ties")
    columns = [column for column, _ in COST_COLUMNS.values()]
    spent = source.frames.runs.join(ties, on="run").set_index("run")[columns]
    of_runs = source.places.join(spent, on="run", how="inner").groupby(["task", "label"])[columns]
    means, counts = of_runs.mean(), of_runs.size()
    return {
        (str(task), str(label)): {"Runs": str(counts[task, label])}
        | {title: number(means[column][task, label], 0, scale) for title, (column, scale) in COST_COLUMNS.items()}
        for task, label in means.index
    }
