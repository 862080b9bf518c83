"""The page of the credit study: what was predicted beside what made-up runs say."""

import json
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import answers, write_answering, write_run

from analysis.credit import given_more
from analysis.credit.predictions import FILE, Outcome, load_predictions, outcomes, predicted_table, summary
from analysis.credit.variants import told
from analysis.looks import TITLES
from analysis.pages import __main__ as pages
from analysis.records import RunGroup, load_runs
from analysis.study.plan import STUDIES
from analysis.study.records import load_study
from rtpo.errors import DataError
from rtpo.run.config import PROJECT

PAGE = Path("docs", "results", "credit.md")
STUDY = STUDIES / "credit.yaml"
WALK = "walk_even_toy_walk"


def prediction(configuration: str, sign: int, low: float, high: float, task: str = "walk_even") -> dict[str, Any]:
    return {
        "task": task,
        "configuration": configuration,
        "against": "grpo_exact",
        "sign": sign,
        "low": low,
        "high": high,
    }


def found(tmp_path: Path, *given: dict[str, Any]) -> list[Outcome]:
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / FILE).write_text(json.dumps(given))
    return outcomes(load_study(tmp_path, STUDY), load_predictions(tmp_path))


def test_signs_and_sizes_are_judged(tmp_path: Path) -> None:
    write_answering(tmp_path, WALK, "grpo_exact", 10)
    write_answering(tmp_path, WALK, "rtpo", 14)
    write_answering(tmp_path, WALK, "grpo", 10)
    judged = found(
        tmp_path,
        prediction("rtpo", 1, 0.1, 0.3),
        prediction("rtpo", -1, -0.3, -0.1),
        prediction("rtpo", 1, 0.21, 0.5),
        prediction("rtpo", 0, -0.01, 0.02),
        prediction("grpo", 1, 0.1, 0.2),
        prediction("rtpo", -1, -0.1, 0.3),
        prediction("rtpo", 1, 0.1, 0.3, task="walk_late"),
    )
    # +20 points for RTPO, the same in each run but over questions; GRPO answers alike, which gives no interval
    assert [(one.sign, one.size) for one in judged] == [
        ("as predicted", "as predicted"),
        ("missed", "missed"),
        ("as predicted", "reached"),
        ("missed", "—"),
        ("undecided", "missed"),
        ("missed", "—"),
        ("not run", "not run"),
    ]
    rows = predicted_table(judged, "credit").rows
    assert rows[0][:3] == ("Toy walk, decided evenly", "RTPO less GRPO, exact contexts (control)", "+, +10.0 to +30.0")
    assert rows[0][3].startswith("+20.0 [")
    assert rows[0][3].endswith("], 3 of 10 pairs")
    assert rows[0][4:] == ("as predicted (3 pairs)", "as predicted")
    assert rows[6][3:] == ("not run", "—", "—")
    text = summary(judged)
    assert text.startswith(
        "Predicted to end higher, and found to: RTPO on 2 of 2 tasks, GRPO, flattened history (the paper's contexts) "
        "on 0 of 1 tasks.\n\nOf 7 predictions 6 have been run. Signs: 2 as predicted, 3 missed, 1 undecided. "
        "Sizes: 1 as predicted, "
        "1 reached, 2 missed, 0 undecided. All of RTPO itself, and those missed in sign or in size:\n\n"
    )
    assert text.count("\n- ") == 6
    assert text.count(": sign missed, size ") == 3
    assert "RTPO less GRPO, exact contexts (control): predicted −, −30.0 to −10.0; found +20.0 [" in text


def test_two_pairs_decide_nothing(tmp_path: Path) -> None:
    write_answering(tmp_path, WALK, "grpo_exact", 10)
    write_answering(tmp_path, WALK, "rtpo", 14)
    (tmp_path / WALK / "rtpo-seed10" / "manifest.json").unlink()
    judged = found(tmp_path, prediction("rtpo", 1, 0.1, 0.3), prediction("rtpo", 1, -0.1, 0.3))
    assert [(one.sign, one.size) for one in judged] == [("undecided", "undecided"), ("undecided", "—")]
    assert "Sizes: 0 as predicted, 0 reached, 0 missed, 1 undecided. " in summary(judged)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"task": "walk_lat"}, r"'walk_lat', which the study does not plan: the nearest is walk_late\."),
        ({"configuration": "rtpo_tre"}, r"'rtpo_tre' on walk_even, .* plan there: the nearest is rtpo_tree\."),
        ({"against": "gpro_exact"}, r"'gpro_exact' on walk_even, .* plan there: the nearest is grpo_exact\."),
        ({"lo": 0.0}, r"prediction 0 has lo: the nearest is low\."),
    ],
)
def test_names_that_the_study_has_none_of_are_refused(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        found(tmp_path, prediction("rtpo", 1, 0.1, 0.3) | changed)


def test_level_runs_are_as_predicted_where_no_difference_is(tmp_path: Path) -> None:
    write_answering(tmp_path, WALK, "grpo_exact", 10)
    write_answering(tmp_path, WALK, "rtpo", 10)
    (one,) = found(tmp_path, prediction("rtpo", 0, -0.01, 0.02))
    assert (one.sign, one.size) == ("as predicted", "—")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("{}", "holds no list of predictions"),
        ("[1]", "prediction 0 is no object"),
        ('[{"task": "walk_even"}]', "prediction 0 lacks configuration, against, sign, low, high"),
        (json.dumps([prediction("rtpo", 2, 0.0, 1.0)]), "needs a sign of -1, 0 or 1"),
        (json.dumps([prediction("rtpo", 1, 1.0, 0.0)]), "numbers from low to high"),
    ],
)
def test_predictions_that_are_none_are_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(DataError, match=said):
        load_predictions(tmp_path)


