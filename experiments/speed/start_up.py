"""Start-up: from a command line to the first step's record."""

import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from experiments.speed.shared import Case, configuration, spread, step_lines
from rtpo.run.config import PROJECT


def measure(repeats: int) -> list[Case]:
    with TemporaryDirectory() as folder:
        starts = [first_step(Path(folder, str(repeat))) for repeat in range(repeats)]
    seconds = {name: [start[name] for start in starts] for name in starts[0]}
    return [
        Case(
            "start-up, command to first step's record",
            median(seconds["total"]),
            "s",
            30.0,
            False,
            f"{spread(seconds['total'])}, of which from the engine's first weights on: evaluation "
            f"{spread(seconds['evaluation'])}, step {spread(seconds['step'])}",
            {"starts": starts},
        )
    ]


def first_step(results: Path) -> dict[str, float]:
    """Seconds until a fresh process has recorded its first training step; one held-out question is evaluated before."""
    overrides = (f"results={results}", "task.held_out.count=1")
    config = configuration(*overrides)
    worst = config.descriptor.rollouts_per_task(config.algorithm_config, config.task.max_turns)
    budget = f"budget.rollouts={worst * config.budget.tasks_per_step}"
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, str(PROJECT / "experiments" / "train.py"), *overrides, budget],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    lines = config.folder / "steps.jsonl"
    while not lines.exists() or not lines.stat().st_size:
        if process.poll() is not None:
            raise RuntimeError(f"experiments/train.py ended with status {process.returncode} before its first step")
        time.sleep(0.01)
    seconds = time.perf_counter() - start
    process.wait()
    first = step_lines(config.folder)[0]
    phases = first["seconds"]
    # the first synchronisation waits for the engine's process
    step = first["wall_seconds"] - phases["evaluate"] - phases["sync"]
    return {"total": seconds, "evaluation": phases["evaluate"], "first_sync": phases["sync"], "step": step}
