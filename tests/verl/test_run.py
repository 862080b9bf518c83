"""Whole runs on real verl: what they leave, how they stop, go on, and fail."""

import math
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from whole_runs import GRPO, StopAt, assert_same_run, config_in, lines

from analysis.load import load_run
from experiments.training import train
from rtpo.errors import Stopped
from rtpo.run.config import RunConfig
from rtpo.run.records import LINE_FILES, LOG, RunFolder
from rtpo.run.stopping import StopRequest

STEP_LOGGED = re.compile(r"  step (\d+)  rollouts (\d+)/150  success .*  (\d+\.\d) s$", re.MULTILINE)


@pytest.fixture(scope="module")
def whole(_live_backend: Any, toy_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, str]:
    """A finished run, which no test changes, and the checksum of the weights that its engine ended with."""
    from rtpo.verl_harness.session import open_backend

    backend = open_backend(toy_config)
    folder = train(config_in(tmp_path_factory.mktemp("whole") / "results"), StopRequest())
    return folder, backend.engine_checksums()[0]


@pytest.fixture
def finished(whole: tuple[RunFolder, str]) -> RunFolder:
    return whole[0]


def test_a_run_leaves_its_records_and_stays_in_its_budget(finished: RunFolder) -> None:
    manifest, steps = finished.manifest, lines(finished.path, "steps.jsonl")
    ledger = manifest["ledger"]
    assert ledger["rollouts"] <= 150 < ledger["rollouts"] + 2 * (1 + 3 * 2)
    assert (ledger["lost"], ledger["reserved"]) == (0, 0)
    assert steps[-1]["rollouts"] == ledger["rollouts"] == sum(c["rollouts"] for s in steps for c in s["rollout_calls"])
    assert manifest["steps"] == len(steps)
    assert set(manifest["files"]) == {"config.yaml", "charges.jsonl", *LINE_FILES}
    evaluations = lines(finished.path, "evaluations.jsonl")
    assert [(e["when"], e["mode"]) for e in evaluations] == [
        (when, mode) for when in ("before", "after") for mode in ("sampled", "paper", "greedy") for _ in range(4)
    ]
    paths = lines(finished.path, "paths.jsonl")
    assert len({path["rollout"] for path in paths}) == len(paths) == ledger["rollouts"]
    assert sum(path["generated_tokens"] for path in paths) == ledger["generated_tokens"]
    attempted = [calls["attempted"] for path in paths for calls in path["calls"].values()]
    assert sum(attempted) == sum(ledger["tool_calls"].values())
    samples = lines(finished.path, "rollouts.jsonl")
    assert all(sample["parent"] for sample in samples if sample["role"] == "sibling")
    assert {"trunk", "sibling"} == {sample["role"] for sample in samples}
    assert len({sample["rollout"] for sample in samples}) == len(samples)
    logged = [
        (int(step), int(rollouts)) for step, rollouts, _ in STEP_LOGGED.findall((finished.path / LOG).read_text())
    ]
    assert logged == [(step["step"], step["rollouts"]) for step in steps]
    first, *later = [update["kl_loss"] for step in steps for update in step["updates"]]
    assert abs(first) < 1e-7
    assert min(later) > 1e-7


@pytest.mark.parametrize(
    ("override", "ended_by", "steps"),
    [
        ("budget.optimizer_steps=4", "optimizer_steps", 1),
        ("budget.generated_tokens=700", "generated_tokens", 1),
        ("budget.seconds=0.001", "seconds", 1),
        ("budget.rollouts=0", "rollouts", 0),
    ],
)
def test_a_run_ends_after_the_step_that_reaches_a_limit(
    results: Path, plain_trainer: None, override: str, ended_by: str, steps: int
) -> None:
    folder = train(config_in(results, override, "algorithm.minibatches=4", algorithm=GRPO), StopRequest())
    ledger = folder.manifest["ledger"]
    assert (folder.manifest["ended_by"], folder.manifest["steps"]) == (ended_by, steps)
    assert (ledger["rollouts"], ledger["optimizer_steps"]) == (16 * steps, 4 * steps)
    assert len(lines(folder.path, "evaluations.jsonl")) == 2 * 3 * 4
    assert load_run(folder.path).runs["steps"].item() == steps


@pytest.mark.parametrize("look", [1, 4])
def test_stopping_and_going_on_is_as_if_never_stopped(
    whole: tuple[RunFolder, str], backend: Any, tmp_path: Path, look: int
) -> None:
    """Look 1 is after the first evaluation, look 4 between two reverse phases of the first step.

    After look 1 a new engine is given weights that the one before still had.
    """
    finished, uninterrupted = whole
    config = config_in(tmp_path / "stopped")
    with pytest.raises(Stopped, match="Run the same command") as stopped:
        train(config, StopAt(look))
    folder = RunFolder(config.folder)
    assert not folder.is_finished
    assert f"after {folder.charged_rollouts([])} of" in str(stopped.value)
    save = folder.required_save()
    resumed = train(config, StopRequest())
    (*_, seconds), *_ = STEP_LOGGED.findall((folder.path / LOG).read_text())
    began = lines(folder.path, "steps.jsonl")[0]["wall_seconds"] - float(seconds)
    if look == 4:  # the step's seconds are those before the stop, too
        assert began == pytest.approx(save.state["progress"].began, abs=0.06)
    assert backend.engine_checksums()[0] == uninterrupted
    assert_same_run(resumed, finished, but=frozenset({"syncs"}) if look == 1 else frozenset())
    assert resumed.manifest["resumed"] == 1


def test_sigterm_ends_the_phase_and_saves_unless_the_phase_outlasts_its_grace(
    backend: Any, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it is left and the save before is kept."""
    step, steps = backend.step, []

    def signalled_step(*arguments: Any, **options: Any) -> Any:
        steps.append(arguments)
        if len(steps) in (2, 3):
            os.kill(os.getpid(), signal.SIGTERM)
        if len(steps) == 3:
            time.sleep(20)
            pytest.fail("the step was not left")
        return step(*arguments, **options)

    monkeypatch.setattr(backend, "step", signalled_step)
    config = config_in(results, "save.every_phases=1", "save.grace=5")
    for _ in range(2):
        with pytest.raises(Stopped, match="SIGTERM") as stopped:
            train(config, StopRequest())
        saved = RunFolder(config.folder).required_save().state
        assert saved["harness"]["policy_version"] == 2
        assert [done.verb for done in saved["progress"].done][-1] == "update"
    assert len(steps) == 3
    assert "save.grace" in str(stopped.value)
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_a_schedule_follows_the_steps_of_the_run_over_a_resume(backend: Any, results: Path) -> None:
    """Also beyond its end, where the last step's phases take it."""
    optim = "verl.actor_rollout_ref.actor.optim"
    schedule = (f"+{optim}.lr_scheduler_type=cosine", f"+{optim}.lr_warmup_steps=2", f"+{optim}.min_lr_ratio=0.1")
    config = config_in(results, *schedule, "budget.optimizer_steps=4")
    with pytest.raises(Stopped):
        train(config, StopAt(4))
    folder = train(config, StopRequest())
    updates = [update for line in lines(folder.path, "steps.jsonl") for update in line["updates"]]
    done = 0
    for update in updates:
        done += update["optimizer_steps"]
        last = min(done - 1, 4)
        share = last / 2 if last < 2 else 0.55 + 0.45 * math.cos(math.pi * (last - 2) / 2)
        assert update["lr"] == pytest.approx(config.optimizer.lr * share), done
    assert folder.manifest["resumed"] == 1
    assert done > 5
