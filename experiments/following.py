"""The state of runs, from their records and SLURM's queue, and requests to stop them, for `launch.py`."""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from rtpo.core.files import whole_lines, write_whole
from rtpo.errors import DataError, MachineError
from rtpo.run.cli import aligned
from rtpo.run.kept import kept_run
from rtpo.run.lines import duration, percent
from rtpo.run.records import LOG, RunFolder

HEADER = ("Run", "State", "Rollouts", "Success", "Last save", "Left", "Log")
QUEUED = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "CONFIGURING")
"""SLURM's states of a job without a process"""
TRAINING = ("train", "launch", "quickstart", "study")
"""commands that save and end at SIGTERM"""


@dataclass(frozen=True)
class Job:
    """A job of a SLURM array."""

    name: str
    state: str  # SLURM's; empty if it knows no such job, UNKNOWN if it does not answer
    log: Path


class Process(NamedTuple):
    """A process of this machine."""

    process_id: int
    script: str  # the file or module that it runs; empty if that cannot be seen

    @property
    def command(self) -> str:
        return re.split(r"[/.]", self.script.removesuffix(".py"))[-1]


# SLURM's jobs


def note_jobs(logs: Path, array: str, folders: Mapping[str, Path]) -> None:
    """Write down the run of each index of an array job."""
    named = {index: str(folder.absolute()) for index, folder in folders.items()}
    write_whole(logs / f"{array}.json", json.dumps(named).encode())


def submitted(logs: Path) -> dict[Path, Job]:
    """By run folder, the last job that was submitted with its log below `logs`."""
    jobs: dict[Path, Job] = {}
    for file in sorted(logs.glob("*/*.json"), key=lambda file: file.stat().st_mtime):
        for index, folder in json.loads(file.read_text()).items():
            name = f"{file.stem}_{index}"
            jobs[Path(folder)] = Job(name, "UNKNOWN", file.with_name(f"{name}.log"))
    return jobs


def jobs_of(runs: Collection[Path], logs: Path) -> tuple[dict[Path, Job], str]:
    """The last job of each run that was submitted, and a sentence if SLURM does not answer, else "". States come from
    squeue. Jobs that have left the queue have states from sacct, if the cluster keeps accounts."""
    known = submitted(logs)
    jobs = {folder: known[folder.absolute()] for folder in runs if folder.absolute() in known}
    states: dict[str, str] = {}
    if jobs and shutil.which("sacct"):
        names = ",".join(job.name for job in jobs.values())
        states |= _answer("sacct", "--parsable2", "--allocations", "--format=JobID,JobName,State", f"--jobs={names}")[0]
    if jobs and shutil.which("squeue"):
        queued, failure = _queue()
        if failure:
            return jobs, failure
        states |= queued
    # clusters reuse job numbers, so a job must also have the name of its log's folder
    named = {folder: f"{job.name}|{job.log.parent.name}" for folder, job in jobs.items()}
    return {folder: replace(job, state=states.get(named[folder], "")) for folder, job in jobs.items()}, ""


def unended(runs: Collection[Path], logs: Path) -> dict[Path, str]:
    """By run, its job's name, of an experiment's jobs that SLURM's queue still has. logs: the experiment's folder of
    logs. Raises MachineError if SLURM does not answer."""
    known = {folder: job.name for folder, job in submitted(logs.parent).items() if job.log.parent == logs}
    jobs = {folder: known[folder.absolute()] for folder in runs if folder.absolute() in known}
    queued, failure = _queue() if jobs and shutil.which("squeue") else ({}, "")
    if failure:
        raise MachineError(failure)
    return {folder: name for folder, name in jobs.items() if f"{name}|{logs.name}" in queued}


def _queue() -> tuple[dict[str, str], str]:
    """The queue's states by job id and name, and a sentence if SLURM does not answer."""
    queued, failure = _answer("squeue", "--array", f"--user={os.getuid()}", "--format=%i|%j|%T")
    return queued, failure and f"SLURM does not say what runs ({failure}): try again when it answers."


def _answer(*command: str) -> tuple[dict[str, str], str]:
    """States by job id and name, and SLURM's message if it fails."""
    done = subprocess.run([*command, "--noheader"], capture_output=True, text=True, check=False)
    states = {name: state for name, _, state in (line.rpartition("|") for line in done.stdout.splitlines())}
    return (states, "") if done.returncode == 0 else ({}, last_line(done.stderr))


def last_line(text: str) -> str:
    """The last line of a program's output."""
    return (text.strip().splitlines() or ["no message"])[-1]


# this machine's processes


def holder_of(folder: Path) -> Process | None:
    """The process of this machine that holds a run or one of its evaluations (`RunFolder.held`)."""
    places = [folder, *(file.parent for file in folder.glob("*/config.yaml"))]
    inodes = {str(place.stat().st_ino): place for place in places if place.exists()}
    # a line of /proc/locks: 1: FLOCK ADVISORY WRITE <process> <device>:<inode> 0 EOF; with "->" the process waits
    for words in map(str.split, Path("/proc/locks").read_text().splitlines()):
        holder, inode = words[-4], words[-3].rpartition(":")[2]
        place = inodes.get(inode)
        if place is not None and "FLOCK" in words and "->" not in words:
            process = Path(f"/proc/{holder}")
            with suppress(OSError):  # it is another user's, or has just ended
                if any(_is_same(file, place) for file in (process / "fd").iterdir()):
                    command_line = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
                    scripts = (word for word in command_line if word.endswith(".py") or word.startswith("experiments."))
                    return Process(int(process.name), next(scripts, ""))
    return None


