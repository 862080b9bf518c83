"""What a search costs: a BM25 index of generated passages, and queries of it one at a time and many at once.

Words are drawn as in text: the r-th most frequent in proportion to 1/r. So are most queries; `frequent` ones are made
of the most frequent words alone, whose lists are the longest.

    python -m experiments.bench_search --passages 50000
"""

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rtpo.run.command import Parser, command, whole

import numpy as np

from rtpo.core.files import utc_now, write_whole
from rtpo.run.config import PROJECT
from rtpo.run.records import commit, machine, packages
from rtpo.tools.search.bm25 import Bm25Index, Bm25Settings, build_index
from rtpo.tools.search.tool import SearchSettings, SearchWorld

P99_MS = 20.0
WORDS = 100_000
PASSAGE_WORDS = 100
QUERY_WORDS = (3, 12)
FREQUENT = 50
RESULTS = 3
TICK = 0.001


class Words:
    """Made-up words, drawn by their rank."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self._weights = np.cumsum(1 / np.arange(1, WORDS + 1))

    def draw(self, count: int, most: int = WORDS) -> str:
        places = self.random.random(count) * self._weights[most - 1]
        return " ".join(f"w{rank}" for rank in np.searchsorted(self._weights, places))


def write_passages(path: Path, count: int) -> None:
    words = Words(seed=0)
    with path.open("w", encoding="utf-8") as out:
        for number in range(count):
            row = {"id": str(number), "title": words.draw(3), "text": words.draw(PASSAGE_WORDS)}
            out.write(json.dumps(row) + "\n")


def queries(count: int, most: int = WORDS) -> list[str]:
    words = Words(seed=1)
    return [words.draw(int(words.random.integers(*QUERY_WORDS)), most) for _ in range(count)]


def spread(seconds: Sequence[float], prefix: str = "") -> dict[str, float]:
    p50, p99 = np.percentile(seconds, [50, 99])
    return {
        f"{prefix}p50_ms": 1e3 * float(p50),
        f"{prefix}p99_ms": 1e3 * float(p99),
        f"{prefix}worst_ms": 1e3 * max(seconds),
    }


def timed_searches(index: Bm25Index, asked: Sequence[str]) -> dict[str, float]:
    """Wall-clock time and processor time of each; where other things run, the first has their share in it."""
    wall, cpu = [], []
    for query in asked:
        before, before_cpu = time.perf_counter(), time.thread_time()
        index.search(query, RESULTS)
        wall.append(time.perf_counter() - before)
        cpu.append(time.thread_time() - before_cpu)
    return spread(wall) | spread(cpu, "cpu_")


async def timed_calls(world: SearchWorld, asked: Sequence[str], at_once: int) -> dict[str, float]:
    """Calls of a world, `at_once` in flight: latency, calls a second, and how late the event loop came to a timer
    that was due every millisecond meanwhile."""
    seconds: list[float] = []
    late: list[float] = [0.0]
    left = iter(asked)

    async def caller() -> None:
        for query in left:
            before = time.perf_counter()
            await world.call(query)
            seconds.append(time.perf_counter() - before)

    async def ticker() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(TICK)
            late.append(time.perf_counter() - before - TICK)

    ticking = asyncio.create_task(ticker())
    start = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(at_once)))
    whole = time.perf_counter() - start
    ticking.cancel()
    return spread(seconds) | {
        "at_once": at_once,
        "calls_per_second": len(seconds) / whole,
        "loop_late_p99_ms": 1e3 * float(np.percentile(late, 99)),
    }


def bench(passages: int, count: int) -> dict[str, Any]:
    """The record. Memory is a process's, so give each run a process of its own."""
    record: dict[str, Any] = {
        "passages": passages,
        "passage_words": PASSAGE_WORDS,
        "queries": count,
        "results": RESULTS,
        "load_before": os.getloadavg()[0],
    }
    with TemporaryDirectory() as name:
        file, folder = Path(name) / "passages.jsonl", Path(name) / "index"
        write_passages(file, passages)
        record["passages_bytes"] = file.stat().st_size
        before, before_cpu, held = time.perf_counter(), time.process_time(), peak_mib()
        manifest = build_index(file, folder)
        record["build_seconds"] = time.perf_counter() - before
        record["build_cpu_seconds"] = time.process_time() - before_cpu
        record["build_grown_mib"] = peak_mib() - held
        record["index_bytes"] = sum(facts["bytes"] for facts in manifest["files"].values())
        before = time.perf_counter()
        index = Bm25Index(folder)
        record["open_seconds"] = time.perf_counter() - before
        asked = queries(count)
        index.search(asked[0], RESULTS)
        record["search"] = timed_searches(index, asked)
        record["search_frequent"] = timed_searches(index, queries(count, FREQUENT))
        settings = SearchSettings("bm25", results=RESULTS, bm25=Bm25Settings(str(folder)))
        # each world has a memory of its own, so that none answers from another's
        record["calls"] = [asyncio.run(timed_calls(SearchWorld(settings), asked, at_once)) for at_once in (1, 64)]
        kept = SearchWorld(settings)
        for _ in range(2):
            record["calls_kept"] = asyncio.run(timed_calls(kept, asked[:1000], 1))
    record["load_after"] = os.getloadavg()[0]
    record["limit_p99_ms"] = P99_MS
    record["within"] = record["search"]["p99_ms"] <= P99_MS
    return record


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@command
def main(arguments: Sequence[str] | None = None) -> None:
    parser = Parser(__doc__)
    parser.add_argument("--passages", type=whole(1), default=50_000)
    parser.add_argument("--queries", type=whole(1), default=2_000)
    parser.add_argument("--output", type=Path, default=PROJECT / "results" / "bench")
    args = parser.parse_args(arguments)
    args.output.mkdir(parents=True, exist_ok=True)
    started = utc_now()
    head, dirty = commit(PROJECT)
    record = {
        "started": started,
        "commit": head,
        "dirty": dirty,
        "machine": machine(),
        "packages": packages() | {"bm25s": version("bm25s")},
    } | bench(args.passages, args.queries)
    path = args.output / f"search-{started.replace(':', '')}.json"
    write_whole(path, (json.dumps(record, indent=1) + "\n").encode())
    print(json.dumps(record, indent=1))
    print(f"written to {path}")


if __name__ == "__main__":
    sys.exit(main())
