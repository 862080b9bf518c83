"""The records of one run as rows of the frames (analysis/columns.py). Damaged or changed files raise DataError, which
names the file and the line or fields."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.columns import COLUMNS, AnswerRow, BenchmarkRow, ManifestFields, RunRow, StepRow, UpdateRow
from rtpo.core.files import whole_lines
from rtpo.core.names import counted
from rtpo.envs.airline.tasks import TOO_MANY_ERRORS, WRITES
from rtpo.errors import DataError
from rtpo.harness.diagnostics import first_calls
from rtpo.run.kept import compared_digest
from rtpo.run.reading import json_object, read_config, read_manifest, require, why_no_run
from rtpo.run.records import SCHEMA
from rtpo.types import Termination

MANIFEST_KEYS = tuple(field.name for field in fields(ManifestFields))
"""keys that `runs` copies from the manifest"""
NEEDED_KEYS = ("run", *(key for key in MANIFEST_KEYS if key in COLUMNS["runs"]), "ledger", "files")
"""keys that every manifest must have"""
LEDGER_KEYS = ("budget", "rollouts", "generated_tokens", "optimizer_steps", "seconds")
BENCHMARK_KEYS = (
    *("benchmark", "checkpoint", "panel", "samples", "decoding", "rollout_context", "limits", "settings", "files"),
)
EPISODE_KEYS = ("grade", "reward", "detail", "termination", "turns", "cut_turns", "generated_tokens", "calls")
LINE_KEYS = {
    "steps.jsonl": (
        *("step", "rollouts", "generated_tokens", "seconds", "wall_seconds", "success", "mean_reward", "updates"),
    ),
    "evaluations.jsonl": ("when", "step", "split", "mode", "task", "sample", *EPISODE_KEYS),
    "samples.jsonl": ("uid", "sample", "qa", *EPISODE_KEYS),
    "paths.jsonl": ("step", "parent", "start_k", "task", *EPISODE_KEYS),
}
"""keys that every line of a file must have"""
UPDATE_KEYS = ("rows", "trained_turns", "trained_tokens")
"""keys that every update of a step must have"""
TRAINED_KEYS = ("mismatch/kl_k1", "mismatch/context/kl_k1", "zero_advantage")
"""keys that an update with rows must also have"""
KL_PARTS = {"": "", "_context": "context/", "_engine": "engine/"}
"""parts of the KL: the suffix of a part's column, and its prefix in the records"""
WHEN = ("before", "during", "after")
MODES = ("sampled", "paper", "greedy")
Record = Mapping[str, Any]
"""a line of a file, or a manifest, as JSON"""
Row = dict[str, Any]


def run_rows(folder: Path, finished: bool) -> dict[str, list[Row]]:
    """The rows of a run, by frame. finished=False also reads a run that has not ended, up to its last whole line."""
    folder = folder.absolute()
    manifest: Record = {}
    read: Callable[[Path], bytes] = whole_lines
    if finished or (folder / "manifest.json").exists():
        manifest, read = _finished(folder)
    elif not (folder / "config.yaml").exists():
        raise DataError(why_no_run(folder))
    config: Record = read_config(folder / "config.yaml", read(folder / "config.yaml"))
    steps, answers = (_lines(folder / file, read) for file in ("steps.jsonl", "evaluations.jsonl"))
    if not manifest:
        require(config, ("algorithm", "seed", "budget", "profile"), f"{folder / 'config.yaml'}, not of a run,")
        # an evaluation may be written before the line of its step
        answers = [line for line in answers if line["step"] <= len(steps)]
        manifest = {
            **{"experiment": folder.parent.name, "run": folder.name, "label": config["algorithm"]["label"]},
            **{"seed": config["seed"], "profile": config["profile"]["name"], "steps": len(steps)},
        }
    elif len(steps) != manifest["steps"]:
        raise DataError(
            f"{folder / 'steps.jsonl'} has {counted(len(steps), 'line')}, its manifest "
            f"{counted(manifest['steps'], 'step')}."
        )
    name = _name(manifest)
    rows: dict[str, list[Row]] = {
        "runs": [_run_row(manifest, config, steps, folder)],
        "steps": [row for line in steps for row in _step_rows(line, name)],
        "answers": [_answer_row(line, name) for line in answers],
        "benchmarks": [],
    }
    for file in sorted(folder.glob("*/samples.jsonl")):
        if file.with_name("manifest.json").exists():
            evaluation, lines = _benchmark(file.parent, name)
            rows["benchmarks"].append(vars(evaluation))
            rows["answers"] += [_answer_row(line, name, evaluation.benchmark) for line in lines]
    return rows


def load_samples(folder: Path) -> pd.DataFrame:
    """The samples of a benchmark's evaluation, with the columns of `answers`, in the order of the questions."""
    manifest, lines = _evaluation(folder)
    ordered = sorted(lines, key=lambda line: (line.get("position", 0), line["sample"]))
    return pd.DataFrame([_answer_row(line, "", manifest["benchmark"]) for line in ordered])


