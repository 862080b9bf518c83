"""Whole runs on real verl: small configurations, and what two runs must have in common."""

import json
import zipfile
from pathlib import Path
from typing import Any

from conftest import compose_config

from rtpo.run.config import RunConfig
from rtpo.run.records import RunFolder
from rtpo.run.stopping import StopRequest

SMALL = (
    "task.held_out.count=4",
    "task.train.count=40",
    "budget.tasks_per_step=4",
    "budget.rollouts=150",
    "algorithm.kl=0.02",
    "evaluation.paper=true",
)
RTPO = ("algorithm=rtpo", "algorithm.trunks=2")
WEIGHTS = ("model_world_size_1_rank_0.pt", "optim_world_size_1_rank_0.pt")
GRPO = ("algorithm=grpo", "algorithm.chains=4", "budget.rollouts=48")


class StopAt(StopRequest):
    """Asked to stop when the run looks for the n-th time, between phases or steps."""

    def __init__(self, look: int) -> None:
        self._looks, self._look = 0, look

    @property
    def reason(self) -> str | None:  # type: ignore[override]
        self._looks += 1
        return "SIGTERM" if self._looks == self._look else None


def overrides_in(results: Path, *overrides: str, algorithm: tuple[str, ...] = RTPO) -> tuple[str, ...]:
    settings = {setting.partition("=")[0]: setting for setting in (*SMALL, *algorithm, *overrides)}
    return (*settings.values(), f"results={results}")


def config_in(results: Path, *overrides: str, algorithm: tuple[str, ...] = RTPO) -> RunConfig:
    return compose_config(*overrides_in(results, *overrides, algorithm=algorithm))


def lines(folder: Path, file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / file).read_text().splitlines()]


def without_times(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in step.items() if "seconds" not in key} for step in steps]


def record(folder: RunFolder, *, but: frozenset[str] = frozenset()) -> dict[str, Any]:
    """What a finished run left, by file, without times and without what of the ledger is named in `but`."""
    (ledger,) = without_times([folder.manifest["ledger"]])
    return {
        "steps.jsonl": without_times(lines(folder.path, "steps.jsonl")),
        **{file: lines(folder.path, file) for file in ("rollouts.jsonl", "paths.jsonl", "evaluations.jsonl")},
        "ledger": {key: value for key, value in ledger.items() if key not in but},
    }


def assert_same_run(resumed: RunFolder, finished: RunFolder, *, but: frozenset[str] = frozenset()) -> None:
    """In everything but times, and what of the ledger is named in `but`."""
    first, second = record(resumed, but=but), record(finished, but=but)
    for part in first:
        assert first[part] == second[part], f"{part} differs: {first[part]} and {second[part]}"
    assert {"rollouts", "lost", "syncs", "turn_generations", "evaluation_rollouts", "tool_calls"} - but <= first[
        "ledger"
    ].keys()


def tensors(folder: RunFolder) -> dict[str, bytes]:
    """The numbers of weights and optimizer in the last save."""
    saves = folder.path / "checkpoints"
    archives = [zipfile.ZipFile(saves / (saves / "latest").read_text() / "weights" / name) for name in WEIGHTS]
    return {entry: archive.read(entry) for archive in archives for entry in archive.namelist() if "/data/" in entry}


def differences(resumed: RunFolder, finished: RunFolder) -> list[str]:
    """What of the records differs, by name, and `weights` with the optimizer's; lost rollouts apart, and the
    synchronisation of an engine that is new after a resume."""
    but = frozenset({"lost", "syncs"})
    first, second = (record(folder, but=but) | {"weights": tensors(folder)} for folder in (resumed, finished))
    return [part for part in second if first[part] != second[part]]
