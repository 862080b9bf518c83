"""Several runs of one command: all are checked before the first, one that fails stops no other, a stop ends all."""

import logging
import signal
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pytest
from conftest import compose_config
from local_backend import LocalBackend
from whole_runs import overrides_in

import rtpo.verl_harness.session as session
from analysis import make_tables
from experiments import train
from rtpo.errors import MachineError, Stopped
from rtpo.run import cli
from rtpo.run.config import PROJECT, RunConfig
from rtpo.run.records import JOURNAL, RunFolder
from rtpo.run.run import Run

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
    assert train.main() == 75
    runs = map(RunFolder, sorted((tmp_path / "swept").iterdir()))
    assert [run.is_finished for run in runs] == [True, False]

    train.main()
    manifests = [RunFolder(path).manifest for path in (tmp_path / "swept").iterdir()]
    assert [manifest["ledger"]["rollouts"] for manifest in manifests] == [64] * 2
    assert sorted(manifest["resumed"] for manifest in manifests) == [0, 1]

    assert make_tables.main(["--results", str(tmp_path), "--experiment", "swept", "--columns", "all"]) == 0
    table = pd.read_csv(tmp_path / "tables" / "swept_runs.csv")
    assert sorted(table["lr"]) == [2e-4, 5e-4]


def swept(monkeypatch: pytest.MonkeyPatch, run: Any, *arguments: str) -> int:
    """The exit status of `train.py -m` whose runs are replaced."""
    monkeypatch.setattr(sys, "argv", ["train.py", "-m", *arguments])
    monkeypatch.setattr(train, "train_one", run)
    return int(train.main())


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("optimizer.lr=1e-4,oops", "optimizer.lr"),
        ("model.path=null,/no/such/model", "model.path"),
        ("budget.tasks_per_step=4,400", "tasks_per_step"),
        ("profile.threads=1,2", "write to"),
    ],
)
def test_nothing_starts_where_one_run_is_refused(
    wrong: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    field, _, values = wrong.partition("=")
    values = values.replace("null", "${project:}/rtpo/toy/warm_start_math")
    assert swept(monkeypatch, lambda _: pytest.fail("a run started"), *overrides_in(tmp_path, f"{field}={values}")) == 1
    assert words in capsys.readouterr().err


def test_nothing_starts_where_a_folder_holds_a_run_with_other_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second run's own folder, or one beside both."""
    for begun in (1, 5):
        own = overrides_in(tmp_path / str(begun), "algorithm.label=rtpo")
        other = compose_config(*own, f"seed={begun}", "optimizer.lr=0.1")
        RunFolder(other.folder).open(other.as_dict())
        (other.folder / JOURNAL).write_text("a charge\n")
        assert swept(monkeypatch, lambda _: pytest.fail("a run started"), *own, "seed=0,1") == 1
        assert "optimizer.lr was 0.1" in capsys.readouterr().err


def test_a_run_that_fails_does_not_keep_the_next_from_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def run(config: RunConfig) -> None:
        ran.append(config.seed)
        if config.seed == 1:
            raise MachineError("the engine died.")
        if config.seed == 2:
            raise RuntimeError("so did Ray.")

    assert swept(monkeypatch, run, *overrides_in(tmp_path, "seed=0,1,2,3")) == 1
    assert ran == [0, 1, 2, 3]


def test_a_run_that_is_stopped_ends_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def run(config: RunConfig) -> None:
        ran.append(config.seed)
        raise Stopped("stopped by SIGTERM.")

    assert swept(monkeypatch, run, *overrides_in(tmp_path, "seed=0,1,2,3")) == 75
    assert ran == [0]


def test_a_stop_in_the_last_evaluation_ends_the_run_whole_and_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain_trainer: None
) -> None:
    evaluate = Run._evaluate

    def stopped(run: Run, when: str) -> None:
        evaluate(run, when)
        if when == "after":
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Run, "_evaluate", stopped)
    settings = overrides_in(tmp_path, "seed=0,1", "budget.steps=1")
    assert swept(monkeypatch, train.train_one, *settings) == 75
    (folder,) = tmp_path.glob("*/*/config.yaml")
    assert RunFolder(folder.parent).is_finished


def test_after_a_failed_run_the_next_has_a_backend_and_a_ray_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def close(self) -> None:
            raise MachineError("Ray does not answer.")

    ended = Mock()
    monkeypatch.setattr(session.ray, "shutdown", ended)  # the real one may be another test's
    for failure, is_closed in ((Stopped("by SIGTERM."), False), (MachineError("the engine died."), True)):
        monkeypatch.setattr(session, "_open", ({}, Broken()))
        with pytest.raises(type(failure), match=str(failure)), session.closed_on_failure():
            raise failure
        assert (session._open is None) is ended.called is is_closed


def test_submitits_jobs_run_what_they_are_given_and_sacct_fails_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On this machine, as other processes; SLURM differs in how they are started."""
    jobs = ["hydra/launcher=submitit_local", f"hydra.launcher.submitit_folder={tmp_path / 'jobs'}"]
    typed = ["-m", *jobs, f"hydra.sweep.dir={tmp_path}", f"results={tmp_path}", "algorithm=rtpo", "seed=0,1"]
    monkeypatch.setattr(sys, "argv", ["train.py", *typed])

    def run(place: Path) -> None:
        place.write_text("run")

    assert cli.with_configuration("train", "", lambda tree: Path(tree.results, f"seed{tree.seed}"), run) == 0
    assert sorted(path.name for path in tmp_path.glob("seed*")) == ["seed0", "seed1"]
    # the sweep has set logging up anew, without the handlers of before
    monkeypatch.setattr(logging.getLogger("submitit"), "handlers", [caplog.handler])
    monkeypatch.setattr(logging.getLogger("submitit"), "propagate", False)
    for call in (1, 2, 3):
        logging.getLogger("submitit").warning(f"Call #{call} - Bypassing sacct error, status may be inaccurate.")
    logging.getLogger("submitit").warning("something else")
    assert [record.getMessage()[:7] for record in caplog.records if record.name == "submitit"] == ["Call #1", "somethi"]
