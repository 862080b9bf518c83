"""How far runs are, from their records and from SLURM's queue, and how they are asked to end, for `launch.py`."""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rtpo.core.files import write_whole
from rtpo.errors import DataError, MachineError
from rtpo.run import archives
from rtpo.run.records import LOG, RunFolder
from rtpo.run.run import duration, percent

HEADER = ("Run", "State", "Rollouts", "Success", "Last save", "Left", "Log")
QUEUED = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "CONFIGURING")
"""SLURM's states of a job that has no process"""
UNKNOWN = "UNKNOWN"
TRAINING = ("train", "launch", "quickstart", "study")
"""commands that save and end at SIGTERM"""


@dataclass(frozen=True)
class Job:
    """A place in an array job. state: in SLURM's words; empty where SLURM does not know it any more, UNKNOWN where it
    has not said."""

    name: str
    state: str
    log: Path


def note_jobs(logs: Path, array: str, folders: Mapping[str, Path]) -> None:
    """Write down which run each of an array job's indices is."""
    named = {index: str(folder.absolute()) for index, folder in folders.items()}
    write_whole(logs / f"{array}.json", json.dumps(named).encode())


def submitted(logs: Path) -> dict[Path, Job]:
    """The last job of each run that was submitted with its log below a folder."""
    found: dict[Path, Job] = {}
    for file in sorted(logs.glob("*/*.json"), key=lambda file: file.stat().st_mtime):
        for index, folder in json.loads(file.read_text()).items():
            name = f"{file.stem}_{index}"
            found[Path(folder)] = Job(name, UNKNOWN, file.with_name(f"{name}.log"))
    return found


def asked(jobs: Mapping[Path, Job]) -> dict[Path, Job]:
    """With what SLURM says of them. Raises MachineError where squeue does not answer."""
    states = _states([job.name for job in jobs.values()])
    # a job of this number with another name is another cluster's, or came after the number was used up
    return {
        folder: replace(job, state=states.get(f"{job.name}|{job.log.parent.name}", "")) for folder, job in jobs.items()
    }


def _states(names: Sequence[str]) -> dict[str, str]:
    """By number and name. By squeue, and by sacct of jobs that have left the queue, where the cluster keeps accounts.
    Raises MachineError where squeue does not answer."""
    if not names or shutil.which("squeue") is None:
        return {}
    old = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,JobName,State"]
    old.append(f"--jobs={','.join(names)}")
    now = ["squeue", "--noheader", "--array", f"--user={os.getuid()}", "--format=%i|%j|%T"]
    found: dict[str, str] = {}
    for asked in (old, now) if shutil.which("sacct") else (now,):
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        if asked is now and done.returncode != 0:
            raise MachineError(f"SLURM does not say what runs ({_first_line(done.stderr)}): try again when it answers.")
        found |= {name: state for name, _, state in (line.rpartition("|") for line in done.stdout.splitlines())}
    return found


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or ["no word"])[0]


@dataclass(frozen=True)
class Meant:
    """A run as a command means it: evaluated on `benchmarks`, with settings that `check` compares with its records.
    Raises DataError for others."""

    benchmarks: tuple[str, ...] = ()
    check: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Process:
    """Of this machine. script: what it runs, a file or a module; empty where that is not seen."""

    number: int
    script: str

    @property
    def command(self) -> str:
        return re.split(r"[/.]", self.script.removesuffix(".py"))[-1]


def holder(folder: Path) -> Process | None:
    """The process that holds a run's folder (`RunFolder.held`)."""
    if not folder.exists():
        return None
    inode = folder.stat().st_ino
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.split()
        if "FLOCK" in words and "->" not in words and words[-3].endswith(f":{inode}"):
            place = Path(f"/proc/{words[-4]}")
            with suppress(OSError):  # it is another user's, or has just ended
                if any(_is_same(file, folder) for file in (place / "fd").iterdir()):
                    given = (place / "cmdline").read_bytes().decode(errors="replace").split("\0")
                    scripts = (word for word in given if word.endswith(".py") or word.startswith("experiments."))
                    return Process(int(place.name), next(scripts, ""))
    return None


def _is_same(file: Path, folder: Path) -> bool:
    with suppress(OSError):  # closed since it was listed
        return file.samefile(folder)
    return False


def at_work(folder: Path) -> Process | None:
    """The process of this machine that holds a run or one of its evaluations."""
    places = [folder, *(file.parent for file in folder.glob("*/config.yaml"))]
    return next((process for place in places if (process := holder(place)) is not None), None)


def status(runs: Mapping[Path, Meant], jobs: Mapping[Path, Job]) -> str:
    """A table with a line a run."""
    lines = [HEADER, *(_told(folder, run, jobs.get(folder)) for folder, run in runs.items())]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _told(folder: Path, run: Meant, job: Job | None) -> tuple[str, ...]:
    """Its line, with a sentence in the place of the log where records are damaged or of other settings."""
    try:
        line = _line(folder, run.benchmarks, job)
    except (DataError, KeyError, TypeError, ValueError) as error:
        why = str(error) if isinstance(error, DataError) else f"{folder} has records that are damaged ({error!r})"
        return (_name(folder), "damaged", "-", "-", "-", "-", why)
    try:
        run.check()
    except DataError as error:
        return (line[0], "other settings", *line[2:-1], str(error))
    return line


