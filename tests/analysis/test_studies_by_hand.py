"""The numbers of the studies' tables, computed anew from the kept runs by pandas and scipy alone."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from by_hand import half_width, numbers, table_of

PROJECT = Path(__file__).resolve().parents[2]
RESULTS = PROJECT / "results"
WHEN = ("before", "after")
COLUMNS = ["Pairs", "These warm starts", "Other warm starts"]
IN_SEARCH = ("rates_", "gate_")
"""how the names of runs begin that are none of a study's test"""
TASKS = {"toy": "toy_keys", "walk": "walk_luck", "quests": "textworld_short"}
"""by what the warm start's name begins with"""


def has_test_runs(study: str) -> bool:
    return any(not run.startswith(IN_SEARCH) for run in pd.read_parquet(RESULTS / study / "runs.parquet")["run"])


STUDIES = [study for study in ("textworld", "turns") if has_test_runs(study)]


@cache
def success(study: str, when: str) -> pd.Series:
    """At temperature 1, by [task, warm start, configuration, seed, question]."""
    answers = pd.read_parquet(RESULTS / study / "answers.parquet")
    answers = answers[(answers["when"] == when) & (answers["mode"] == "sampled")]
    answers = answers[~answers.run.str.startswith(IN_SEARCH)]
    place = answers.run.str.extract(r"^(?P<start>\w+)/(?P<label>\w+)-seed(?P<seed>\d+)$")
    task = place["start"].str.partition("_")[0].map(TASKS).rename("task")
    return (answers.reward == 1).groupby([task, *(place[name] for name in place), answers.question]).mean()


def compared(study: str) -> list[dict[str, str]]:
    family: list[dict[str, Any]] = json.loads((RESULTS / study / "predicted.json").read_text())
    return [each["comparison"] for each in family]


def computed(study: str, ours: str, theirs: str, task: str) -> list[float]:
    """Pairs; mean, low and high in points, for these warm starts, then for others if there are four."""
    by_label = success(study, "after").unstack("label").reindex(columns=[ours, theirs])
    of_task = by_label[by_label.index.get_level_values(0) == task].droplevel(0)
    table = (of_task[ours] - of_task[theirs]).dropna().unstack()
    of_starts = pd.concat({"any": table.groupby(level=0).mean()})
    tables = [table, of_starts] if len(of_starts) > 3 else [table]
    both = [(each.to_numpy().mean(), half_width(each)) for each in tables]
    return [len(table), *(100 * (mean + sign * half) for mean, half in both for sign in (0, -1, 1))]


def shown(table: str, study: str) -> list[dict[str, str]]:
    name = f"study.gains.{table} {study}"
    (page,) = (file for file in (PROJECT / "docs").rglob("*.md") if f"<!-- generated:{name} -->" in file.read_text())
    return table_of(page, name)


def cells(row: dict[str, str]) -> list[float]:
    return numbers(" ".join(row[column] for column in COLUMNS))


@pytest.mark.parametrize("study", STUDIES)
def test_the_pages_show_what_the_kept_runs_say(study: str) -> None:
    for each, row in zip(compared(study), shown("family", study), strict=True):
        expected = computed(study, each["configuration"], each["against"], each["task"])
        assert cells(row) == pytest.approx(expected, abs=0.051), each
    judged = [{each["configuration"], each["against"], each["task"]} for each in compared(study)]
    labels = success(study, "after").index.droplevel(["start", "seed", "question"]).unique()
    others = [
        (label, task) for task, label in labels if {label, "grpo_exact", task} not in [*judged, {"grpo_exact", task}]
    ]
    expected = sorted(computed(study, label, "grpo_exact", task) for label, task in others)
    assert sorted(map(cells, shown("exploratory", study))) == [pytest.approx(each, abs=0.051) for each in expected]


@pytest.mark.parametrize("study", STUDIES)
def test_as_many_runs_end_below_their_start_as_the_pages_say(study: str) -> None:
    before, after = (success(study, when).groupby(level=[0, 1, 2, 3]).mean().unstack("label") for when in WHEN)
    before = before.reindex(columns=after.columns).fillna(dict.fromkeys(after, before["grpo_exact"]))
    is_below = (after < before).groupby(level="task").sum()
    for each, row in zip(compared(study), shown("secondary", study), strict=True):
        counts = [int(text.split(" of ")[0]) for text in row["Runs that end below their start"].split(" and ")]
        assert counts == [is_below.loc[each["task"], each[side]] for side in ("configuration", "against")]
