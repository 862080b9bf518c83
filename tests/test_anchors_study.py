"""The page of the study of anchors: what made-up runs on validation questions choose, and what a test of it says."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from synthetic_runs import write_answering

from analysis.credit.anchors import choice, gains, judged
from analysis.credit.predictions import FILE, Prediction
from analysis.pages import __main__ as pages
from analysis.study.plan import STUDIES
from analysis.study.records import StudyRecords, load_study
from rtpo.run.config import PROJECT

EXPERIMENTS = {
    "math_luck": "math_luck_toy_math",
    "knowledge_luck": "knowledge_luck_toy_knowledge",
    "walk_never": "walk_never_toy_walk",
}
SEEDS = (20, 21, 22)
WINNER = [
    "grpo_exact",
    "gigpo",
    {"label": "gigpo_seconds", "algorithm": "gigpo", "settings": ["budget.rollouts=1536"]},
]
TOKENS = [{"label": "gigpo_tokens", "algorithm": "gigpo", "tokens_of": "grpo_exact"}]


def study(tmp_path: Path, core: list[Any], tokens: list[Any]) -> StudyRecords:
    """The plan with other configurations in the test, of one warm start, and three candidates."""
    plan = yaml.safe_load((STUDIES / "anchors.yaml").read_text())
    for part, configurations in (("core", core), ("tokens", tokens), ("choice", plan["choice"]["configurations"][:3])):
        plan[part] |= {"configurations": configurations, "warm_starts": 1}
    file = tmp_path / "anchors.yaml"
    file.write_text(yaml.safe_dump(plan))
    return load_study(tmp_path / "anchors", file)


def write_choice(tmp_path: Path, right: Mapping[str, tuple[int, int, int]]) -> None:
    for name, counts in right.items():
        for experiment, count in zip(EXPERIMENTS.values(), counts, strict=True):
            write_answering(tmp_path / "anchors", experiment, f"{name}_validation", count, (3, 4))


def test_the_best_over_all_tasks_is_chosen_once_all_have_run(tmp_path: Path) -> None:
    write_choice(tmp_path, {"grpo_exact": (12, 12, 12), "gigpo": (18, 18, 4), "anchored": (14, 14, 14)})
    last = tmp_path / "anchors" / EXPERIMENTS["walk_never"] / "anchored_validation-seed4" / "manifest.json"
    manifest = last.read_bytes()
    last.unlink()
    text = choice(study(tmp_path, ["grpo_exact"], []))
    assert text.startswith("17 of 18 runs of the choice are finished: nothing is chosen yet.\n")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| G")]
    assert [row[-1].split()[0] for row in rows] == ["60.0", "66.7", "not"]
    assert rows[1][1].startswith("90.0 [")
    assert rows[1][1].endswith("], 2 of 2 runs, 0.001")
    assert "], 1 of 2 runs, " in rows[2][3]
    last.write_bytes(manifest)
    told = "The best over all tasks is **GRPO, exact contexts, anchored** (`anchored`), which the plan "
    assert choice(study(tmp_path, ["grpo_exact"], [])).startswith(f"{told}does not test yet.\n")
    assert choice(study(tmp_path, ["grpo_exact", "anchored"], [])).startswith(f"{told}tests.\n")
    other = "The plan tests GiGPO, which the choice did not choose.\n"
    assert choice(study(tmp_path, ["grpo_exact", "gigpo"], [])).startswith(f"{told}does not test yet. {other}")


def test_nothing_is_tested_where_exact_grpo_is_the_best(tmp_path: Path) -> None:
    write_choice(tmp_path, {"grpo_exact": (16, 12, 12), "gigpo": (12, 12, 12), "anchored": (12, 12, 12)})
    text = choice(study(tmp_path, ["grpo_exact"], []))
    assert text.startswith("The best over all tasks is **GRPO, exact contexts (control)** (`grpo_exact`): there is ")


def test_what_is_chosen_is_compared_at_equal_rollouts_tokens_and_seconds(tmp_path: Path) -> None:
    # seconds of a run are 90 more than its seed; of those with fewer rollouts as said: fewer, as many, more
    right = {"grpo_exact": (8, 8, 8), "gigpo": (14, 8, 4), "gigpo_tokens": (12, 12, 12), "gigpo_seconds": (12, 12, 4)}
    for label, counts in right.items():
        for experiment, count, seconds in zip(EXPERIMENTS.values(), counts, (60.0, None, 300.0), strict=True):
            changed = {"wall_seconds": seconds} if label == "gigpo_seconds" and seconds else {}
            write_answering(tmp_path / "anchors", experiment, label, count, SEEDS, manifest=changed)
    text = gains(study(tmp_path, WINNER, TOKENS))
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| GiGPO")
    ]
    assert [(row[1], row[-1]) for row in rows] == [
        ("rollouts", "supported (3 pairs)"),
        ("rollouts", "undecided (3 pairs)"),
        ("rollouts", "contradicted (3 pairs)"),
        *[("generated tokens", "supported (3 pairs)")] * 3,
        ("seconds", "supported (3 pairs)"),
        ("seconds", "undecided (3 pairs)"),
        ("seconds", "contradicted (3 pairs)"),
    ]
    assert rows[6][2] == "Toy math, luck"
    assert rows[6][3].startswith("40.0 [")
    assert rows[6][4].startswith("60.0 [")
    assert rows[6][5].startswith("+20.0 [")
    assert rows[6][5].endswith("], 3 of 5 pairs")
    assert rows[6][7].startswith("+55.")
    assert rows[7][7] == "+0.0"
    assert "- GiGPO, above exact GRPO at equal generated tokens: **supported (3 pairs)**; on 3 of 3 tasks; " in text
    assert "at equal rollouts: **mixed: " in text
    assert "toy walk no state twice (3 pairs)**; on 1 of 3 tasks; the criterion is 2.\n" in text


def test_what_the_plan_does_not_have_is_said(tmp_path: Path) -> None:
    assert gains(study(tmp_path, ["grpo_exact"], [])) == "The plan tests no candidate yet.\n"
    text = gains(study(tmp_path, ["grpo_exact", "gigpo"], []))
    assert "at equal rollouts: **not run on 3 of 3 tasks**; on 0 of 3 tasks" in text
    assert "at equal seconds: **not planned**; on 0 of 3 tasks" in text


def test_a_prediction_is_judged_by_the_test_or_else_on_validation_questions(tmp_path: Path) -> None:
    records = study(tmp_path, ["grpo_exact", "gigpo"], [])
    tested_one = Prediction("walk_never", "gigpo", "grpo_exact", 0, 0.0, 0.0)
    assert judged(records, tested_one) == tested_one
    other = judged(records, Prediction("walk_never", "anchored", "grpo_exact", 0, 0.0, 0.0))
    assert (other.configuration, other.against) == ("anchored_validation", "grpo_exact_validation")


def test_the_page_is_made_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "docs" / "results" / "anchors.md"
    page.parent.mkdir(parents=True)
    page.write_text((PROJECT / "docs" / "results" / "anchors.md").read_text())
    given = ["anchors", "--project", str(tmp_path)]
    assert pages.main(given) == 1
    assert "predicted.json is missing: restore it" in capsys.readouterr().err
    results = tmp_path / "results" / "anchors"
    results.mkdir(parents=True)
    predicted = PROJECT / "results" / "anchors" / FILE
    (results / FILE).write_bytes(predicted.read_bytes())
    assert pages.main(given) == pages.main(["--check", *given]) == 0
    text = page.read_text()
    assert f"Of {len(json.loads(predicted.read_bytes()))} predictions none has been run yet." in text
    assert "0 of 72 runs of the choice are finished: nothing is chosen yet." in text
    write_answering(results, EXPERIMENTS["walk_never"], "grpo_exact_validation", 8, (3, 4))
    assert pages.main(["--check", *given]) == 1
    assert pages.main(given) == 0
    assert "2 of 72 runs of the choice are finished: nothing is chosen yet." in page.read_text()