def _is_same(file: Path, folder: Path) -> bool:
    with suppress(OSError):  # closed since it was listed
        return file.samefile(folder)
    return False


# state and stop


def status(runs: Mapping[Path, Sequence[str]], jobs: Mapping[Path, Job]) -> str:
    """A table with a line for each run. runs: benchmarks by folder. For damaged records a sentence replaces the log."""
    lines: list[tuple[str, ...]] = [HEADER]
    for folder, benchmarks in runs.items():
        name = f"{folder.parent.name}/{folder.name}"
        try:
            lines.append((name, *_line(folder, benchmarks, jobs.get(folder))))
        except (DataError, KeyError, TypeError, ValueError) as error:
            why = str(error) if isinstance(error, DataError) else f"{folder} has records that are damaged ({error!r})"
            lines.append((name, "damaged", "-", "-", "-", "-", why))
    return aligned(lines)


def _line(folder: Path, benchmarks: Sequence[str], job: Job | None) -> tuple[str, ...]:
    run, pointer = RunFolder(folder), folder / "checkpoints" / "latest"
    config = run.config if (folder / "config.yaml").exists() else None
    steps, state = _lines(folder / "steps.jsonl"), _state(run, benchmarks, job)
    logs = [file for file in (*([job.log] if job else []), folder / LOG) if file.exists()]
    log = max(logs, key=lambda file: file.stat().st_mtime, default=None)
    shown = "-" if log is None else LOG if log == folder / LOG else os.path.relpath(log)
    saved = f"{datetime.fromtimestamp(pointer.stat().st_mtime):%m-%d %H:%M:%S}" if pointer.exists() else "-"
    if config is None:
        return state, "-", "-", saved, "-", shown
    budget, left = config["budget"]["rollouts"], "-"
    if state == "running" and steps:  # at the pace of training so far
        seconds = sum(value for phase, value in steps[-1]["seconds"].items() if phase != "evaluate")
        left = duration(seconds / steps[-1]["rollouts"] * (budget - steps[-1]["rollouts"]))
    rollouts = f"{run.charged_rollouts(steps)}/{budget}"
    return state, rollouts, _success(folder, steps), saved, left, shown


def missing(folder: Path, benchmarks: Sequence[str]) -> list[str]:
    """The unfinished parts of a run: training, or benchmarks by name."""
    if not RunFolder(folder).is_finished:
        kept = kept_run(folder)
        return ["training"] if kept is None else [name for name in benchmarks if name not in kept.benchmarks]
    return [name for name in benchmarks if not RunFolder(folder / name).is_finished]


def _state(run: RunFolder, benchmarks: Sequence[str], job: Job | None) -> str:
    if not missing(run.path, benchmarks):
        return "complete"
    state, process = job.state if job else "", holder_of(run.path)
    if state in QUEUED:
        return "queued"
    if (process and process.command in (*TRAINING, "evaluate")) or state in ("RUNNING", "COMPLETING"):
        return "evaluating" if run.is_finished or (process and process.command == "evaluate") else "running"
    if state in ("SUSPENDED", "UNKNOWN"):
        return state.lower()
    if run.is_finished:
        return "trained"
    if (run.path / "checkpoints" / "latest").exists():
        return "stopped"
    return state.lower() or ("not saved" if run.has_trained else "not started")


def _success(folder: Path, steps: Sequence[Mapping[str, Any]]) -> str:
    """Held-out success at temperature 1 after training; before that, success of the last step's first paths."""
    after = [row for row in _lines(folder / "evaluations.jsonl") if (row["when"], row["mode"]) == ("after", "sampled")]
    if after:
        graded = [row["reward"] for row in after if row["reward"] is not None]
        return f"{percent(sum(r == 1 for r in graded) / len(graded) if graded else None)} held-out"
    return f"{percent(steps[-1]['success'])} training" if steps else "-"


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in whole_lines(file).splitlines()]


def stop(folder: Path, job: Job | None) -> str | None:
    """Ask a run to save and end. Returns what was done, or None if no job or process runs. Raises MachineError."""
    if job is not None and job.state == "UNKNOWN":
        raise MachineError(f"{folder}: whether job {job.name} runs is unknown, and it was left alone.")
    if job is not None and job.state == "SUSPENDED":
        raise MachineError(
            f"{folder}: job {job.name} is suspended and hears nothing: resume it, or scancel {job.name}."
        )
    if job is not None and job.state in (*QUEUED, "RUNNING"):
        to_script = ("--batch", "--signal=TERM") if job.state == "RUNNING" else ()  # slurm/element.sh
        done = subprocess.run(["scancel", *to_script, job.name], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise MachineError(f"{folder}: job {job.name} goes on, scancel failed ({last_line(done.stderr)}).")
        outcome = "was asked to end its phase, save and end" if to_script else "is taken out of the queue"
        return f"{folder}: job {job.name} {outcome}"
    process = holder_of(folder)
    if process is None:
        return None
    if process.command not in TRAINING:
        name = process.script or "unknown"
        raise MachineError(f"{folder}: process {process.process_id} ({name}) does not train: it was left alone.")
    try:
        os.kill(process.process_id, signal.SIGTERM)
    except ProcessLookupError:
        return None
    return f"{folder}: process {process.process_id} was asked to end its phase, save and end"
