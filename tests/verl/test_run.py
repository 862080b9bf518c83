"""Whole runs on real verl: what they leave, how they stop, go on, and fail."""

import math
import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from local_backend import LocalBackend
from whole_runs import GRPO, StopAt, assert_same_run, config_in, lines

from analysis.load import load_run
from analysis.metrics import training_curve
from experiments.training import train
from rtpo.envs.registry import ENVIRONMENTS
from rtpo.envs.toy.math import ToyMathEnv
from rtpo.errors import ConfigError, DataError, MachineError, Stopped
from rtpo.run.config import RunConfig
from rtpo.run.records import LINE_FILES, LOG, RunFolder
from rtpo.run.run import StopRequest
from rtpo.run.tracking import Tracking
from rtpo.types import Grade, GradeOutcome

STEP_LOGGED = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  step (?P<step>\d+)  rollouts (?P<rollouts>\d+)/150  success \d+\.\d % "
    r"\(training, (?P<tasks>\d+) tasks?, temperature 1\)  KL -?\d\.\d{5}  (?P<seconds>\d+\.\d) s"
)


@pytest.fixture(scope="module")
def whole(_live_backend: Any, toy_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, str]:
    """A finished run, which no test changes, and the checksum of the weights that its engine ended with."""
    from rtpo.verl_harness.session import open_backend

    backend = open_backend(toy_config)
    folder = train(config_in(tmp_path_factory.mktemp("whole") / "results"), StopRequest())
    return folder, backend.engine_states()[0].checksum


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
    known = {sample["rollout"] for sample in samples}
    assert all(sample["parent"] for sample in samples if sample["role"] == "sibling")
    assert {"trunk", "sibling"} == {sample["role"] for sample in samples}
    assert len(known) == len(samples)
    log = (finished.path / LOG).read_text().splitlines()
    of_steps = [STEP_LOGGED.fullmatch(line) for line in log if "  step " in line]
    assert [int(found["step"]) for found in of_steps if found] == [step["step"] for step in steps]
    assert [int(found["rollouts"]) for found in of_steps if found] == [step["rollouts"] for step in steps]
    assert sum("held-out tasks" in line and "sampled at temperature 1: success" in line for line in log) == 2
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
    results: Path, monkeypatch: pytest.MonkeyPatch, override: str, ended_by: str, steps: int
) -> None:
    """The trainer is the plain one."""
    monkeypatch.setattr("rtpo.verl_harness.session.open_backend", LocalBackend)
    folder = train(config_in(results, override, "algorithm.minibatches=4", algorithm=GRPO), StopRequest())
    ledger = folder.manifest["ledger"]
    assert (folder.manifest["ended_by"], folder.manifest["steps"]) == (ended_by, steps)
    assert (ledger["rollouts"], ledger["optimizer_steps"]) == (16 * steps, 4 * steps)
    assert len(lines(folder.path, "evaluations.jsonl")) == 2 * 3 * 4
    assert load_run(folder.path).runs["steps"].item() == steps


