"""What grading mathematics costs: every answer of a file against itself and against the next one, and what a comparison
without end costs the others. As many are asked for at once as there are workers."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from experiments.speed.shared import Case, milliseconds
from rtpo.data.reading import read_rows
from rtpo.errors import DataError
from rtpo.rewards.grading import MathGrader
from rtpo.types import Grade

ENDLESS = "9^{9^{9^9}}"
"""takes math-verify more time than there is"""

Pair = tuple[str, str]
"""gold and answer"""


def measure(repeats: int, file: Path, workers: int = 2, seconds: float = 10.0) -> Iterator[Case]:
    """file: JSONL with `answer`, as MATH-500's. seconds: a comparison's limit. Each case has a pool of its own that has
    started."""
    answers = read_answers(file)
    alike = [(answer, answer) for answer in answers] * repeats
    cases = {
        "against themselves": alike,
        "against the next": list(zip(answers, [*answers[1:], answers[0]], strict=True)) * repeats,
        "against themselves, after one without end": [("5", ENDLESS), *alike],
    }
    for name, pairs in cases.items():
        grader = MathGrader(seconds, workers)
        warm_up(grader)
        found = graded(grader, pairs)
        grader.close()
        counts = ", ".join(f"{found[kind]} {kind}" for kind in ("right", "wrong", "ungradable"))
        detail = f"p50 {found['p50_ms']:.3g} ms, p99 {found['p99_ms']:.3g} ms; {counts}"
        record = {"rows": len(answers), "workers": workers, "limit_seconds": seconds, **found}
        yield Case(f"grades, answers {name}", found["grades_per_second"], "/s", None, True, detail, record)


def read_answers(file: Path) -> list[str]:
    """Raises DataError, naming the line."""
    rows = list(read_rows(file))
    for place, row in rows:
        if "answer" not in row:
            raise DataError(f"{place} has no `answer`: give JSONL such as MATH-500's.")
    return [str(row["answer"]) for _, row in rows]


def warm_up(grader: MathGrader) -> None:
    """Until all children have started."""
    with ThreadPoolExecutor(grader.workers) as threads:
        while len(grader.pids) < grader.workers:
            list(threads.map(lambda _: grader.grade(("5",), "5"), range(2 * grader.workers)))


def graded(grader: MathGrader, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Counts of what became of the pairs, and times. A grade's time holds no waiting for a worker."""

    def timed(pair: Pair) -> tuple[Grade, float]:
        start = time.perf_counter()
        grade = grader.grade((pair[0],), pair[1])
        return grade, time.perf_counter() - start

    start = time.perf_counter()
    with ThreadPoolExecutor(grader.workers) as threads:
        results = list(threads.map(timed, pairs))
    wall = time.perf_counter() - start
    rewards = [grade.reward for grade, _ in results]
    return {
        "right": rewards.count(1.0),
        "wrong": rewards.count(0.0),
        "ungradable": rewards.count(None),
        "grades_per_second": len(pairs) / wall,
        **milliseconds([seconds for _, seconds in results]),
    }
