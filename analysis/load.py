"""Runs as pandas frames, from their folders under results/ or from the Parquet files of finished studies.

    frames = load(Path("results", "reference"))     every finished run below a folder
    for label, group in groups(frames).items():     a configuration: its runs, by experiment and seed

`runs`, a row a run:
    run (experiment/name, such as toy_math/rtpo-seed10: the key of all other frames), folder (empty of runs that are
    kept as Parquet), experiment, name, label, algorithm, task, seed, profile, rollout_context, training_context, model,
    model_sha256, learning_rate, commit, dirty, started, ended, ended_by, steps, policy_version, logical_cpus,
    is_finished, config (JSON), wall_seconds, training_seconds (without evaluation), seconds_<phase>, budget, rollouts,
    generated_tokens, trained_tokens, optimizer_steps and all other numbers of the ledger
`steps`, a row an update of a data step, and one row with update NA for a step without updates:
    run, step, update
    of the step: tasks, success, mean_reward, rollouts, generated_tokens, wall_seconds and seconds_<phase> (totals up to
    its end), sampled_rollouts, sampled_turns, sampled_tokens (of the step), algorithm/<name> (what it recorded)
    of the update: rows, trained_tokens, tied_rows, optimizer_steps, lr, grad_norm, clip_fraction, entropy, residual,
    kl (k1, nats a token, rollout to training), kl_context and kl_engine (its parts), ties (share of groups whose
    advantages are all 0); by turn k: kl_k, kl_context_k, kl_engine_k, ties_k, is_trained_k
`answers`, a row a question, sample and mode of a run's own evaluations, and of evaluations on benchmarks:
    run, benchmark (NA: the run's own), when (before, during, after), mode (sampled, paper, greedy), step, split,
    question, sample, grade, reward (NaN unless graded), termination, turns, generated_tokens; attempted, executed, ok,
    writes (calls, over all tools); is_cut (a turn or the context met its limit), is_ended (by the policy or the user);
    of a benchmark qa_<score>; audit and meta (JSON)
`benchmarks`, a row an evaluation of a run on a benchmark:
    run, benchmark, folder, policy_version, samples, questions, rollout_context, decoding (JSON), alike (a checksum of
    what evaluations that are compared have in common)

NaN and NA stand for what the records do not have. `load_run(folder, finished=False)` also loads a run that goes on.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.looks import styles
from rtpo.core.files import sha256, whole_lines, write_whole
from rtpo.core.names import nearest
from rtpo.envs.airline.tasks import TOO_MANY_ERRORS, WRITES
from rtpo.errors import DataError
from rtpo.run.config import leaves
from rtpo.run.records import SCHEMA, json_object, no_run, read_config, read_manifest, require
from rtpo.types import Termination

MANIFEST_KEYS = (
    *("experiment", "run", "label", "algorithm", "task", "seed", "profile", "rollout_context", "training_context"),
    *("model", "model_sha256", "steps", "policy_version", "wall_seconds", "ledger", "files"),
)
OPTIONAL_KEYS = ("commit", "dirty", "started", "ended", "ended_by")
LEDGER_KEYS = ("budget", "rollouts", "generated_tokens", "optimizer_steps", "seconds")
STEP_KEYS = ("step", "rollouts", "generated_tokens", "seconds", "wall_seconds", "success", "mean_reward", "updates")
UPDATE_KEYS = ("rows", "trained_turns", "trained_tokens")
TRAINED_KEYS = ("mismatch/kl_k1", "mismatch/context/kl_k1", "zero_advantage")
EPISODE_KEYS = ("grade", "reward", "detail", "termination", "turns", "cut_turns", "generated_tokens", "calls")
ANSWER_KEYS = ("when", "step", "split", "mode", "task", "sample", *EPISODE_KEYS)
SAMPLE_KEYS = ("uid", "sample", "qa", *EPISODE_KEYS)
BENCHMARK_KEYS = ("benchmark", "checkpoint", "panel", "samples", "decoding", "rollout_context", "limits", "settings")
ALIKE = ("panel", "samples", "decoding", "limits", "settings")
CALLS = ("attempted", "executed", "ok")
PARTS = {"": "", "_context": "context/", "_engine": "engine/"}
"""of the KL: in columns, and in records"""
COLUMNS: dict[str, tuple[str, ...]] = {
    "runs": ("run",),
    "steps": (
        *("run", "step", "tasks", "success", "mean_reward", "rollouts", "generated_tokens", "wall_seconds"),
        *("seconds_evaluate", "sampled_rollouts", "sampled_turns", "sampled_tokens", "update", "rows"),
        *("trained_tokens", "entropy", "residual", "ties", "kl", "kl_context", "kl_engine"),
    ),
    "answers": ("run", "benchmark", "when", "mode", "step", "split", "question", "sample", "grade", "reward"),
    "benchmarks": (
        *("run", "benchmark", "folder", "of_run", "policy_version", "samples", "questions", "rollout_context"),
        *("decoding", "alike"),
    ),
}
"""of frames without a row"""
WHEN = ("before", "during", "after")
MODES = ("sampled", "paper", "greedy")
QUESTION = ["run", "when", "mode", "step", "split", "question"]
SUMS = "SHA256SUMS"
OWN_SETTINGS = ("seed", "results")
"""fields in which the runs of one label may differ"""
WARM_START = (
    *("experiment_name", "model", "model_sha256"),
    *("verl.trainer.experiment_name", "verl.actor_rollout_ref.model.path"),
)
ADDED = {"evaluation": {"before": True}}
"""fields that runs of earlier versions do not have, and what these did"""
Line = Mapping[str, Any]
Check = Callable[[str, Line], None]


class Frames:
    """Runs, their steps, answers and evaluations on benchmarks; the module says which columns there are. A part
    (`of`) takes its rows of the whole once they are asked for. Not to be changed."""

    def __init__(
        self, runs: pd.DataFrame, steps: pd.DataFrame, answers: pd.DataFrame, benchmarks: pd.DataFrame
    ) -> None:
        self.runs, self.steps, self.answers, self.benchmarks = runs, steps, answers, benchmarks
        self.names: list[str] = list(runs["run"])
        self._whole = self
        self._places: dict[str, Mapping[Any, Any]] = {}

    def of(self, runs: Iterable[str]) -> "Frames":
        """Those of these runs, in their order. Raises KeyError for a run that is not there."""
        names = list(runs)
        if names == self.names:
            return self
        if unknown := set(names) - set(self.names):
            raise KeyError(f"no run {min(unknown)}")
        part = object.__new__(Frames)
        part._whole, part.names = self._whole, names
        return part

    def __getattr__(self, name: str) -> Any:
        if name not in COLUMNS:
            raise AttributeError(name)
        self.__dict__[name] = self._whole._taken(name, self.names)
        return self.__dict__[name]

    def _taken(self, name: str, runs: Sequence[str]) -> pd.DataFrame:
        frame: pd.DataFrame = getattr(self, name)
        if name not in self._places:
            self._places[name] = frame.groupby("run").indices
        none = np.empty(0, np.int64)
        return frame.iloc[np.concatenate([none, *(self._places[name].get(run, none) for run in runs)])]

    def where(self, **values: object) -> "Frames":
        """The runs whose columns have these values: `frames.where(experiment="reference", label="rtpo")`."""
        chosen = self.runs
        for column, value in values.items():
            chosen = chosen[chosen[column] == value]
        return self.of(chosen["run"])

    @property
    def label(self) -> str:
        """The label of a configuration's runs."""
        return str(self.runs["label"].iloc[0])

    @property
    def config(self) -> dict[str, Any]:
        """The configuration of the first run, for what all share."""
        config: dict[str, Any] = json.loads(self.runs["config"].iloc[0])
        return config

    @property
    def questions(self) -> pd.DataFrame:
        """Of each question of a run's own evaluations, [run, when, mode, step, split, question]: how many `samples`,
        how many `graded`, and the share of these with reward 1, `success`, NaN without any."""
        return self.derived(_questions)

    def derived(self, make: "Callable[[Frames], pd.DataFrame]") -> pd.DataFrame:
        """The rows of these runs in what `make` computes, once, of the whole, with `run` in its index."""
        whole, name = self._whole, make.__name__
        if name not in whole.__dict__:
            whole.__dict__[name] = make(whole)
        return whole._taken(name, self.names)


