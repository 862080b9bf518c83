"""Killed at any moment and started again with the same command, a run ends as if it had never been killed."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import whole_runs
from crashing import FULL, MOMENTS, REFUSED, Call, run

from rtpo.harness.budget import lost_since
from rtpo.run.config import RunConfig
from rtpo.run.records import RunFolder

RTPO = ("algorithm=rtpo", "algorithm.trunks=2", "budget.rollouts=60")
REMEMBERING = (*RTPO[:2], "budget.rollouts=36")
SMALL = (
    "deterministic=true",
    "task.held_out.count=2",
    "task.train.count=24",
    "budget.tasks_per_step=2",
    "algorithm.kl=0.02",
    "evaluation.paper=false",
    "samples_per_rollout=100",
)
OFTEN = ("save.every_steps=1", "save.every_phases=1", "save.keep=1")
NEVER = ("save.every_steps=0", "save.every_phases=0", "save.keep=1")
KILLED = (
    ("in the first evaluation", "among siblings", "a charge half written", "an optimizer step taken"),
    ("a charge written, its rollouts not sent", "between two reverse phases, saved"),
    (
        *("between two reverse phases, the engine new", "the rest of a save half written"),
        *("a step's line written, its samples not", "the manifest not in its place"),
    ),
    ("a checkpoint half written", "a step's line half written"),
    ("a save whole, not in its place", "a save in its place, not the latest"),
    ("the save before half deleted", "the name of the latest save half written"),
    ("between two phases of the second step",),
    ("the save before the last half deleted",),
    ("in the last evaluation",),
)
"""moments of a run, each in a process that goes on after the one before"""
FULL_DISKS = (
    ("the weights", "the rest of a save"),
    ("the journal", "the name of the latest save", "the manifest"),
    ("the steps",),
    ("the samples",),
    ("the evaluations",),
)


def config_in(results: Path, *, algorithm: tuple[str, ...] = RTPO, saves: tuple[str, ...] = OFTEN) -> RunConfig:
    return whole_runs.config_in(results, *SMALL, *saves, *algorithm)


def folder_of(results: Path) -> Path:
    (folder,) = (results / "default").iterdir()
    return folder


def outcome(folder: Path) -> dict[str, Any]:
    """Weights, records and ledger of a finished run, without times and without what crashes lost."""
    record = whole_runs.record(RunFolder(folder), but=frozenset({"lost"}))
    return record | {file: (folder / file).read_text() for file in ("weights.txt", "paths.jsonl")}


def assert_ledger_is_exact(folder: Path) -> None:
    """Every dispatched rollout is charged or lost, and the charged ones are those of the records."""
    ledger = json.loads((folder / "manifest.json").read_text())["ledger"]
    steps = whole_runs.lines(folder, "steps.jsonl")
    assert lost_since(folder / "charges.jsonl", ledger["rollouts"]) == ledger["lost"]
    assert ledger["rollouts"] == sum(call["rollouts"] for step in steps for call in step["rollout_calls"])
    assert ledger["reserved"] == 0


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("uninterrupted")
    assert run(config_in(results), Call(0)) == 0
    return folder_of(results)


def assert_going_on_ends_as(whole: Path, results: Path, config: RunConfig, method: str | None = None) -> None:
    assert not list(results.rglob("manifest.json"))
    assert run(config, method=method) == 0
    folder = folder_of(results)
    assert outcome(folder) == outcome(whole)
    assert_ledger_is_exact(folder)
    (save,) = (folder / "checkpoints").glob("step*")
    assert save.name == (folder / "checkpoints" / "latest").read_text()
    assert not list(folder.rglob("*.partial"))


def test_a_run_trains(uninterrupted: Path) -> None:
    whole = outcome(uninterrupted)
    assert len(whole["steps.jsonl"]) == 2
    assert sum(update["optimizer_steps"] > 0 for step in whole["steps.jsonl"] for update in step["updates"]) >= 3
    assert_ledger_is_exact(uninterrupted)


def test_the_same_command_gives_the_same_run(uninterrupted: Path, tmp_path: Path) -> None:
    config = config_in(tmp_path, saves=NEVER)
    assert run(config) == 0
    assert outcome(folder_of(tmp_path)) == outcome(uninterrupted)


@pytest.mark.parametrize("moments", KILLED, ids=", ".join)
def test_killed_and_started_again(uninterrupted: Path, tmp_path: Path, moments: tuple[str, ...]) -> None:
    config = config_in(tmp_path)
    for moment in moments:
        assert run(config, kill=moment) == -9, moment
        assert not list(tmp_path.rglob("manifest.json"))
    assert_going_on_ends_as(uninterrupted, tmp_path, config)


def test_no_moment_is_left_out() -> None:
    assert sorted(moment for moments in KILLED for moment in moments) == sorted(MOMENTS)
    assert sorted(file for files in FULL_DISKS for file in files) == sorted(FULL)


def test_a_journal_damaged_while_the_run_goes_on_gets_no_manifest(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    assert run(config, damage="charges.jsonl") == REFUSED
    folder = folder_of(tmp_path)
    assert (folder / "error.txt").read_text().startswith(f"DataError: {folder / 'charges.jsonl'} ")
    assert not (folder / "manifest.json").exists()


@pytest.mark.parametrize("share", [0.45, 0.95])
def test_killed_at_any_call(uninterrupted: Path, tmp_path: Path, share: float) -> None:
    config = config_in(tmp_path)
    calls = int((uninterrupted / "calls.txt").read_text())
    assert run(config, kill=Call(int(share * calls))) == -9
    assert_going_on_ends_as(uninterrupted, tmp_path, config)


def test_killed_again_and_again_without_a_save(uninterrupted: Path, tmp_path: Path) -> None:
    config = config_in(tmp_path, saves=NEVER)
    for moment in ("among siblings", "an optimizer step taken", "between two reverse phases, saved"):
        assert run(config, kill=moment) == -9
    assert_going_on_ends_as(uninterrupted, tmp_path, config)
    assert json.loads((folder_of(tmp_path) / "manifest.json").read_text())["ledger"]["lost"] > 0


@pytest.fixture(scope="module")
def remembered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("remembered")
    assert run(config_in(results, algorithm=REMEMBERING, saves=NEVER), method="remembering") == 0
    return folder_of(results)


def test_a_method_that_knows_its_step_and_keeps_state_leaves_numbers(remembered: Path) -> None:
    recorded = [step["algorithm"] for step in outcome(remembered)["steps.jsonl"]]
    assert [numbers["phases"] for numbers in recorded] == [3, 6, 9]
    assert [numbers["step"] for numbers in recorded] == [0, 1, 2]
    assert {numbers["first_share"] for numbers in recorded} == {0}
    assert [numbers["share"] for numbers in recorded] == [0, 1 / 3, 2 / 3]
    assert len({numbers["mean_reward/phase_2"] for numbers in recorded}) == 3


@pytest.mark.parametrize(
    ("moment", "saves"),
    [
        ("an optimizer step taken", OFTEN),
        ("between two phases of the second step", ("save.every_steps=1", "save.every_phases=2", "save.keep=1")),
    ],
)
def test_state_and_numbers_come_through_a_crash(
    remembered: Path, tmp_path: Path, moment: str, saves: tuple[str, ...]
) -> None:
    config = config_in(tmp_path, algorithm=REMEMBERING, saves=saves)
    assert run(config, kill=moment, method="remembering") == -9
    assert_going_on_ends_as(remembered, tmp_path, config, "remembering")


@pytest.mark.parametrize("files", FULL_DISKS, ids=", ".join)
def test_a_disk_that_is_full_leaves_nothing_that_looks_whole(
    uninterrupted: Path, tmp_path: Path, files: tuple[str, ...]
) -> None:
    """Each file in turn is cut off in the middle, by a limit that the kernel keeps."""
    config = config_in(tmp_path)
    for file in files:
        assert run(config, full=file) == REFUSED, file
        folder = folder_of(tmp_path)
        assert (folder / "error.txt").read_text().startswith("MachineError: ")
        (folder / "error.txt").unlink()
        saves = folder / "checkpoints"
        if (saves / "latest").exists():
            assert pickle.loads((saves / (saves / "latest").read_text() / "state.pkl").read_bytes())["name"]
        assert all((save / "state.pkl").exists() for save in saves.glob("step*") if save.suffix != ".partial")
    assert_going_on_ends_as(uninterrupted, tmp_path, config)
