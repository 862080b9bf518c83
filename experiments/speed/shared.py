"""What a benchmark says, and what several are made with."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from rtpo.envs.base import Env
from rtpo.harness.budget import Budget, Ledger
from rtpo.harness.harness import AgentHarness
from rtpo.run.composition import composed
from rtpo.run.config import RunConfig, compose_run
from rtpo.run.model_folder import chat_format
from rtpo.run.run import open_harness


@dataclass(frozen=True)
class Case:
    """A line of the table. value: None for what was not run. limit: None for what is only reported. `records` holds the
    sizes and every timing behind `value`."""

    name: str
    value: float | None
    unit: str
    limit: float | None
    more_is_better: bool
    detail: str
    records: dict[str, Any]

    @property
    def within(self) -> bool | None:
        if self.limit is None or self.value is None:
            return None
        return self.value >= self.limit if self.more_is_better else self.value <= self.limit

    def __str__(self) -> str:
        limit = "" if self.limit is None else f"{'>=' if self.more_is_better else '<='} {self.limit:g} {self.unit}"
        verdict = {None: "", True: "yes", False: "NO"}[self.within]
        value = f"{'not run':13}" if self.value is None else f"{self.value:8.3g} {self.unit:4}"
        return f"{self.name:48} {value} {limit:>10}  {verdict:6}  {self.detail}"


HEADER = f"   {'':48} {'measured':>8} {'':4} {'limit':>10}  within  medians, ours first"


def spread(values: Sequence[float]) -> str:
    return f"{median(values):.3g} (best {min(values):.3g})"


def milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    """The median, the 99th percentile and the longest."""
    p50, p99 = np.quantile(seconds, [0.5, 0.99])
    return {"p50_ms": 1e3 * float(p50), "p99_ms": 1e3 * float(p99), "worst_ms": 1e3 * max(seconds)}


async def latencies(call: Callable[[str], Awaitable[object]], given: Sequence[str], callers: int) -> dict[str, float]:
    """Of calls with each of `given`, so many in flight; and how many were done a second."""
    seconds: list[float] = []
    left = iter(given)

    async def caller() -> None:
        for one in left:
            begun = time.perf_counter()
            await call(one)
            seconds.append(time.perf_counter() - begun)

    begun = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return milliseconds(seconds) | {"calls_per_second": len(seconds) / (time.perf_counter() - begun)}


def in_turns(runs: Mapping[str, Callable[[], object]], repeats: int, *, warm_up: bool = True) -> dict[str, list[float]]:
    """Seconds of each run, taken in turns so that a busy machine disturbs all alike; a round more is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats + warm_up):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: values[-repeats:] for name, values in seconds.items()}


def configuration(*overrides: str) -> RunConfig:
    """What experiments/train.py would run with these overrides."""
    return compose_run(composed("train", list(overrides)))


def endless_harness(config: RunConfig, make_env: Callable[[], Env] | None = None) -> tuple[AgentHarness, Any]:
    """A harness without an end of its budget, and its backend."""
    from rtpo.verl_harness.session import open_backend

    backend = open_backend(config)
    ledger = Ledger(Budget(10**9))
    return open_harness(config, backend, chat_format(config), ledger, AgentHarness, make_env), backend


def step_lines(folder: Path) -> list[dict[str, Any]]:
    """Of a run's folder."""
    return [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