def _name(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"


def _line(folder: Path, benchmarks: Sequence[str], job: Job | None) -> tuple[str, ...]:
    run, pointer = RunFolder(folder), folder / "checkpoints" / "latest"
    config = run.config if archives.exists(folder / "config.yaml") else None
    steps = _lines(folder / "steps.jsonl")
    state = _state(run, benchmarks, job)
    logs = [file for file in (*([job.log] if job else []), folder / LOG) if file.exists()]
    log = max(logs, key=lambda file: file.stat().st_mtime, default=None)
    saved = datetime.fromtimestamp(pointer.stat().st_mtime) if pointer.exists() else None
    budget = config["budget"]["rollouts"] if config is not None else None
    return (
        _name(folder),
        state,
        f"{run.charged(steps)}/{budget}" if budget is not None else "-",
        _success(folder, steps, config) if config is not None else "-",
        f"{saved:%m-%d %H:%M:%S}" if saved else "-",
        _left(steps, budget) if state == "running" and steps and budget is not None else "-",
        os.path.relpath(log) if log else "-",
    )


def is_complete(folder: Path, benchmarks: Sequence[str]) -> bool:
    """Whether a run is trained and evaluated on these."""
    return all(RunFolder(place).is_finished for place in (folder, *(folder / name for name in benchmarks)))


def _state(run: RunFolder, benchmarks: Sequence[str], job: Job | None) -> str:
    is_trained = run.is_finished
    working = "evaluating" if is_trained else "running"
    if is_complete(run.path, benchmarks):
        return "complete"
    if job is not None and job.state in QUEUED:
        return "queued"
    process = at_work(run.path)
    if (process and process.command in TRAINING) or (job is not None and job.state in ("RUNNING", "COMPLETING")):
        return working
    if process and process.command == "evaluate":
        return "evaluating"
    if job is not None and job.state in ("SUSPENDED", UNKNOWN):
        return job.state.lower()
    if is_trained:
        return "trained"
    if (run.path / "checkpoints" / "latest").exists():
        return "stopped"
    if job is not None and job.state:
        return job.state.lower()
    return "not saved" if run.has_trained else "not started"


def _success(folder: Path, steps: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> str:
    """Of held-out tasks once they were played after training, else of the last step's first paths."""
    after = [one for one in _lines(folder / "evaluations.jsonl") if (one["when"], one["mode"]) == ("after", "sampled")]
    if after:
        graded = [one["reward"] for one in after if one["reward"] is not None]
        return f"{percent(sum(r == 1 for r in graded) / len(graded) if graded else None)} held-out, temperature 1"
    temperature = config["sampling"]["temperature"]
    return f"{percent(steps[-1]['success'])} training, temperature {temperature:g}" if steps else "-"


def _left(steps: Sequence[Mapping[str, Any]], budget: int) -> str:
    """At the pace of training so far."""
    last = steps[-1]
    seconds = sum(value for phase, value in last["seconds"].items() if phase != "evaluate")
    return duration(seconds / last["rollouts"] * (budget - last["rollouts"]))


def _lines(file: Path) -> list[dict[str, Any]]:
    """Whole ones: the last may be being written."""
    whole = archives.read(file).decode().rpartition("\n")[0] if archives.exists(file) else ""
    return [json.loads(line) for line in whole.splitlines()]


def stop(folder: Path, job: Job | None) -> str | None:
    """Ask a run to save and end, and say so; None where nothing works on it. Raises MachineError for what is left alone
    or could not be asked."""
    if job is not None and job.state == UNKNOWN:
        raise MachineError(f"{folder}: whether job {job.name} runs is unknown, and it was left alone.")
    if job is not None and job.state == "SUSPENDED":
        raise MachineError(
            f"{folder}: job {job.name} is suspended and hears nothing: resume it, or scancel {job.name}."
        )
    if job is not None and job.state in (*QUEUED, "RUNNING"):
        to_script = ("--batch", "--signal=TERM") if job.state == "RUNNING" else ()  # slurm/element.sh
        done = subprocess.run(["scancel", *to_script, job.name], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise MachineError(f"{folder}: job {job.name} goes on, scancel failed ({_first_line(done.stderr)}).")
        told = "was asked to end its phase, save and end" if to_script else "is taken out of the queue"
        return f"{folder}: job {job.name} {told}"
    process = at_work(folder)
    if process is None:
        return None
    if process.command not in TRAINING:
        raise MachineError(
            f"{folder}: process {process.number} ({process.script or 'unknown'}) is at it, which is not training: "
            "it was left alone."
        )
    try:
        os.kill(process.number, signal.SIGTERM)
    except ProcessLookupError:
        return None
    return f"{folder}: process {process.number} was asked to end its phase, save and end"
