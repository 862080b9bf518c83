"""Forks of the booking desk: a snapshot and a restore, after a read and after a write, and with a write between."""

import asyncio
import time
from collections.abc import Callable, Iterator

from experiments.speed.shared import Case, milliseconds
from rtpo.envs.booking.env import BookingEnv
from rtpo.envs.booking.tasks import generate, needs_write
from rtpo.toy.traces import booking_traces
from rtpo.types import StopReason

LIMIT_MS = 1.0


def measure(repeats: int, forks: int = 1000) -> Iterator[Case]:
    """forks: of each kind, in each repeat."""
    task = next(task for task in generate("train", 20, 0) if needs_write(task))
    read, write = booking_traces(task)[0][:2]

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
        yield timed("fork", lambda: fork(fresh), repeats * forks)
        yield timed("fork after a write", lambda: fork(written), repeats * forks)
        yield timed("fork, write, two snapshots", fork_and_write, repeats * forks)
        if fresh.snapshot() != kept:
            raise AssertionError("a write in a fork showed in the episode it was forked from")


def timed(name: str, act: Callable[[], object], times: int) -> Case:
    act()
    seconds = []
    cpu = time.process_time()
    for _ in range(times):
        begun = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - begun)
    record = milliseconds(seconds) | {"cpu_ms": 1e3 * (time.process_time() - cpu) / times, "times": times}
    detail = f"median; p99 {record['p99_ms']:.3g} ms"
    return Case(f"booking desk, {name}", record["p50_ms"], "ms", LIMIT_MS, False, detail, record)
