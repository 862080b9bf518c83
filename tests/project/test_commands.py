"""The commands a user types: what they run, and how they end."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from experiments import quickstart
from experiments import train as train_command
from rtpo.errors import MachineError, Stopped
from rtpo.run.cli import command, on_sigterm
from rtpo.run.config import PROJECT


def test_the_quickstart_runs_differ_in_their_algorithm_and_chosen_rate_alone() -> None:
    chosen = json.loads(quickstart.RATES.read_text())["toy_math"]
    at_own = [config.as_dict() for config in quickstart.configurations([])]
    assert [run["algorithm"]["label"] for run in at_own] == list(quickstart.ALGORITHMS)
    for own, label in zip(at_own, quickstart.ALGORITHMS, strict=True):
        runs = [config.as_dict() for config in quickstart.configurations([f"optimizer.lr={chosen[label]:g}"])]
        assert runs == [runs[0] | {"algorithm": run["algorithm"]} for run in runs]
        assert own in runs


def test_a_refusal_in_a_process_of_its_own_is_one_line() -> None:
    script = [sys.executable, str(PROJECT / "experiments" / "train.py"), "budget.rolouts=5"]
    done = subprocess.run(script, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)


@pytest.mark.parametrize(
    ("module", "label", "error", "status"),
    [
        (train_command, "rtpo,lr=0.1", Stopped("stopped by SIGTERM and saved."), 75),
        (quickstart, "rtpo", MachineError("the disk is full."), 1),
    ],
)
def test_exit_statuses(
    module: Any,
    label: str,
    error: Exception,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    started = []

    def train(config: Any, stop: Any) -> NoReturn:
        started.append(config)
        raise error

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "train", train)
    overrides = [f"results={tmp_path}", "seed=3", "optimizer.lr=0.1"]
    monkeypatch.setattr(sys, "argv", ["train.py", "--config-path", str(PROJECT / "configs"), *overrides])
    try:
        ended = module.main(*[overrides] * (module is quickstart))
    except SystemExit as caught:
        ended = caught.code
    assert ended == status
    assert capsys.readouterr().err == f"{'error: ' * (status == 1)}{error}\n"
    (config,) = started
    assert (config.seed, config.label) == (3, label)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_that_a_library_turned_into_ctrl_c_keeps_its_name(
    number: signal.Signals, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    @command
    def stopped() -> None:
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            raise KeyboardInterrupt from None

    before = signal.signal(signal.SIGTERM, on_sigterm)
    try:
        assert stopped() == status
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ("SIGTERM" in capsys.readouterr().err) == (status == 143)
