"""What a run asks its engine for, which questions it is evaluated on, and what it says where it learns nothing."""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import compose_config
from methods import UngradableEnv
from scripted import CHAT, MemoryBackend, ScriptedEngine, solver
from whole_runs import StopAt, assert_same_run, lines

from rtpo.engines.base import PAPER_DECODING
from rtpo.envs.base import Env
from rtpo.envs.toy.math import ToyMathEnv, problems
from rtpo.errors import InfrastructureError, Stopped
from rtpo.harness.harness import AgentHarness
from rtpo.run.config import RunConfig
from rtpo.run.lines import is_tied
from rtpo.run.records import JOURNAL, LOG, RunFolder
from rtpo.run.run import Run, open_harness, open_ledger
from rtpo.run.stopping import StopRequest
from rtpo.run.tasks import take
from rtpo.types import Opening, Task

SMALL = ("algorithm=grpo", "algorithm.chains=4", "algorithm.kl=0", "budget.rollouts=16", "budget.tasks_per_step=2")
EVALUATED = ("evaluation.paper=true", "evaluation.samples=2", "evaluation.every_rollouts=8")


def whole_run(
    config: RunConfig,
    train: list[Task],
    held_out: list[Task],
    make_env: Callable[[], Env] | None = None,
    stop: StopRequest | None = None,
    learning_rate: float = 1e-3,
) -> tuple[RunFolder, ScriptedEngine]:
    """In this process, from its last save, with an engine that solves half the tasks."""
    folder, engine = RunFolder(config.folder), ScriptedEngine(solver(0.5))
    folder.open(config.as_dict())
    save = folder.restore_latest()
    state = save.state if save else None
    backend = MemoryBackend(engine, learning_rate=learning_rate)
    harness = open_harness(config, backend, CHAT, open_ledger(config, folder, state), AgentHarness, make_env)
    if save:
        harness.load(save.folder, save.state["harness"])
    Run(config, folder, harness, train, held_out, state, stop or StopRequest()).train()
    return folder, engine


def test_training_and_each_evaluation_have_their_own_decoding_and_their_own_questions(tmp_path: Path) -> None:
    config = compose_config(*SMALL, *EVALUATED, "sampling.temperature=0.7", f"results={tmp_path}")
    train, held_out = problems("train", 8, 0), problems("held_out", 3, 0)
    folder, engine = whole_run(config, train, held_out)

    asked = defaultdict(set)
    for request in engine.requests:
        word, *more = request.session.split(".")
        sampling = request.sampling
        mode = more[1] if word == "eval" else "training"
        asked[mode].add((sampling.temperature, sampling.top_p, sampling.top_k))
    paper = (PAPER_DECODING.temperature, PAPER_DECODING.top_p, PAPER_DECODING.top_k)
    assert paper[:2] == (0.6, 0.95)
    plain = {"training": {(0.7, 1.0, -1)}, "sampled": {(1.0, 1.0, -1)}, "greedy": {(0.0, 1.0, -1)}}
    assert asked == plain | {"paper": {paper}}

    evaluated = {line["task"] for line in lines(folder.path, "evaluations.jsonl")}
    trained = {line["task"] for line in lines(folder.path, "paths.jsonl")}
    assert evaluated == {task.uid for task in held_out}
    assert trained <= {task.uid for task in train}
    assert trained
    assert not trained & evaluated
    assert {line["when"] for line in lines(folder.path, "evaluations.jsonl")} == {"before", "during", "after"}


