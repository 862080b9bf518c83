"""Runs as they are loaded: complete ones only, whole and unchanged."""

import json
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import answers, empty_update, step, update, write_manifest, write_run

from analysis.looks import styles
from analysis.records import by_label, complete_groups, incomplete_runs, load_run, load_runs
from rtpo.errors import DataError

STEPS = [step(1, 28, 0.5, [update(10, 0.1, 0.5)])]
EVALUATIONS = answers("before", "sampled", {"a": [1.0, 0.0], "b": [None, 0.0]})


def rewrite(folder: Path, file: str, text: str) -> None:
    """Change a file and the manifest's checksum with it."""
    (folder / file).write_text(text)
    write_manifest(folder, json.loads((folder / "manifest.json").read_text()))


def test_runs_come_with_all_their_lines(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "rtpo", 3, STEPS, EVALUATIONS)
    (run,) = load_runs(tmp_path)
    assert (run.folder, run.label, run.profile, run.steps) == (folder, "rtpo", "toy", STEPS)
    assert run.evaluations["task"].tolist() == ["a", "a", "b", "b"]
    assert run.evaluations["reward"].tolist()[:2] == [1.0, 0.0]
    assert run.evaluations["reward"].isna().tolist() == [False, False, True, False]


def test_incomplete_runs_are_listed_apart(tmp_path: Path) -> None:
    complete = write_run(tmp_path, "rtpo", 0, STEPS, EVALUATIONS)
    incomplete = write_run(tmp_path, "rtpo", 1, STEPS, EVALUATIONS, complete=False)
    (tmp_path / "tables" / "not_a_run").mkdir(parents=True)
    assert [run.folder for run in load_runs(tmp_path)] == [complete]
    assert incomplete_runs(tmp_path) == [incomplete]
    assert load_runs(tmp_path, "other") == incomplete_runs(tmp_path, "other") == []


def test_no_complete_run_says_what_there_is(tmp_path: Path) -> None:
    write_run(tmp_path, "rtpo", 1, STEPS, EVALUATIONS, complete=False)
    with pytest.raises(DataError, match=r"no complete run \(incomplete: rtpo-seed1\).*\(there is none\)"):
        complete_groups(tmp_path, "quickstart")
    write_run(tmp_path, "rtpo", 2, STEPS, EVALUATIONS)
    with pytest.raises(DataError, match=r"no complete run and none that began: .*there are quickstart"):
        complete_groups(tmp_path, "other")


@pytest.mark.parametrize("file", ["config.yaml", "steps.jsonl", "evaluations.jsonl"])
def test_a_changed_file_is_refused(tmp_path: Path, file: str) -> None:
    folder = write_run(tmp_path, "rtpo", 0, STEPS, EVALUATIONS)
    text = (folder / file).read_text()
    (folder / file).write_text(text.replace("0.5", "0.6").replace("1.0", "0.0"))
    with pytest.raises(DataError, match=rf"{file} is not the file the run left"):
        load_runs(tmp_path)
    (folder / file).unlink()
    with pytest.raises(DataError, match=rf"{file} is missing"):
        load_runs(tmp_path)


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("steps.jsonl", '{"step": 2', r"steps\.jsonl line 2 is not JSON"),
        ("steps.jsonl", "[]", r"steps\.jsonl line 2 is not a JSON object"),
        ("steps.jsonl", '{"step": 2}', r"steps\.jsonl line 2 lacks rollouts, generated_tokens, "),
        (
            "steps.jsonl",
            json.dumps(step(2, 56, 0.5, [empty_update() | {"rows": 1}])),
            r"line 2, updates\[0\] lacks mismatch/kl_k1, mismatch/context/kl_k1, zero_advantage",
        ),
        ("steps.jsonl", json.dumps(STEPS[0]), "2 lines and the manifest 1 steps"),
        ("evaluations.jsonl", '{"when": "after"}', r"evaluations\.jsonl line 5 lacks step, "),
        ("evaluations.jsonl", json.dumps(EVALUATIONS[0] | {"when": "later"}), "line 5 has when 'later': no such value"),
        ("evaluations.jsonl", json.dumps(EVALUATIONS[0] | {"reward": None}), "line 5: reward None does not go with"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, file: str, line: str, message: str) -> None:
    folder = write_run(tmp_path, "rtpo", 0, STEPS, EVALUATIONS)
    rewrite(folder, file, (folder / file).read_text() + line + "\n")
    with pytest.raises(DataError, match=message):
        load_runs(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "has schema 2 and this version reads schema 1"),
        ({"experiment": "other"}, "says experiment 'other' and lies in 'quickstart'"),
        ({"ledger": {"rollouts": 1}}, "ledger lacks budget, generated_tokens"),
    ],
)
def test_a_manifest_of_another_kind_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    write_run(tmp_path, "rtpo", 0, STEPS, EVALUATIONS, manifest=change)
    with pytest.raises(DataError, match=message):
        load_runs(tmp_path)


