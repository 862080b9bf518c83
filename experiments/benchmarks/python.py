"""What a call of the Python tool costs: calls a second and latency on a warm pool, against a fresh interpreter that
imports sympy for each program.

As many callers as processors, each with a program at a time; the two sides take turns, so that both meet the machine's
other load. Processor time is that of the programs and the interpreters they run in.

    python -m experiments.bench_python --rounds 5
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from rtpo.run.command import Parser, command, whole

import numpy as np

from rtpo.core.files import utc_now, write_whole
from rtpo.run.config import PROJECT
from rtpo.run.records import commit, machine, packages
from rtpo.tools.python.tool import PythonSettings, PythonTool, close_pools
from rtpo.types import ToolOutcome

LEAST_RATIO = 20.0
PROGRAMS = {
    "small": "import sympy\nprint(sympy.sqrt(8))",
    "algebra": "from sympy import *\nx = symbols('x')\nprint(solve(x**2 - 5*x + 6, x), factor(x**4 - 1))",
    "loop": "print(sum(n for n in range(100000) if n % 7 == 3))",
}
CALLERS = len(os.sched_getaffinity(0))
Call = Callable[[str], Awaitable[None]]


def pooled() -> Call:
    tool = PythonTool(PythonSettings(workers=CALLERS))

    async def call(program: str) -> None:
        result = await tool.call({"code": program}, [])
        if result.outcome is not ToolOutcome.OK:
            raise RuntimeError(f"a program of the benchmark ended with {result}")

    return call


async def fresh(program: str) -> None:
    arguments = (sys.executable, "-c", f"import sympy\n{program}")
    process = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
    await process.communicate()
    if process.returncode:
        raise RuntimeError(f"a program of the benchmark ended with status {process.returncode}")


async def latencies(call: Call, program: str, count: int) -> tuple[list[float], float]:
    """Seconds of each of `count` calls, and of all, by `CALLERS` callers."""
    found: list[float] = []

    async def caller() -> None:
        for _ in range(count // CALLERS):
            begin = time.perf_counter()
            await call(program)
            found.append(time.perf_counter() - begin)

    begin = time.perf_counter()
    await asyncio.gather(*[caller() for _ in range(CALLERS)])
    return found, time.perf_counter() - begin


def child_seconds() -> float:
    """Processor time of this process's children that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def measured(times: list[float], seconds: float, cpu_seconds: float) -> dict[str, Any]:
    p50, p99 = np.quantile(times, [0.5, 0.99]) * 1000
    return {
        "calls": len(times),
        "calls_per_second": len(times) / seconds,
        "p50_ms": float(p50),
        "p99_ms": float(p99),
        "cpu_ms_per_call": 1000 * cpu_seconds / len(times),
    }


def pool_round(program: str, count: int) -> tuple[list[float], float, float]:
    """`latencies` of a pool that is started for them, and the processor time of all of its processes; calls to warm it
    up are not timed."""

    async def run() -> tuple[list[float], float]:
        call = pooled()
        await latencies(call, program, CALLERS)
        return await latencies(call, program, count)

    cpu = child_seconds()
    times, seconds = asyncio.run(run())
    close_pools()
    return times, seconds, child_seconds() - cpu


def fresh_round(program: str, count: int) -> tuple[list[float], float, float]:
    cpu = child_seconds()
    times, seconds = asyncio.run(latencies(fresh, program, count))
    return times, seconds, child_seconds() - cpu


def compare(program: str, rounds: int, pool_calls: int, fresh_calls: int) -> dict[str, Any]:
    """Both sides over all rounds. What a pool's start takes is no part of its calls, and given beside them."""
    pool, single = [], []
    start = min(pool_round(program, 0)[2] for _ in range(2))
    for _ in range(rounds):
        pool.append(pool_round(program, pool_calls))
        single.append(fresh_round(program, fresh_calls))
    sides = {
        side: measured(
            [second for times, _, _ in found for second in times],
            sum(seconds for _, seconds, _ in found),
            sum(cpu - start_cpu for _, _, cpu in found),
        )
        for side, found, start_cpu in (("pool", pool, start), ("fresh", single, 0.0))
    }
    return {
        **sides,
        "start_cpu_seconds": start,
        "ratio": sides["pool"]["calls_per_second"] / sides["fresh"]["calls_per_second"],
        "cpu_ratio": sides["fresh"]["cpu_ms_per_call"] / sides["pool"]["cpu_ms_per_call"],
    }


@command
def main(arguments: Sequence[str] | None = None) -> None:
    parser = Parser(__doc__)
    parser.add_argument("--rounds", type=whole(1), default=5)
    parser.add_argument("--calls", type=whole(CALLERS), default=200, help="calls of the pool in a round")
    parser.add_argument("--fresh", type=whole(CALLERS), default=6, help="fresh interpreters in a round")
    parser.add_argument("--results", type=Path, default=PROJECT / "results" / "bench")
    args = parser.parse_args(arguments)
    args.results.mkdir(parents=True, exist_ok=True)
    head, dirty = commit(PROJECT)
    record: dict[str, Any] = {
        "started": utc_now(),
        "commit": head,
        "dirty": dirty,
        "machine": machine(),
        "packages": packages(),
        "load_before": os.getloadavg()[0],
        "callers": CALLERS,
        "sandbox": PythonSettings(workers=CALLERS).check(),
        "programs": PROGRAMS,
        "results": {name: compare(program, args.rounds, args.calls, args.fresh) for name, program in PROGRAMS.items()},
        "load_after": os.getloadavg()[0],
        "least_ratio": LEAST_RATIO,
    }
    record["within"] = record["results"]["small"]["ratio"] >= LEAST_RATIO
    file = args.results / f"python-{record['started'].replace(':', '')}.json"
    write_whole(file, json.dumps(record, indent=1).encode() + b"\n")
    for name, found in record["results"].items():
        print(name, json.dumps({key: found[key] for key in ("ratio", "cpu_ratio")}), json.dumps(found["pool"]))
    print(f"load average {record['load_before']:.1f} to {record['load_after']:.1f}; records: {file}")


if __name__ == "__main__":
    sys.exit(main())