def test_evaluations_come_when_they_are_due_and_draw_alike(tmp_path: Path) -> None:
    """Six steps, and an evaluation at two of the multiples of sixteen rollouts, since the last is the end. A policy
    that stays as it is has the same rewards in all of them."""
    more = ("budget.rollouts=48", "evaluation.samples=2", "evaluation.every_rollouts=16")
    config = compose_config(*SMALL, *more, f"results={tmp_path}")
    folder, _ = whole_run(config, problems("train", 8, 0), problems("held_out", 3, 0), learning_rate=0.0)
    evaluated = lines(folder.path, "evaluations.jsonl")
    counts = Counter((line["when"], line["mode"]) for line in evaluated)
    sampled = {(when, "sampled"): 6 for when in ("before", "after")} | {("during", "sampled"): 12}
    assert counts == sampled | {(when, "greedy"): 3 for when in ("before", "after")}
    assert {line["split"] for line in evaluated} == {"held_out"}
    draws: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for line in evaluated:
        draws[line["when"], line["mode"]].append(line["reward"])
    first, second = draws["during", "sampled"][:6], draws["during", "sampled"][6:]
    assert draws["before", "sampled"] == first == second == draws["after", "sampled"]
    assert len(set(first)) == 2


def test_tasks_follow_one_another_over_steps_in_an_order_of_the_seed(tmp_path: Path) -> None:
    train, orders = problems("train", 8, 0), []
    for seed in (0, 1):
        config = compose_config(*SMALL, "budget.rollouts=32", f"seed={seed}", f"results={tmp_path}")
        folder, _ = whole_run(config, train, problems("held_out", 1, 0))
        orders.append(list(dict.fromkeys(line["task"] for line in lines(folder.path, "paths.jsonl"))))
    assert set(orders[0]) == set(orders[1]) == {task.uid for task in train}
    assert orders[0] != orders[1]


def test_an_answer_that_could_not_be_graded_has_no_reward(tmp_path: Path) -> None:
    config = compose_config(*SMALL, f"results={tmp_path}")
    folder, _ = whole_run(config, problems("train", 8, 0), problems("held_out", 3, 0), UngradableEnv)
    for file in ("evaluations.jsonl", "paths.jsonl"):
        graded = {(line["grade"], line["reward"]) for line in lines(folder.path, file)}
        assert graded == {("ungradable", None)}
    alarms = [line["alarm"] for line in lines(folder.path, "steps.jsonl")]
    assert all("8 of 8 rewards" in alarm and "the grader was killed" in alarm for alarm in alarms)
    said = [line for line in (folder.path / LOG).read_text().splitlines() if "the grader was killed" in line]
    assert len(said) == len(alarms) + 4  # two evaluations, each sampled and greedy


@pytest.mark.parametrize(("learns", "limit"), [(False, None), (False, 4), (True, 3)])
def test_a_run_that_learns_nothing_says_so_once_and_may_end(learns: bool, limit: int | None, tmp_path: Path) -> None:
    end = f"budget.tied_steps={limit or 'null'}"
    config = compose_config(*SMALL, "budget.rollouts=48", end, "evaluation.before=false", f"results={tmp_path}")
    solvable = problems("train", 8, 0)
    tasks = solvable if learns else [replace(task, answer="never") for task in solvable]
    folder, _ = whole_run(config, tasks, problems("held_out", 2, 0))
    assert (folder.path / "log.txt").read_text().count("warning") == (not learns)
    is_ended = limit is not None and not learns
    assert folder.manifest["steps"] == (limit if is_ended else 6)
    assert folder.manifest["ended_by"] == ("tied_steps" if is_ended else "rollouts")


def test_tied_steps_count_from_the_last_step_that_was_not_tied(tmp_path: Path) -> None:
    config = compose_config(*SMALL, "budget.rollouts=80", "budget.tied_steps=3", f"results={tmp_path}")
    train, held_out = problems("train", 20, 0), problems("held_out", 1, 0)
    solvable = {task.uid for task in take(train, 0, 4, seed=0)}
    tasks = [task if task.uid in solvable else replace(task, answer="never") for task in train]
    folder, _ = whole_run(config, tasks, held_out)
    tied = [is_tied(line) for line in lines(folder.path, "steps.jsonl")]
    assert tied == [False, False, True, True, True]
    assert folder.manifest["ended_by"] == "tied_steps"