def test_a_group_is_one_configuration(tmp_path: Path) -> None:
    for label, seed in (("other", 0), ("grpo", 0), ("rtpo", 10), ("rtpo", 9)):
        write_run(tmp_path, label, seed, STEPS, EVALUATIONS)
    groups = by_label(load_runs(tmp_path))
    assert [(group.label, [run.manifest["seed"] for run in group.runs]) for group in groups] == [
        ("rtpo", [9, 10]),
        ("grpo", [0]),
        ("other", [0]),
    ]


@pytest.mark.parametrize(
    ("config", "manifest", "message"),
    [
        ({"optimizer": {"lr": 0.25}}, {}, "have the label 'rtpo' and differ in optimizer.lr, 0.5 and 0.25: give"),
        ({"budget": 7}, {}, "have the label 'rtpo' and differ in budget, .* and 7: give"),
        (
            {},
            {"model_sha256": {"model.safetensors": "1"}},
            "differ in model_sha256.model.safetensors, '0' and '1': give",
        ),
        ({}, {"seed": 0}, "have the same label and seed 0"),
    ],
)
def test_a_group_differs_in_its_seeds_only(
    tmp_path: Path, config: dict[str, Any], manifest: dict[str, Any], message: str
) -> None:
    write_run(tmp_path, "rtpo", 0, STEPS, EVALUATIONS)
    write_run(tmp_path, "rtpo", 1, STEPS, EVALUATIONS, config=config, manifest=manifest)
    with pytest.raises(DataError, match=message):
        complete_groups(tmp_path, "quickstart")


def test_a_run_made_in_another_folder_is_of_the_same_group(tmp_path: Path) -> None:
    write_run(tmp_path, "rtpo", 0, STEPS, EVALUATIONS)
    write_run(tmp_path, "rtpo", 1, STEPS, EVALUATIONS, config={"results": "elsewhere"})
    (group,) = complete_groups(tmp_path, "quickstart")
    assert len(group.runs) == 2


def test_a_run_without_a_setting_that_came_later_did_what_the_versions_before_it_did(tmp_path: Path) -> None:
    for seed, evaluation in enumerate(
        ({"samples": 2}, {"samples": 2, "before": True}, {"samples": 2, "before": False})
    ):
        write_run(tmp_path, "rtpo", seed, STEPS, EVALUATIONS, config={"evaluation": evaluation})
    first, second, other = load_runs(tmp_path)
    (group,) = by_label([first, second])
    assert len(group.runs) == 2
    with pytest.raises(
        DataError, match=r"seed0 and .*seed2 have .* differ in evaluation\.before, True and False: give"
    ):
        by_label([first, other])


def test_a_run_whose_steps_call_the_mean_reward_success_is_read_where_that_is_one_number(tmp_path: Path) -> None:
    """As earlier versions wrote it."""
    earlier = {key: value for key, value in step(1, 100, 0.5, [empty_update()]).items() if key != "mean_reward"}
    binary = write_run(tmp_path, "grpo", 0, [earlier], answers("after", "sampled", {"a": [1.0, 0.0, None]}))
    assert len(load_run(binary).steps) == 1
    graded = write_run(tmp_path, "grpo", 1, [earlier], answers("after", "sampled", {"a": [1.0, 0.5]}))
    with pytest.raises(DataError, match=r"steps\.jsonl has lines without mean_reward, .* run again"):
        load_run(graded)


def test_known_labels_always_look_the_same_and_others_differ() -> None:
    alone, among = styles(["grpo"])["grpo"], styles(["zebra", "grpo", "ant"])
    assert list(among) == ["grpo", "ant", "zebra"]
    assert among["grpo"] == alone
    assert among["ant"].title == "ant"
    assert len({(style.colour, style.marker) for style in styles(f"label{i}" for i in range(30)).values()}) == 30
