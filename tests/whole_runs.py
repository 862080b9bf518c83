"""Whole runs on real verl: small configurations, and what two runs must have in common."""

import json
from pathlib import Path
from typing import Any

from conftest import compose_config

from rtpo.run.config import RunConfig
from rtpo.run.records import RunFolder
from rtpo.run.run import StopRequest

SMALL = (
    "task.held_out.count=4",
    "task.train.count=40",
    "budget.tasks_per_step=4",
    "budget.rollouts=150",
    "algorithm.kl=0.02",
    "evaluation.paper=true",
)
RTPO = ("algorithm=rtpo", "algorithm.trunks=2")
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


def assert_same_run(resumed: RunFolder, finished: RunFolder, *, but: frozenset[str] = frozenset()) -> None:
    """In everything but times, and what of the ledger is named in `but`."""
    assert without_times(lines(resumed.path, "steps.jsonl")) == without_times(lines(finished.path, "steps.jsonl"))
    for file in ("rollouts.jsonl", "evaluations.jsonl"):
        assert lines(resumed.path, file) == lines(finished.path, file)
    (one,), (other,) = (without_times([folder.manifest["ledger"]]) for folder in (resumed, finished))
    assert {"rollouts", "lost", "syncs", "turn_generations", "evaluation_rollouts", "tool_calls"} <= one.keys()
    assert {k: v for k, v in one.items() if k not in but} == {k: v for k, v in other.items() if k not in but}