def load_paths(folder: Path) -> pd.DataFrame:
    """The training paths of a run, with the columns of `answers` and step, rollout, parent, start_k and role. Parquet
    files have no paths."""
    manifest, read = _finished(folder)
    read(folder / "config.yaml")
    name, more = _name(manifest), ("rollout", "parent", "start_k", "role")
    lines = _lines(folder / "paths.jsonl", read)
    return pd.DataFrame([{**_answer_row(line, name), **{key: line.get(key) for key in more}} for line in lines])


# rows


def _name(manifest: Record) -> str:
    return f"{manifest['experiment']}/{manifest['run']}"


def _run_row(manifest: Record, config: Record, steps: Sequence[Record], folder: Path) -> Row:
    ledger = manifest.get("ledger", {})
    seconds, wall = ledger.get("seconds", {}), manifest.get("wall_seconds")
    copied: Row = {key: manifest.get(key) for key in MANIFEST_KEYS}
    copied["model_sha256"] = json.dumps(manifest.get("model_sha256"), sort_keys=True)
    row = RunRow(
        **copied,
        run=_name(manifest),
        name=manifest["run"],
        folder=str(folder),
        is_finished="files" in manifest,
        rollouts=ledger.get("rollouts", steps[-1]["rollouts"] if steps else 0),
        budget=config["budget"]["rollouts"],
        learning_rate=config.get("optimizer", {}).get("lr"),
        training_seconds=None if wall is None else wall - seconds["evaluate"],
        logical_cpus=manifest.get("machine", {}).get("logical_cpus"),
        config=json.dumps(config, sort_keys=True),
    )
    totals = {key: value for key, value in ledger.items() if isinstance(value, int | float)}
    return totals | {f"seconds_{phase}": value for phase, value in seconds.items()} | vars(row)


def _step_rows(line: Record, run: str) -> list[Row]:
    calls, totals = line.get("rollout_calls", ()), ("rollouts", "turns", "generated_tokens")
    rollouts, turns, tokens = (sum(call[key] for call in calls) if calls else None for key in totals)
    row = StepRow(
        run=run,
        step=line["step"],
        tasks=line.get("tasks", 0),
        success=line["success"],
        mean_reward=line["mean_reward"],
        rollouts=line["rollouts"],
        generated_tokens=line["generated_tokens"],
        wall_seconds=line["wall_seconds"],
        seconds_evaluate=line["seconds"]["evaluate"],
        sampled_rollouts=rollouts,
        sampled_turns=turns,
        sampled_tokens=tokens,
        success_rollouts=sum(call["graded"] for call in first_calls(calls)) if calls else None,
    )
    step = {
        **vars(row),
        **{f"seconds_{phase}": value for phase, value in line["seconds"].items()},
        **{f"algorithm/{name}": float(value) for name, value in line.get("algorithm", {}).items()},
    }
    updates = [_update_row(update, number) for number, update in enumerate(line["updates"])]
    return [step | update for update in updates or [{}]]


def _update_row(update: Record, number: int) -> Row:
    ties = update.get("zero_advantage") or {}
    row = UpdateRow(
        update=number,
        rows=update["rows"],
        trained_tokens=update["trained_tokens"],
        tied_rows=update.get("tied_rows"),
        optimizer_steps=update.get("optimizer_steps"),
        lr=update.get("lr"),
        grad_norm=update.get("grad_norm"),
        clip_fraction=update.get("clip_fraction"),
        entropy=update.get("entropy"),
        residual=update.get("residual"),
        ties=ties.get("all"),
        measured_tokens=update.get("measured_tokens"),
        engine_k3=update.get("mismatch/engine/kl_k3"),
        engine_quantile_999=update.get("mismatch/engine/quantile_999"),
        engine_largest=update.get("mismatch/engine/largest"),
        **{f"kl{part}": update.get(f"mismatch/{prefix}kl_k1") for part, prefix in KL_PARTS.items()},
    )
    by_turn: Row = {}
    for k in update["trained_turns"]:
        by_turn[f"ties_{k}"] = ties.get(f"turn_{k}")
        for part, prefix in KL_PARTS.items():
            by_turn[f"kl{part}_{k}"] = update.get(f"mismatch/turn_{k}/{prefix}kl_k1")
    return vars(row) | by_turn


