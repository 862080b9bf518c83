"""What grading mathematics costs: every answer of a file against itself and against the next one, and what a comparison
without end costs the others.

    python -m experiments.bench_grading FILE

FILE is JSONL with `answer`, as MATH-500's. Grades a second, and seconds a grade (median and 99th percentile) where as
many are asked for at once as there are workers. Nothing here is a test.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rtpo.run.command import Parser, command, positive, whole

from rtpo.core.files import sha256, utc_now
from rtpo.core.json_text import parse
from rtpo.errors import DataError
from rtpo.rewards.grading import MathGrader
from rtpo.run.config import PROJECT
from rtpo.run.records import commit, machine, packages
from rtpo.types import Grade

ENDLESS = "9^{9^{9^9}}"
"""takes math-verify more time than there is"""

Pair = tuple[str, str]
"""gold and answer"""


def read_answers(file: Path) -> list[str]:
    """Raises DataError, naming the line."""
    found = []
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        try:
            row = parse(line)
        except ValueError as error:
            raise DataError(f"line {number} of {file} is not JSON ({error}): give JSONL with `answer`.") from error
        if not isinstance(row, dict) or "answer" not in row:
            raise DataError(f"line {number} of {file} has no `answer`: give JSONL such as MATH-500's.")
        found.append(str(row["answer"]))
    if not found:
        raise DataError(f"{file} is empty: give JSONL with `answer`.")
    return found


def grading_run(answers: Sequence[str], workers: int, seconds: float) -> dict[str, Any]:
    """The cases, each on a pool of its own that has started. seconds: a comparison's limit."""
    alike = [(answer, answer) for answer in answers]
    cases = {
        "against themselves": alike,
        "against the next": list(zip(answers, [*answers[1:], answers[0]], strict=True)),
        "against themselves, after one without end": [("5", ENDLESS), *alike],
    }
    record: dict[str, Any] = {"rows": len(answers), "workers": workers, "limit_seconds": seconds}
    for name, pairs in cases.items():
        grader = MathGrader(seconds, workers)
        warm_up(grader)
        record[name] = graded(grader, pairs)
        grader.close()
    return record


def warm_up(grader: MathGrader) -> None:
    """Until all children have started."""
    with ThreadPoolExecutor(grader.workers) as threads:
        while len(grader.pids) < grader.workers:
            list(threads.map(lambda _: grader.grade(("5",), "5"), range(2 * grader.workers)))


def graded(grader: MathGrader, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Counts of what became of the pairs, and times. A grade's seconds hold no waiting for a worker."""

    def timed(pair: Pair) -> tuple[Grade, float]:
        start = time.perf_counter()
        grade = grader.grade((pair[0],), pair[1])
        return grade, time.perf_counter() - start

    start = time.perf_counter()
    with ThreadPoolExecutor(grader.workers) as threads:
        results = list(threads.map(timed, pairs))
    wall = time.perf_counter() - start
    rewards = [grade.reward for grade, _ in results]
    percentiles = statistics.quantiles((seconds for _, seconds in results), n=100)
    return {
        "right": rewards.count(1.0),
        "wrong": rewards.count(0.0),
        "ungradable": rewards.count(None),
        "grades_per_second": len(pairs) / wall,
        "median_seconds": percentiles[49],
        "p99_seconds": percentiles[98],
        "wall_seconds": wall,
    }


@command
def main(arguments: Sequence[str] | None = None) -> None:
    parser = Parser(__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--workers", type=whole(1), default=2)
    parser.add_argument("--seconds", type=positive, default=10.0, help="limit of one comparison")
    parser.add_argument("--results", type=Path, default=PROJECT / "results" / "bench")
    args = parser.parse_args(arguments)
    args.results.mkdir(parents=True, exist_ok=True)
    answers = read_answers(args.file)
    head, dirty = commit(PROJECT)
    record = {
        "started": utc_now(),
        "commit": head,
        "dirty": dirty,
        "machine": machine(),
        "packages": packages(),
        "load_before": os.getloadavg()[0],
        "file": args.file.name,
        "file_sha256": sha256(args.file),
        **grading_run(answers, args.workers, args.seconds),
    }
    place = args.results / f"grading-{record['started'].replace(':', '')}.json"
    place.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))
    print(f"record: {place}")


if __name__ == "__main__":
    sys.exit(main())
