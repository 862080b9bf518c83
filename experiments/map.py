"""The map of regimes (docs/results/map.md): RTPO and GRPO with exact contexts on tables, at equal rollouts.

    python experiments/map.py predict     write down what the closed form says of every point
    python experiments/map.py run         measure what is missing
    python experiments/map.py missing     what has not been measured
    python experiments/map.py walk        write down what the closed form says of toy walk with luck
    python experiments/map.py anchors     the same where no state comes again

`run` goes on where it was left, with --processes 2 in two processes. Records go to results/map/: predicted.jsonl, which
is written once and before anything is measured, and map.jsonl with its manifest map.json, written last; until then
measurements stand in map.partial.jsonl. `walk` writes results/credit/predicted.json and `anchors`
results/anchors/predicted.json, once and before the study of that name is run.
`python -m analysis.pages map` makes the page and its figure from them.
"""

import json
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from rtpo.run.command import Parser, command, whole

import numpy as np
import torch

from rtpo.algorithms import PROJECT, configured
from rtpo.core.files import disk_errors, sha256, write_whole
from rtpo.engines.base import PAPER_DECODING
from rtpo.envs.toy.walk import WalkSettings
from rtpo.envs.toy.walk_problems import PLACES
from rtpo.errors import DataError
from rtpo.run.composition import composed
from rtpo.run.records import RunFolder, provenance
from rtpo.theory import regimes, walk
from rtpo.theory.regimes import Point
from rtpo.toy.walk_demonstrator import CORRECT, HABITS, HABITUAL, KNOWN

RESULTS = PROJECT / "results" / "map"
WALKS = {
    "walk": PROJECT / "results" / "credit" / "predicted.json",
    "anchors": PROJECT / "results" / "anchors" / "predicted.json",
}
"""by part of this command"""
PREDICTIONS = "predicted.jsonl"
SCHEMA = 1
DIGITS = 6
"""of numbers in records"""
OF_SEEDS = ("seed", "cpu_seconds")
"""what else than the methods' numbers is a list in a point's line"""
PARTS = ("predict", "run", "missing", *WALKS)
LUCK = 1.0
"""what heads is worth in both studies, where the answer is worth 1"""
FACES = 10**6
"""of a coin after which no state comes again"""
ANCHORS = ("grpo_exact", "gigpo", "anchored", "anchored_forks", "critic")
Job = tuple[str, Point, int]
"""what is measured, where, with which seed"""


def plan() -> list[Job]:
    """All of the map, a few seeds of every point before more of some."""
    jobs: list[Job] = [("frozen", point, seed) for point in regimes.frozen_points() for seed in range(regimes.SEEDS)]
    trained: list[Job] = [
        ("trained", point, seed)
        for point in regimes.points()
        for seed in range(regimes.MORE_SEEDS.get(point.turns, regimes.SEEDS))
    ]
    return jobs + sorted(trained, key=lambda job: job[2] >= regimes.SEEDS)


def measured(job: Job) -> dict[str, Any]:
    """The line of a measurement."""
    kind, point, seed = job
    began = time.process_time()
    found = regimes.frozen(point, seed) if kind == "frozen" else regimes.trained(point, seed)
    seconds = time.process_time() - began
    return {"kind": kind, **asdict(point), "seed": seed, **_rounded(found), "cpu_seconds": round(seconds, 3)}


def predict(folder: Path, points: Iterable[Point]) -> Path:
    """Write down the closed form's predictions. Raises DataError where there are some, or measurements."""
    predictions = folder / PREDICTIONS
    with disk_errors(folder):
        for there in (predictions, folder / "map.partial.jsonl", folder / "map.json"):
            if there.exists():
                raise DataError(
                    f"{there} is there, and predictions are written once, before anything is measured: "
                    "name another --results."
                )
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(predictions, _text(asdict(point) | _rounded(regimes.predicted(point)) for point in points))
    return predictions


