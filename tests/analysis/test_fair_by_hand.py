"""The numbers of docs/results/when.md, computed anew from the kept runs by pandas and scipy alone."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from scipy import stats

PROJECT = Path(__file__).resolve().parents[2]
PLANNED = "paper", "success"
OUTCOMES = PLANNED, ("paper", "reward"), ("sampled", "success"), ("sampled", "reward")
WALKS = ["walk_early", "walk_even", "walk_late"]


def half_width(table: pd.DataFrame) -> float:
    """Half of a 95 % interval: t over runs of one warm start, and what other questions would change beside it."""
    runs, questions = table.shape
    freedom = runs - table.index.get_level_values(0).nunique()
    means = table.mean(axis=1)
    of_runs = ((means - means.groupby(level=0).transform("mean")) ** 2).sum() / (runs * freedom)
    of_questions = table.mean(axis=0).var() / questions
    left = table.sub(means, axis=0)
    noise = ((left - left.groupby(level=0).transform("mean")) ** 2).to_numpy().mean() / (freedom * (questions - 1))
    t_runs, t_questions = (stats.t.ppf(0.975, count) for count in (freedom, questions - 1))
    both = t_runs**2 * of_runs + t_questions**2 * max(of_questions - noise, 0)
    return float(max(both**0.5, t_questions * of_questions**0.5))


@cache
def outcomes(mode: str, measure: str) -> pd.Series:
    """Success or mean reward, by [task, warm start, configuration, seed, question]."""
    answers = pd.read_parquet(PROJECT / "results/fair/answers.parquet")
    answers = answers[(answers["when"] == "after") & (answers["mode"] == mode)]
    place = answers.run.str.extract(r"^(?P<task>\w+?)_(?P<warm_start>toy_\w+)/(?P<label>\w+)-seed(?P<seed>\d+)$")
    values = answers.reward == 1 if measure == "success" else answers.reward
    return values.groupby([*(place[name] for name in place), answers.question]).mean()


def difference(configuration: str, against: str, task: str, outcome: tuple[str, str] = PLANNED) -> pd.DataFrame:
    """[(warm start, seed), question]"""
    ours, theirs = (outcomes(*outcome)[task].xs(label, level="label") for label in (configuration, against))
    return (ours - theirs).unstack().dropna(how="all")


def computed(of: dict[str, Any], outcome: tuple[str, str] = PLANNED) -> list[float]:
    """Mean, low and high in points, for these warm starts, then for others."""
    pair, every, counted = (of["configuration"], of["against"]), [], []
    for task in of["tasks"]:
        added = difference("state_values_room", "grpo_exact_room", task).mean(axis=1).groupby(level=0).mean().round(6)
        every.append(table := difference(*pair, task, outcome))
        has_room = table.index.isin(added.index[added >= 0.05], level=0)
        counted.append(table if of["against"] == "grpo" else table[has_room])
    table = pd.concat(counted if any(map(len, counted)) else every).groupby(level=[0, 1]).mean()
    means = table.mean(axis=1).groupby(level=0).mean()
    wide = stats.t.ppf(0.975, max(len(means) - 1, 1)) * means.std() / len(means) ** 0.5
    both = (table.to_numpy().mean(), half_width(table)), (means.mean(), wide)
    return [100 * (mean + sign * half) for mean, half in both for sign in (0, -1, 1)]


def shown(columns: int, first: int) -> list[list[float]]:
    """The numbers of each comparison in the page's tables of so many columns, from column `first` on."""
    page = (PROJECT / "docs/results/when.md").read_text().replace("−", "-")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if " minus " in line and line.startswith("|")]
    numbers = [re.findall(r"[-+]\d+\.\d", " ".join(row[first:])) for row in rows if len(row) == columns]
    assert numbers
    assert all(numbers)
    return [list(map(float, row)) for row in numbers]


def test_the_page_shows_what_the_kept_runs_say() -> None:
    compared = json.loads((PROJECT / "results/fair/predicted.json").read_text())
    later = {"configuration": "anchored_forks_estimated", "against": "rtpo", "in_family": False}
    compared += [later | {"tasks": tasks} for tasks in (WALKS, ["walk_never"], ["knowledge_luck"])]
    family = [of for of in compared if of["in_family"]]
    others = [of for of in compared if not of["in_family"]]
    others.sort(key=lambda of: not (len(of["tasks"]) == 1 and of["tasks"][0] in WALKS))
    for of, numbers in zip(family, shown(columns=8, first=3), strict=True):
        assert numbers == pytest.approx(computed(of), abs=0.051), of
    for comparisons, columns in ((family, 6), (others, 7)):
        for of, numbers in zip(comparisons, shown(columns, first=columns - 4), strict=True):
            expected = [number for outcome in OUTCOMES for number in computed(of, outcome)[:3]]
            assert numbers == pytest.approx(expected, abs=0.051), of
