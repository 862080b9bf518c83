"""Finished runs that are kept as Parquet frames (results/README.md), so that they are not trained again.

Frames lie in an experiment's folder, or in the results folder above it. This module reads a few of their columns.
analysis/load.py reads and writes whole frames.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rtpo.core.files import SUMS, sha256
from rtpo.core.names import some
from rtpo.errors import DataError
from rtpo.run.differences import differences, fields_that_differ

REMEDY = "Change them back, or give these runs a results folder of their own, such as results=outputs/trial."
COMPARED_KEYS = ("panel", "samples", "decoding", "limits", "settings")
"""fields of an evaluation's manifest; evaluations with different values are not compared"""
FRAMES = ("runs", "steps", "answers", "benchmarks")


@dataclass(frozen=True)
class RecordedEvaluation:
    """How a run's final policy was evaluated on a benchmark."""

    run: str  # <experiment>/<run>
    benchmark: str
    samples: int  # rollouts of each question
    questions: int  # number of questions
    decoding: Mapping[str, Any]  # temperature, top_p and top_k
    digest: str  # `compared_digest` of the manifest
    limits: Mapping[str, Any] | None = None  # of the manifest; None from frames, which have no such column
    settings: Mapping[str, Any] | None = None  # of the manifest; None from frames, which have no such column

    def differences(self, planned: Mapping[str, Any]) -> list[str]:
        """A sentence for each field that has another value in a planned manifest."""
        recorded = {"panel": {"questions": self.questions}, "samples": self.samples, "decoding": self.decoding}
        recorded |= {key: value for key in ("limits", "settings") if (value := getattr(self, key)) is not None}
        return sorted(fields_that_differ(recorded, {key: planned[key] for key in recorded}, is_finished=True))


@dataclass(frozen=True)
class KeptRun:
    """A finished run that is kept as frames."""

    name: str  # <experiment>/<run>
    frames: Path  # folder of the frames
    config: Mapping[str, Any]  # the contents of the run's config.yaml
    benchmarks: frozenset[str]  # names of the benchmarks on which any of its policies was evaluated
    evaluations: tuple[RecordedEvaluation, ...]  # of its final policy

    def check(self, config: Mapping[str, Any]) -> None:
        """Raises DataError if `config` is not the run's, naming the fields that differ."""
        if different := differences(self.config, config):
            raise DataError(
                f"{self.frames} keeps a finished run {self.name} with another configuration; different: "
                f"{some(different, '; ')}. {REMEDY}"
            )


def compared_digest(evaluation: Mapping[str, Any]) -> str:
    """The checksum of COMPARED_KEYS. evaluation: a manifest, written or planned."""
    compared = json.dumps([evaluation[key] for key in COMPARED_KEYS], sort_keys=True)
    return hashlib.sha256(compared.encode()).hexdigest()[:12]


def parquet_of(folder: Path) -> list[Path]:
    return [folder / f"{name}.parquet" for name in FRAMES]


def is_kept(folder: Path) -> bool:
    """Whether a folder holds frames, complete or not."""
    return any(file.exists() for file in parquet_of(folder)) or f"  {FRAMES[0]}.parquet" in _sums(folder)


def new_sums(folder: Path) -> Path:
    """The file with the checksums of new frames. It exists while the new frames, all complete, replace the old ones."""
    return folder / f"{SUMS}.new"


def check_kept(folder: Path) -> str:
    """Check a folder's frames, and return the text of its checksum file. Raises DataError for a file that is missing or
    was changed."""
    sums = _sums(folder)
    digests = {name: digest for digest, _, name in (line.partition("  ") for line in sums.splitlines())}
    restore = f"restore the folder, as by `git checkout -- {folder}`"
    if new_sums(folder).exists():
        restore = "a process was stopped while it replaced them; keep the runs there again to complete that"
    if not sums:
        raise DataError(f"{folder} has frames but no {SUMS}, so they cannot be checked: {restore}.")
    for file in parquet_of(folder):
        if file.name not in digests or not file.exists() or sha256(file) != digests[file.name]:
            raise DataError(f"{file} is missing or not as {SUMS} says: {restore}.")
    return sums


def check_columns(file: Path, columns: Collection[str], needed: Collection[str]) -> None:
    """Raises DataError if a file of frames lacks a needed column, as a file of another version may."""
    if lacking := sorted(set(needed) - set(columns)):
        remedy = f"restore it, as by `git checkout -- {file}`, or keep the runs again"
        raise DataError(f"{file} has no column {some(lacking)}: another version wrote it; {remedy}.")


def kept_runs(folder: Path) -> Mapping[str, KeptRun]:
    """The runs whose frames a folder holds, by name (<experiment>/<run>). Raises DataError for damaged frames."""
    return _read(folder, check_kept(folder)) if is_kept(folder) else {}


def kept_run(folder: Path) -> KeptRun | None:
    """The kept run of a folder results/<experiment>/<run>; None if it is not kept. Raises DataError for damaged
    frames."""
    name = f"{folder.parent.name}/{folder.name}"
    for frames in frame_folders(folder):
        if (run := kept_runs(frames).get(name)) is not None:
            return run
    return None


def frame_folders(folder: Path) -> tuple[Path, Path]:
    """The folders that may hold the frames of a run: its experiment's, and the results folder."""
    return folder.parent, folder.parent.parent


@lru_cache(maxsize=8)
def _read(folder: Path, _checksums: str) -> Mapping[str, KeptRun]:
    """The folder's runs by name. The checksums are part of the cache's key, so changed frames are read again."""
    import pyarrow.parquet as parquet  # slow to import, and seldom needed

    def rows(name: str, *columns: str) -> list[dict[str, Any]]:
        file = folder / f"{name}.parquet"
        check_columns(file, parquet.read_schema(file).names, columns)
        return list(parquet.read_table(file, columns=list(columns)).to_pylist())

    by_run: dict[str, list[dict[str, Any]]] = {}
    for row in rows("benchmarks", "run", "policy_version", "benchmark", "samples", "questions", "decoding", "alike"):
        by_run.setdefault(row["run"], []).append(row)
    kept = {}
    for run in rows("runs", "run", "config", "policy_version"):
        name, benchmark_rows = run["run"], by_run.get(run["run"], [])
        final = tuple(
            RecordedEvaluation(
                *(name, row["benchmark"], row["samples"], row["questions"], json.loads(row["decoding"]), row["alike"])
            )
            for row in benchmark_rows
            if row["policy_version"] == run["policy_version"]
        )
        names = frozenset(row["benchmark"] for row in benchmark_rows)
        kept[name] = KeptRun(name, folder, json.loads(run["config"]), names, final)
    return kept


def _sums(folder: Path) -> str:
    file = folder / SUMS
    return file.read_text(encoding="utf-8") if file.exists() else ""
