"""Killed at any moment and started again with the same command, a run ends as if it had never been killed."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import whole_runs
from crashing import FULL, IN_A_STEP, IN_ITS_RECORDS, REFUSED, run

from rtpo.harness.budget import lost_since
from rtpo.run.config import RunConfig
from rtpo.run.records import RunFolder

RTPO = ("algorithm=rtpo", "algorithm.trunks=2", "budget.rollouts=60")
REMEMBERING = (*RTPO[:2], "budget.rollouts=36")
SMALL = (
    *("deterministic=true", "algorithm.kl=0.02", "evaluation.paper=false", "samples_per_rollout=100"),
    *("task.held_out.count=2", "task.train.count=24", "budget.tasks_per_step=2"),
)
OFTEN = ("save.every_steps=1", "save.every_phases=1", "save.keep=1")
NEVER = ("save.every_steps=0", "save.every_phases=0", "save.keep=1")


def config_in(results: Path, *, algorithm: tuple[str, ...] = RTPO, saves: tuple[str, ...] = OFTEN) -> RunConfig:
    return whole_runs.config_in(results, *SMALL, *saves, *algorithm)


def folder_of(results: Path) -> Path:
    (folder,) = (results / "default").iterdir()
    return folder


def outcome(folder: Path) -> dict[str, Any]:
    """Weights, records and ledger of a finished run, without times and without what crashes lost."""
    record = whole_runs.record(RunFolder(folder), but=frozenset({"lost"}))
    return record | {"weights.txt": (folder / "weights.txt").read_text()}


def assert_ledger_is_exact(folder: Path) -> None:
    """Every dispatched rollout is charged or lost, and the charged ones are those of the records."""
    ledger = json.loads((folder / "manifest.json").read_text())["ledger"]
    steps = whole_runs.lines(folder, "steps.jsonl")
    assert lost_since(folder / "charges.jsonl", ledger["rollouts"]) == ledger["lost"]
    assert ledger["rollouts"] == sum(call["rollouts"] for step in steps for call in step["rollout_calls"])
    assert ledger["reserved"] == 0


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that trains."""
    results = tmp_path_factory.mktemp("uninterrupted")
    assert run(config_in(results)) == 0
    folder = folder_of(results)
    steps = outcome(folder)["steps.jsonl"]
    assert len(steps) == 2
    assert sum(update["optimizer_steps"] > 0 for step in steps for update in step["updates"]) >= 3
    assert_ledger_is_exact(folder)
    return folder


def assert_going_on_ends_as(whole: Path, results: Path, config: RunConfig, method: str | None = None) -> None:
    assert not list(results.rglob("manifest.json"))
    assert run(config, method=method) == 0
    folder = folder_of(results)
    assert outcome(folder) == outcome(whole)
    assert_ledger_is_exact(folder)
    (save,) = (folder / "checkpoints").glob("step*")
    assert save.name == (folder / "checkpoints" / "latest").read_text()
    assert not list(folder.rglob("*.partial"))


@pytest.mark.parametrize("moments", [IN_A_STEP, IN_ITS_RECORDS], ids=", ".join)
def test_killed_and_started_again(uninterrupted: Path, tmp_path: Path, moments: dict[str, object]) -> None:
    config = config_in(tmp_path)
    for moment in moments:
        assert run(config, kill=moment) == -9, moment
    assert_going_on_ends_as(uninterrupted, tmp_path, config)


def test_a_journal_damaged_while_the_run_goes_on_gets_no_manifest(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    assert run(config, damage="charges.jsonl") == REFUSED
    folder = folder_of(tmp_path)
    assert (folder / "error.txt").read_text().startswith(f"DataError: {folder / 'charges.jsonl'} ")
    assert not (folder / "manifest.json").exists()


def test_killed_again_and_again_without_a_save(uninterrupted: Path, tmp_path: Path) -> None:
    config = config_in(tmp_path, saves=NEVER)
    for moment in ("among siblings", "an optimizer step taken"):
        assert run(config, kill=moment) == -9
    assert_going_on_ends_as(uninterrupted, tmp_path, config)
    assert json.loads((folder_of(tmp_path) / "manifest.json").read_text())["ledger"]["lost"] > 0


def test_state_and_numbers_of_a_method_come_through_crashes(tmp_path: Path) -> None:
    """In the first step and in the second, right after a save between two phases and later."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run(config_in(whole, algorithm=REMEMBERING, saves=NEVER), method="remembering") == 0
    recorded = [step["algorithm"] for step in outcome(folder_of(whole))["steps.jsonl"]]
    assert [(numbers["step"], numbers["phases"]) for numbers in recorded] == [(0, 3), (1, 6), (2, 9)]
    assert [(numbers["first_share"], numbers["share"]) for numbers in recorded] == [(0, 0), (0, 1 / 3), (0, 2 / 3)]
    assert len({numbers["mean_reward/phase_2"] for numbers in recorded}) == 3
    config = config_in(killed, algorithm=REMEMBERING, saves=("save.every_steps=1", "save.every_phases=2", NEVER[-1]))
    for _ in range(3):
        assert run(config, kill="between two phases", method="remembering") == -9
    assert_going_on_ends_as(folder_of(whole), killed, config, "remembering")


def test_a_disk_that_is_full_leaves_nothing_that_looks_whole(uninterrupted: Path, tmp_path: Path) -> None:
    """Each file in turn is cut off in the middle, by a limit that the kernel keeps."""
    config = config_in(tmp_path)
    for file in FULL:
        assert run(config, full=file) == REFUSED, file
        folder = folder_of(tmp_path)
        assert (folder / "error.txt").read_text().startswith("MachineError: "), file
        (folder / "error.txt").unlink()
        saves = folder / "checkpoints"
        assert pickle.loads((saves / (saves / "latest").read_text() / "state.pkl").read_bytes())["name"]
        assert all((save / "state.pkl").exists() for save in saves.glob("step*") if save.suffix != ".partial")
    assert_going_on_ends_as(uninterrupted, tmp_path, config)
