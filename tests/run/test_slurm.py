"""The SLURM launchers: the controller's refusals, and elements that are stopped and go on, on a real SLURM.

The latter need a SLURM that runs: `tests/slurm_cluster.sh start FOLDER`, and FOLDER in the variable RTPO_SLURM.
"""

import fnmatch
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pandas as pd
import psutil
import pytest
from whole_runs import assert_same_run, lines, without_times

from experiments import launch
from rtpo.errors import ConfigError, MachineError
from rtpo.run.config import PROJECT
from rtpo.run.experiments import experiments
from rtpo.run.records import JOURNAL, RunFolder

CLUSTER = os.environ.get("RTPO_SLURM")
on_slurm = pytest.mark.needs("slurm")
METHODS = ("grpo", "rtpo")
SMALL = (
    "task=toy_math",
    "budget.tasks_per_step=4",
    "task.held_out.count=4",
    "evaluate.limit=4",
    "evaluate.samples=1",
    "evaluate.ks=[1]",
)
ONE = ("profile=toy", "task=toy_math", "algorithm=grpo", "seed=0")
BUDGET = 160
PATIENCE = 600
"""seconds that a busy machine may take for anything here"""


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    """The controller, in this process, of one element with its places under `tmp_path`."""
    heard = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setenv("LOGS", str(tmp_path / "logs"))

    def command(*overrides: str) -> int:
        whole = (*ONE, f"results={tmp_path / 'results'}", *overrides)
        settings = {setting.partition("=")[0]: setting for setting in whole}
        return launch.main(["submit", "main_table", *settings.values()])

    yield command
    for number, handler in heard.items():
        signal.signal(number, handler)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A running SLURM without jobs."""
    monkeypatch.setenv("SLURM_CONF", f"{CLUSTER}/slurm.conf")
    assert queue() == ""
    yield
    # what a failed test leaves is not the next one's
    subprocess.run(["scancel", f"--user={os.getuid()}"], check=True, timeout=PATIENCE)
    wait_until(lambda: queue() == "", "the jobs that were left have ended")


def queue() -> str:
    asked = ["squeue", "--noheader"]
    return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """What only jobs can bring about: it fails at once where none is left."""
    end = time.monotonic() + PATIENCE
    while True:
        has_jobs = queue() != ""
        if condition():
            return
        assert has_jobs, f"no job is left, and not yet: {what}"
        assert time.monotonic() < end, f"after {PATIENCE} s not yet: {what}"
        time.sleep(0.5)


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("algorithm.kl=0,0.1", "2 elements"),
        *((f"launch.resources.{name}", name.partition("=")[0]) for name in ("cpus=3", "nodes=2")),
        ("evaluate.samples=0", "samples"),
    ],
)
def test_what_cannot_be_is_refused(
    override: str, named: str, submit: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submit(override) == 1
    assert named in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_without_slurm_the_way_out_is_named_and_a_folder_of_another_run_refused(
    submit: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nonesuch")
    assert submit() == 1
    assert "launch.py run" in capsys.readouterr().err
    monkeypatch.setenv("ELEMENTS", "--comment='no end")
    assert submit() == 1
    assert "ELEMENTS" in capsys.readouterr().err
    (element,) = launch.load("main_table", (*ONE, f"results={tmp_path / 'results'}")).elements
    RunFolder(element.run.folder).open(element.run.as_dict())
    (element.run.folder / JOURNAL).write_text("a charge\n")
    assert submit("optimizer.lr=0.1") == 1
    assert "optimizer.lr" in capsys.readouterr().err


def test_the_elements_have_options_of_their_own_and_all_jobs_the_environment(
    submit: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    asked = tmp_path / "asked"
    program = tmp_path / "bin" / "sbatch"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {asked}; echo 7\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("ELEMENTS", "--partition=gpu --comment='two words'")
    assert submit() == 0
    tested, array, tables = asked.read_text().splitlines()
    assert all("--export=ALL" in job.split() for job in (tested, array, tables))
    for job in (tested, array):
        # before the script: what follows it is the script's own
        assert "--partition=gpu --comment=two words " in job.partition("element.sh")[0]
    assert "--array=0" in array
    assert "--dependency=afterany:7" in tables
    assert "--partition" not in tables


def test_a_pattern_takes_several_experiments() -> None:
    small = ["profile=toy", "task=toy_math", "seed=0"]
    several = launch.load("ablate_clamp_*", small)
    assert [one.name for one in several.experiments] == ["ablate_clamp_tight", "ablate_clamp_wide"]
    assert len(several.elements) == sum(len(one.elements) for one in several.experiments)
    with pytest.raises(ConfigError):
        launch.load("ablate_clamp_*", [*small, "algorithm.label=one"])


def test_evaluations_take_the_contexts_of_training() -> None:
    overrides = ["profile=a100x8", "algorithm=rtpo", "seed=0", "evaluate.samples=8", "evaluate.seed=3"]
    credit = launch.load("credit", overrides)
    (element,) = credit.elements
    evaluation, run = launch.evaluation_of(credit, element), element.run
    assert evaluation is not None
    assert (evaluation.samples, evaluation.seed, evaluation.rollout_context) == (8, 3, "full")
    assert Path(evaluation.results, evaluation.experiment_name, str(evaluation.label)) == run.folder


def test_starting_three_times_from_one_place_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "logs" / "1_0.starts"
    for place in ("nothing", "step 1", "step 1", "step 2", "step 2"):
        launch.check_gain(file, place)
    with pytest.raises(MachineError, match=r"launch\.resources\.minutes"):
        launch.check_gain(file, "step 2")


def test_every_launcher_is_bash_and_every_experiment_has_one() -> None:
    named = []
    for script in (PROJECT / "slurm").glob("*.sh"):
        subprocess.run(["bash", "-n", str(script)], check=True)
        text = script.read_text()
        # sbatch runs a copy, which asks SLURM for the place of its original, by its name
        assert "sbatch runs" not in text or f"/{script.stem}\\.sh" in text
        patterns = re.findall(r"""common\.sh" '(.*)' """, text)
        named += [name for pattern in patterns for name in fnmatch.filter(experiments(), pattern)]
    assert sorted(named) == experiments()


