"""What a study predicts from f_k, and what its runs say of the comparisons, on made-up runs with known differences."""

import itertools
import json
import math
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from synthetic_runs import answers, empty_update, step, write_run

from analysis.figures import gains as figure_of_gains
from analysis.figures.costs import cost_figure, has_test_runs
from analysis.figures.gains import gain_figure
from analysis.looks import TASKS
from analysis.metrics import mean_success
from analysis.study import gains as gains_of
from analysis.study import plan, predictions
from analysis.study.plan import load_study
from analysis.study.predictions import Comparison, Comparisons, Turns, noise, predict, speed, write_predictions
from rtpo.errors import DataError

STARTS = ("toy_keys", "toy_keys_1", "toy_keys_2", "toy_keys_3")
QUESTIONS = 20
PLAN: dict[str, Any] = {
    "decoding": "sampled",
    "settings": ["budget.rollouts=64"],
    "rates": {"grid": [1e-3], "seeds": [0], "settings": []},
    "warm_starts": {"toy_keys": list(STARTS)},
    "core": {
        "tasks": ["toy_keys"],
        "warm_starts": 4,
        "seeds": [1, 2],
        "configurations": ["grpo_exact", "rtpo", "anchored_forks", "gigpo"],
    },
}
HALF = ["budget.rollouts=32"]
COMPARED = {
    "measured_turns": {"toy_keys": "keys"},
    "family": [
        {"configuration": "rtpo", "against": "grpo_exact", "task": "toy_keys"},
        {"configuration": "anchored_forks", "against": "grpo_exact", "task": "toy_keys"},
    ],
}
RATES = {"toy_keys": dict.fromkeys(["grpo_exact", "rtpo", "anchored_forks", "gigpo"], 1e-3)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of records of a study `made` without runs."""
    studies = tmp_path / "studies"
    studies.mkdir()
    (studies / "made.yaml").write_text(yaml.safe_dump(PLAN))
    (studies / "comparisons.yaml").write_text(yaml.safe_dump({"made": COMPARED}))
    monkeypatch.setattr(plan, "STUDIES", studies)
    monkeypatch.setattr(plan, "PROJECT", tmp_path)
    monkeypatch.setattr(gains_of, "PROJECT", tmp_path)
    monkeypatch.setattr(figure_of_gains, "PROJECT", tmp_path)
    monkeypatch.setattr(figure_of_gains, "STUDIES", ("not_begun", "made"))
    monkeypatch.setattr(predictions, "FILE", studies / "comparisons.yaml")
    folder = tmp_path / "results" / "made"
    folder.mkdir(parents=True)
    (folder / "learning_rates.json").write_text(json.dumps(RATES))
    for function in (gains_of.runs_of, gains_of.gains):
        function.cache_clear()
    return folder


def shares(solved: int) -> dict[str, list[float | None]]:
    return {f"q{number}": [float(number < solved)] for number in range(QUESTIONS)}


def write(folder: Path, label: str, seed: int, before: int, after: int, start: str = "rates_toy_keys") -> None:
    """A run that solves so many questions before and after training, at every decoding."""
    lines = [
        line
        for number, (when, solved) in enumerate((("before", before), ("after", after)))
        for mode in ("sampled", "paper", "greedy")
        for line in answers(when, mode, shares(solved), step=number)
    ]
    write_run(folder, label, seed, [trained(solved_share(after))], lines, experiment=start)


def trained(success: float) -> dict[str, Any]:
    """The line of a data step of 64 rollouts, of which 8 paths are from their tasks' starts."""
    counts = {"rollouts": 64, "turns": 64, "generated_tokens": 64 * 40, "graded": 8}
    return step(1, 64, success, [empty_update()]) | {"rollout_calls": [{**counts, "terminations": {"answered": 8}}]}


def solved_share(solved: int) -> float:
    return solved / QUESTIONS


def test_noise_is_that_of_the_baseline_that_a_method_subtracts() -> None:
    turns = Turns(left=[1.0, 0.5, 0.2], reached=[1.0, 1.0, 0.5], recurring=[1.0, 0.4, 0.0])
    assert noise({"name": "grpo"}, turns) == [1, 1, 1]
    assert noise({"name": "gigpo"}, turns) == pytest.approx([1, 1 - 0.4 * 0.5, 1])
    # a state's baseline with all the weight leaves f_k; without weight it is GRPO's
    assert noise({"name": "anchored", "shrinkage": 0.0}, turns) == pytest.approx(turns.left)
    assert noise({"name": "anchored", "shrinkage": 1e12}, turns) == pytest.approx([1, 1, 1])
    # K = 3, G = 3, M = 2: f* is 1 / 7, and a prompt has 14 rollouts
    rtpo = noise({"name": "rtpo", "trunks": 2, "group_size": 3}, turns)
    assert rtpo == pytest.approx([left * 7 * 13 / 14 for left in turns.left])
    assert speed([1, 1, 1], turns) == 1
    assert speed([4, 1, 1], turns) == pytest.approx((0.5 + 1 + 0.5) / 2.5)


def test_a_prediction_scales_what_exact_grpo_gained_in_the_search(folder: Path) -> None:
    study, compared = load_study("made"), predictions.comparisons_of("made")
    assert isinstance(compared, Comparisons)
    for label in RATES["toy_keys"]:
        write(folder, f"{label}_lr0.001", 0, before=4, after=8)
    same = predict(study, compared, Comparison("grpo_exact", "grpo_exact", "toy_keys"))
    assert (same.low, same.high) == (-0.05, 0.05)
    forks = predict(study, compared, compared.family[1])
    turns = predictions.measured_turns(study, "toy_keys", "keys")
    faster = speed(noise({"name": "anchored", "shrinkage": 0.25}, turns), turns)
    assert faster > 1
    expected = (1 - 0.8 * (0.6 / 0.8) ** faster) - 0.4
    assert (forks.low + forks.high) / 2 == pytest.approx(expected, abs=1e-3)
    # a test of twice the search's rollouts
    (plan.STUDIES / "made.yaml").write_text(yaml.safe_dump(PLAN | {"rates": PLAN["rates"] | {"settings": HALF}}))
    forks = predict(load_study("made"), compared, compared.family[1])
    expected = 0.8 * ((0.6 / 0.8) ** 2 - (0.6 / 0.8) ** (2 * faster))
    assert (forks.low + forks.high) / 2 == pytest.approx(expected, abs=1e-3)
    (plan.STUDIES / "made.yaml").write_text(yaml.safe_dump(PLAN))

    write_predictions(study)
    first = (folder / "predicted.json").read_bytes()
    read = predictions.read_predictions(folder)
    assert [each.comparison for each in read] == [*compared.family]
    write_predictions(load_study("made"))
    assert (folder / "predicted.json").read_bytes() == first
    entries = [asdict(each) for each in read]
    entries[0]["low"] -= 0.01
    (folder / "predicted.json").write_text(json.dumps(entries))
    with pytest.raises(DataError, match="has other predictions"):
        write_predictions(study)


def test_nothing_is_predicted_before_all_rates_are_chosen(folder: Path) -> None:
    (folder / "learning_rates.json").write_text(json.dumps({"toy_keys": {"grpo_exact": 1e-3}}))
    write(folder, "grpo_exact_lr0.001", 0, before=4, after=8)
    with pytest.raises(DataError, match="rtpo on toy_keys has no learning rate yet"):
        write_predictions(load_study("made"))
    assert not (folder / "predicted.json").exists()


SOLVED = {"grpo_exact": (8, 9), "rtpo": (3, 4), "anchored_forks": (14, 15)}
"""questions that the runs of the two seeds solve after training; 4 before"""


def test_tables_say_what_the_runs_do(folder: Path) -> None:
    predicted = [
        {"comparison": each, "low": low, "high": low + 0.1}
        for each, low in zip(COMPARED["family"], (0.2, 0.25), strict=True)
    ]
    (folder / "predicted.json").write_text(json.dumps(predicted))
    for label, solved in SOLVED.items():
        write(folder, f"{label}_lr0.001", 0, before=4, after=solved[0])
        for start in STARTS:
            for seed, after in zip((1, 2), solved, strict=True):
                write(folder, label, seed, before=4, after=after, start=start)

    table = gains_of.family("made")
    for column in ("These warm starts", "Other warm starts"):
        assert table[column].str.partition(" ")[0].tolist() == ["−25.0", "+30.0"]
    assert table[["Pairs", "Verdict", "Covered"]].to_numpy().tolist() == [["8", "below", "no"], ["8", "above", "yes"]]
    assert gains_of.score("made")["Right"].tolist() == ["1 of 2", "1 of 2"]
    (unmeasured,) = gains_of.exploratory("made").to_dict("records")
    assert (unmeasured["Pairs"], unmeasured["These warm starts"], unmeasured["Verdict"]) == ("0", "not run", "—")

    others = gains_of.secondary("made")
    assert others["Runs that end below their start"].tolist() == ["4 of 8 and 0 of 8", "0 of 8 and 0 of 8"]
    assert others["Mean success in training"].str[:5].tolist() == ["−25.0", "+30.0"]
    assert others["Search at 0.001"].str[:5].tolist() == ["−25.0", "+30.0"]
    runs = gains_of.runs("made")
    assert runs[["Chosen", "Before", "Runs"]].to_numpy().tolist() == [["0.001", "20.0", "8"]] * 3
    assert runs["0.001"].tolist() == ["40.0", "15.0", "70.0"]
    searched = gains_of.search("made").set_index("Configuration")
    assert searched["After, %"].sort_values().tolist() == ["15.0", "40.0", "70.0"]
    assert set(searched["Before, %"]) == {"20.0"}
    assert sorted(text.partition(" ")[0] for text in searched["Gain"]) == ["+20.0", "+50.0", "−5.0"]
    assert set(searched["Runs"]) == {"1"}
    (axes,) = gain_figure().axes
    means = {line.get_ydata()[0]: line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) == 1}
    assert means == pytest.approx({0: -25, 1: 30})
    assert [bar.get_x() for bar in axes.patches] == pytest.approx([20, 25])

    assert has_test_runs("made")
    steps = gains_of.runs_of("made").frames.steps.iloc[0]
    costs = (
        steps["rollouts"],
        1e-3 * steps["generated_tokens"],
        (steps["wall_seconds"] - steps["seconds_evaluate"]) / 60,
    )
    for axes, cost in zip(cost_figure("made", "toy_keys").axes, costs, strict=True):
        trained, ended = axes.lines[::2], axes.lines[1::2]
        for lines, x in ((trained, 0), (ended, cost)):
            assert sorted(line.get_ydata()[0] for line in lines) == pytest.approx([17.5, 42.5, 72.5])
            assert [line.get_xdata()[0] for line in lines] == pytest.approx([x] * 3)


