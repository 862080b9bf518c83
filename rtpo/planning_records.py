"""What finished runs measured, for plans of runs like them: medians over the committed records of the toy tasks."""

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from rtpo.config import PROJECT, RunConfig
from rtpo.planning_data import Range
from rtpo.records import RunFolder

FOLDERS = ("results/toy", "results/reference")
TRAINING = ("generate", "score", "update", "sync")


@dataclass(frozen=True)
class Measured:
    """Medians over `records` finished runs of one algorithm's configuration on one task and model; of `seconds`, which
    are a training rollout's, the least and the most as well. steps_each, syncs_each: optimizer steps and
    synchronisations of a data step."""

    records: int
    rollouts_per_task: float
    generated: float
    trained: float
    steps_each: float
    syncs_each: float
    seconds: Range


@dataclass(frozen=True)
class Played:
    """Medians over `records` finished runs of any algorithm on one task and model, of whole episodes from their tasks.
    seconds: an evaluation rollout's, with the least and the most."""

    records: int
    turns: float
    tokens_per_turn: float
    success: float
    seconds: Range


def measured(run: RunConfig) -> Measured | None:
    """Of runs with the same `algorithm` tree; None without one."""
    wanted = [(config, manifest) for config, manifest, _ in _records(run) if config["algorithm"] == _plain(run)]
    ledgers = [(manifest["ledger"], manifest["steps"]) for _, manifest in wanted if manifest["steps"]]
    if not ledgers:
        return None

    def middle(values: Sequence[float]) -> float:
        return float(median(values))

    return Measured(
        records=len(ledgers),
        rollouts_per_task=middle([one["rollouts"] / one["tasks_seen"] for one, _ in ledgers]),
        generated=middle([one["generated_tokens"] / one["rollouts"] for one, _ in ledgers]),
        trained=middle([one["trained_tokens"] / one["rollouts"] for one, _ in ledgers]),
        steps_each=middle([one["optimizer_steps"] / steps for one, steps in ledgers]),
        syncs_each=middle([one["syncs"] / steps for one, steps in ledgers]),
        seconds=_spread([sum(one["seconds"][phase] for phase in TRAINING) / one["rollouts"] for one, _ in ledgers]),
    )


def played(run: RunConfig) -> Played | None:
    """None without a record of the task and model."""
    records = _records(run)
    calls = [call for _, manifest, folder in records if manifest["seed"] == 0 for call in _whole_calls(folder)]
    ledgers = [manifest["ledger"] for _, manifest, _ in records if manifest["ledger"]["evaluation_rollouts"]]
    if not calls or not ledgers:
        return None
    return Played(
        records=len(ledgers),
        turns=float(median(call["turns"] / call["rollouts"] for call in calls)),
        tokens_per_turn=float(median(call["generated_tokens"] / call["turns"] for call in calls)),
        success=float(median(call["success"] for call in calls if call["success"] is not None)),
        seconds=_spread([one["seconds"]["evaluate"] / one["evaluation_rollouts"] for one in ledgers]),
    )


Record = tuple[Mapping[str, Any], Mapping[str, Any], Path]


def _records(run: RunConfig) -> list[Record]:
    """Configuration, manifest and folder of the finished runs of the run's task and model."""
    return [
        (config, manifest, folder)
        for config, manifest, folder in _finished()
        if (manifest["task"], manifest["model"], manifest["profile"])
        == (run.task.name, run.model.name, run.profile.name)
        and config["task"]["max_turns"] == run.task.max_turns
    ]


@cache
def _finished() -> list[Record]:
    found: list[Record] = []
    for name in FOLDERS:
        for file in sorted((PROJECT / name).rglob("manifest.json")):
            folder = RunFolder(file.parent)
            found.append((folder.config, folder.manifest, folder.path))
    return found


@cache
def _whole_calls(folder: Path) -> list[dict[str, Any]]:
    """Of each step the first rollout call, where that is of whole paths from their tasks."""
    calls = [line["rollout_calls"][0] for line in _lines(folder / "steps.jsonl")]
    return [call for call in calls if set(call["start_turns"]) == {"0"} and "open" not in call["terminations"]]


def _lines(file: Path) -> list[dict[str, Any]]:
    packed = file.with_name(file.name + ".gz")
    text = gzip.decompress(packed.read_bytes()).decode() if packed.exists() else file.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def _plain(run: RunConfig) -> Any:
    return json.loads(json.dumps(run.algorithm))


def _spread(values: Sequence[float]) -> Range:
    return Range(min(values), float(median(values)), max(values))