def _questions(frames: Frames) -> pd.DataFrame:
    own = frames.answers[frames.answers["benchmark"].isna()]
    solved = (own["reward"] == 1).astype(float).where(own["reward"].notna())
    grouped = solved.groupby([own[key].astype(object) for key in QUESTION])
    return pd.DataFrame({"samples": grouped.size(), "graded": grouped.count(), "success": grouped.mean()})


def load(*folders: Path) -> Frames:
    """Every finished run below these folders: in Parquet files, or each in its folder. Raises DataError for damaged or
    changed records, and for a folder without any run."""
    loaded = [frames for folder in folders for frames in _below(folder)]
    if not loaded:
        raise DataError(f"{' and '.join(map(str, folders))}: no finished run. Give a folder of run records.")
    return concat(loaded)


def _below(folder: Path) -> list[Frames]:
    kept = [read_parquet(file.parent) for file in sorted(folder.rglob(SUMS)) if (file.parent / "runs.parquet").exists()]
    known = {name for frames in kept for name in frames.names}
    depths = ("manifest.json", "*/manifest.json", "*/*/manifest.json")
    runs = [file.parent for depth in depths for file in find(folder, depth)]
    runs = [run for run in runs if not (run / "samples.jsonl").exists()]
    return kept + [load_run(run) for run in runs if f"{run.parent.name}/{run.name}" not in known]