PHASES = ("algorithm=rtpo", "algorithm.trunks=1", "algorithm.group_size=3", "algorithm.kl=0", "budget.tasks_per_step=2")


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ("save.every_steps=1 save.every_phases=0", "step00001 step00002 step00003"),
        ("save.every_steps=2 save.every_phases=0", "step00002 step00003"),
        ("save.every_steps=0 save.every_phases=0", "step00003"),
        (
            "save.every_steps=0 save.every_phases=2",
            "step00000-phase002 step00001-phase002 step00002-phase002 step00003",
        ),
    ],
)
def test_saves_come_after_the_steps_and_phases_that_are_set(settings: str, names: str, tmp_path: Path) -> None:
    config = compose_config(*PHASES, "budget.steps=3", "save.keep=99", *settings.split(), f"results={tmp_path}")
    folder, _ = whole_run(config, problems("train", 8, 0), problems("held_out", 1, 0))
    assert sorted(save.name for save in (folder.path / "checkpoints").glob("step*")) == names.split()


def test_a_run_that_stops_often_ends_as_one_that_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time at its third look for a request to stop. What it took and said of its time, and the code that ran it,
    is of all its parts."""
    settings = (*PHASES, "budget.steps=2", "evaluation.every_rollouts=10", "save.every_steps=0", "save.every_phases=0")
    train, held_out, folders, stops = problems("train", 8, 0), problems("held_out", 2, 0), [], 0
    monkeypatch.setattr("rtpo.run.run.time", SimpleNamespace(perf_counter=count().__next__))
    for name in ("whole", "stopped"):
        config = compose_config(*settings, f"results={tmp_path}", f"experiment_name={name}")
        while not (folders and folders[-1].path == config.folder):
            try:
                folders.append(whole_run(config, train, held_out, stop=StopAt(3) if name == "stopped" else None)[0])
            except Stopped:
                stops += 1
                code = "last" if stops > 1 else "second"
                monkeypatch.setattr("rtpo.run.run.code_sha256", partial(str, code))
    whole, stopped = folders
    assert stops > 2
    assert_same_run(stopped, whole, but=frozenset({"syncs"}))
    assert (whole.manifest["resumed"], stopped.manifest["resumed"]) == (0, stops)
    first = whole.manifest["code_sha256"]
    assert stopped.manifest["code_sha256"] == f"{first}, second, last"
    assert stopped.manifest["wall_seconds"] >= whole.manifest["wall_seconds"] > 0


def test_the_log_says_why_an_episode_of_an_evaluation_began_again(tmp_path: Path) -> None:
    calls = count()

    class Failing(ToyMathEnv):
        async def reset(self, task: Task) -> Opening:
            if next(calls) == 0:
                raise InfrastructureError("the tool is gone")
            return await super().reset(task)

    config = compose_config(*SMALL, "budget.rollouts=0", f"results={tmp_path}")
    folder, _ = whole_run(config, problems("train", 8, 0), problems("held_out", 1, 0), Failing)
    (line,) = [line for line in (folder.path / LOG).read_text().splitlines() if "the tool is gone" in line]
    assert "evaluation" in line
    assert folder.manifest["ledger"]["retries"] == 1


def test_a_method_that_never_trains_is_evaluated_and_ends(tmp_path: Path) -> None:
    config = compose_config("algorithm=vanilla", "budget.rollouts=16", f"results={tmp_path}")
    folder, _ = whole_run(config, problems("train", 8, 0), problems("held_out", 2, 0))
    assert folder.manifest["steps"] == 0
    assert {line["when"] for line in lines(folder.path, "evaluations.jsonl")} == {"before", "after"}


@pytest.mark.parametrize("cut", ['{"charged": 8, "tot', "{"])
def test_a_charge_that_was_cut_counts_nothing_and_is_said(
    cut: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, folder = compose_config(*SMALL, f"results={tmp_path}"), RunFolder(tmp_path)
    whole = '{"charged": 8, "total": 8, "rollouts": 8}\n'
    for journal, is_said in ((whole, False), (whole + cut, True), (whole, False)):
        (tmp_path / JOURNAL).write_text(journal)
        assert open_ledger(config, folder, None).lost == 8
        assert (repr(cut) in capsys.readouterr().out) is is_said
        assert (tmp_path / JOURNAL).read_text() == whole
