"""The Python tool: calls a second on a warm pool, against a fresh interpreter that imports sympy for each program.

As many callers as processors, each with a program at a time; the two sides take turns, so that both meet the machine's
other load. A pool's start is no part of its calls.
"""

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from experiments.speed.shared import Case, milliseconds
from rtpo.tools.python.tool import PythonSettings, PythonTool, close_pools
from rtpo.types import ToolOutcome

PROGRAM = "import sympy\nprint(sympy.sqrt(8))"
CALLERS = len(os.sched_getaffinity(0))
Call = Callable[[str], Awaitable[None]]


def measure(repeats: int, calls: int = 200, fresh_calls: int = 6) -> list[Case]:
    """calls, fresh_calls: of the pool and of fresh interpreters, in each repeat."""
    found: dict[str, list[tuple[list[float], float]]] = {"pool": [], "fresh": []}
    for _ in range(repeats):
        found["pool"].append(asyncio.run(pooled(calls)))
        close_pools()
        found["fresh"].append(asyncio.run(latencies(fresh, fresh_calls)))
    sides = {side: summary(rounds) for side, rounds in found.items()}
    pool = sides["pool"]
    return [
        Case(
            "Python tool / fresh interpreter with sympy, calls a second",
            pool["calls_per_second"] / sides["fresh"]["calls_per_second"],
            "x",
            20.0,
            True,
            f"{pool['calls_per_second']:.3g} a second; p50 {pool['p50_ms']:.3g} ms, p99 {pool['p99_ms']:.3g} ms",
            {"callers": CALLERS, "sandbox": PythonSettings(workers=CALLERS).check(), **sides},
        )
    ]


async def pooled(count: int) -> tuple[list[float], float]:
    """`latencies` of a pool that is started for them; calls to warm it up are not timed."""
    tool = PythonTool(PythonSettings(workers=CALLERS))

    async def call(program: str) -> None:
        result = await tool.call({"code": program}, [])
        if result.outcome is not ToolOutcome.OK:
            raise RuntimeError(f"a program of the benchmark ended with {result}")

    await latencies(call, CALLERS)
    return await latencies(call, count)


async def fresh(program: str) -> None:
    arguments = (sys.executable, "-c", f"import sympy\n{program}")
    process = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
    await process.communicate()
    if process.returncode:
        raise RuntimeError(f"a program of the benchmark ended with status {process.returncode}")


async def latencies(call: Call, count: int) -> tuple[list[float], float]:
    """Seconds of each of `count` calls, or a few more, and of all, by `CALLERS` callers."""
    found: list[float] = []

    async def caller() -> None:
        for _ in range(-(-count // CALLERS)):
            begin = time.perf_counter()
            await call(PROGRAM)
            found.append(time.perf_counter() - begin)

    begin = time.perf_counter()
    await asyncio.gather(*[caller() for _ in range(CALLERS)])
    return found, time.perf_counter() - begin


def summary(rounds: list[tuple[list[float], float]]) -> dict[str, Any]:
    times = [second for seconds, _ in rounds for second in seconds]
    each = {"calls": len(times), "calls_per_second": len(times) / sum(whole for _, whole in rounds)}
    return each | milliseconds(times)
