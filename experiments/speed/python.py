"""The Python tool: calls a second on a warm pool, against a fresh interpreter that imports sympy for each program.

As many callers as processors, each with a program at a time; the two sides take turns, so that both meet the machine's
other load. A pool's start is no part of its calls.
"""

import asyncio
import os
import sys
from statistics import median

from experiments.speed.shared import Case, latencies
from rtpo.tools.python.tool import PythonSettings, PythonTool, close_pools
from rtpo.types import ToolOutcome

PROGRAM = "import sympy\nprint(sympy.sqrt(8))"
CALLERS = len(os.sched_getaffinity(0))


def measure(repeats: int, calls: int = 200, fresh_calls: int = 6) -> list[Case]:
    """calls, fresh_calls: of the pool and of fresh interpreters, in each repeat."""
    found: dict[str, list[dict[str, float]]] = {"pool": [], "fresh": []}
    for _ in range(repeats):
        found["pool"].append(asyncio.run(pooled(calls)))
        close_pools()
        found["fresh"].append(asyncio.run(latencies(fresh, [PROGRAM] * fresh_calls, CALLERS)))
    pool = median(one["calls_per_second"] for one in found["pool"])
    p50, p99 = (median(one[f"{name}_ms"] for one in found["pool"]) for name in ("p50", "p99"))
    return [
        Case(
            "Python tool / fresh interpreter with sympy, calls a second",
            pool / median(one["calls_per_second"] for one in found["fresh"]),
            "x",
            20.0,
            True,
            f"{pool:.3g} a second; p50 {p50:.3g} ms, p99 {p99:.3g} ms",
            {"callers": CALLERS, "sandbox": PythonSettings(workers=CALLERS).check(), **found},
        )
    ]


async def pooled(count: int) -> dict[str, float]:
    """`latencies` of a pool that is started for them; calls to warm it up are not timed."""
    tool = PythonTool(PythonSettings(workers=CALLERS))

    async def call(program: str) -> None:
        result = await tool.call({"code": program}, [])
        if result.outcome is not ToolOutcome.OK:
            raise RuntimeError(f"a program of the benchmark ended with {result}")

    await latencies(call, [PROGRAM] * CALLERS, CALLERS)
    return await latencies(call, [PROGRAM] * count, CALLERS)


async def fresh(program: str) -> None:
    arguments = (sys.executable, "-c", f"import sympy\n{program}")
    process = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
    await process.communicate()
    if process.returncode:
        raise RuntimeError(f"a program of the benchmark ended with status {process.returncode}")
