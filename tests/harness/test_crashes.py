"""Killed at any moment and started again with the same command, a run ends as if it had never been killed."""

import json
import pickle
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import compose_config
from crashing import FULL, MOMENTS, REFUSED, Call, run

from rtpo.harness.budget import lost_since
from rtpo.run.config import RunConfig
from rtpo.run.records import LINE_FILES

RTPO = ("algorithm=rtpo", "algorithm.trunks=2", "budget.rollouts=60")
GRPO = ("algorithm=grpo", "algorithm.chains=4", "budget.rollouts=24")
REMEMBERING = (*RTPO[:2], "budget.rollouts=36")
SMALL = (
    "deterministic=true",
    "task.held_out.count=2",
    "task.train.count=24",
    "budget.tasks_per_step=2",
    "algorithm.kl=0.02",
    "samples_per_rollout=100",
)
OFTEN = ("save.every_steps=1", "save.every_phases=1", "save.keep=1")
NEVER = ("save.every_steps=0", "save.every_phases=0", "save.keep=1")


def config_in(results: Path, *, algorithm: tuple[str, ...] = RTPO, saves: tuple[str, ...] = OFTEN) -> RunConfig:
    merged = {setting.partition("=")[0]: setting for setting in (*SMALL, *algorithm, *saves)}
    return compose_config(*merged.values(), f"results={results}")


def folder_of(results: Path) -> Path:
    (folder,) = (results / "default").iterdir()
    return folder


def outcome(folder: Path) -> dict[str, Any]:
    """Weights, records and ledger of a finished run, without times and without what crashes lost."""
    manifest = json.loads((folder / "manifest.json").read_text())
    ledger = manifest["ledger"]
    steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    for line in (ledger, *steps):
        for key in [key for key in line if "seconds" in key or key == "lost"]:
            del line[key]
    return {
        "weights": (folder / "weights.txt").read_text(),
        "steps": steps,
        "ledger": ledger,
        **{file: (folder / file).read_text() for file in LINE_FILES if file != "steps.jsonl"},
    }


def assert_ledger_is_exact(folder: Path) -> None:
    """Every dispatched rollout is charged or lost, and the charged ones are those of the records."""
    ledger = json.loads((folder / "manifest.json").read_text())["ledger"]
    steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
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
    assert len(whole["steps"]) == 2
    assert sum(update["optimizer_steps"] > 0 for step in whole["steps"] for update in step["updates"]) >= 3
    assert_ledger_is_exact(uninterrupted)


def test_the_same_command_gives_the_same_run(uninterrupted: Path, tmp_path: Path) -> None:
    config = config_in(tmp_path, saves=NEVER)
    assert run(config) == 0
    assert outcome(folder_of(tmp_path)) == outcome(uninterrupted)


@pytest.mark.parametrize("moment", sorted(MOMENTS))
def test_killed_and_started_again(uninterrupted: Path, tmp_path: Path, moment: str) -> None:
    config = config_in(tmp_path)
    assert run(config, kill=moment) == -9
    assert_going_on_ends_as(uninterrupted, tmp_path, config)


@pytest.mark.parametrize(("file", "way"), [("weights/state.pt", "echo"), ("../../steps.jsonl", "rm -r")])
def test_a_damaged_run_is_refused_and_goes_on_as_the_sentence_says(
    uninterrupted: Path, tmp_path: Path, file: str, way: str
) -> None:
    config = config_in(tmp_path, saves=(*OFTEN[:2], "save.keep=2"))
    assert run(config, kill="in the last evaluation") == -9
    folder = folder_of(tmp_path)
    saves = folder / "checkpoints"
    damaged = saves / (saves / "latest").read_text() / file
    data = bytearray(damaged.read_bytes())
    data[100:104] = bytes(4)
    damaged.write_bytes(data)
    assert run(config) == REFUSED
    message = (folder / "error.txt").read_text()
    assert message.startswith(f"DataError: {damaged.resolve()} is damaged")
    (command,) = re.findall("`(.*)`", message)
    assert command.startswith(way)
    subprocess.run(command, shell=True, check=True)
    assert run(config) == 0
    assert outcome(folder) == outcome(uninterrupted)
    assert_ledger_is_exact(folder)


@pytest.mark.parametrize("file", ["steps.jsonl", "config.yaml", "charges.jsonl"])
def test_a_file_damaged_while_the_run_goes_on_gets_no_manifest(tmp_path: Path, file: str) -> None:
    config = config_in(tmp_path)
    assert run(config, damage=file) == REFUSED
    folder = folder_of(tmp_path)
    assert (folder / "error.txt").read_text().startswith(f"DataError: {folder / file} ")
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


def test_grpo_killed_and_started_again(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run(config_in(whole, algorithm=GRPO)) == 0
    config = config_in(killed, algorithm=GRPO)
    assert run(config, kill="an optimizer step taken") == -9
    assert_going_on_ends_as(folder_of(whole), killed, config)


@pytest.fixture(scope="module")
def remembered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("remembered")
    assert run(config_in(results, algorithm=REMEMBERING, saves=NEVER), method="remembering") == 0
    return folder_of(results)


def test_a_method_that_knows_its_step_and_keeps_state_leaves_numbers(remembered: Path) -> None:
    recorded = [step["algorithm"] for step in outcome(remembered)["steps"]]
    assert [numbers["phases"] for numbers in recorded] == [3, 6, 9]
    assert [numbers["share"] for numbers in recorded] == [0, 1 / 3, 2 / 3]
    assert len({numbers["mean_reward/phase_2"] for numbers in recorded}) == 3


@pytest.mark.parametrize("saves", [OFTEN, ("save.every_steps=1", "save.every_phases=2", "save.keep=1")])
@pytest.mark.parametrize("moment", ["an optimizer step taken", "between two phases of the second step"])
def test_state_and_numbers_come_through_a_crash(
    remembered: Path, tmp_path: Path, moment: str, saves: tuple[str, ...]
) -> None:
    config = config_in(tmp_path, algorithm=REMEMBERING, saves=saves)
    assert run(config, kill=moment, method="remembering") == -9
    assert_going_on_ends_as(remembered, tmp_path, config, "remembering")


@pytest.mark.parametrize("file", sorted(FULL))
def test_a_disk_that_is_full_leaves_nothing_that_looks_whole(uninterrupted: Path, tmp_path: Path, file: str) -> None:
    """Each file in turn is cut off in the middle, by a limit that the kernel keeps."""
    config = config_in(tmp_path)
    assert run(config, full=file) == REFUSED
    folder = folder_of(tmp_path)
    message = (folder / "error.txt").read_text()
    (folder / "error.txt").unlink()
    assert message.startswith("MachineError: ")
    saves = folder / "checkpoints"
    if (saves / "latest").exists():
        assert pickle.loads((saves / (saves / "latest").read_text() / "state.pkl").read_bytes())["name"]
    assert all((save / "state.pkl").exists() for save in saves.glob("step*") if save.suffix != ".partial")
    assert_going_on_ends_as(uninterrupted, tmp_path, config)
