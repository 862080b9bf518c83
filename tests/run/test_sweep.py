"""A Hydra sweep over a field: stopped within a training, gone on with, and in one table."""

import signal
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from local_backend import LocalBackend

import rtpo.verl_harness.session as session
from analysis import make_tables
from experiments import train
from rtpo.run.config import PROJECT
from rtpo.run.records import RunFolder

SMALL = ("budget.rollouts=64", "budget.tasks_per_step=2", "task.held_out.count=4", "task.train.count=16")


class Stopping(LocalBackend):
    """Ctrl-C at the fourth optimizer step of all runs, within the second run of the sweep."""

    steps = 0

    def step(self, *arguments: Any, **named: Any) -> Any:
        Stopping.steps += 1
        if Stopping.steps == 4:
            signal.raise_signal(signal.SIGINT)
        return super().step(*arguments, **named)


def test_a_sweep_is_stopped_within_a_run_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "open_backend", Stopping)
    fields = ("algorithm=grpo_exact", "optimizer.lr=2e-4,5e-4", "seed=0", "experiment_name=swept")
    overrides = (*fields, *SMALL, f"results={tmp_path}", f"hydra.sweep.dir={tmp_path}/multirun")
    monkeypatch.setattr(sys, "argv", ["train.py", "--config-path", str(PROJECT / "configs"), "-m", *overrides])
    with pytest.raises(SystemExit):
        train.main()
    runs = map(RunFolder, sorted((tmp_path / "swept").iterdir()))
    assert [run.is_finished for run in runs] == [True, False]

    train.main()
    manifests = [RunFolder(path).manifest for path in (tmp_path / "swept").iterdir()]
    assert [manifest["ledger"]["rollouts"] for manifest in manifests] == [64] * 2
    assert sorted(manifest["resumed"] for manifest in manifests) == [0, 1]

    assert make_tables.main(["--results", str(tmp_path), "--experiment", "swept", "--columns", "all"]) == 0
    table = pd.read_csv(tmp_path / "tables" / "swept_runs.csv")
    assert sorted(table["lr"]) == [2e-4, 5e-4]