@on_slurm
@pytest.mark.usefixtures("cluster")
def test_the_cluster_is_asked_before_anything_is_submitted(
    submit: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "low")
    assert submit("launch.resources.cpus=9") == 1
    assert "Requested node" in capsys.readouterr().err
    monkeypatch.setenv("SBATCH_PARTITION", "nonesuch")
    assert submit() == 1
    assert "nonesuch" in capsys.readouterr().err
    assert queue() == ""


@on_slurm
@pytest.mark.usefixtures("cluster")
def test_two_methods_on_slurm_of_which_one_is_cancelled_and_one_stopped_then_both_go_on(
    submit: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, logs = tmp_path / "results", tmp_path / "logs" / "main_table"
    given = ("experiment_name=trial_${task.name}", f"budget.rollouts={BUDGET}", "seed=0", f"results={results}")
    # in many small steps, so that neither has trained all before it is ended
    overrides = (*given, *SMALL, "budget.tasks_per_step=1", f"algorithm={','.join(METHODS)}")
    killed = Path("/tmp/rtpo-999999999")
    (killed / "sockets").mkdir(parents=True)
    killed.with_suffix(".log").touch()
    # the controller is a job too, of which SLURM runs a copy
    environment = os.environ | {"PROFILE": "toy", "LOGS": str(logs.parent)}
    subprocess.run(
        ["sbatch", str(PROJECT / "slurm/main_table.sh"), *overrides], cwd=tmp_path, env=environment, check=True
    )
    wait_until(
        lambda: any("submitted as job " in file.read_text() for file in tmp_path.glob("main_table-*.log")), "submitted"
    )
    (controller,) = tmp_path.glob("main_table-*.log")
    printed = controller.read_text()
    array = printed.partition("submitted as job ")[2].split()[0]
    folders = {method: results / "trial_toy_math" / f"{method}-seed0" for method in METHODS}
    log = {method: logs / f"{array}_{index}.log" for index, method in enumerate(METHODS)}

    cancelled, stopped = (RunFolder(folder) for folder in folders.values())
    ends = {
        cancelled: lambda: subprocess.run(["scancel", f"{array}_0"], check=True),
        stopped: lambda: launch.main(["stop", str(stopped.path)]),
    }

    def end_what_trains() -> bool:
        """Each as soon as it trains, so that neither has trained all."""
        for folder in [folder for folder in ends if folder.has_trained]:
            ends.pop(folder)()
        return not ends

    wait_until(end_what_trains, "both train")
    assert f"{array}_1" in capsys.readouterr().out
    wait_until(lambda: queue() == "", "all jobs have ended")
    assert "complete: 0 of 2 elements" in (logs / f"{array}_tables.log").read_text()
    assert launch.main(["status", "main_table", "profile=toy", *overrides]) == 0
    _, *states = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in states] == ["stopped", "stopped"]
    assert_nothing_is_left()
    assert Path(f"/tmp/rtpo-cache-{os.getuid()}").stat().st_mode & 0o777 == 0o700  # what was compiled stays

    assert submit(*overrides) == 0
    again = capsys.readouterr().out.partition("submitted as job ")[2].split()[0]
    wait_until(lambda: queue() == "", "both are complete")
    for index, (method, folder) in enumerate(folders.items()):
        first, second = log[method].read_text(), (logs / f"{again}_{index}.log").read_text()
        assert first.count("SIGTERM: finishing this phase, then saving") == 1
        assert second.count(f"resuming {folder} after ") == 1
        manifest = RunFolder(folder).manifest
        ledger = manifest["ledger"]
        assert manifest["resumed"] == 1
        assert ledger["lost"] == 0
        steps = lines(folder, "steps.jsonl")
        assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
        assert steps[-1]["rollouts"] == ledger["rollouts"]
        assert ledger["rollouts"] == BUDGET if method != "rtpo" else 0 < ledger["rollouts"] <= BUDGET
        assert RunFolder(folder / "toy_math").is_finished
    assert "complete: 2 of 2 elements" in (logs / f"{again}_tables.log").read_text()
    assert len(pd.read_csv(results / "tables" / "trial_toy_math_runs.csv")) == len(METHODS)
    assert_nothing_is_left()