def predict_walks(path: Path, part: str) -> Path:
    """Write down what the closed form says of each method less exact GRPO: for each setting of where the walk is
    decided, or where no state comes again. Raises DataError where something is written already."""
    with disk_errors(path.parent):
        if path.exists():
            raise DataError(
                f"{path} is there, and predictions are written once, before anything is run: name another --results."
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        if part == "anchors":
            lines = list(_walk_lines("walk_never", "even", ANCHORS, FACES))
        else:
            decided: tuple[Any, ...] = ("early", "even", "late")
            lines = [line for one in decided for line in _walk_lines(f"walk_{one}", one, walk.METHODS, 2)]
        write_whole(path, (json.dumps(lines, indent=1) + "\n").encode())
    return path


def _walk_lines(task: str, decided: Any, methods: Sequence[str], faces: int) -> Iterator[dict[str, Any]]:
    weights = WalkSettings(decided=decided).weights
    wrong = len(HABITS) / PLACES
    there = walk.Walk(
        tuple(weight / sum(weights) for weight in weights),
        LUCK,
        PLACES,
        ((CORRECT, HABITUAL), (KNOWN, 1 - KNOWN)),
        (wrong, 1 - wrong),
        PAPER_DECODING.temperature,
        faces,
    )
    rtpo, tree, vine = configured("rtpo"), configured("rtpo_tree"), configured("vineppo")
    forks = composed("train", ["algorithm=anchored_forks"]).algorithm
    plans = walk.Plans(
        chains=configured("grpo").chains,
        trunks=rtpo.trunks,
        group_size=rtpo.group_size,
        members=tree.trunks + tree.roots,
        forks=tree.forks,
        vine_chains=vine.chains,
        continuations=vine.continuations,
        anchored_forks=forks.forks,
        shrinkage=forks.shrinkage,
    )
    found = {name: [walk.success(name, there, plans, budget) for budget in walk.BUDGETS] for name in methods}
    baseline = found.pop("grpo_exact")
    for name, chances in found.items():
        gains = [chance - other for chance, other in zip(chances, baseline, strict=True)]
        yield {
            "task": task,
            "configuration": name,
            "against": "grpo_exact",
            "sign": 0 if abs(gains[1]) < walk.NONE else int(np.sign(gains[1])),
            "low": round(min(gains), 3),
            "high": round(max(gains), 3),
        }


def run(folder: Path, jobs: Sequence[Job], processes: int = 1) -> Path:
    """Measure what is missing of the jobs, and when all are there write them in order, and the manifest. Raises Held
    where another process is at it, DataError without predictions and for a finished map of other jobs, and as
    `missing`."""
    predictions, records, manifest, partial = (
        folder / name for name in (PREDICTIONS, "map.jsonl", "map.json", "map.partial.jsonl")
    )
    with disk_errors(folder):
        if not predictions.exists():
            raise DataError(f"{predictions} does not exist: make it first, with `predict` and the same --results.")
        with RunFolder(folder).held():
            left = missing(folder, jobs)
            if manifest.exists():
                if left:
                    raise DataError(f"{manifest} is finished, without {len(left)} planned: name another --results.")
                return manifest
            if partial.exists():
                partial.write_bytes(_whole(partial))
            made_with = provenance()
            with partial.open("a", encoding="utf-8") as out, _each(processes) as each:
                for line in each(measured, left):
                    out.write(json.dumps(line | {name: made_with[name] for name in ("commit", "dirty")}) + "\n")
                    out.flush()
            found = {_job(line): line for line in _lines(partial)}
            commits = sorted({(line.pop("commit"), line.pop("dirty")) for line in found.values()})
            described = {
                "schema": SCHEMA,
                "commits": commits,
                "machine": made_with["machine"],
                "cpu_seconds": round(sum(line["cpu_seconds"] for line in found.values()), 1),
                "measurements": len(jobs),
                "predicted_sha256": sha256(predictions),
            }
            write_whole(records, _text(packed([found[job] for job in jobs])))
            write_whole(manifest, (json.dumps(described | {"sha256": sha256(records)}, indent=1) + "\n").encode())
            partial.unlink()
    return manifest


def packed(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A line for each point, with lists over its seeds."""
    points: dict[tuple[str, Point], dict[str, Any]] = {}
    for line in lines:
        kind, point, _ = _job(line)
        of_point = points.setdefault((kind, point), {"kind": kind, **asdict(point)})
        for name in (*OF_SEEDS, *regimes.METHODS):
            of_point.setdefault(name, []).append(line[name])
    return list(points.values())


def missing(folder: Path, jobs: Sequence[Job]) -> list[Job]:
    """The jobs without a line. Raises DataError for records of others."""
    finished, partial = folder / "map.json", folder / "map.partial.jsonl"
    if finished.exists():
        lines = [line | {"seed": seed} for line in _lines(folder / "map.jsonl") for seed in line["seed"]]
    else:
        lines = _lines(partial) if partial.exists() else []
    done = {_job(line) for line in lines}
    if others := done - set(jobs):
        kind, point, seed = min(others, key=str)
        raise DataError(f"{folder} has {kind} {point.name} seed={seed}, which is not planned: name another --results.")
    return [job for job in jobs if job not in done]


def _lines(path: Path) -> list[dict[str, Any]]:
    """Raises DataError for what is no measurement."""
    lines = []
    for number, text in enumerate(_whole(path).splitlines(), 1):
        try:
            lines.append(json.loads(text))
            _job(lines[-1])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(f"{path} line {number} is no measurement: restore the file, or delete the line.") from error
    return lines


def _whole(path: Path) -> bytes:
    """Without a last line that a stop cut short."""
    data = path.read_bytes()
    return data[: data.rfind(b"\n") + 1]


def _job(line: Mapping[str, Any]) -> Job:
    return line["kind"], Point(**{field.name: line[field.name] for field in fields(Point)}), line["seed"]


@contextmanager
def _each(processes: int) -> Iterator[Callable[[Callable[[Job], Any], Sequence[Job]], Iterable[Any]]]:
    """What maps a function over jobs, in so many processes, as results come."""
    _alone()
    if processes == 1:
        yield map
        return
    with multiprocessing.get_context("spawn").Pool(processes, _alone, (signal.SIG_IGN,)) as pool:
        yield pool.imap_unordered


def _alone(on_interrupt: Any = None) -> None:
    """One thread a process; Ctrl-C is the parent's."""
    torch.set_num_threads(1)
    if on_interrupt is not None:
        signal.signal(signal.SIGINT, on_interrupt)


def _text(lines: Iterable[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(line)}\n" for line in lines).encode()


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else round(value, DIGITS)


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--processes", type=whole(1), default=1, help="side by side, in `run`")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the records")
    given = parser.parse_args(arguments)
    if given.part == "predict":
        print(predict(given.results, regimes.points()))
    elif given.part in WALKS:
        path = WALKS[given.part]
        print(predict_walks(path if given.results == RESULTS else given.results / path.name, given.part))
    elif given.part == "run":
        print(run(given.results, plan(), given.processes))
    else:
        left = missing(given.results, plan())
        print("".join(f"{kind}: {point.name} seed={seed}\n" for kind, point, seed in left), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
