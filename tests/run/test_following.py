"""How far runs are, and how they are asked to end: processes of this machine with real locks and signals, SLURM's words
by programs that say them. On a real SLURM: tests/run/test_slurm.py."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest
from conftest import compose_config
from programs import put_programs

from experiments import launch, launched
from rtpo.run.config import PROJECT
from rtpo.run.records import JOURNAL, LOG, RunFolder

WORK = """
import sys, time
from pathlib import Path
from rtpo.run.records import RunFolder
from rtpo.run.stopping import StopRequest
stop = StopRequest()
with RunFolder(Path(sys.argv[1])).held(), stop.listening():
    print("held", flush=True)
    while not stop.reason:
        time.sleep(0.01)
    print("saving", flush=True)
    sys.stdin.readline()
"""
"""holds a run's folder until it is told to stop, and told again, as training does"""
STEP = {"rollouts": 100, "success": 0.25, "seconds": {"generate": 10.0, "evaluate": 99.0}}


@pytest.fixture
def folder(results: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that has trained and not saved."""
    monkeypatch.setenv("LOGS", str(results / "logs"))
    config = compose_config(f"results={results}", "budget.rollouts=400", "sampling.temperature=0.9")
    run = RunFolder(config.folder)
    run.open(config.as_dict())
    (run.path / JOURNAL).write_text('{"charged": 120, "total": 150, "rollouts": 120}\n{"char')
    run.append("steps.jsonl", [STEP])
    with (run.path / "steps.jsonl").open("a") as steps:
        steps.write('{"rollouts": 2')
    (run.path / LOG).write_text("step 1\n")
    return run.path


@contextmanager
def working(folder: Path, script: str, stdin: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[bytes]]:
    """A process of a command of this name, which holds the folder."""
    file = Path(os.environ["LOGS"]).parent / script
    file.write_text(WORK)
    command = [sys.executable, str(file), str(folder)]
    path = {"PYTHONPATH": str(PROJECT)}
    with subprocess.Popen(command, env=os.environ | path, stdin=stdin, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process


def status(capsys: pytest.CaptureFixture[str], *words: str) -> list[list[str]]:
    """The table's cells."""
    capsys.readouterr()
    assert launch.main(["status", *words]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]


def test_a_run_is_followed_and_stopped(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ((name, state, rollouts, success, saved, left, log),) = status(capsys, str(folder))
    assert (name, state, rollouts, saved, left) == ("default/rtpo-seed0", "not saved", "120/400", "-", "-")
    assert success == "25.0 % training"
    assert log == LOG

    assert launch.main(["stop", str(folder)]) == 1
    assert "nothing to stop" in capsys.readouterr().out
    with working(folder, "train.py", stdin=subprocess.PIPE) as process:
        ((_, state, _, _, _, left, _),) = status(capsys, f"results={folder.parents[1]}")
        assert (state, left) == ("running", "30 s")
        assert launch.main(["stop", str(folder)]) == 0
        assert process.stdout is not None
        while process.stdout.readline() != b"saving\n":
            pass
        assert launch.main(["stop", str(folder)]) == 0
        process.communicate(b"\n", timeout=60)
        assert process.returncode == 0  # a second time does not cut the save off
    assert status(capsys, str(folder))[0][1] == "not saved"


def test_what_is_not_named_or_is_not_training_is_left_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = Path(shutil.copytree(folder, folder.with_name("rtpo,lr=0.1-seed0")))
    with working(folder, "export.py") as process, working(other, "train.py") as training:
        assert [line[1] for line in status(capsys, str(folder.parent))] == ["running", "not saved"]
        for words in ("seed=1", f"results={folder.parents[1]}", f"{other} seed=1"):
            assert launch.main(["stop", *words.split()]) == 1
        assert "asked" not in capsys.readouterr().out
        assert training.poll() is None
        assert [line[1] for line in status(capsys, str(other))] == ["running"]
        assert launch.main(["stop", str(other)]) == 0
        assert training.wait(timeout=60) == 0
        assert launch.main(["stop", str(folder.parent)]) == 1
        assert "export.py" in capsys.readouterr().err
        assert process.poll() is None
        process.terminate()


def test_the_states_of_what_was_saved_and_what_is_trained(
    folder: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pointer = folder / "checkpoints" / "latest"
    pointer.parent.mkdir()
    pointer.write_text("step00001\n")
    os.utime(pointer, (at := datetime(2026, 3, 4, 5, 6, 7).timestamp(), at))
    assert status(capsys, str(folder))[0][1::3] == ["stopped", "03-04 05:06:07"]

    answers = [{"when": "after", "mode": "sampled", "reward": reward} for reward in (1.0, 0.0, 0.5, 1.0, None)]
    RunFolder(folder).append("evaluations.jsonl", answers)
    (folder / "manifest.json").write_text("{}")
    started = "budget.rollouts=400 sampling.temperature=0.9 experiment_name=default"
    words = ("main_table", "task=toy_math", "algorithm=rtpo", "seed=0", *started.split(), f"results={results}")
    ((_, state, _, success, *_),) = status(capsys, *words)
    assert (state, success) == ("trained", "50.0 % held-out")
    (benchmark,) = launched.load(words[0], words[1:]).elements[0].benchmarks
    RunFolder(folder / benchmark).open({})
    with working(folder / benchmark, "evaluate.py") as process:
        assert status(capsys, *words)[0][1] == "evaluating"
        process.terminate()
    (folder / benchmark / "manifest.json").write_text("{}")
    assert status(capsys, *words)[0][1] == "complete"
    assert launch.main(["stop", *words]) == 1


def test_what_is_damaged_finished_or_not_there_is_said(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage = {"a": ("config.yaml", "a: ["), "b": ("steps.jsonl", "{}\n"), "c": ("config.yaml", "{}")}
    for name, (file, text) in (damage | {"d": ("manifest.json", "")}).items():
        (shutil.copytree(folder, folder.with_name(name)) / file).write_text(text)
    lines = status(capsys, str(folder.parent))
    assert [line[1] for line in lines] == [*["damaged"] * 4, "not saved"]
    assert "config.yaml" in lines[0][-1]
    assert "manifest.json" in lines[3][-1]
    assert {line[1] for line in status(capsys, str(PROJECT / "results" / "reference"))} == {"complete"}
    assert launch.main(["status", str(tmp_path)]) == 0
    assert launch.main(["status", str(tmp_path / "nowhere" / "mine")]) == 1
    assert "makes its folder" in capsys.readouterr().err


def test_slurm_is_asked_about_what_was_submitted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logs, to_script = folder.parents[1] / "logs" / "main_table", "--batch --signal=TERM 7_3"
    for job, accounts, failed, state, expected in (
        ("main_table|RUNNING", "main_table|RUNNING", 0, "running", to_script),
        ("main_table|RUNNING", "main_table|RUNNING", 1, "running", to_script),
        ("main_table|SUSPENDED", "main_table|SUSPENDED", 0, "suspended", ""),
        ("main_table|PENDING", "main_table|PENDING", 0, "queued", "7_3"),
        ("", "main_table|FAILED", 0, "failed", ""),
        ("another|RUNNING", "another|FAILED", 0, "not saved", ""),
    ):
        slurm_says(logs, folder, job and f"7_3|{job}", f"7_3|{accounts}", failed, monkeypatch)
        (line,) = status(capsys, f"results={folder.parents[1]}")
        assert line[1] == state
        assert Path(line[-1]).samefile(logs / "7_3.log")
        assert launch.main(["stop", str(folder)]) == (0 if expected and not failed else 1)
        assert (logs / "asked").read_text().strip() == expected


def test_a_slurm_that_does_not_answer_is_not_taken_for_an_empty_queue(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm_says(logs := folder.parents[1] / "logs" / "main_table", folder, "", "", 0, monkeypatch)
    put_programs(logs, monkeypatch, squeue="echo 'slurm_load_jobs error: Unable to contact' >&2; exit 1")
    here = Path(shutil.copytree(folder, folder.with_name("seed1")))
    with working(here, "train.py") as process:
        assert launch.main(["status", str(folder.parent)]) == 1
        said = capsys.readouterr()
        assert [line.split()[1] for line in said.out.splitlines()[1:]] == ["unknown", "running"]
        assert "Unable to contact" in said.err
        assert status(capsys, str(here))[0][1] == "running"  # it was not submitted: SLURM is not asked
        assert launch.main(["stop", str(folder.parent)]) == 1
        assert process.wait(timeout=60) == 0
    assert "7_3" in capsys.readouterr().err


def slurm_says(logs: Path, folder: Path, job: str, accounts: str, failed: int, patch: pytest.MonkeyPatch) -> None:
    """Its programs, for the fourth element of job 7; what scancel is asked is in the file `asked`."""
    logs.mkdir(parents=True, exist_ok=True)
    (logs / "7.json").write_text(json.dumps({"3": str(folder)}))
    for file in ("7_3.log", "asked"):
        (logs / file).write_text("")
    asked = f'echo "$@" > {logs}/asked; exit {failed}'
    put_programs(logs, patch, squeue=f"echo '{job}'", sacct=f"echo '{accounts}'", scancel=asked)