@on_slurm
@pytest.mark.usefixtures("cluster")
def test_one_element_on_two_nodes_preempted_by_the_same_on_one(
    submit: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A training process and an engine on each node, or two of each on one: the same run, preempted or not."""
    results, logs = tmp_path / "results", tmp_path / "logs" / "main_table"
    settings = (*SMALL, "algorithm=rtpo", "algorithm.trunks=2", "budget.rollouts=96", "deterministic=true")

    monkeypatch.setenv("SBATCH_EXPORT", "NONE")  # as a cluster may have it

    def submitted(name: str, options: str, *overrides: str) -> tuple[str, RunFolder]:
        monkeypatch.setenv("ELEMENTS", options)
        assert submit(*settings, f"experiment_name={name}", *overrides) == 0
        job = capsys.readouterr().out.partition("submitted as job ")[2].split()[0]
        return job, RunFolder(results / name / "rtpo-seed0")

    of_two, two = submitted("two_nodes", "--partition=both", "profile.nodes=2", "launch.resources.cpus=6")
    of_one, one = submitted("one_node", "--partition=high --hold", "profile.processes=2", "launch.resources.cpus=8")
    log = logs / f"{of_two}_0.log"

    def is_on_both() -> bool:
        return all(nodes_of(actor, of_two) == ["first", "second"] for actor in ("AgentWorker", "EmbeddedServer"))

    wait_until(lambda: two.has_trained, "two nodes train")
    assert is_on_both()
    subprocess.run(["scontrol", "release", of_one], check=True)
    wait_until(lambda: "back to the queue" in log.read_text(), "two nodes are preempted")
    assert nodes_of("AgentWorker", of_two) == []
    wait_until(is_on_both, "both nodes have started again")
    wait_until(lambda: queue() == "", "all jobs have ended")

    said = log.read_text()
    for words in ("back to the queue", "SIGTERM: finishing this phase, then saving", f"resuming {two.path} after "):
        assert said.count(words) == 1
    assert_same_run(two, one)
    assert (two.manifest["resumed"], one.manifest["resumed"]) == (1, 0)
    ledger = two.manifest["ledger"]
    assert (ledger["rollouts"], ledger["lost"]) == (lines(two.path, "steps.jsonl")[-1]["rollouts"], 0)
    assert two.manifest.keys() == one.manifest.keys()
    assert files_of(two.path) == files_of(one.path)
    for file in ("paths.jsonl", "toy_math/samples.jsonl"):
        assert without_times(lines(two.path, file)) == without_times(lines(one.path, file))
    tables = [pd.read_csv(results / "tables" / f"{name}_runs.csv") for name in ("two_nodes", "one_node")]
    pd.testing.assert_frame_equal(*(table.drop(columns="Seconds") for table in tables))
    assert_nothing_is_left()


def nodes_of(actor: str, job: str) -> list[str]:
    """The nodes that a job's actors of a class run on, by what SLURM told the raylets that started them."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            parent = process.parent() if " ".join(process.cmdline()).startswith(f"ray::{actor}") else None
            told = parent.environ() if parent else {}
            if told.get("SLURM_ARRAY_JOB_ID") == job:
                found.append(told["SLURMD_NODENAME"])
    return sorted(found)


def files_of(run: Path) -> set[str]:
    """Its saves aside, of which one that was preempted has another."""
    return {str(file.relative_to(run)) for file in run.rglob("*") if "checkpoints" not in file.parts}


def assert_nothing_is_left() -> None:
    left = subprocess.run(["pgrep", "--full", "--list-full", "/tmp/rtpo-[0-9]"], capture_output=True, text=True)
    assert left.stdout == ""
    assert not list(Path("/tmp").glob("rtpo-[0-9]*"))
