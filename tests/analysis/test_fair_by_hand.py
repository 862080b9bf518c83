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
def solved() -> pd.Series:
    """The share of samples with reward 1, by [task, warm start, configuration, seed, question]."""
    answers = pd.read_parquet(PROJECT / "results/fair/answers.parquet")
    answers = answers[(answers["when"] == "after") & (answers["mode"] == "paper")]
    place = answers.run.str.extract(r"^(?P<task>\w+?)_(?P<warm_start>toy_\w+)/(?P<label>\w+)-seed(?P<seed>\d+)$")
    return (answers.reward == 1).groupby([*(place[name] for name in place), answers.question]).mean()


def difference(configuration: str, against: str, task: str) -> pd.DataFrame:
    """[(warm start, seed), question]"""
    ours, theirs = (solved()[task].xs(label, level="label") for label in (configuration, against))
    return (ours - theirs).unstack().dropna(how="all")


def computed(of: dict[str, Any]) -> list[float]:
    """Mean, low and high in points, for these warm starts, then for others."""
    pair, every, counted = (of["configuration"], of["against"]), [], []
    for task in of["tasks"]:
        added = difference("state_values_room", "grpo_exact_room", task).mean(axis=1).groupby(level=0).mean().round(6)
        every.append(table := difference(*pair, task))
        has_room = table.index.isin(added.index[added >= 0.05], level=0)
        counted.append(table if of["against"] == "grpo" else table[has_room])
    table = pd.concat(counted if any(map(len, counted)) else every).groupby(level=[0, 1]).mean()
    means = table.mean(axis=1).groupby(level=0).mean()
    wide = stats.t.ppf(0.975, max(len(means) - 1, 1)) * means.std() / len(means) ** 0.5
    both = (table.to_numpy().mean(), half_width(table)), (means.mean(), wide)
    return [100 * (mean + sign * half) for mean, half in both for sign in (0, -1, 1)]


def shown() -> list[list[str]]:
    """The numbers of each comparison on the page: in the family's table two intervals a row, elsewhere one a cell."""
    page = (PROJECT / "docs/results/when.md").read_text().replace("−", "-")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if " minus " in line and line.startswith("|")]
    cells = [cell for row in rows for cell in ([" ".join(row[3:5])] if len(row) == 8 else row[1:])]
    return [re.findall(r"[-+]\d+\.\d", re.sub(r"\(.*\)", "", cell)) for cell in cells if cell.strip() != "—"]


def test_the_page_shows_what_the_kept_runs_say() -> None:
    compared = json.loads((PROJECT / "results/fair/predicted.json").read_text())
    later = {"configuration": "anchored_forks_estimated", "against": "rtpo", "in_family": False}
    compared += [later | {"tasks": tasks} for tasks in (WALKS, ["walk_never"], ["knowledge_luck"])]
    seen: dict[Any, int] = {}
    for number, of in enumerate(compared):
        table = 0 if of["in_family"] else 1 if of["tasks"][0] in WALKS and len(of["tasks"]) == 1 else 2
        row = (of["configuration"], of["against"]) if table else number
        of["place"] = table, *(seen.setdefault((table, key), number) for key in (row, tuple(of["tasks"])))
    for of, numbers in zip(sorted(compared, key=lambda of: of["place"]), shown(), strict=True):
        assert list(map(float, numbers)) == pytest.approx(computed(of)[: len(numbers)], abs=0.051), of
    assert all(shown())
