"""The commands a user types: what they run, and how they end."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from experiments import quickstart
from experiments import train as train_command
from rtpo.errors import MachineError, Stopped
from rtpo.run.cli import command, on_sigterm
from rtpo.run.config import PROJECT


def test_the_quickstart_runs_differ_in_their_algorithm_and_chosen_rate_alone() -> None:
    chosen = json.loads(quickstart.RATES.read_text())["toy_math"]
    at_own = [config.as_dict() for config in quickstart.configurations([])]
    assert [run["algorithm"]["label"] for run in at_own] == list(quickstart.TOY_METHODS)
    for own, label in zip(at_own, quickstart.TOY_METHODS, strict=True):
        runs = [config.as_dict() for config in quickstart.configurations([f"optimizer.lr={chosen[label]:g}"])]
        assert runs == [runs[0] | {"algorithm": run["algorithm"]} for run in runs]
        assert own in runs


def test_the_quickstart_of_a_language_model_compares_rtpo_with_exact_grpo() -> None:
    runs = [config.as_dict() for config in quickstart.configurations(["task=textworld"])]
    assert [run["algorithm"]["label"] for run in runs] == ["rtpo", "grpo_exact"]
    assert runs[1] == runs[0] | {"algorithm": runs[1]["algorithm"]}
    assert {run["profile"]["name"] for run in runs} == {"laptop_lm"}


def test_a_refusal_in_a_process_of_its_own_is_one_line() -> None:
    script = [sys.executable, str(PROJECT / "experiments" / "train.py"), "budget.rolouts=5"]
    done = subprocess.run(script, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)


def test_exit_statuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    train = Mock(side_effect=[Stopped("stopped by SIGTERM and saved."), MachineError("the disk is full.")])
    monkeypatch.chdir(tmp_path)
    overrides = [f"results={tmp_path}", "seed=3", "optimizer.lr=0.1"]
    monkeypatch.setattr(sys, "argv", ["train.py", "--config-path", str(PROJECT / "configs"), *overrides])
    monkeypatch.setattr(train_command, "train", train)
    assert train_command.main() == 75
    assert capsys.readouterr().err == "stopped by SIGTERM and saved.\n"
    monkeypatch.setattr(quickstart, "train", train)
    assert quickstart.main(overrides) == 1
    assert capsys.readouterr().err == "error: the disk is full.\n"
    started = [call.args[0] for call in train.call_args_list]
    assert [(config.seed, config.label) for config in started] == [(3, "rtpo,lr=0.1"), (3, "rtpo")]


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