def find(folder: Path, pattern: str) -> list[Path]:
    """Files below a folder, with whole paths."""
    return sorted(folder.absolute().glob(pattern))


def has_runs(folder: Path) -> bool:
    """Whether an experiment's folder holds a finished run."""
    return is_kept(folder) or bool(find(folder, "*/manifest.json"))


def concat(parts: Sequence[Frames]) -> Frames:
    """All runs of several frames, each once."""
    if len(parts) == 1:
        return parts[0]
    seen: set[str] = set()
    new = []
    for part in parts:
        new.append(part.of(name for name in part.names if name not in seen))
        seen.update(part.names)
    return Frames(*(_joined([getattr(part, name) for part in new]) for name in COLUMNS))


def _joined(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    filled = [frame for frame in frames if len(frame)] or frames[:1]
    return pd.concat(filled, ignore_index=True) if len(filled) > 1 else filled[0]


def _frame(name: str, rows: Sequence[Line]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=None if rows else pd.Index(COLUMNS[name]))


def experiment(results: Path, name: str) -> Frames:
    """The finished runs of results/<name>/. Raises DataError where there are none, naming experiments with some."""
    folder = results / name
    if loaded := _below(folder):
        return concat(loaded)
    others = sorted({file.parents[1].name for file in find(results, "*/*/manifest.json")})
    begun = ", ".join(path.name for path in unfinished(folder))
    why = f" (not finished: {begun})" if begun else ""
    raise DataError(f"{folder} holds no finished run{why}: {nearest(name, others)}.")


def unfinished(folder: Path) -> list[Path]:
    """The folders of runs of an experiment that began and have no manifest."""
    return [file.parent for file in find(folder, "*/config.yaml") if not file.with_name("manifest.json").exists()]


def load_run(folder: Path, finished: bool = True) -> Frames:
    """A run as frames of one run. finished=False: also one that has no manifest, with the whole lines that it has
    written so far. Raises DataError for a folder that is no run's, and for damaged or changed records."""
    folder = folder.absolute()
    manifest, read = {}, whole_lines
    if finished or (folder / "manifest.json").exists():
        manifest = dict(_manifest(folder))
        read = partial(unchanged, checksums=manifest["files"])
    elif not (folder / "config.yaml").exists():
        raise DataError(no_run(folder))
    config: Line = read_config(folder / "config.yaml", read(folder / "config.yaml"))
    steps = _lines(folder / "steps.jsonl", read(folder / "steps.jsonl"), STEP_KEYS, _check_step)
    answers = _lines(folder / "evaluations.jsonl", read(folder / "evaluations.jsonl"), ANSWER_KEYS, _check_answer)
    if manifest and len(steps) != manifest["steps"]:
        raise DataError(f"{folder / 'steps.jsonl'} has {len(steps)} lines, its manifest {manifest['steps']} steps.")
    if not manifest:
        require(config, ("algorithm", "seed", "budget", "profile"), f"{folder / 'config.yaml'}, which is no run's,")
        # an evaluation may be written before the line of its step
        answers = [line for line in answers if line["step"] <= len(steps)]
        manifest = {
            **{"experiment": folder.parent.name, "run": folder.name, "label": config["algorithm"]["label"]},
            **{"seed": config["seed"], "profile": config["profile"]["name"], "steps": len(steps)},
        }
    name = f"{manifest['experiment']}/{manifest['run']}"
    rows, benchmarks = [_answer_row(name, line) for line in answers], []
    for file in find(folder, "*/samples.jsonl"):
        if file.with_name("manifest.json").exists():
            row, lines = load_benchmark(file.parent)
            benchmarks.append({"run": name, **row})
            rows += [{**_answer_row(name, line), "benchmark": row["benchmark"]} for line in lines]
    return Frames(
        pd.DataFrame([{"run": name, "folder": str(folder), **_run_row(manifest, config, steps)}]),
        _frame("steps", [{"run": name, **row} for line in steps for row in _step_rows(line)]),
        _frame("answers", rows),
        pd.DataFrame(benchmarks, columns=pd.Index(COLUMNS["benchmarks"])),
    )


def load_benchmark(folder: Path) -> tuple[dict[str, Any], list[Line]]:
    """An evaluation on a benchmark: its row, and the lines of its samples. Raises DataError for damaged or changed
    records, and for a file that is not whole."""
    path = folder / "manifest.json"
    manifest = read_manifest(path, SCHEMA, (*BENCHMARK_KEYS, "files"))
    file = folder / "samples.jsonl"
    lines = _lines(file, unchanged(file, manifest["files"]), SAMPLE_KEYS)
    expected = manifest["panel"]["questions"] * manifest["samples"]
    if len(lines) != expected:
        raise DataError(f"{folder / 'samples.jsonl'} has {len(lines)} lines and the manifest says {expected}.")
    if manifest["benchmark"] != folder.name:
        raise DataError(f"{path} says benchmark {manifest['benchmark']!r} and lies in {folder.name!r}: move it back.")
    alike = json.dumps([manifest[key] for key in ALIKE], sort_keys=True)
    return {
        "benchmark": manifest["benchmark"],
        "folder": str(folder),
        "of_run": manifest["checkpoint"].get("run"),
        "policy_version": manifest["checkpoint"]["policy_version"],
        "samples": manifest["samples"],
        "questions": manifest["panel"]["questions"],
        "rollout_context": manifest["rollout_context"],
        "decoding": json.dumps(manifest["decoding"], sort_keys=True),
        "alike": hashlib.sha256(alike.encode()).hexdigest()[:12],
    }, lines


def load_samples(folder: Path) -> pd.DataFrame:
    """The samples of an evaluation on a benchmark, with the columns of `answers`, in the order of its questions."""
    row, lines = load_benchmark(folder)
    ordered = sorted(lines, key=lambda line: (line.get("position", 0), line["sample"]))
    return pd.DataFrame([{**_answer_row("", line), "benchmark": row["benchmark"]} for line in ordered])


def load_paths(folder: Path) -> pd.DataFrame:
    """The paths of training of a run whose folder is kept, with the columns of `answers` and step, rollout, parent,
    start_k and role. Raises DataError where it has none."""
    manifest = _manifest(folder)
    unchanged(folder / "config.yaml", manifest["files"])
    keys = ("step", "parent", "start_k", "task", *EPISODE_KEYS)
    file = folder / "paths.jsonl"
    lines = _lines(file, unchanged(file, manifest["files"]), keys)
    name = f"{manifest['experiment']}/{manifest['run']}"
    more = ("rollout", "parent", "start_k", "role")
    return pd.DataFrame([{**_answer_row(name, line), **{key: line.get(key) for key in more}} for line in lines])


# rows


def _run_row(manifest: Line, config: Line, steps: Sequence[Line]) -> dict[str, Any]:
    ledger = manifest.get("ledger", {})
    seconds = ledger.get("seconds", {})
    row = {key: manifest.get(key) for key in (*MANIFEST_KEYS, *OPTIONAL_KEYS) if key not in ("run", "ledger", "files")}
    row |= {key: value for key, value in ledger.items() if isinstance(value, int | float)}
    row |= {f"seconds_{phase}": value for phase, value in seconds.items()}
    wall = manifest.get("wall_seconds")
    return row | {
        "name": manifest["run"],
        "model_sha256": json.dumps(manifest.get("model_sha256"), sort_keys=True),
        "is_finished": "files" in manifest,
        "rollouts": ledger.get("rollouts", steps[-1]["rollouts"] if steps else 0),
        "budget": config["budget"]["rollouts"],
        "learning_rate": config.get("optimizer", {}).get("lr"),
        "training_seconds": None if wall is None else wall - seconds["evaluate"],
        "logical_cpus": manifest.get("machine", {}).get("logical_cpus"),
        "config": json.dumps(config, sort_keys=True),
    }


def _step_rows(line: Line) -> Iterator[dict[str, Any]]:
    calls = line.get("rollout_calls", ())
    totals = ("rollouts", "turns", "generated_tokens")
    rollouts, turns, tokens = (sum(call[key] for call in calls) if calls else None for key in totals)
    step = {
        "step": line["step"],
        "tasks": line.get("tasks", 0),
        **{key: line[key] for key in ("success", "mean_reward", "rollouts", "generated_tokens", "wall_seconds")},
        **{f"seconds_{phase}": value for phase, value in line["seconds"].items()},
        **{"sampled_rollouts": rollouts, "sampled_turns": turns, "sampled_tokens": tokens},
        **{f"algorithm/{name}": float(value) for name, value in line.get("algorithm", {}).items()},
    }
    if not line["updates"]:
        yield step
    for number, update in enumerate(line["updates"]):
        yield step | {"update": number} | _update_row(update)


def _update_row(update: Line) -> dict[str, Any]:
    plain = ("rows", "trained_tokens", "tied_rows", "optimizer_steps", "lr", "grad_norm", "clip_fraction")
    row = {key: update.get(key) for key in (*plain, "entropy", "residual")}
    ties = update.get("zero_advantage") or {}
    row["ties"] = ties.get("all")
    row |= {f"kl{part}": update.get(f"mismatch/{key}kl_k1") for part, key in PARTS.items()}
    for k in update["trained_turns"]:
        row[f"is_trained_{k}"] = True
        row[f"ties_{k}"] = ties.get(f"turn_{k}")
        row |= {f"kl{part}_{k}": update.get(f"mismatch/turn_{k}/{key}kl_k1") for part, key in PARTS.items()}
    return row


def _answer_row(run: str, line: Line) -> dict[str, Any]:
    calls, end = line["calls"], line["termination"]
    row = {
        "run": run,
        "benchmark": None,
        **{key: line.get(key) for key in ("when", "mode", "step", "split", "sample", "grade", "reward")},
        "question": str(line["uid"] if "uid" in line else line["task"]),
        **{key: line[key] for key in ("termination", "turns", "generated_tokens")},
        **{key: sum(int(counts[key]) for counts in calls.values()) for key in CALLS},
        "writes": sum(int(counts["attempted"]) for tool, counts in calls.items() if tool in WRITES),
        "is_cut": bool(line["cut_turns"] > 0 or end == Termination.CONTEXT_LIMIT.value),
        "is_ended": end == Termination.ANSWERED.value and line["detail"] != TOO_MANY_ERRORS,
    }
    if "tools" in line:
        row["tools"] = json.dumps(line["tools"], sort_keys=True)
    for key in ("audit", "meta"):
        if line.get(key) is not None:
            row[key] = json.dumps(line[key], sort_keys=True)
    return row | {f"qa_{name}": score for name, score in (line.get("qa") or {}).items()}


# files


def _lines(path: Path, data: bytes, keys: Collection[str], check: Check | None = None) -> list[Line]:
    """The lines of a file, each with `keys` and passing `check`. Raises DataError for damaged lines: the first is
    named, all are counted."""
    lines: list[Line] = []
    damaged: list[str] = []
    text = data.splitlines()
    for number, line_text in enumerate(text, start=1):
        try:
            lines.append(line := json_object(line_text, f"{path} line {number}", keys))
            if check:
                check(f"{path} line {number}", line)
        except DataError as error:
            damaged.append(str(error))
    if damaged:
        count = "" if len(damaged) == 1 else f" {len(damaged)} of the {len(text)} lines are damaged."
        raise DataError(damaged[0] + count)
    return lines


def unchanged(path: Path, checksums: Mapping[str, str]) -> bytes:
    """A file that is as its manifest's checksum says. Raises DataError for another."""
    require(checksums, (path.name,), f"{path.parent / 'manifest.json'}, files")
    if not path.exists():
        raise DataError(f"{path} is missing: restore it, or run again.")
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != checksums[path.name]:
        raise DataError(f"{path}: its sha256 differs from the manifest's. Restore it, or run again.")
    return data


def _manifest(folder: Path) -> Line:
    path = folder / "manifest.json"
    manifest = read_manifest(path, SCHEMA, MANIFEST_KEYS)
    require(manifest["ledger"], LEDGER_KEYS, f"{path}, ledger")
    for key, place in (("experiment", folder.parent), ("run", folder)):
        if manifest[key] != place.name:
            raise DataError(f"{path} says {key} {manifest[key]!r} and lies in {place.name!r}: move the run back.")
    return manifest


def _check_step(place: str, line: Line) -> None:
    for number, update in enumerate(line["updates"]):
        require(update, UPDATE_KEYS, f"{place}, updates[{number}]")
        if update["rows"]:
            require(update, TRAINED_KEYS, f"{place}, updates[{number}]")


def _check_answer(place: str, line: Line) -> None:
    for key, known in (("when", WHEN), ("mode", MODES)):
        if line[key] not in known:
            raise DataError(f"{place} has {key} {line[key]!r}: there are {', '.join(known)}.")
    if (line["reward"] is not None) != (line["grade"] == "graded"):
        raise DataError(f"{place}: reward {line['reward']!r} does not go with grade {line['grade']!r}.")


# Parquet


def is_kept(folder: Path) -> bool:
    """Whether a folder holds frames as Parquet."""
    return (folder / SUMS).exists()


def read_parquet(folder: Path) -> Frames:
    """Frames that `keep` wrote. Raises DataError for a file that is missing or was changed."""
    stats = [file.stat() for file in sorted(folder.iterdir())]
    return _read_parquet(folder, tuple((stat.st_mtime_ns, stat.st_size) for stat in stats))


@lru_cache(maxsize=8)
def _read_parquet(folder: Path, _stamps: tuple[tuple[int, int], ...]) -> Frames:
    for line in (folder / SUMS).read_text().splitlines():
        expected, name = line.split("  ")
        if not (folder / name).exists() or sha256(folder / name) != expected:
            raise DataError(f"{folder / name} is missing or not as {SUMS} says: restore it.")
    frames = (pd.read_parquet(folder / f"{name}.parquet") for name in COLUMNS)
    # texts as plain objects: grouping and selecting take a fifth less
    return Frames(*(frame.astype(dict.fromkeys(frame.select_dtypes("str").columns, object)) for frame in frames))


def keep(frames: Frames, folder: Path) -> Frames:
    """Write frames beside those that the folder holds; a run that it holds already stays as it is. SHA256SUMS is
    written last, so that a folder without it is not whole."""
    if is_kept(folder):
        frames = concat([read_parquet(folder), frames])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SUMS).unlink(missing_ok=True)
    sums = ""
    for name in COLUMNS:
        file = folder / f"{name}.parquet"
        ordered = getattr(frames, name).sort_values("run", kind="stable", ignore_index=True)
        if "folder" in ordered:  # of the machine that made them
            ordered = ordered.assign(folder="")
        ordered.to_parquet(file, index=False, compression="zstd", compression_level=19)
        sums += f"{sha256(file)}  {file.name}\n"
    write_whole(folder / SUMS, sums.encode())
    return frames