def test_each_path_of_training_counts_alike() -> None:
    steps = pd.DataFrame({"success": [0.75, 0.0], "success_rollouts": [8, 2]})
    assert mean_success(steps) == pytest.approx(0.6)


def test_an_outcome_that_was_not_evaluated_is_not_run(folder: Path) -> None:
    for label in ("grpo_exact", "rtpo"):
        for start, seed in itertools.product(STARTS, (1, 2)):
            lines = answers("after", "sampled", shares(8))
            write_run(folder, label, seed, [trained(0.4)], lines, experiment=start)
    for row in gains_of.secondary("made").to_dict("records"):
        assert {row["Success, T = 0.6"], row["Success, greedy"]} == {"not run"}
        assert row["Runs that end below their start"] == "not run and not run"


def test_runs_of_one_warm_start_and_seed_share_an_evaluation_before_training(folder: Path) -> None:
    for start, seed in itertools.product(STARTS, (1, 2)):
        write(folder, "grpo_exact", seed, before=4, after=SOLVED["grpo_exact"][seed - 1], start=start)
        lines = answers("after", "sampled", shares(SOLVED["rtpo"][seed - 1]))
        write_run(folder, "rtpo", seed, [trained(0.4)], lines, experiment=start)
    below = gains_of.ended_below(gains_of.runs_of("made"))
    assert below == {("toy_keys", "grpo_exact"): "0 of 8", ("toy_keys", "rtpo"): "4 of 8"}


