"""The command on real verl: killed with SIGKILL within a save, and stopped while Ray starts."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from whole_runs import assert_same_run, config_in, overrides_in, tensors

from experiments.training import train
from rtpo.run.config import PROJECT
from rtpo.run.records import RunFolder
from rtpo.run.stopping import StopRequest

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


def wait_for(process: subprocess.Popen[bytes], is_seen: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not is_seen():
        assert process.poll() is None, process.communicate()[1].decode()
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.usefixtures("backend")
def test_killed_while_saving_it_goes_on_between_two_phases(tmp_path: Path) -> None:
    """The save that was cut off is a step's; the one before is between two of its phases. The process that goes on is
    the one of the run that was not interrupted."""
    whole = train(config_in(tmp_path / "whole", *SETTINGS), StopRequest())
    results = tmp_path / "killed"
    results.mkdir()
    config = config_in(results, *SETTINGS)
    folder = RunFolder(config.folder)
    saves = folder.path / "checkpoints"
    process = start(results)
    wait_for(process, lambda: any((saves / "step00001.partial").glob("weights/*.pt")))
    process.kill()
    process.communicate()
    assert (saves / "latest").read_text().startswith("step00000-phase")
    assert not folder.is_finished
    assert_same_run(train(config, StopRequest()), whole, but=frozenset({"lost"}))
    assert len(tensors(whole)) > 2
    assert tensors(folder) == tensors(whole)
    ledger = folder.manifest["ledger"]
    journal = (folder.path / "charges.jsonl").read_text().splitlines()
    assert f'"total": {ledger["rollouts"] + ledger["lost"]}' in journal[-1]
    assert folder.manifest["resumed"] == 1
    assert not list(saves.glob("*.partial"))


def test_a_stop_while_ray_and_its_actors_start_is_one_line(tmp_path: Path) -> None:
    process = start(tmp_path)
    command = psutil.Process(process.pid)
    raylets: list[psutil.Process] = []

    def has_actors() -> bool:
        try:
            raylets[:] = [child for child in command.children() if child.name() == "raylet"]
            return any(child.name().startswith("ray::") for raylet in raylets for child in raylet.children())
        except psutil.NoSuchProcess:  # one that ended as it was looked at
            return False

    wait_for(process, has_actors)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=DEADLINE)[1].decode()
    assert (process.returncode, said) == (143, "stopped by SIGTERM\n")
    raylets[0].wait(DEADLINE)
