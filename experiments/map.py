"""Make the map of regimes (docs/results/theory.md): RTPO against exact GRPO on tabular problems, at equal rollouts.

    python experiments/map.py predict     write the closed form's prediction of every point
    python experiments/map.py run         measure the missing points
    python experiments/map.py missing     list the missing points

To resume `run`, give the same command again. Records go to results/map/. predicted.jsonl is written once, before
anything is measured. map.jsonl and its manifest map.json are written last; until then measurements are in
map.partial.jsonl. `python -m analysis.pages` and `python analysis/make_figures.py --docs` show the records.
"""

import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from rtpo.algorithms import PROJECT
from rtpo.core.files import disk_errors, sha256, whole_lines, write_whole
from rtpo.errors import DataError
from rtpo.run.cli import Parser, command
from rtpo.run.provenance import provenance
from rtpo.run.records import RunFolder
from rtpo.theory import regime_runs, regimes
from rtpo.theory.regimes import Point

RESULTS = PROJECT / "results" / "map"
SCHEMA = 1
DIGITS = 6
"""decimals of the numbers in records"""
PARTS = ("predict", "run", "missing")
Job = tuple[str, Point, int]
"""what is measured, at which point, with which seed"""


def plan() -> list[Job]:
    """All jobs of the map: a few seeds of every point, then more seeds of some."""
    jobs: list[Job] = [("frozen", point, seed) for point in regimes.frozen_points() for seed in range(regimes.SEEDS)]
    trained: list[Job] = [
        ("trained", point, seed)
        for point in regimes.points()
        for seed in range(regimes.MORE_SEEDS.get(point.turns, regimes.SEEDS))
    ]
    return jobs + sorted(trained, key=lambda job: job[2] >= regimes.SEEDS)


def measured(job: Job) -> dict[str, Any]:
    """Do a job; return its line."""
    kind, point, seed = job
    began = time.process_time()
    values = regime_runs.frozen(point, seed) if kind == "frozen" else regime_runs.trained(point, seed)
    seconds = time.process_time() - began
    return {"kind": kind, **asdict(point), "seed": seed, **_rounded(values), "cpu_seconds": round(seconds, 3)}


def predict(folder: Path, points: Iterable[Point]) -> Path:
    """Write the closed form's predictions. Raises DataError if there are predictions or measurements already."""
    with disk_errors(folder):
        for name in ("predicted.jsonl", "map.partial.jsonl", "map.json"):
            if (folder / name).exists():
                raise DataError(
                    f"{folder / name} is there, and predictions are written once, before anything is measured: "
                    "name another --results."
                )
        folder.mkdir(parents=True, exist_ok=True)
        lines = (asdict(point) | _rounded(regimes.predicted(point)) for point in points)
        write_whole(folder / "predicted.jsonl", _text(lines))
    return folder / "predicted.jsonl"


def run(folder: Path, jobs: Sequence[Job]) -> Path:
    """Do the missing jobs, then write all lines in order, and the manifest. Raises FolderInUse, and DataError without
    predictions, for a finished map that lacks planned jobs, and as `missing`."""
    predictions, manifest, partial = (folder / name for name in ("predicted.jsonl", "map.json", "map.partial.jsonl"))
    with disk_errors(folder):
        if not predictions.exists():
            raise DataError(f"{predictions} does not exist: make it first, with `predict` and the same --results.")
        with RunFolder(folder).held():
            left = missing(folder, jobs)
            if manifest.exists():
                if left:
                    raise DataError(f"{manifest} is finished, without {len(left)} planned: name another --results.")
                return manifest
            partial.write_bytes(whole_lines(partial))
            source = provenance()
            torch.set_num_threads(1)
            with partial.open("a", encoding="utf-8") as out:
                for job in left:
                    line = measured(job) | {"commit": source["commit"], "dirty": source["dirty"]}
                    print(json.dumps(line), file=out, flush=True)
            _finish(folder, jobs, source["machine"])
    return manifest


def _finish(folder: Path, jobs: Sequence[Job], machine: Any) -> None:
    """A line for each point, with lists over its seeds; then the manifest."""
    lines = _lines(folder / "map.partial.jsonl")
    points: dict[tuple[str, Point], dict[str, Any]] = {}
    for job in jobs:
        record = points.setdefault(job[:2], {"kind": job[0], **asdict(job[1])})
        for name in ("seed", "cpu_seconds", *regimes.METHODS):
            record.setdefault(name, []).append(lines[job][name])
    write_whole(folder / "map.jsonl", _text(points.values()))
    manifest = {
        "schema": SCHEMA,
        "commits": sorted({(line["commit"], line["dirty"]) for line in lines.values()}),
        "machine": machine,
        "cpu_seconds": round(sum(line["cpu_seconds"] for line in lines.values()), 1),
        "measurements": len(jobs),
        "predicted_sha256": sha256(folder / "predicted.jsonl"),
        "sha256": sha256(folder / "map.jsonl"),
    }
    write_whole(folder / "map.json", (json.dumps(manifest, indent=1) + "\n").encode())
    (folder / "map.partial.jsonl").unlink()


def missing(folder: Path, jobs: Sequence[Job]) -> list[Job]:
    """The jobs without a line. Raises DataError for records of jobs that are not planned."""
    done = _lines(folder / ("map.jsonl" if (folder / "map.json").exists() else "map.partial.jsonl"))
    if others := done.keys() - set(jobs):
        kind, point, seed = min(others, key=str)
        raise DataError(f"{folder} has {kind} {point.name} seed={seed}, which is not planned: name another --results.")
    return [job for job in jobs if job not in done]


def _lines(path: Path) -> dict[Job, dict[str, Any]]:
    """A file's lines by job, one for each seed. Raises DataError for a line that is not a measurement."""
    lines: dict[Job, dict[str, Any]] = {}
    for number, text in enumerate(whole_lines(path).splitlines(), 1):
        try:
            line = json.loads(text)
            point = Point(**{field.name: line[field.name] for field in fields(Point)})
            seeds = line["seed"] if isinstance(line["seed"], list) else [line["seed"]]
            lines |= {(line["kind"], point, seed): line for seed in seeds}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(f"{path} line {number} is not a measurement: restore the file or delete it.") from error
    return lines


def _text(lines: Iterable[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(line)}\n" for line in lines).encode()


def _rounded(numbers: dict[str, Any]) -> Any:
    return json.loads(json.dumps(numbers), parse_float=lambda text: round(float(text), DIGITS))


@command
def main(arguments: list[str] | None = None) -> None:
    parser = Parser(__doc__)
    parser.add_argument("part", choices=PARTS, help="see above")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the records")
    options = parser.parse_args(arguments)
    if options.part == "predict":
        print(predict(options.results, regimes.points()))
    elif options.part == "run":
        print(run(options.results, plan()))
    else:
        left = missing(options.results, plan())
        print("".join(f"{kind}: {point.name} seed={seed}\n" for kind, point, seed in left), end="")


if __name__ == "__main__":
    sys.exit(main())
