"""Random faults in short runs of experiments/train.py: each must end as the undisturbed run, or be refused with the way
back. `make chaos` draws ten; docs/run/runs.md has the last result.

A fault comes a drawn time after a drawn line of the run's log. Then the same command is given until it finishes.
"""

import argparse
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from whole_runs import differences, overrides_in

from rtpo.run.config import PROJECT
from rtpo.run.provenance import commit
from rtpo.run.records import RunFolder

KINDS = ("kill", "stop", "damage", "missing file", "full disk", "clock")
SETTINGS = (
    *("deterministic=true", "save.every_steps=1", "save.every_phases=1", "save.keep=2", "algorithm.label=rtpo"),
    *("budget.rollouts=60", "budget.tasks_per_step=2", "task.train.count=24", "task.held_out.count=10"),
    *("profile.threads=1", "evaluation.paper=false"),
)
LINES = 9
"""of the log that a fault may follow; the undisturbed run has five more, of its last phase, save and evaluations"""
OVERLOADED = "Ray did not start"
"""which asks for the same command again"""
CLOCK = """import time, rtpo.core.files as files
time.time = lambda now=time.time: now() - {seconds}
files.utc_now = lambda: files.datetime.fromtimestamp(time.time(), files.UTC).isoformat(timespec="seconds")
"""
"""what libraries and manifests read; the kernel's clock, of files, stays"""


@dataclass(frozen=True)
class Fault:
    """`shares`, in [0, 1), choose what is hit: the process or signal, the file and its byte, the room, the hour."""

    kind: str
    line: int
    delay: float
    shares: tuple[float, float]


def draw(seed: int, count: int) -> list[Fault]:
    """Every kind once, more kinds at random up to `count`, in random order."""
    rng = np.random.default_rng(seed)
    kinds = rng.permutation([*KINDS, *rng.choice(KINDS, count - len(KINDS))])
    return [
        Fault(str(kind), int(rng.integers(1, LINES + 1)), float(rng.uniform(0, 0.5)), (rng.random(), rng.random()))
        for kind in kinds
    ]


def chosen(share: float, among: Sequence[Any]) -> Any:
    return among[int(share * len(among))]


def read(file: Path) -> bytes:
    return file.read_bytes() if file.is_file() else b""


