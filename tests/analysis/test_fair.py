"""The comparisons of the study `fair`, on made-up frames whose differences are known."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import fair
from analysis.fair import Comparison, differences, estimates
from analysis.load import Frames

TASKS = ("walk_early", "walk_even")
OF = Comparison("rtpo", "grpo_exact", TASKS, 0.1, 0.3, in_family=True)
QUESTIONS = 40
AFTER = {"benchmark": None, "when": "after", "mode": "paper", "step": 1, "split": "held_out"}
ROOM = {(task, warm_start) for task in TASKS for warm_start in ("toy_walk", "toy_walk_1")}
NOTHING = pd.DataFrame({"run": []})


def frames(gain: float, by_warm_start: float = 0.0, noise: float = 0.0) -> Frames:
    """Two tasks, two warm starts, five seeds. rtpo solves a share of `gain` more of the questions than grpo_exact, and
    by_warm_start more of these on the second warm start."""
    rng, runs, answers = np.random.default_rng(0), [], []
    for task in TASKS:
        for number, warm_start in enumerate(("toy_walk", "toy_walk_1")):
            for seed in range(40, 45):
                for label in ("rtpo", "grpo_exact"):
                    run = f"{task}_{warm_start}/{label}-seed{seed}"
                    runs.append({"run": run, "experiment": f"{task}_{warm_start}", "label": label, "seed": seed})
                    share = 0.4 + (label == "rtpo") * (gain + number * by_warm_start) + noise * rng.normal()
                    solved = np.arange(QUESTIONS) < round(share * QUESTIONS)
                    answers += [
                        {**AFTER, "run": run, "question": f"q{q:02d}", "reward": float(solved[q])}
                        for q in range(QUESTIONS)
                    ]
    return Frames(pd.DataFrame(runs), NOTHING, pd.DataFrame(answers), NOTHING)


def test_a_difference_is_the_mean_over_tasks_by_warm_start_and_seed() -> None:
    table = differences(frames(0.2, 0.1), OF, "paper", ROOM)
    assert table.shape == (10, QUESTIONS)
    assert table.mean(axis="columns").groupby("warm_start").mean().tolist() == pytest.approx([0.2, 0.3])


def test_a_place_without_room_is_not_counted_for_credit() -> None:
    made = frames(0.2, 0.1)
    left = ROOM - {("walk_even", "toy_walk_1")}
    table = differences(made, OF, "paper", left)
    assert len(table) == 10
    assert table.loc["toy_walk_1"].equals(
        differences(made, OF, "paper", ROOM - {("walk_early", "toy_walk_1")}).loc["toy_walk_1"]
    )
    (first,) = estimates(made, [OF], "paper", {place for place in ROOM if place[1] == "toy_walk"})
    assert first.here.mean == pytest.approx(0.2)
    (none,) = estimates(made, [OF], "paper", set())
    assert (none.here.mean, none.verdict) == (pytest.approx(0.25), "no room")
    flattened = Comparison("rtpo", "grpo", TASKS, 0.1, 0.3, in_family=False)
    renamed = Frames(made.runs.replace({"label": {"grpo_exact": "grpo"}}), NOTHING, made.answers, NOTHING)
    (contexts,) = estimates(renamed, [flattened], "paper", set())
    assert (contexts.here.mean, contexts.verdict) == (pytest.approx(0.25), "above")


def test_a_clear_gain_is_above_and_covered_and_a_small_one_is_not_of_interest() -> None:
    (clear,) = estimates(frames(0.2, noise=0.02), [OF], "paper", ROOM)
    assert clear.here.mean == pytest.approx(0.2, abs=0.02)
    assert (clear.verdict, clear.is_covered) == ("above", True)
    (none,) = estimates(frames(0.0, noise=0.02), [OF], "paper", ROOM)
    assert none.verdict != "above"
    assert not none.is_covered
    (small,) = estimates(frames(0.025), [OF], "paper", ROOM)
    assert small.verdict != "above"


def test_holm_adjusts_the_family_alone() -> None:
    other = Comparison("grpo_exact", "rtpo", TASKS, -1.0, 0.0, in_family=True)
    outside = Comparison("rtpo", "grpo_exact", TASKS[:1], 0.0, 1.0, in_family=False)
    first, second, third = estimates(frames(0.1, noise=0.1), [OF, other, outside], "paper", ROOM)
    assert first.adjusted == pytest.approx(min(1, 2 * first.p))
    assert second.verdict == {"above": "below", "undecided": "undecided"}[first.verdict]
    assert third.adjusted is None


def test_the_page_has_each_comparison_and_says_what_was_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = Comparison("gigpo", "grpo_exact", TASKS, 0.0, 0.1, in_family=True)
    (tmp_path / "predicted.json").write_text(json.dumps([asdict(OF), asdict(missing)]))
    shown = frames(0.2)
    monkeypatch.setattr(fair, "RESULTS", tmp_path)
    monkeypatch.setattr(fair, "of_study", lambda: (shown, estimates(shown, [OF], "paper", ROOM)))
    table = fair.family()
    assert table["Predicted"].tolist() == ["+10.0 to +30.0", "+0.0 to +10.0"]
    assert table["Verdict"].tolist() == ["above", "—"]
    assert table["These warm starts"].tolist()[1] == "not run"
    assert set(fair.exploratory().iloc[0, 1:]) == {"not run (not predicted)"}
    assert fair.score().to_numpy().tolist() == [["The family", "1 of 1", "0.0"]]