def _answer_row(line: Record, run: str, benchmark: str | None = None) -> Row:
    calls, end = line["calls"], line["termination"]
    texts: Row = {
        key: json.dumps(line[key], sort_keys=True) for key in ("tools", "audit", "meta") if line.get(key) is not None
    }
    totals: Row = {key: sum(int(counts[key]) for counts in calls.values()) for key in ("attempted", "executed", "ok")}
    row = AnswerRow(
        run=run,
        benchmark=benchmark,
        when=line.get("when"),
        mode=line.get("mode"),
        step=line.get("step"),
        split=line.get("split"),
        question=str(line["uid"] if "uid" in line else line["task"]),
        sample=line.get("sample"),
        grade=line["grade"],
        reward=line["reward"],
        termination=end,
        turns=line["turns"],
        generated_tokens=line["generated_tokens"],
        **totals,
        writes=sum(int(counts["attempted"]) for tool, counts in calls.items() if tool in WRITES),
        is_cut=bool(line["cut_turns"] > 0 or end == Termination.CONTEXT_LIMIT),
        is_ended=bool(end == Termination.ANSWERED and line["detail"] != TOO_MANY_ERRORS),
        **texts,
    )
    known = {key: value for key, value in vars(row).items() if value is not None or key in COLUMNS["answers"]}
    return known | {f"qa_{name}": score for name, score in (line.get("qa") or {}).items()}


def _benchmark(folder: Path, run: str) -> tuple[BenchmarkRow, list[Record]]:
    """A run's evaluation on a benchmark: its row and its lines."""
    manifest, lines = _evaluation(folder)
    require(manifest["checkpoint"], ("policy_version",), f"{folder / 'manifest.json'}, checkpoint")
    row = BenchmarkRow(
        run=run,
        benchmark=manifest["benchmark"],
        folder=str(folder),
        of_run=manifest["checkpoint"].get("run"),
        policy_version=manifest["checkpoint"]["policy_version"],
        samples=manifest["samples"],
        questions=manifest["panel"]["questions"],
        rollout_context=manifest["rollout_context"],
        decoding=json.dumps(manifest["decoding"], sort_keys=True),
        alike=compared_digest(manifest),
    )
    return row, lines


def _evaluation(folder: Path) -> tuple[Record, list[Record]]:
    """The manifest and the lines of an evaluation on a benchmark, of any checkpoint."""
    path, file = folder / "manifest.json", folder / "samples.jsonl"
    manifest = read_manifest(path, SCHEMA, BENCHMARK_KEYS)
    require(manifest["panel"], ("questions",), f"{path}, panel")
    lines = _lines(file, partial(unchanged, checksums=manifest["files"]))
    if len(lines) != (expected := manifest["panel"]["questions"] * manifest["samples"]):
        raise DataError(f"{file} has {counted(len(lines), 'line')} and the manifest says {expected}.")
    if manifest["benchmark"] != folder.name:
        raise DataError(f"{path} says benchmark {manifest['benchmark']!r} and lies in {folder.name!r}: move it back.")
    return manifest, lines


# files


def _finished(folder: Path) -> tuple[Record, Callable[[Path], bytes]]:
    """The manifest of a run, and a function that reads a file and checks its checksum."""
    path = folder / "manifest.json"
    manifest = read_manifest(path, SCHEMA, NEEDED_KEYS)
    require(manifest["ledger"], LEDGER_KEYS, f"{path}, ledger")
    for key, place in (("experiment", folder.parent), ("run", folder)):
        if manifest[key] != place.name:
            raise DataError(f"{path} says {key} {manifest[key]!r} and lies in {place.name!r}: move the run back.")
    return manifest, partial(unchanged, checksums=manifest["files"])


def unchanged(path: Path, checksums: Mapping[str, str]) -> bytes:
    """The bytes of a file. Raises DataError if it is missing or its checksum differs from the manifest's."""
    require(checksums, (path.name,), f"{path.parent / 'manifest.json'}, files")
    if not path.exists():
        raise DataError(f"{path} is missing: restore it, or run again.")
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != checksums[path.name]:
        raise DataError(f"{path}: its sha256 differs from the manifest's. Restore it, or run again.")
    return data


def _lines(path: Path, read: Callable[[Path], bytes]) -> list[Record]:
    """The lines of a file. Raises DataError for damaged lines, with the first one and their number."""
    lines: list[Record] = []
    damaged: list[str] = []
    text = read(path).splitlines()
    for number, line_text in enumerate(text, start=1):
        place = f"{path} line {number}"
        try:
            lines.append(line := json_object(line_text, place, LINE_KEYS[path.name]))
            _check(place, line)
        except DataError as error:
            damaged.append(str(error))
    if damaged:
        count = "" if len(damaged) == 1 else f" {len(damaged)} of the {counted(len(text), 'line')} are damaged."
        raise DataError(damaged[0] + count)
    return lines


def _check(place: str, line: Record) -> None:
    for number, update in enumerate(line.get("updates", ())):
        require(update, UPDATE_KEYS, f"{place}, updates[{number}]")
        require(update, TRAINED_KEYS if update["rows"] else (), f"{place}, updates[{number}]")
    if "when" in line:
        for key, known in (("when", WHEN), ("mode", MODES)):
            if line[key] not in known:
                raise DataError(f"{place} has {key} {line[key]!r}: there are {', '.join(known)}.")
        if (line["reward"] is not None) != (line["grade"] == "graded"):
            raise DataError(f"{place}: reward {line['reward']!r} does not go with grade {line['grade']!r}.")
