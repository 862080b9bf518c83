"""What a call of the Python tool costs: calls a second and latency on a warm pool, against a fresh interpreter that
imports sympy for each program.

As many callers as processors, each with a program at a time; the two sides take turns, so that both meet the machine's
other load. Processor time is that of the programs and the interpreters they run in.

    python -m experiments.bench_python --rounds 5
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

from rtpo.config import PROJECT
from rtpo.records import commit, machine, packages, utc_now, write_whole
from rtpo.tools.python import PythonSettings, PythonTool, close_pools
from rtpo.types import ToolOutcome

LEAST_RATIO = 20.0
PROGRAMS = {
    "small": "import sympy\nprint(sympy.sqrt(8))",
    "algebra": "from sympy import *\nx = symbols('x')\nprint(solve(x**2 - 5*x + 6, x), factor(x**4 - 1))",
    "loop": "print(sum(n for n in range(100000) if n % 7 == 3))",
}
CALLERS = os.cpu_count() or 1
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


def compare(program: str, rounds: int, pooled_calls: int, fresh_calls: int) -> dict[str, Any]:
    """Both sides' times over all rounds. A pool's interpreters are started anew each round, which is not timed but
    counts as processor time."""
    sides: dict[str, tuple[list[float], list[float], list[float]]] = {"pool": ([], [], []), "fresh": ([], [], [])}
    for _ in range(rounds):
        for side, count in (("pool", pooled_calls), ("fresh", fresh_calls)):
            cpu = child_seconds()

            async def one_round(call: Call, count: int, warm: int) -> tuple[list[float], float]:
                await latencies(call, program, warm)
                return await latencies(call, program, count)

            times, seconds = asyncio.run(
                one_round(pooled(), count, CALLERS) if side == "pool" else one_round(fresh, count, 0)
            )
            close_pools()
            sides[side][0].extend(times)
            sides[side][1].append(seconds)
            sides[side][2].append(child_seconds() - cpu)
    record: dict[str, Any] = {
        side: measured(times, sum(seconds), sum(cpus)) for side, (times, seconds, cpus) in sides.items()
    }
    record["ratio"] = record["pool"]["calls_per_second"] / record["fresh"]["calls_per_second"]
    record["cpu_ratio"] = record["fresh"]["cpu_ms_per_call"] / record["pool"]["cpu_ms_per_call"]
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=200, help="calls of the pool in a round")
    parser.add_argument("--fresh", type=int, default=6, help="fresh interpreters in a round")
    parser.add_argument("--results", type=Path, default=PROJECT / "results" / "bench")
    args = parser.parse_args()
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
    args.results.mkdir(parents=True, exist_ok=True)
    file = args.results / f"python-{record['started'].replace(':', '')}.json"
    write_whole(file, json.dumps(record, indent=1).encode() + b"\n")
    for name, found in record["results"].items():
        print(name, json.dumps({key: found[key] for key in ("ratio", "cpu_ratio")}), json.dumps(found["pool"]))
    print(f"load average {record['load_before']:.1f} to {record['load_after']:.1f}; records: {file}")


if __name__ == "__main__":
    main()
