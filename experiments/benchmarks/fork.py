"""What a fork of the booking environment costs: a snapshot and a restore, the same with a write, and a deep copy of the
database as plain data beside them. The limit on a fork's median is 1 ms.

    python -m experiments.bench_fork

Every timing is kept in results/bench/fork-<date>.json.
"""

import asyncio
import json
import os
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path

from rtpo.run.command import Parser, command, whole

import numpy as np

from rtpo.core.files import utc_now, write_whole
from rtpo.envs.booking.database import base
from rtpo.envs.booking.demonstrations import scripts
from rtpo.envs.booking.env import BookingEnv
from rtpo.envs.booking.tasks import generate, needs_write
from rtpo.run.config import PROJECT
from rtpo.run.records import commit, machine, packages
from rtpo.types import StopReason

LIMIT_MS = 1.0


@dataclass(frozen=True)
class Case:
    """Milliseconds of one thing: wall-clock, and processor time in the mean, which other processes do not lengthen.
    `limit_ms`, of the median, is None for what is only there to compare with."""

    name: str
    median_ms: float
    p99_ms: float
    most_ms: float
    cpu_ms: float
    times: int
    limit_ms: float | None

    @property
    def within(self) -> bool | None:
        return None if self.limit_ms is None else self.median_ms <= self.limit_ms


def timed(name: str, act: Callable[[], object], times: int, limit_ms: float | None) -> Case:
    act()
    seconds = np.empty(times)
    cpu = time.process_time()
    for n in range(times):
        begun = time.perf_counter()
        act()
        seconds[n] = time.perf_counter() - begun
    cpu = time.process_time() - cpu
    middle, p99, most = (float(np.quantile(seconds, q)) * 1e3 for q in (0.5, 0.99, 1))
    return Case(name, middle, p99, most, cpu / times * 1e3, times, limit_ms)


def measure(forks: int, copies: int) -> list[Case]:
    """Forks of an episode after its read, and after its write too."""
    task = next(task for task in generate("train", 20, 0) if needs_write(task))
    read, write = scripts(task)[0][:2]
    plain = base().as_json()

    def fork(env: BookingEnv) -> BookingEnv:
        sibling = BookingEnv()
        sibling.restore(task, env.snapshot())
        return sibling

    with asyncio.Runner() as runner:

        def fork_and_write() -> None:
            sibling = fork(fresh)
            runner.run(sibling.step(write, StopReason.STOP))
            if sibling.snapshot().digest == fresh.snapshot().digest:
                raise AssertionError("the write did not show in its fork")

        fresh = BookingEnv()
        runner.run(fresh.reset(task))
        runner.run(fresh.step(read, StopReason.STOP))
        kept = fresh.snapshot()
        written = fork(fresh)
        runner.run(written.step(write, StopReason.STOP))
        cases = [
            timed("fork", lambda: fork(fresh), forks, LIMIT_MS),
            timed("fork after a write", lambda: fork(written), forks, LIMIT_MS),
            timed("fork, write, two snapshots", fork_and_write, forks, LIMIT_MS),
            timed("snapshot pickled and back", lambda: pickle.loads(pickle.dumps(written.snapshot())), forks, None),
            timed("deep copy of the database as plain data", lambda: deepcopy(plain), copies, None),
        ]
        if fresh.snapshot() != kept:
            raise AssertionError("a write in a fork showed in the episode it was forked from")
    return cases


@command
def main(arguments: Sequence[str] | None = None) -> None:
    parser = Parser(__doc__)
    parser.add_argument("--forks", type=whole(1), default=5000)
    parser.add_argument("--copies", type=whole(1), default=10)
    parser.add_argument("--output", type=Path, default=PROJECT / "results" / "bench")
    args = parser.parse_args(arguments)
    args.output.mkdir(parents=True, exist_ok=True)
    started, load = utc_now(), os.getloadavg()[0]
    head, dirty = commit(PROJECT)
    begun = time.perf_counter()
    base()
    loaded = time.perf_counter() - begun
    cases = measure(args.forks, args.copies)
    record = {
        "started": started,
        "commit": head,
        "dirty": dirty,
        "machine": machine(),
        "packages": packages(),
        "load_before": load,
        "database_megabytes": len(json.dumps(base().as_json())) / 1e6,
        "database_made_seconds": loaded,
        "cases": [asdict(case) | {"within": case.within} for case in cases],
    }
    path = args.output / f"fork-{started.replace(':', '')}.json"
    write_whole(path, (json.dumps(record, indent=1) + "\n").encode())
    for case in cases:
        times = f"median {case.median_ms:9.4f} ms, p99 {case.p99_ms:9.4f} ms, processor {case.cpu_ms:9.4f} ms"
        print(f"{case.name:40} {times}, within: {case.within}")
    print(f"written to {path}")


if __name__ == "__main__":
    sys.exit(main())