def test_a_comparison_of_the_family_counts_in_the_others_p_without_runs(folder: Path) -> None:
    for label in ("grpo_exact", "rtpo"):
        for start in STARTS:
            for seed, after in zip((1, 2), SOLVED[label], strict=True):
                write(folder, label, seed, before=4, after=after, start=start)
    measured = Comparison(**COMPARED["family"][0])
    p = {}
    for size in (1, 2):
        compared = {"made": COMPARED | {"family": COMPARED["family"][:size]}}
        predictions.FILE.write_text(yaml.safe_dump(compared))
        gains_of.gains.cache_clear()
        p[size] = gains_of.gains("made")[measured].p
    assert 0 < p[2] == pytest.approx(2 * p[1])


def test_fewer_pairs_than_eight_are_not_judged(folder: Path) -> None:
    (measured,) = [Comparison(**each) for each in COMPARED["family"] if each["configuration"] == "rtpo"]
    verdicts = {}
    for start, seed in itertools.product(STARTS, (1, 2)):
        for label in ("grpo_exact", "rtpo"):
            write(folder, label, seed, before=4, after=SOLVED[label][seed - 1], start=start)
        gains_of.runs_of.cache_clear()
        gains_of.gains.cache_clear()
        gain = gains_of.gains("made")[measured]
        verdicts[gain.same_starts.runs] = gain.verdict
        assert (gain.p < 1) == (gain.same_starts.runs == 8)
    assert verdicts == dict.fromkeys(range(1, 8), "too few pairs") | {8: "below"}


