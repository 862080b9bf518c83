"""The numbers of the studies' tables, computed anew from the kept runs by pandas and scipy alone."""

import json
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from by_hand import half_width, holm, numbers, p_value, table_of

PROJECT = Path(__file__).resolve().parents[2]
RESULTS = PROJECT / "results"
WHEN = ("before", "after")
IN_SEARCH = ("rates_", "gate_")
"""how the names of runs begin that are not of the test"""
TASKS = {"toy": "toy_keys", "walk": "walk_luck", "quests": "textworld_short"}
"""by the first word of the warm start's name"""


RUNS = {study: pd.read_parquet(RESULTS / study / "runs.parquet")["run"] for study in ("textworld", "turns")}
STUDIES = [study for study, runs in RUNS.items() if not runs.str.startswith(IN_SEARCH).all()]


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
    return [each["comparison"] for each in json.loads((RESULTS / study / "predicted.json").read_text())]


def differences(study: str, ours: str, theirs: str, task: str) -> pd.DataFrame:
    """[(warm start, seed), question]"""
    by_label = success(study, "after").unstack("label").reindex(columns=[ours, theirs])
    of_task = by_label[by_label.index.get_level_values(0) == task].droplevel(0)
    return (of_task[ours] - of_task[theirs]).dropna().unstack()


def computed(*comparison: str) -> list[float]:
    """Pairs; mean, low and high in points, for these warm starts, then for others if there are four."""
    table = differences(*comparison)
    of_starts = pd.concat({"any": table.groupby(level=0).mean()})
    tables = [table, of_starts] if len(of_starts) > 3 else [table]
    both = [(each.to_numpy().mean(), half_width(each)) for each in tables]
    return [len(table), *(100 * (mean + sign * half) for mean, half in both for sign in (0, -1, 1))]


def shown(table: str, study: str) -> list[dict[str, str]]:
    name = f"study.gains.{table} {study}"
    (page,) = (file for file in (PROJECT / "docs").rglob("*.md") if f"<!-- generated:{name} -->" in file.read_text())
    return table_of(page, name)


def cells(row: dict[str, str]) -> list[float]:
    return numbers(" ".join(row[column] for column in ("Pairs", "These warm starts", "Other warm starts")))


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
def test_the_verdicts_are_those_of_holms_method(study: str) -> None:
    tables = [differences(study, each["configuration"], each["against"], each["task"]) for each in compared(study)]
    adjusted = holm([p_value(table) if len(table) >= 8 else 1.0 for table in tables])
    for table, p, row in zip(tables, adjusted, shown("family", study), strict=True):
        mean, half = 100 * table.to_numpy().mean(), 100 * half_width(table)
        verdict = "above" if mean > 0 else "below"
        if p >= 0.05 or abs(mean) < 3:
            verdict = "level" if abs(mean) + half < 3 else "undecided"
        assert row["Verdict"] == (verdict if len(table) >= 8 else "too few pairs")
        if len(table) >= 8:
            assert p < 0.001 if row["p"] == "< 0.001" else p == pytest.approx(float(row["p"]), abs=6e-4)


@pytest.mark.parametrize("study", STUDIES)
def test_as_many_runs_end_below_their_start_as_the_pages_say(study: str) -> None:
    before, after = (success(study, when).groupby(level=[0, 1, 2, 3]).mean().unstack("label") for when in WHEN)
    before = before.reindex(columns=after.columns).fillna(dict.fromkeys(after, before["grpo_exact"]))
    is_below = (after < before).groupby(level="task").sum()
    for each, row in zip(compared(study), shown("secondary", study), strict=True):
        counts = [int(text.split(" of ")[0]) for text in row["Runs that end below their start"].split(" and ")]
        assert counts == [is_below.loc[each["task"], each[side]] for side in ("configuration", "against")]