# configurations


def groups(frames: Frames, own: Collection[str] = OWN_SETTINGS) -> dict[str, Frames]:
    """Runs by label, in the order of `analysis.looks`, each by experiment and seed. Raises DataError when a label's
    runs differ in a field of the configuration that is not in `own`, or in the model's weights, or when two of an
    experiment share a seed."""
    by_label: dict[str, Frames] = {}
    for label in styles(frames.runs["label"].unique()):
        runs = frames.runs[frames.runs["label"] == label].sort_values(["experiment", "seed"])
        _check_alike(runs, own)
        by_label[label] = frames.of(runs["run"])
    return by_label


def over_warm_starts(frames: Frames, own: Collection[str] = ()) -> dict[str, Frames]:
    """Runs of one task by label, an experiment being a warm start: they may differ in their model between experiments.
    Raises DataError as `groups` does, and when an experiment has several models."""
    models = frames.runs.groupby("experiment")["model_sha256"].nunique()
    if (several := models[models > 1]).size:
        raise DataError(f"the runs of {several.index[0]} started from different weights: give each its own folder.")
    return groups(frames, (*OWN_SETTINGS, *WARM_START, *own))


def _check_alike(runs: pd.DataFrame, own: Collection[str]) -> None:
    twins = runs[runs.duplicated(["experiment", "seed"], keep=False)]
    if len(twins):
        raise DataError(f"{' and '.join(twins['run'])} have the same label and seed: delete one.")
    first, *others = [{**_flat(row.config), "model_sha256": row.model_sha256} for row in runs.itertuples()]
    for name, other in zip(runs["run"].iloc[1:], others, strict=True):
        different = [key for key in first.keys() | other.keys() if first.get(key) != other.get(key)]
        different = sorted(key for key in different if not any(f"{key}.".startswith(f"{field}.") for field in own))
        if different:
            what = "; ".join(f"{key}, {first.get(key)!r} and {other.get(key)!r}" for key in different)
            raise DataError(f"{runs['run'].iloc[0]} and {name} have one label and differ in {what}: label them apart.")


@lru_cache(maxsize=2048)
def _flat(config: str) -> dict[str, Any]:
    """A run's configuration by path."""
    tree = json.loads(config)
    return dict(leaves(tree | {name: {**values, **tree.get(name, {})} for name, values in ADDED.items()}))
