"""The numbers of docs/results/when.md and toys.md, computed anew from the kept runs by pandas and scipy alone."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from by_hand import half_width, numbers, table_of

PROJECT = Path(__file__).resolve().parents[2]
STUDY = PROJECT / "results" / "turns"
COLUMNS = ["Pairs", "These warm starts", "Other warm starts"]


@cache
def success(mode: str, when: str) -> pd.Series:
    """By [task, warm start, configuration, seed, question]."""
    answers = pd.read_parquet(STUDY / "answers.parquet")
    answers = answers[(answers["when"] == when) & (answers["mode"] == mode) & ~answers.run.str.startswith("rates_")]
    place = answers.run.str.extract(r"^(?P<start>\w+)/(?P<label>\w+)-seed(?P<seed>\d+)$")
    task = place["start"].str.startswith("walk_luck").map({True: "walk_luck", False: "toy_keys"}).rename("task")
    return (answers.reward == 1).groupby([task, *(place[name] for name in place), answers.question]).mean()


def computed(compared: dict[str, str]) -> list[float]:
    """Pairs; mean, low and high in points, for these warm starts, then for others."""
    ours, theirs = compared["configuration"], compared["against"]
    by_label = success("sampled", "after").unstack("label").reindex(columns=[ours, theirs])
    of_task = by_label[by_label.index.get_level_values(0) == compared["task"]].droplevel(0)
    table = (of_task[ours] - of_task[theirs]).dropna().unstack()
    of_starts = pd.concat({"any": table.groupby(level=0).mean()})
    both = [(each.to_numpy().mean(), half_width(each)) for each in (table, of_starts)]
    return [len(table), *(100 * (mean + sign * half) for mean, half in both for sign in (0, -1, 1))]


def shown(table: str) -> list[dict[str, str]]:
    page = "when.md" if table == "family" else "toys.md"
    return table_of(PROJECT / "docs" / "results" / page, f"study.gains.{table} turns")


def cells(row: dict[str, str]) -> list[float]:
    return numbers(" ".join(row[column] for column in COLUMNS))


def test_the_page_shows_what_the_kept_runs_say() -> None:
    compared: list[dict[str, Any]] = [each["comparison"] for each in json.loads((STUDY / "predicted.json").read_text())]
    for each, row in zip(compared, shown("family"), strict=True):
        assert cells(row) == pytest.approx(computed(each), abs=0.051), each
    judged = [{each["configuration"], each["against"], each["task"]} for each in compared]
    labels = success("sampled", "after").index.droplevel(["start", "seed", "question"]).unique()
    others = [
        (label, task) for task, label in labels if {label, "grpo_exact", task} not in [*judged, {"grpo_exact", task}]
    ]
    expected = [computed({"configuration": label, "against": "grpo_exact", "task": task}) for label, task in others]
    assert sorted(map(cells, shown("exploratory"))) == [pytest.approx(each, abs=0.051) for each in sorted(expected)]


def test_as_many_runs_end_below_their_start_as_the_page_says() -> None:
    before, after = (success("sampled", when).groupby(level=[0, 1, 2, 3]).mean() for when in ("before", "after"))
    is_below = (after < before).groupby(level=[0, 2]).sum()
    compared = [each["comparison"] for each in json.loads((STUDY / "predicted.json").read_text())]
    for each, row in zip(compared, shown("secondary"), strict=True):
        counts = [int(text.split(" of ")[0]) for text in row["Runs that end below their start"].split(" and ")]
        assert counts == [is_below[each["task"], each[side]] for side in ("configuration", "against")]
