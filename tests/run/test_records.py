"""Runs as they are loaded: complete ones only, whole and unchanged; and lines that a killed process left."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from synthetic_runs import answers, empty_update, step, update, write_manifest, write_run

from analysis.load import concat, experiment, groups, keep, load, load_run, unfinished
from rtpo.core.files import write_sums
from rtpo.errors import DataError
from rtpo.run.provenance import code_sha256
from rtpo.run.records import JOURNAL, RunFolder

STEPS = [step(1, 28, 0.5, [update(10, 0.1, 0.5)])]
EVALUATIONS = answers("before", "sampled", {"a": [1.0, 0.0], "b": [None, 0.0]})


def test_finished_runs_come_with_all_their_lines(tmp_path: Path) -> None:
    write_run(tmp_path, "rtpo", 3, STEPS, EVALUATIONS)
    begun = write_run(tmp_path, "rtpo", 1, STEPS, EVALUATIONS, complete=False)
    (tmp_path / "tables" / "not_a_run").mkdir(parents=True)
    frames = load(tmp_path)
    (run,) = frames.runs.itertuples()
    assert (run.run, run.label, run.profile, run.seed) == ("quickstart/rtpo-seed3", "rtpo", "toy", 3)
    (line,) = frames.steps.itertuples()
    assert (line.step, line.rollouts, line.success, line.kl, line.ties) == (1, 28, 0.5, 0.1, 0.5)
    assert frames.answers["question"].tolist() == ["a", "a", "b", "b"]
    assert frames.answers["reward"].tolist()[:2] == [1.0, 0.0]
    assert frames.answers["reward"].isna().tolist() == [False, False, True, False]
    assert frames.questions["success"].tolist() == [0.5, 0.0]
    assert frames.questions["graded"].tolist() == [2, 1]

    assert unfinished(tmp_path / "quickstart") == [begun]
    assert load_run(begun, finished=False).runs["is_finished"].tolist() == [False]
    assert unfinished(tmp_path / "other") == []


def test_parts_of_frames_and_parquet_have_what_the_folders_have(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path / "results", "rtpo", seed, STEPS, EVALUATIONS)
    frames = load(tmp_path / "results")
    part = frames.select([frames.names[2], frames.names[0]])
    assert part.names == [frames.names[2], frames.names[0]]
    assert len(part.answers) == 2 * len(EVALUATIONS)
    assert part.questions.index.get_level_values("run").unique().tolist() == part.names
    assert frames.where(seed=1).names == [frames.names[1]]
    with pytest.raises(KeyError, match="nosuch"):
        frames.select(["nosuch"])
    assert concat([part, frames]).names == [*part.names, frames.names[1]]

    keep(frames.select(frames.names[:2]), tmp_path / "kept")
    keep(frames.select(frames.names[1:]), tmp_path / "kept")
    kept = load(tmp_path / "kept")
    assert kept.names == frames.names
    assert set(kept.runs["folder"]) == {""}
    pd.testing.assert_frame_equal(kept.questions, frames.questions)
    pd.testing.assert_frame_equal(kept.steps[["run", "kl"]], frames.steps[["run", "kl"]], check_dtype=False)


@pytest.mark.parametrize("file", ["config.yaml", "steps.jsonl", "evaluations.jsonl"])
def test_a_changed_file_is_refused(tmp_path: Path, file: str) -> None:
    place = write_run(tmp_path, "rtpo", 0, STEPS, EVALUATIONS) / file
    place.write_text(place.read_text().replace("0.5", "0.6").replace("1.0", "0.0"))
    with pytest.raises(DataError, match=file):
        load(tmp_path)
    place.unlink()
    with pytest.raises(DataError, match=file):
        load(tmp_path)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        *(("steps.jsonl", line) for line in ('{"step": 2', '{"step": 2}', json.dumps(STEPS[0]))),
        ("steps.jsonl", json.dumps(step(2, 56, 0.5, [empty_update() | {"rows": 1}]))),
        ("evaluations.jsonl", json.dumps(EVALUATIONS[0] | {"reward": None})),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, file: str, line: str) -> None:
    """Of a file whose checksum is right."""
    folder = write_run(tmp_path, "rtpo", 0, STEPS, EVALUATIONS)
    text = (folder / file).read_text()
    (folder / file).write_text(f"{text}{line}\n")
    write_manifest(folder, json.loads((folder / "manifest.json").read_text()))
    number = len(text.splitlines()) + 1
    with pytest.raises(DataError, match=file if line == json.dumps(STEPS[0]) else f"{file}.* line {number}"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("config", "manifest", "message"),
    [
        ({"optimizer": {"lr": 0.25}}, {}, r"optimizer\.lr"),
        ({"evaluation": {"samples": 2, "before": False}}, {}, r"evaluation\.before"),
        ({}, {"model_sha256": {"model.safetensors": "1"}}, "model_sha256"),
        ({}, {"seed": 0}, "same label and seed"),
    ],
)
def test_a_group_differs_in_its_seeds_only(
    tmp_path: Path, config: dict[str, Any], manifest: dict[str, Any], message: str
) -> None:
    """A run without a setting that came later did what the versions before it did."""
    evaluation: dict[str, Any] = {"evaluation": {"samples": 2}}
    for label, seed in (("other", 0), ("grpo", 0), ("rtpo", 10), ("rtpo", 0)):
        write_run(tmp_path, label, seed, STEPS, EVALUATIONS, config=evaluation)
    write_run(tmp_path, "rtpo", 2, STEPS, EVALUATIONS, config={"evaluation": {"samples": 2, "before": True}})
    seeds = {label: group.runs["seed"].tolist() for label, group in groups(load(tmp_path)).items()}
    assert list(seeds.items()) == [("rtpo", [0, 2, 10]), ("grpo", [0]), ("other", [0])]
    write_run(tmp_path, "rtpo", 1, STEPS, EVALUATIONS, config=evaluation | config, manifest=manifest)
    with pytest.raises(DataError, match=message):
        groups(experiment(tmp_path, "quickstart"))


def test_charged_rollouts_are_read_from_the_journal_or_from_the_steps_without_one(tmp_path: Path) -> None:
    folder, steps = RunFolder(tmp_path), [{"rollouts": 3}, {"rollouts": 7}]
    assert (folder.charged_rollouts([]), folder.charged_rollouts(steps)) == (0, 7)
    (tmp_path / JOURNAL).write_text('{"charged": 4}\n')
    assert folder.charged_rollouts(steps) == 7
    (tmp_path / JOURNAL).write_text('{"charged": 4}\n{"charged": 4, "rollouts": 12}\n{"char')
    assert folder.charged_rollouts(steps) == 12


def test_a_state_of_another_version_is_named(tmp_path: Path) -> None:
    """Its checksum is right."""
    (tmp_path / "config.yaml").write_text("{}\n")
    folder = RunFolder(tmp_path)
    folder.save("step00001", {}, lambda place: place.mkdir(), keep=1)
    (tmp_path / "checkpoints" / "step00001" / "state.pkl").write_bytes(b"no pickle")
    write_sums(tmp_path / "checkpoints" / "step00001")
    with pytest.raises(DataError, match=r"state\.pkl is intact but cannot be read"):
        folder.required_save()


def test_the_code_of_a_run_is_known_by_its_source_files(tmp_path: Path) -> None:
    """By their paths and contents, in whatever order they were written; weights have a checksum of their own."""
    files = {"rtpo/a.py": "1", "rtpo/toy/b.yaml": "2", "baselines/c.py": "3", "configs/d.yaml": "4"}
    changed = (files | {"configs/d.yaml": "5"}, {**files, "rtpo/e.py": ""}, {"rtpo/b.py": "1", **files})
    others = {"tests/a.py": "1", "rtpo/toy/model.safetensors": "weights", "rtpo/__pycache__/a.pyc": "1"}
    same = (files, dict(reversed(files.items())), files | others)
    digests = []
    for number, tree in enumerate((*same, *changed)):
        for name, text in tree.items():
            (file := tmp_path / str(number) / name).parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        digests.append(code_sha256(tmp_path / str(number)))
    assert len(set(digests[: len(same)])) == 1
    assert len(set(digests)) == 1 + len(changed)
