"""The command on real verl, killed with SIGKILL: the same command goes on and ends as a run in this process, which was
not interrupted. Ctrl-C while Ray starts is said in a line."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil
import pytest
from whole_runs import assert_same_run, config_in, overrides_in, tensors

from experiments.training import train
from rtpo.run.config import PROJECT
from rtpo.run.records import RunFolder
from rtpo.run.run import StopRequest

T = TypeVar("T")
SETTINGS = (
    *("deterministic=true", "save.every_steps=1", "save.every_phases=1"),
    *("budget.rollouts=60", "budget.tasks_per_step=2", "algorithm.label=rtpo"),
    *("task.held_out.count=2", "evaluation.paper=false"),
)
DEADLINE = 180.0


def start(results: Path) -> subprocess.Popen[bytes]:
    """Where no GPU may be seen: those of the toy profile are logical."""
    command = [sys.executable, str(PROJECT / "experiments" / "train.py"), *overrides_in(results, *SETTINGS)]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(command, cwd=results, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def wait_for(process: subprocess.Popen[bytes], look: Callable[[], T]) -> T:
    """The first thing that is seen while the process runs."""
    deadline = time.monotonic() + DEADLINE
    while not (seen := look()):
        assert process.poll() is None, process.communicate()[1].decode()
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return seen


@pytest.mark.usefixtures("backend")
def test_killed_while_saving_it_goes_on_between_two_phases(tmp_path: Path) -> None:
    """The save that was cut off is a step's; the one before is between two of its phases."""
    whole = train(config_in(tmp_path / "whole", *SETTINGS), StopRequest())
    results = tmp_path / "killed"
    results.mkdir()
    folder = RunFolder(config_in(results, *SETTINGS).folder)
    saves = folder.path / "checkpoints"
    process = start(results)
    wait_for(process, lambda: any((saves / "step00001.partial").glob("weights/*.pt")))
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert (saves / "latest").read_text().startswith("step00000-phase")
    assert not folder.is_finished
    process = start(results)
    _, errors = process.communicate()
    assert process.returncode == 0, errors.decode()
    assert_same_run(folder, whole, but=frozenset({"lost"}))
    assert len(tensors(whole)) > 2
    assert tensors(folder) == tensors(whole)
    ledger = folder.manifest["ledger"]
    journal = (folder.path / "charges.jsonl").read_text().splitlines()
    assert f'"total": {ledger["rollouts"] + ledger["lost"]}' in journal[-1]
    assert folder.manifest["resumed"] == 1
    assert not list(saves.glob("*.partial"))


def raylet_of(process: subprocess.Popen[bytes], *, with_actors: bool) -> psutil.Process | None:
    """Of a run, if it is there, and has started actors."""
    for child in psutil.Process(process.pid).children():
        actors = [actor for actor in child.children() if actor.name().startswith("ray::")]
        if child.name() == "raylet" and (actors or not with_actors):
            return child
    return None


@pytest.mark.parametrize(
    ("number", "with_actors", "ends"),
    [
        (signal.SIGINT, False, (130, "stopped by Ctrl-C\n")),
        (signal.SIGTERM, True, (143, "stopped by SIGTERM\n")),
    ],
)
def test_a_stop_while_ray_and_its_actors_start_is_one_line(
    number: signal.Signals, with_actors: bool, ends: tuple[int, str], tmp_path: Path
) -> None:
    process = start(tmp_path)
    raylet = wait_for(process, lambda: raylet_of(process, with_actors=with_actors))
    assert raylet is not None
    process.send_signal(number)
    said = process.communicate(timeout=DEADLINE)[1].decode()
    assert (process.returncode, said) == ends
    raylet.wait(DEADLINE)