def test_without_two_pairs_on_a_warm_start_nothing_is_said_of_other_seeds(folder: Path) -> None:
    for start, label in itertools.product(STARTS[:2], ("grpo_exact", "rtpo")):
        write(folder, label, 1, before=4, after=SOLVED[label][0], start=start)
    (gain,) = gains_of.gains("made").values()
    assert gain.same_starts.runs == 2
    assert math.isnan(gain.same_starts.low)
    assert math.isnan(gain.detectable)


def test_the_search_may_have_other_questions_than_the_test(folder: Path) -> None:
    write(folder, "grpo_exact_lr0.001", 0, before=4, after=8)
    alone = gains_of.search("made")
    assert alone["Gain"].str[:5].tolist() == ["+20.0"]
    lines = answers("after", "sampled", {f"other {number}": [1.0] for number in range(QUESTIONS)})
    write_run(folder, "grpo_exact", 1, [trained(1.0)], lines, experiment=STARTS[0])
    gains_of.runs_of.cache_clear()
    pd.testing.assert_frame_equal(gains_of.search("made"), alone)


def test_runs_that_were_asked_other_questions_are_not_compared(folder: Path) -> None:
    for label, count in (("grpo_exact", QUESTIONS), ("rtpo", QUESTIONS - 1)):
        lines = answers("after", "sampled", dict(list(shares(8).items())[:count]))
        write_run(folder, label, 1, [trained(0.4)], lines, experiment=STARTS[0])
    with pytest.raises(DataError, match=r"asked other questions than the rest: toy_keys/\w+-seed1"):
        gains_of.gains("made")


def test_adapters_turns_are_of_all_warm_starts_of_their_weights_and_of_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, shipped, task = load_study("textworld"), predictions.SHIPPED, "textworld_short"
    monkeypatch.setattr(predictions, "SHIPPED", tmp_path)
    for name in study.warm_starts(task):
        with pytest.raises(DataError, match=rf"{name}/turns\.json"):
            predictions.measured_turns(study, task, predictions.TURNS)
        shutil.copytree(shipped / name, tmp_path / name)
        turns = json.loads((shipped / "quests_0" / predictions.TURNS).read_text())
        turns |= {"task": task, "sha256": json.loads((tmp_path / name / "warm_start.json").read_text())["sha256"]}
        (tmp_path / name / predictions.TURNS).write_text(json.dumps(turns))
    assert predictions.measured_turns(study, task, predictions.TURNS).left == turns["measured"]["left"]
    for wrong in ({"sha256": dict.fromkeys(turns["sha256"], "0")}, {"task": "textworld"}):
        (tmp_path / name / predictions.TURNS).write_text(json.dumps(turns | wrong))
        with pytest.raises(DataError, match=r"measured of (other weights|the task textworld): remove"):
            predictions.measured_turns(study, task, predictions.TURNS)


def test_other_warm_starts_are_spoken_of_only_where_there_are_four(folder: Path) -> None:
    entry = {"comparison": COMPARED["family"][0], "low": 0.0, "high": 0.1}
    (folder / "predicted.json").write_text(json.dumps([entry]))
    for label in ("grpo_exact", "rtpo"):
        for start in STARTS[:3]:
            write(folder, label, 1, before=4, after=SOLVED[label][0], start=start)
    (gain,) = gains_of.gains("made").values()
    assert (gain.same_starts.runs, gain.other_starts) == (3, None)


def test_committed_comparisons_are_of_planned_configurations_of_named_tasks() -> None:
    studies = yaml.safe_load(predictions.FILE.read_bytes())
    assert studies
    for name in studies:
        compared = predictions.comparisons_of(name)
        assert compared is not None
        assert len(compared.family) <= 10
        study = load_study(name)
        planned = {(run.task, run.label) for part in study.compared_parts for run, _ in study.planned(part)}
        for each in compared.family:
            assert {(each.task, each.configuration), (each.task, each.against)} <= planned, each
            assert each.task in compared.measured_turns
            assert each.task in TASKS
