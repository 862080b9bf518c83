"""BM25 search of generated passages: queries one at a time, and many at once.

Words are drawn as in text: the r-th most frequent in proportion to 1/r. So are most queries; `frequent` ones are made
of the most frequent words alone, whose lists are the longest.
"""

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from experiments.speed.shared import Case, latencies, milliseconds
from rtpo.tools.search.bm25 import Bm25Index, Bm25Settings, build_index
from rtpo.tools.search.tool import SearchSettings, SearchWorld

WORDS = 100_000
PASSAGE_WORDS = 100
QUERY_WORDS = (3, 12)
FREQUENT = 50
RESULTS = 3
AT_ONCE = 64
THREADS = (1, 2, 4, 8)


class Words:
    """Made-up words, drawn by their rank."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self._weights = np.cumsum(1 / np.arange(1, WORDS + 1))

    def draw(self, count: int, most: int = WORDS) -> str:
        places = self.random.random(count) * self._weights[most - 1]
        return " ".join(f"w{rank}" for rank in np.searchsorted(self._weights, places))


def measure(repeats: int, passages: int = 50_000, queries: int = 400) -> list[Case]:
    """queries: in each repeat."""
    record: dict[str, Any] = {"passages": passages, "passage_words": PASSAGE_WORDS, "results": RESULTS}
    with TemporaryDirectory() as name:
        file, folder = Path(name) / "passages.jsonl", Path(name) / "index"
        write_passages(file, passages)
        before = time.perf_counter()
        manifest = build_index(file, folder)
        record["build_seconds"] = time.perf_counter() - before
        record["passages_bytes"] = file.stat().st_size
        record["index_bytes"] = sum(facts["bytes"] for facts in manifest["files"].values())
        before = time.perf_counter()
        index = Bm25Index(folder)
        record["open_seconds"] = time.perf_counter() - before
        asked = drawn(repeats * queries)
        index.search(asked[0], RESULTS)
        record["search"] = milliseconds([seconds_of(index, query) for query in asked])
        record["search_frequent"] = milliseconds([seconds_of(index, query) for query in drawn(len(asked), FREQUENT)])
        settings = SearchSettings("bm25", results=RESULTS, bm25=Bm25Settings(str(folder)))
        record["calls"] = asyncio.run(latencies(SearchWorld(settings).call, asked, AT_ONCE)) | {"at_once": AT_ONCE}
        threads = [on_threads(count, index, asked) for count in THREADS]
    search = record["search"]
    detail = f"p50 {search['p50_ms']:.3g} ms; built in {record['build_seconds']:.3g} s"
    name = f"BM25 search of {passages:,} passages"
    return [Case(f"{name}, p99", search["p99_ms"], "ms", 20.0, False, detail, record), *threads]


def on_threads(count: int, index: Bm25Index, queries: list[str]) -> Case:
    """Searches on so many threads, as rtpo.tools.search.bm25 does them on its own."""

    async def measured() -> dict[str, float]:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(count) as pool:
            return await latencies(
                lambda query: loop.run_in_executor(pool, index.search, query, RESULTS), queries, AT_ONCE
            )

    record = asyncio.run(measured()) | {"at_once": AT_ONCE}
    name = f"BM25 searches a second, {count} {'thread' if count == 1 else 'threads'}"
    return Case(name, record["calls_per_second"], "/s", None, True, f"p99 {record['p99_ms']:.3g} ms", record)


def write_passages(path: Path, count: int) -> None:
    words = Words(seed=0)
    with path.open("w", encoding="utf-8") as out:
        for number in range(count):
            row = {"id": str(number), "title": words.draw(3), "text": words.draw(PASSAGE_WORDS)}
            out.write(json.dumps(row) + "\n")


def drawn(count: int, most: int = WORDS) -> list[str]:
    words = Words(seed=1)
    return [words.draw(int(words.random.integers(*QUERY_WORDS)), most) for _ in range(count)]


def seconds_of(index: Bm25Index, query: str) -> float:
    before = time.perf_counter()
    index.search(query, RESULTS)
    return time.perf_counter() - before
