"""An evaluation of nine toy questions by a script in place of a checkpoint."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from conftest import compose_config
from scripted import TOKENIZER, ScriptedEngine, solver
from whole_runs import lines, without_times

from analysis.summary import summarise
from rtpo.engines.base import Generation, Request
from rtpo.envs.toy.math import problems
from rtpo.evaluation import evaluate as evaluation
from rtpo.evaluation.panel import EvaluateConfig, compose_evaluation
from rtpo.evaluation.policies import Checkpoint
from rtpo.run import cli
from rtpo.run.config import PROJECT, RunConfig

evaluate = partial(evaluation.evaluate, summarise=summarise)
QUESTIONS, SAMPLES = 9, 3
WARM_START = PROJECT / "rtpo" / "toy" / "warm_start_math"


@cache
def composed(*overrides: str) -> EvaluateConfig:
    return compose_evaluation(cli.composed("evaluate", ["checkpoint=somewhere", *overrides]))


@cache
def toy_run() -> RunConfig:
    return compose_config("task=toy_math", "algorithm=grpo", "seed=5")


def evaluation_in(tmp_path: Path, *overrides: str) -> EvaluateConfig:
    tasks = problems("held_out", QUESTIONS, 0)
    rows = [{"uid": task.uid, "question": task.question, "answer": task.answer} for task in tasks]
    file = tmp_path / "toy.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = toy_run().task
    task = replace(task, held_out=replace(task.held_out, split="all", count=None, file=str(file)))
    config = composed("benchmarks=[math500]", *(overrides or (f"samples={SAMPLES}", "ks=[1,2]")))
    return replace(config, results=str(tmp_path / "results"), benchmarks={"toy": task}, batch=4)


def changed(config: EvaluateConfig, **changes: Any) -> EvaluateConfig:
    return replace(config, benchmarks={"toy": replace(config.benchmarks["toy"], **changes)})


class Policy:
    """A script in place of a checkpoint. before: called at every request."""

    def __init__(self) -> None:
        self.engine = ScriptedEngine(solver(0.3))
        self.before: Callable[[Request], Awaitable[None]] | None = None

    def find(self, config: EvaluateConfig) -> Checkpoint:
        return Checkpoint("script", {"kind": "script"}, TOKENIZER, self.open)

    def open(self) -> tuple[Any, int]:
        return self, 0

    async def generate(self, request: Request) -> Generation:
        if self.before:
            await self.before(request)
        return await self.engine.generate(request)

    def end_after(self, requests: int, end: Callable[[], None]) -> None:
        left = iter(range(requests))

        async def before(request: Request) -> None:
            if next(left, None) is None:
                end()

        self.before = before


def folder_of(config: EvaluateConfig, label: str = "script") -> Path:
    return Path(config.results) / config.experiment_name / label / "toy"


def lines_of(config: EvaluateConfig, label: str = "script") -> list[dict[str, Any]]:
    """By position and sample, without what a clock says."""
    samples = without_times(lines(folder_of(config, label), "samples.jsonl"))
    return sorted(samples, key=lambda line: (line["position"], line["sample"]))