def test_a_variant_is_judged_against_rtpo_and_exact_grpo(tmp_path: Path) -> None:
    for label, right in (("grpo_exact", 14), ("rtpo", 8), ("rtpo_few", 14), ("rtpo_shrunk", 4)):
        write_answering(tmp_path, WALK, label, right)
    text = told(load_study(tmp_path, STUDY))
    first, last = text.split("\n\n", 1)
    assert first.splitlines() == [
        "- RTPO, larger groups at fewer boundaries, above RTPO: **supported on toy walk decided evenly (3 pairs)**; "
        "above GRPO with exact contexts: **undecided on toy walk decided evenly (3 pairs)**.",
        "- RTPO, larger groups at fewer boundaries, by luck, above RTPO: **not run on 1 of 1 tasks**; above GRPO with "
        "exact contexts: **not run on 1 of 1 tasks**.",
        "- RTPO, baselines shrunk to the prompt's, above RTPO: **contradicted on toy walk decided evenly (3 pairs)**; "
        "above GRPO with exact contexts: **contradicted on toy walk decided evenly (3 pairs)**.",
        "- RTPO, first turns pooled, above RTPO: **not run on 1 of 1 tasks**; above GRPO with exact contexts: "
        "**not run on 1 of 1 tasks**.",
    ]
    few = next(line for line in last.splitlines() if "fewer boundaries " in line and "by luck" not in line)
    cells = [cell.strip() for cell in few.split("|")]
    assert cells[3] == "3 of 6"
    assert cells[4].startswith("70.0 [")
    assert cells[5].startswith("+30.0 [")
    assert cells[7] == "+0.0, 3 of 6 pairs"


def test_rtpo_given_more_is_judged_and_told_with_what_it_had(tmp_path: Path) -> None:
    early = "walk_early_toy_walk"
    for label, right in (("grpo_exact", 19), ("rtpo", 8), ("rtpo_two_tasks", 12)):
        write_answering(tmp_path, early, label, right)
    first, last = given_more.told(load_study(tmp_path, STUDY)).split("\n\n", 1)
    assert first.splitlines() == [
        "- RTPO, exact GRPO's tokens, above RTPO: **not run on 3 of 3 tasks**; above GRPO with exact contexts: "
        "**not run on 3 of 3 tasks**.",
        "- RTPO, 2 tasks a step, above RTPO: **supported on toy walk decided early (3 pairs); not run on 2 of 3 "
        "tasks**; above GRPO with exact contexts: **contradicted on toy walk decided early (3 pairs); not run on 2 of "
        "3 tasks**.",
    ]
    rows = [[cell.strip() for cell in line.split("|")[2:-1]] for line in last.splitlines() if "| Toy walk" in line]
    cells = next(row for row in rows if row[0] == "RTPO, 2 tasks a step")
    # two steps, each of one update of turn 0 on 8 rows of which half tie
    assert cells[1:4] == ["3 of 10", "2", "4"]
    assert cells[6].startswith("60.0 [")
    assert cells[8].startswith("+20.0 [")
    assert {row[1] for row in rows[4:]} == {"0 of 10", "0 of 6"}


def test_the_heavy_turn_is_right_where_half_of_the_return_is_earned(tmp_path: Path) -> None:
    rewards: dict[str, list[float | None]] = {"a": [1.0, 0.5], "b": [0.4, None], "c": [0.0, 0.6]}
    for decided in ("early", "even"):
        config = {"task": {"settings": {"decided": decided}}}
        for seed in (0, 1):
            write_run(tmp_path, decided, seed, [], answers("after", "paper", rewards), config=config)
    early, even = (
        RunGroup(name, tuple(load_runs(tmp_path))[place : place + 2]) for name, place in (("early", 0), ("even", 2))
    )
    found = given_more.heavy_turn(early)
    assert found is not None
    assert found.mean == pytest.approx((1 + 0 + 0.5) / 3)
    assert given_more.heavy_turn(even) is None


def test_the_page_is_made_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / PAGE
    page.parent.mkdir(parents=True)
    page.write_text((PROJECT / PAGE).read_text())
    given = ["credit", "--project", str(tmp_path)]
    assert pages.main(given) == 1
    assert "predicted.json is missing: restore it" in capsys.readouterr().err
    results = tmp_path / "results" / "credit"
    results.mkdir(parents=True)
    (results / FILE).write_text(json.dumps([prediction("rtpo", 1, 0.1, 0.3)]))
    assert pages.main(given) == pages.main(["--check", *given]) == 0
    assert "Of 1 predictions none has been run yet." in page.read_text()

    write_answering(results, WALK, "grpo_exact", 10)
    write_answering(results, WALK, "rtpo", 14)
    beside: dict[str, Any] = {"rollouts": 2048, "free_rollouts": 9, "generated_tokens": 4, "optimizer_steps": 1}
    beside |= {"budget": {"rollouts": 2048}, "seconds": {"evaluate": 1.0}}
    write_answering(results, WALK, "grpo_state_values", 18, manifest={"ledger": beside})
    assert pages.main(["--check", *given]) == 1
    assert pages.main(given) == pages.main(["--check", *given]) == 0
    text = page.read_text()
    methods, ceilings = text.split("The credit study, toy walk, decided evenly. ")[1:]
    assert TITLES["grpo_state_values"] not in methods
    assert ceilings.startswith("Ceilings.")
    assert ceilings.count(f"| {TITLES['grpo_state_values']} |") == 1
    assert "Of 1 predictions 1 have been run." in text
    assert "| Toy walk, decided evenly | RTPO less GRPO, exact contexts (control) |" in text
    assert "Paper's decoding, after" in text
