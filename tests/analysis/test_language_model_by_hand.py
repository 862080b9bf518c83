"""The gains and the noise on docs/run/language_model.md, computed anew from the kept records by pandas and numpy."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from by_hand import numbers, table_of

PROJECT = Path(__file__).resolve().parents[2]
RESULTS, PAGE = PROJECT / "results", PROJECT / "docs" / "run" / "language_model.md"
KEPT = RESULTS / "language_model"


def samples_of(sha256: Mapping[str, str], task: str) -> list[pd.DataFrame]:
    """Of the kept evaluations of the model with these checksums."""
    every = (RESULTS / "lm_evaluation").glob(f"*/{task}/config.yaml")
    files = [file for file in every if yaml.safe_load(file.read_text())["checkpoint"]["model_sha256"] == sha256]
    return [pd.read_json(file.with_name("samples.jsonl"), lines=True) for file in files]


def test_gains_are_those_of_the_kept_samples() -> None:
    runs, answers = (pd.read_parquet(KEPT / f"{name}.parquet") for name in ("runs", "answers"))
    answers = answers[answers["mode"] == "sampled"].rename(columns={"question": "uid"})
    facts = runs["model"] + runs["learning_rate"].map(" {:g}".format) + runs["rollouts"].map(" {:,}".format)
    rows = table_of(PAGE, "pages.project.language_model")
    assert len(rows) == len(runs)
    for row in rows:
        (run,) = runs[facts == f"{row['Model']} {row['Rate']} {row['Rollouts']}"].itertuples()
        alike = runs[(runs["model_sha256"] == run.model_sha256) & (runs["task"] == run.task)]["run"]
        before = answers[(answers["when"] == "before") & answers["run"].isin(alike)]
        before = before[before["run"] == before["run"].min()]
        begun = pd.concat([before, *samples_of(json.loads(run.model_sha256), run.task)])
        after = answers[(answers["when"] == "after") & (answers["run"] == run.run)]
        won, first = ((each["reward"] == 1).groupby(each["uid"]).mean() for each in (after, begun))
        means = [first[won.index].mean(), won.mean(), (won - first[won.index]).mean()]
        shown = [numbers(row[title])[0] for title in ("Before, %", "After, %", "Gain")]
        assert shown == pytest.approx([100 * mean for mean in means], abs=0.051), row


def test_the_search_and_the_gate_are_those_of_the_kept_answers() -> None:
    runs, answers = (pd.read_parquet(RESULTS / "textworld" / f"{name}.parquet") for name in ("runs", "answers"))
    success = (answers["reward"] == 1).groupby([answers["run"], answers["when"]]).mean().unstack()
    rows = table_of(PAGE, "study.gains.search textworld")
    for row in rows:
        rate, _, part = row["Rate"].partition(", ")
        algorithm = "rtpo" if row["Configuration"].startswith("RTPO") else "grpo"
        alike = runs["run"].str.startswith(part or "rates") & (runs["learning_rate"] == float(rate))
        of_row = success.loc[runs.loc[alike & (runs["algorithm"] == algorithm), "run"]]
        assert int(row["Runs"]) == len(of_row)
        means = [of_row["before"].mean(), of_row["after"].mean(), (of_row["after"] - of_row["before"]).mean()]
        shown = [numbers(row[title])[0] for title in ("Before, %", "After, %", "Gain")]
        assert shown == pytest.approx([100 * mean for mean in means], abs=0.051), row
    in_search = runs["run"].str.startswith(("rates", "gate"))
    assert sum(int(row["Runs"]) for row in rows) == in_search.sum()


def test_the_noise_is_that_of_the_kept_gradients() -> None:
    adapter = PROJECT / "rtpo" / "warm_starts" / "adapters" / "quests_0"
    (row,) = table_of(PAGE, "pages.project.adapter_noise quests_0")
    measured = json.loads((adapter / "gradient_noise.json").read_text())["measured"]
    noise = {method: np.mean(measured[method]) - np.mean(measured["inner"]) for method in ("rtpo", "grpo")}
    ratio = noise["rtpo"] / noise["grpo"]
    assert numbers(row["Noise of RTPO over exact GRPO"])[0] == pytest.approx(ratio, abs=0.051)
    assert int(row["Games"]) == len(measured["grpo"])
