"""How far runs are, and how they are asked to end: processes of this machine with real locks and signals, SLURM's words
by programs that say them. On a real SLURM: tests/test_slurm.py."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import compose_config

from experiments import launch
from rtpo.run.config import PROJECT
from rtpo.run.records import JOURNAL, LOG, RunFolder

WORK = """
import sys, time
from pathlib import Path
from rtpo.run.records import RunFolder
from rtpo.run.run import StopRequest
stop = StopRequest()
with RunFolder(Path(sys.argv[1])).held(), stop.listening():
    print("held", flush=True)
    while not stop.reason:
        time.sleep(0.01)
"""
"""holds a run's folder until it is told to stop, as training does"""


@pytest.fixture
def folder(results: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that has trained and not saved."""
    monkeypatch.setenv("LOGS", str(results / "logs"))
    config = compose_config(f"results={results}", "budget.rollouts=400", "sampling.temperature=0.9")
    run = RunFolder(config.folder)
    run.open(config.as_dict())
    (run.path / JOURNAL).write_text("a charge\n")
    seconds = {"generate": 10.0, "evaluate": 99.0}
    run.append("steps.jsonl", [{"rollouts": 100, "success": 0.25, "seconds": seconds}])
    with (run.path / "steps.jsonl").open("a") as steps:
        steps.write('{"rollouts": 2')
    (run.path / LOG).write_text("step 1\n")
    return run.path


def status(capsys: pytest.CaptureFixture[str], *words: str) -> list[list[str]]:
    """The table's cells."""
    capsys.readouterr()
    assert launch.main(["status", *words]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]


def test_a_run_is_followed_and_stopped(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ((name, state, rollouts, success, saved, left, log),) = status(capsys, str(folder))
    assert status(capsys, str(folder.parent)) == status(capsys, str(folder))
    assert (name, state, rollouts, saved, left) == ("default/rtpo-seed0", "not saved", "100/400", "-", "-")
    assert success == "25.0 % training, temperature 0.9"
    assert Path(log).samefile(folder / LOG)

    assert launch.main(["stop", str(folder)]) == 1
    assert "nothing to stop" in capsys.readouterr().out
    with subprocess.Popen([sys.executable, "-c", WORK, str(folder)], cwd=PROJECT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        ((_, state, _, _, _, left, _),) = status(capsys, f"results={folder.parents[1]}")
        assert (state, left) == ("running", "30 s")
        assert launch.main(["stop", str(folder)]) == 0
        assert f"process {process.pid} ends its phase, saves and ends" in capsys.readouterr().out
        assert process.wait(timeout=60) == 0
    assert status(capsys, str(folder))[0][1] == "not saved"


def test_elements_that_were_not_started_are_listed_too(capsys: pytest.CaptureFixture[str], results: Path) -> None:
    words = ("task=toy_math", "algorithm=grpo,rtpo", "seed=5", f"results={results}")
    lines = status(capsys, "main_table", *words)
    assert [line[:3] for line in lines] == [
        [f"main_table_toy_toy_math/{label}-seed5", "not started", "-"] for label in ("grpo", "rtpo")
    ]


@pytest.mark.parametrize(
    ("queue", "accounts", "state", "asked"),
    [
        ("RUNNING", "RUNNING", "running", None),
        ("PENDING", "PENDING", "queued", "7_3"),
        ("", "FAILED", "failed", None),
        ("", "", "not saved", None),
    ],
)
def test_slurm_is_asked_about_what_was_submitted(
    queue: str,
    accounts: str,
    state: str,
    asked: str | None,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs = folder.parents[1] / "logs" / "main_table"
    logs.mkdir(parents=True)
    (logs / "7.json").write_text(json.dumps({"3": str(folder)}))
    (logs / "7_3.log").write_text("")
    programs = {"squeue": f"echo '{queue and f'7_3|{queue}'}'", "sacct": f"echo '{accounts and f'7_3|{accounts}'}'"}
    programs["scancel"] = f'echo "$@" > {logs}/asked'
    for name, body in programs.items():
        program = logs / name
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{logs}:/usr/bin:/bin")
    (line,) = status(capsys, f"results={folder.parents[1]}")
    assert line[1] == state
    assert Path(line[-1]).samefile(logs / "7_3.log")
    assert launch.main(["stop", str(folder)]) == (0 if asked else 1)
    assert ((logs / "asked").read_text().strip() if asked else asked) == asked