class Trial:
    """A run in a folder of its own: what happened to it, in words, and why it failed, if it did."""

    def __init__(self, results: Path, fault: Fault | None) -> None:
        results.mkdir()
        self.results, self.folder = results, RunFolder(results / "default" / "rtpo-seed0")
        self.events, self.failure = list[str](), ""
        self._back, self._hurt = 0.0, list[tuple[Path, bytes]]()
        try:
            if fault is not None:
                self._suffer(fault)
            self._go_on()
        except (RuntimeError, psutil.NoSuchProcess) as error:
            self.failure = " ".join(str(error).split())

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, str(PROJECT / "experiments/train.py"), *overrides_in(self.results, *SETTINGS)]
        clock = {"PYTHONPATH": str(self.results)} if self._back else {}
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""} | clock
        output, errors = subprocess.DEVNULL, subprocess.PIPE
        return subprocess.Popen(command, cwd=self.results, env=environment, stdout=output, stderr=errors, text=True)

    def _suffer(self, fault: Fault) -> None:
        process = self._start()
        while process.poll() is None and read(self.folder.path / "log.txt").count(b"\n") < fault.line:
            time.sleep(0.005)
        time.sleep(fault.delay)
        if process.poll() is None:
            self._disturb(fault, psutil.Process(process.pid))
        said = process.communicate()[1]
        self._check(process.returncode, said, (0, 75, -signal.SIGKILL), by_us=fault.kind != "kill")
        if not self.folder.is_finished:
            self._change(fault)

    def _disturb(self, fault: Fault, process: psutil.Process) -> None:
        names = {child: child.name() for child in process.children(recursive=True)}
        workers = [child for child, name in names.items() if name.startswith("ray::") and name != "ray::IDLE"]
        share, other_share = fault.shares
        if fault.kind == "kill":
            target = process if share < 0.5 or not workers else chosen(other_share, workers)
            self.events.append(f"SIGKILL to {names.get(target, 'the command').split('.')[0]}")
            target.kill()
        elif fault.kind == "full disk":
            room = int(10 ** (2 + 3.5 * share))
            self.events.append(f"files end at {room} bytes")
            for writer in (process, *workers):
                resource.prlimit(writer.pid, resource.RLIMIT_FSIZE, (room, room))
        else:
            stops = (signal.SIGINT, signal.SIGTERM, signal.SIGSTOP)
            number = chosen(share, stops) if fault.kind == "stop" else signal.SIGTERM
            self.events.append(number.name)
            process.send_signal(number)
            if number == signal.SIGSTOP:
                time.sleep(2)
                process.resume()

    def _change(self, fault: Fault) -> None:
        share, other_share = fault.shares
        if fault.kind == "clock":
            self._back = 10 ** (2 + 6 * share)
            self.events.append(f"clock set back by {self._back / 3600:.1f} h")
            (self.results / "sitecustomize.py").write_text(CLOCK.format(seconds=self._back))
        if fault.kind in ("damage", "missing file"):
            path, data = chosen(share, sorted((file, read(file)) for file in self.folder.path.rglob("*") if read(file)))
            self._hurt.append((path, data))
            self.events.append(str(path.relative_to(self.folder.path)))
            path.unlink()
            if fault.kind == "damage":
                place = chosen(other_share, range(len(data)))
                self.events[-1] += f" byte {place}"
                path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])

    def _go_on(self) -> None:
        """The same command until it finishes; after a refusal, first the way back that it names."""
        status = 1
        while status:
            process = self._start()
            said = process.communicate()[1]
            status = process.returncode
            self._check(status, said, (0,), by_us=True)
            if command := re.search("`(.*?)`", said) if status else None:
                subprocess.run(command[1], shell=True, check=True)
                self.events.append(f"`{command[1].split()[0]}`")
            elif status and OVERLOADED not in said and self._hurt:
                path, data = self._hurt.pop()
                path.write_bytes(data)
                self.events.append("file restored")
            elif status and OVERLOADED not in said:
                raise RuntimeError(f"no way back: {said[-500:]}")
        ended = datetime.fromisoformat(self.folder.manifest["ended"])
        if (datetime.now(UTC) - ended).total_seconds() < self._back:
            raise RuntimeError("the clock was not set back")

    def _check(self, status: int, said: str, usual: Sequence[int], *, by_us: bool) -> None:
        """Raises RuntimeError for an end that is neither usual nor, `by_us`, a refusal in a sentence with a name.
        Otherwise, after a kill, Ray's traceback will do."""
        if status in usual:
            return
        self.events.append("refused")
        names = OVERLOADED in said or str(self.results) in said
        refused = "error: " in said and "Traceback" not in said and names
        killed = not by_us and ("error: " in said or "ray.exceptions" in said)
        if status != 1 or not (refused or killed) or len(self.events) > 8:
            raise RuntimeError(f"ended with status {status}: {said[-500:]}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    faults, began = draw(options.seed, 10), time.monotonic()
    at = Path(tempfile.mkdtemp(prefix="chaos-"))
    with ThreadPoolExecutor(4) as pool:
        places = [at / str(n) for n in range(len(faults) + 1)]
        whole, *trials = pool.map(Trial, places, (None, *faults))
    print("| fault | after line | what happened | end |\n|---|---|---|---|")
    ends = [trial.failure or ", ".join(differences(trial.folder, whole.folder)) or "equal" for trial in trials]
    for fault, trial, end in zip(faults, trials, ends, strict=True):
        print(f"| {fault.kind} | {fault.line} | {', '.join(trial.events) or 'came after the end'} | {end} |")
    minutes = (time.monotonic() - began) / 60
    print(f"\nseed {options.seed}, commit {commit(PROJECT)[0][:7]}, {minutes:.1f} minutes; the runs: {at}")
    return int(set(ends) != {"equal"})


if __name__ == "__main__":
    sys.exit(main())