def test_training_is_the_same_without_an_evaluation_before_it(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer is the plain one."""
    monkeypatch.setattr("rtpo.verl_harness.session.open_backend", LocalBackend)
    overrides = "budget.optimizer_steps=4", "task.held_out.count=2"
    configs = (
        config_in(results / before, *overrides, f"evaluation.before={before}", algorithm=GRPO)
        for before in ("true", "false")
    )
    whole, short = (train(config, StopRequest()).path for config in configs)
    assert lines(short, "rollouts.jsonl") == lines(whole, "rollouts.jsonl") != []
    after = [line for line in lines(whole, "evaluations.jsonl") if line["when"] != "before"]
    assert lines(short, "evaluations.jsonl") == after != []


class TwoThirds(ToyMathEnv):
    """Every answer earns 2/3."""

    async def grade(self) -> Grade:
        return Grade(GradeOutcome.GRADED, 2 / 3)


def test_success_is_one_thing_and_the_mean_reward_another(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the log, the records, what is tracked and the tables; the trainer is the plain one."""
    monkeypatch.setattr("rtpo.verl_harness.session.open_backend", LocalBackend)
    graded = replace(ENVIRONMENTS["toy_math"], make=lambda settings, max_turns: TwoThirds())
    monkeypatch.setitem(ENVIRONMENTS, "toy_math", graded)
    told: list[dict[str, float]] = []
    monkeypatch.setattr(Tracking, "log", lambda self, data, rollouts: told.append(data))
    overrides = "budget.optimizer_steps=4", "algorithm.minibatches=4", "profile.track=[file]"
    folder = train(config_in(results, *overrides, algorithm=GRPO), StopRequest())
    (line,) = lines(folder.path, "steps.jsonl")
    two_thirds = {"success": 0.0, "mean_reward": pytest.approx(2 / 3)}
    assert [{key: one[key] for key in two_thirds} for one in (line, *line["rollout_calls"])] == [two_thirds] * 2
    assert "success 0.0 %" in (folder.path / LOG).read_text()
    run = load_run(folder.path)
    assert set(training_curve(run)["success"]) == {0.0}
    assert set(run.questions["success"]) == {0.0}
    for name in ("train/", "evaluation/sampled/", "evaluation/greedy/"):
        here = [(data[f"{name}success"], data[f"{name}reward"]) for data in told if f"{name}success" in data]
        assert here == [tuple(two_thirds.values())] * len(here) != []


def test_a_finished_run_says_so_and_does_not_train(finished: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    before = {file: (finished.path / file).read_bytes() for file in LINE_FILES}
    train(config_in(finished.path.parents[1]), StopRequest())
    assert "nothing to train" in capsys.readouterr().out
    assert before == {file: (finished.path / file).read_bytes() for file in LINE_FILES}


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
    assert f"after {folder.charged([])} of" in str(stopped.value)
    save = folder.latest_save()
    assert save is not None
    resumed = train(config, StopRequest())
    first = STEP_LOGGED.search((folder.path / LOG).read_text())
    assert first is not None
    began = lines(folder.path, "steps.jsonl")[0]["wall_seconds"] - float(first["seconds"])
    if look == 4:  # the step's seconds are those before the stop, too
        assert began == pytest.approx(save.state["progress"].began, abs=0.06)
    assert backend.engine_states()[0].checksum == uninterrupted
    assert_same_run(resumed, finished, but=frozenset({"syncs"}) if look == 1 else frozenset())
    assert resumed.manifest["resumed"] == 1


def test_sigterm_ends_the_phase_and_saves(backend: Any, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    push, pushed = backend.push, []

    def push_and_signal(version: int) -> None:
        push(version)
        pushed.append(version)
        if version == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(backend, "push", push_and_signal)
    config = config_in(results)
    with pytest.raises(Stopped, match="SIGTERM"):
        train(config, StopRequest())
    assert pushed == [0, 1]
    saved = RunFolder(config.folder).latest()
    assert saved is not None
    assert saved.state["harness"]["policy_version"] == 2
    assert [done.verb for done in saved.state["progress"].done][-1] == "update"


@pytest.mark.parametrize("grace", [0, 0.2])
def test_a_phase_that_outlasts_its_grace_is_left_and_the_last_save_kept(
    grace: float, backend: Any, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_in(results, "save.every_phases=1", f"save.grace={grace}")
    step, steps = backend.step, []

    def slow_step(*arguments: Any, **options: Any) -> Any:
        steps.append(arguments)
        if len(steps) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(20)
        return step(*arguments, **options)

    monkeypatch.setattr(backend, "step", slow_step)
    began = time.monotonic()
    with pytest.raises(Stopped, match=r"save\.grace"):
        train(config, StopRequest())
    assert time.monotonic() - began < 20
    saved = RunFolder(config.folder).latest()
    assert saved is not None
    assert saved.state["harness"]["policy_version"] == 2
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_another_configuration_is_refused_by_its_fields(finished: RunFolder) -> None:
    with pytest.raises(DataError, match=r"algorithm\.clip_low was 0\.2 and is 0\.1"):
        train(config_in(finished.path.parents[1], "algorithm.clip_low=0.1"), StopRequest())


def test_a_full_disk_is_said(results: Path) -> None:
    folder = RunFolder(results / "run")
    folder.open({"seed": 0})
    (folder.path / "steps.jsonl").symlink_to("/dev/full")
    with pytest.raises(MachineError, match=r"cannot write .*steps\.jsonl: No space left on device"):
        folder.append("steps.jsonl", [{"step": 1}])


def test_a_save_that_fails_leaves_the_one_before(backend: Any, results: Path) -> None:
    folder = RunFolder(results / "run")
    folder.open({"seed": 0})

    def write(place: Path) -> dict[str, Any]:
        backend.save(place)
        return {}

    def write_to_a_full_disk(place: Path) -> dict[str, Any]:
        place.write_text("a file where the weights' folder should be")
        return write(place)

    folder.save("step00001", {"progress": 1}, write, keep=1)
    with pytest.raises(MachineError, match="What was saved before is intact"):
        folder.save("step00002", {"progress": 2}, write_to_a_full_disk, keep=1)
    assert [path.name for path in (folder.path / "checkpoints").glob("step*")] == ["step00001"]
    saved = folder.latest()
    assert saved is not None
    assert saved.state["progress"] == 1
    backend.load(saved.folder)


def test_a_prompt_over_the_limit_is_refused_before_anything_starts(backend: Any, results: Path) -> None:
    config = config_in(results, "task.max_prompt_tokens=5")
    with pytest.raises(DataError, match=r"task\.max_prompt_tokens is 5"):
        train(config, StopRequest())
    assert not config.folder.exists()


def test_too_few_logical_cpus_are_refused(results: Path) -> None:
    with pytest.raises(ConfigError, match=r"profile\.logical_cpus is 2"):
        config_in(results, "profile.logical_cpus=2")


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


def test_a_constant_learning_rate_is_recorded(finished: RunFolder) -> None:
    updates = [update for line in lines(finished.path, "steps.jsonl") for update in line["updates"]]
    rates = {update["lr"] for update in updates if update["optimizer_steps"]}
    assert rates == {load_run(finished.path).runs["learning_rate"].item()}
