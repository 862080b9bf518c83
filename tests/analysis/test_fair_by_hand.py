"""The intervals of the study `fair`, computed anew by pandas and scipy alone."""

import numpy as np
import pandas as pd
from scipy import stats
from test_fair import OF, ROOM, frames

from analysis.fair import estimates


def solved(runs: pd.DataFrame, answers: pd.DataFrame, task: str, label: str) -> pd.DataFrame:
    """[(warm start, seed), question], success at the paper's decoding."""
    chosen = runs[(runs.label == label) & runs.experiment.str.fullmatch(rf"{task}_toy_(walk|knowledge)(_\d)?")]
    table = answers[answers.run.isin(chosen.run)].pivot_table(index="run", columns="question", values="reward")
    return table.loc[chosen.run].set_index([chosen.experiment.str[len(task) + 1 :], chosen.seed])


def half_width(table: pd.DataFrame) -> float:
    """Half of a 95 % interval: t over runs of one warm start, and what other questions would change beside it."""
    runs, questions = table.shape
    warm_starts = table.groupby(level=0)
    freedom = runs - warm_starts.ngroups
    means = table.mean(axis=1)
    of_runs = ((means - means.groupby(level=0).transform("mean")) ** 2).sum() / (runs * freedom)
    by_question = table.mean(axis=0)
    of_questions = by_question.var() / questions
    left = table.sub(means, axis=0)
    noise = ((left - left.groupby(level=0).transform("mean")) ** 2).to_numpy().sum()
    noise /= runs * questions * freedom * (questions - 1)
    t_runs, t_questions = (stats.t.ppf(0.975, count) for count in (freedom, questions - 1))
    both = t_runs**2 * of_runs + t_questions**2 * max(of_questions - noise, 0)
    return float(max(np.sqrt(both), t_questions * np.sqrt(of_questions)))


def numbers(table: pd.DataFrame) -> tuple[list[float], list[float]]:
    """Mean, low and high, in points: for these warm starts, and for others."""
    mean, half = table.to_numpy().mean(), half_width(table)
    means = table.mean(axis=1).groupby(level=0).mean()
    wide = stats.t.ppf(0.975, len(means) - 1) * means.std() / np.sqrt(len(means))
    return [100 * (mean + sign * half) for sign in (0, -1, 1)], [100 * (mean + sign * wide) for sign in (0, -1, 1)]


def test_estimates_are_those_computed_by_hand() -> None:
    made = frames(0.2, 0.1, noise=0.05)
    (estimate,) = estimates(made, [OF], "paper", ROOM)
    tables = [
        solved(made.runs, made.answers, task, OF.configuration) - solved(made.runs, made.answers, task, OF.against)
        for task in OF.tasks
    ]
    computed = numbers(sum(tables[1:], tables[0]) / len(tables))
    for interval, values in zip((estimate.here, estimate.elsewhere), computed, strict=True):
        np.testing.assert_allclose([100 * x for x in (interval.mean, interval.low, interval.high)], values)
