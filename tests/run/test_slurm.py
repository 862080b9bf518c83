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
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pandas as pd
import psutil
import pytest
from programs import put_programs
from whole_runs import lines

from analysis import make_figures, make_tables
from experiments import launch, launched, submission
from rtpo.core.names import counted
from rtpo.errors import ConfigError, MachineError
from rtpo.run.config import PROJECT
from rtpo.run.experiments import experiments, load_experiment
from rtpo.run.records import JOURNAL, RunFolder

CLUSTER = os.environ.get("RTPO_SLURM")
on_slurm = pytest.mark.needs("slurm")
ONE = ("profile=toy", "task=toy_math", "algorithm=grpo", "seed=0")
SHORT = (
    *("task=toy_math", "seed=0", "task.held_out.count=4", "evaluate.limit=4", "evaluate.samples=1", "evaluate.ks=[1]"),
    # in many small steps, so that no run has trained all before it is ended
    *("budget.tasks_per_step=1", "budget.rollouts=128"),
)
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


def test_wrong_overrides_are_refused_before_they_are_submitted(
    submit: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refusal(*overrides: str) -> str:
        assert submit(*overrides) == 1
        return capsys.readouterr().err

    for override in ("launch.resources.cpus=3", "launch.resources.nodes=2", "evaluate.samples=0"):
        assert override.partition("=")[0].rpartition(".")[2] in refusal(override)
    monkeypatch.setenv("PATH", "/nonesuch")
    assert "launch.py run" in refusal()
    monkeypatch.setenv("ELEMENTS", "--comment='no end")
    assert "ELEMENTS" in refusal()
    assert list(tmp_path.iterdir()) == []
    (element,) = launched.load("main_table", (*ONE, f"results={tmp_path / 'results'}")).elements
    RunFolder(element.run.folder).open(element.run.as_dict())
    (element.run.folder / JOURNAL).write_text("a charge\n")
    assert "optimizer.lr" in refusal("optimizer.lr=0.1")


def test_the_elements_have_options_of_their_own_and_all_jobs_the_environment(
    submit: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    asked = tmp_path / "asked"
    put_programs(tmp_path / "bin", monkeypatch, sbatch=f'echo "$@" >> {asked}; echo 7; exit $REFUSED')
    monkeypatch.setenv("ELEMENTS", "--partition=gpu --comment='two words'")
    for refused in (1, 0):  # it is asked before anything is submitted
        monkeypatch.setenv("REFUSED", str(refused))
        assert submit() == refused
    refused, tested, array, tables = asked.read_text().splitlines()
    assert refused == tested
    assert all("--export=ALL" in job.split() for job in (tested, array, tables))
    for job in (tested, array):
        # before the script: what follows it is the script's own
        assert "--partition=gpu --comment=two words " in job.partition("element.sh")[0]
    assert "--array=0" in array.split()
    assert "--dependency=afterany:7" in tables
    assert "--partition" not in tables
    before = asked.read_text()
    for job, exits in (("7_0|main_table|PENDING", 0), ("7_0|main_table|RUNNING", 0), ("", 1)):
        put_programs(tmp_path / "bin", monkeypatch, squeue=f"echo '{job}'; exit {exits}", sacct="exit 1")
        assert submit("launch.at_once=3") == exits
    assert asked.read_text() == before
    put_programs(tmp_path / "bin", monkeypatch, squeue="echo '7_0|main_table|RUNNING'")
    assert submit("launch.at_once=3", "algorithm=grpo,rtpo") == 0
    assert "--array=1%3" in asked.read_text().split()
    put_programs(
        tmp_path / "bin", monkeypatch, squeue="echo '7_0|another|RUNNING'", sacct="echo '7_0|main_table|RUNNING'"
    )
    assert submit("launch.at_once=3") == 0
    assert "--array=0%3" in asked.read_text().split()


def test_a_pattern_takes_several_experiments() -> None:
    small = ["profile=toy", "task=toy_math", "seed=0"]
    several = launched.load("ablate_clamp_*", small)
    assert [experiment.name for experiment in several.experiments] == ["ablate_clamp_tight", "ablate_clamp_wide"]
    assert len(several.elements) == sum(len(experiment.elements) for experiment in several.experiments)
    with pytest.raises(ConfigError):
        launched.load("ablate_clamp_*", [*small, "algorithm.label=one"])
    assert several.first is several.experiments[0]
    changed = replace(several.experiments[1], keep="nothing")
    with pytest.raises(ConfigError, match="differ in launch"):
        replace(several, experiments=(several.experiments[0], changed)).first  # noqa: B018


def test_evaluations_take_the_contexts_of_training() -> None:
    overrides = ["profile=a100x8", "algorithm=rtpo", "seed=0", "evaluate.samples=8", "evaluate.seed=3"]
    credit = launched.load("credit", overrides)
    (element,) = credit.elements
    evaluation, run = launched.evaluation_of(credit, element), element.run
    assert evaluation is not None
    assert (evaluation.samples, evaluation.seed, evaluation.rollout_context) == (8, 3, "full")
    assert evaluation.contexts > 0  # of questions that the paper's two case figures could show
    assert Path(evaluation.results, evaluation.experiment_name, str(evaluation.label)) == run.folder


def test_starting_three_times_from_one_place_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "logs" / "1_0.starts"
    for place in ("nothing", "step 1", "step 1", "step 2", "step 2"):
        submission.check_progress(file, place)
    with pytest.raises(MachineError, match=r"launch\.resources\.minutes"):
        submission.check_progress(file, "step 2")


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


def test_the_commands_from_clone_to_table_name_scripts_and_compose() -> None:
    page = (PROJECT / "docs" / "cluster" / "first_table.md").read_text()
    commands = "".join(re.findall(r"^```\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    scripts = set(re.findall(r"\b(?:experiments|analysis|slurm|requirements)/[\w.-]+\.\w+", commands))
    assert {"experiments/plan.py", "slurm/main_table.sh", "requirements/gpu.txt"} <= scripts
    assert [script for script in scripts if not (PROJECT / script).is_file()] == []
    settings = r"((?: [\w.]+=[^\s\"]+)*)"
    elements = re.findall(rf"(?:plan|preflight|launch)\.py (?:status |run )?(\w+){settings}", commands)
    submitted = re.findall(rf"PROFILE=(\w+) bash slurm/(\w+)\.sh{settings}", commands)
    elements += [(name, f"profile={profile}{further}") for profile, name, further in submitted]
    composed = {(name, *overrides.split()) for name, overrides in elements}
    assert len(composed) == 3
    for name, *overrides in composed:
        first = [] if "seed=0" in overrides else ["seed=0"]
        assert load_experiment(name, [*overrides, *first]).elements


@pytest.mark.parametrize(
    ("active", "chosen"),
    [
        ({}, ".venv"),
        ({"CONDA_PREFIX": "conda", "CONDA_DEFAULT_ENV": "base"}, ".venv"),  # active in every shell of many users
        ({"CONDA_PREFIX": "conda", "CONDA_DEFAULT_ENV": "rtpo"}, "conda"),
        ({"CONDA_PREFIX": "conda"}, "conda"),
        ({"VIRTUAL_ENV": "mine", "CONDA_PREFIX": "conda", "CONDA_DEFAULT_ENV": "base"}, "mine"),
    ],
)
def test_a_launcher_takes_the_active_environment_and_names_it_first(
    active: dict[str, str], chosen: str, tmp_path: Path
) -> None:
    for name in (".venv", "conda", "mine"):
        python = tmp_path / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text('#!/bin/sh\necho "ran by $0"\n')
        python.chmod(0o755)
    (tmp_path / "slurm").mkdir()
    script = f"here={tmp_path}/slurm; . {PROJECT}/slurm/common.sh main_table"
    prefixes = {key: value if key == "CONDA_DEFAULT_ENV" else str(tmp_path / value) for key, value in active.items()}
    environment = {"PATH": os.defpath} | prefixes
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    python = tmp_path / chosen / "bin" / "python"
    assert done.stdout.splitlines() == [f"python: {python}", f"ran by {python}"]


def test_a_node_gives_an_element_a_folder_of_its_users_alone_or_fails(tmp_path: Path) -> None:
    """Whoever else could write there would name the Ray to which the element shows its token."""
    script = (PROJECT / "slurm" / "element.sh").read_text()
    function = re.search(r"^own_folder\(\).*?^}", script, re.MULTILINE | re.DOTALL)
    assert function is not None

    def is_taken(place: Path) -> bool:
        command = ["bash", "-c", f'{function[0]}\numask 0; own_folder "$1"', "bash", str(place)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    new, own, link = tmp_path / "new", tmp_path / "own", tmp_path / "link"
    assert is_taken(new)
    assert new.stat().st_mode & 0o777 == 0o700
    assert is_taken(new)
    own.mkdir()
    for mode in (0o777, 0o755, 0o770):
        own.chmod(mode)
        assert not is_taken(own)
    link.symlink_to(new)
    assert not is_taken(link)
    if os.getuid() == 0:
        os.chown(new, 65534, 65534)
        assert not is_taken(new)


@on_slurm
@pytest.mark.usefixtures("cluster")
def test_an_element_on_two_nodes_goes_on_after_it_is_preempted_and_others_are_stopped_and_cancelled(
    submit: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a training process and an engine on each node. One that is stopped at once preempts it; one that is
    cancelled as it trains shares a node with it, and is submitted again. All of it beside the committed main table."""
    results, logs = tmp_path / "results", tmp_path / "logs" / "main_table"
    for folder in (PROJECT / "results").glob("main_table_toy_*"):
        copytree(folder, results / folder.name)
    monkeypatch.setenv("SBATCH_EXPORT", "NONE")  # as a cluster may have it
    Path("/tmp/rtpo-999999999-killed/sockets").mkdir(parents=True, exist_ok=True)

    def submit_by_script(partition: str, *overrides: str) -> str:
        """The controller as a job, of which SLURM runs a copy."""
        environment = os.environ | {"PROFILE": "toy", "LOGS": str(logs.parent), "ELEMENTS": f"--partition={partition}"}
        controller = ["sbatch", "--parsable", "--export=ALL", str(PROJECT / "slurm" / "main_table.sh")]
        typed = [*controller, f"results={results}", *overrides, "launch.resources.cpus=4"]
        job = subprocess.run(typed, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        printed = tmp_path / f"main_table-{job.stdout.strip()}.log"
        wait_until(lambda: printed.exists() and "submitted as" in printed.read_text(), "submitted")
        return job_in(printed.read_text())

    of_two = (*SHORT, "algorithm=rtpo", "algorithm.trunks=2", "experiment_name=two_nodes", "profile.nodes=2")
    preempted, two = submit_by_script("both", *of_two), RunFolder(results / "two_nodes" / "rtpo-seed0")
    log = logs / f"{preempted}_0.log"

    of_one = (*SHORT, "algorithm=grpo", "experiment_name=one_node")
    one_node = RunFolder(results / "one_node" / "grpo-seed0")

    def submit_held(partition: str, *overrides: str) -> str:
        monkeypatch.setenv("ELEMENTS", f"--partition={partition} --hold")
        assert submit(*of_one, *overrides) == 0
        return job_in(capsys.readouterr().out)

    stopped = submit_held("high", "launch.resources.cpus=8")  # beside which there is no room for the other
    wait_until(lambda: two.has_trained, "two nodes train")
    for actor in ("AgentWorker", "EmbeddedServer"):
        assert nodes_of(actor, preempted) == ["first", "second"]
    subprocess.run(["scontrol", "release", stopped], check=True)
    wait_until(lambda: "back to the queue" in log.read_text(), "two nodes are preempted")
    assert nodes_of("AgentWorker", preempted) == []
    wait_until(lambda: any(Path("/tmp").glob(f"rtpo-{stopped}-*/log")), "Ray starts on one node")
    assert launch.main(["stop", "main_table", "profile=toy", *of_one, f"results={results}"]) == 0
    assert f"{stopped}_0" in capsys.readouterr().out
    wait_until(lambda: f"{stopped}_0" not in queue(), "one node is stopped before it trains")
    assert not one_node.has_trained
    cancelled = submit_held("low", "launch.resources.cpus=4", "algorithm=rtpo,grpo")
    subprocess.run(["scancel", f"{cancelled}_0"], check=True)
    subprocess.run(["scontrol", "release", f"{cancelled}_1"], check=True)
    wait_until(lambda: one_node.has_trained, "the second element trains")
    subprocess.run(["scancel", f"{cancelled}_1"], check=True)
    wait_until(lambda: queue() == "", "all jobs have ended")

    for job, last, ends, complete in ((preempted, 0, 1, 1), (stopped, 0, 0, 0), (cancelled, 1, 1, 0)):
        printed = (logs / f"{job}_{last}.log").read_text()
        assert printed.count("SIGTERM: finishing this phase, then saving") == ends
        assert printed.count("back to the queue") == printed.count("resuming ") == complete
        assert f"complete: {complete} of {counted(last + 1, 'element')}\n" in (logs / f"{job}_tables.log").read_text()
    assert [folder.name for folder in one_node.path.parent.iterdir()] == [one_node.path.name]
    assert launch.main(["status", str(one_node.path)]) == 0
    assert "  stopped  " in capsys.readouterr().out
    assert make_tables.main(["--results", str(results)]) == 0

    of_both = ("experiment_name=one_node", "algorithm=rtpo,grpo", "launch.at_once=1")
    resubmitted = submit_by_script("low", *SHORT, *of_both)
    wait_until(lambda: queue() == "", "the cancelled array has gone on to its end")
    assert ["resuming " in (logs / f"{resubmitted}_{index}.log").read_text() for index in (0, 1)] == [False, True]
    assert "complete: 2 of 2 elements" in (logs / f"{resubmitted}_tables.log").read_text()
    again, whole = one_node.manifest, int(SHORT[-1].partition("=")[2])
    assert (again["resumed"], again["ledger"]["lost"], again["ledger"]["rollouts"]) == (1, 0, whole)
    for command in (make_tables, make_figures):
        assert command.main(["--results", str(results)]) == 0

    ledger, steps = two.manifest["ledger"], lines(two.path, "steps.jsonl")
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
    assert (two.manifest["resumed"], ledger["lost"], ledger["rollouts"]) == (1, 0, steps[-1]["rollouts"])
    assert RunFolder(two.path / "toy_math").is_finished
    for name, rows in (("one_node", 2), ("two_nodes", 1)):
        assert len(pd.read_csv(results / "tables" / f"{name}_runs.csv")) == rows

    left = subprocess.run(["pgrep", "--full", "--list-full", "/tmp/rtpo-[0-9]"], capture_output=True, text=True)
    assert left.stdout == ""
    assert not list(Path("/tmp").glob("rtpo-[0-9]*"))
    assert Path(f"/tmp/rtpo-cache-{os.getuid()}").stat().st_mode & 0o777 == 0o700  # what was compiled stays


def job_in(printed: str) -> str:
    """The array job that a controller submitted."""
    return printed.partition("submitted as job ")[2].split()[0]


def nodes_of(actor: str, job: str) -> list[str]:
    """The nodes that a job's actors of a class run on, by what SLURM told the raylets that started them."""
    nodes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            parent = process.parent() if " ".join(process.cmdline()).startswith(f"ray::{actor}") else None
            told = parent.environ() if parent else {}
            if told.get("SLURM_ARRAY_JOB_ID") == job:
                nodes.append(told["SLURMD_NODENAME"])
    return sorted(nodes)
