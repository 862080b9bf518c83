"""What the driver itself costs a rollout, and whether its memory grows: whole runs, with their records, ledger and
saves, on an engine and a trainer that cost almost nothing. What the engine does cost is timed and taken off.

RTPO on the toy math task; every path reaches the turn limit, so each task takes its worst case of rollouts.
"""

import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil

from experiments.speed.shared import Case, configuration, spread
from rtpo.core.chat import ChatFormat
from rtpo.core.packing import Packed
from rtpo.engines.backend import StepResult, TokenScores
from rtpo.engines.base import BatchingEngine, Generation, Request
from rtpo.harness.curves import X
from rtpo.harness.harness import AgentHarness
from rtpo.run.records import RunFolder
from rtpo.run.run import Run, StopRequest, open_harness, open_ledger
from rtpo.run.tasks import load_tasks
from rtpo.run.tracking import Shown
from rtpo.toy.tokenizer import STOP, build_tokenizer, encode_strict
from rtpo.types import Floats, StopReason, as_ids
from rtpo.verbs import Loss

STEPS = (10, 100, 1000)
RIGHT, WRONG = 27, 15
MOST_TASKS = 20_000


class CannedPolicy:
    """`rtpo.engines.backend.Backend` without a model: two calls, then an answer that is as often right as wrong. A
    reply's seed chooses its numbers, so that few are alike; every token has log-prob -1."""

    ranks = 1
    is_serving = True
    prefilled_tokens = None

    def __init__(self) -> None:
        self.seconds = 0.0
        self._version = 0
        self.engine = BatchingEngine(self._generate)
        self.tokenizer = build_tokenizer()
        (self._result_id,) = encode_strict(self.tokenizer, "</tool_response>")

    async def _generate(self, requests: list[Request]) -> list[Generation]:
        begun = time.perf_counter()
        generations = [self._reply(request) for request in requests]
        self.seconds += time.perf_counter() - begun
        return generations

    def _reply(self, request: Request) -> Generation:
        a, b = (2 + request.seed // place % 98 for place in (1, 98))
        text = f"<think> first {a} * {b}</think><tool_call> {a} * {b}</tool_call>"
        if np.count_nonzero(request.context_ids == self._result_id) == 2:
            box = (RIGHT, WRONG)[request.seed % 2]
            text = f"<think> plan {a} {b} so answer {box}</think> answer\\boxed{{ {box}}}"
        ids = as_ids(encode_strict(self.tokenizer, text + STOP))
        return Generation(ids, np.full(len(ids), -1, np.float32), self._version, StopReason.STOP, None)

    def score(self, packed: Packed, *, apart: bool = False) -> TokenScores:
        ones = np.full(np.count_nonzero(packed.mask), -1, np.float32)
        return TokenScores(ones, ones, len(packed.ids))

    def reference(self, packed: Packed) -> TokenScores:
        return self.score(packed)

    def step(self, packed: Packed, reference: Floats | None, loss: Loss, *, scored: bool = False) -> StepResult:
        sums = {"tokens": 1.0, "clipped": 0.0, "policy_loss": 0.0, "kl_loss": 0.0, "residual": 0.0}
        return StepResult(
            grad_norm=1.0, loss=0.0, sums=sums, lr=0.0, computed_tokens=len(packed.ids), scores=self.score(packed)
        )

    def push(self, version: int) -> None:
        self._version = version

    def save(self, folder: Path) -> None:
        folder.mkdir()

    def load(self, folder: Path) -> None:
        raise NotImplementedError("a benchmark is not resumed")


class Memory:
    """A tracking backend that notes the process's resident memory after each step, in MiB."""

    def __init__(self) -> None:
        self.after_step: list[float] = []

    def log(self, data: dict[str, float], rollouts: int) -> None:
        if X in data:  # a step's numbers, not an evaluation's
            self.after_step.append(psutil.Process().memory_info().rss / 2**20)

    def show(self, name: str, table: Sequence[Shown], rollouts: int) -> None:
        """Nothing of an evaluation."""


def measure(repeats: int, prompts: int = 64) -> Iterator[Case]:
    """Runs of 10, 100 and 1,000 steps. The shortest is repeated; a longer one is made of many steps and is run once."""
    for steps in STEPS:
        runs = []
        for _ in range(repeats if steps == min(STEPS) else 1):
            # memory is a process's, so each run has one of its own; Ctrl-C is for this one to hear
            with ProcessPoolExecutor(1, get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN)) as alone:
                runs.append(alone.submit(driver_run, steps, prompts).result())
        costs = [1e3 * run["seconds"] / run["rollouts"] for run in runs]
        grown = [run["memory_mib"][-1] - run["memory_mib"][max(1, steps // 10) - 1] for run in runs]
        sizes = f"{prompts} x {runs[0]['rollouts'] // (steps * prompts)} x {steps} steps"
        name, records = f"driver, wall-clock a rollout, {sizes}", {"runs": runs}
        yield Case(name, median(costs), "ms", 1.0, False, f"{spread(costs)}; runs: {len(runs)}", records)
        detail = f"{spread(grown)} from the first tenth's end on"
        yield Case(f"driver, memory grown, {sizes}", median(grown), "MiB", 8.0, False, detail, {"grown_mib": grown})


def driver_run(steps: int, prompts: int) -> dict[str, Any]:
    """One run of `steps` steps of `prompts` tasks, as the defaults have it: its rollouts, its seconds without the
    canned policy's, and its memory after each step."""
    with TemporaryDirectory() as results:
        given = ("algorithm=rtpo", "task=toy_math", f"task.train.count={min(steps * prompts, MOST_TASKS)}")
        default = configuration(*given)
        worst = default.descriptor.rollouts_per_task(default.algorithm_config, default.task.max_turns)
        config = configuration(
            # with a KL term no row is dropped before packing
            *(*given, f"results={results}", "algorithm.kl=0.02", "evaluation.greedy=false", "task.held_out.count=1"),
            *(f"budget.tasks_per_step={prompts}", f"budget.rollouts={steps * prompts * worst}"),
        )
        policy, memory, stop, folder = CannedPolicy(), Memory(), StopRequest(), RunFolder(config.folder)
        folder.open(config.as_dict())
        ledger = open_ledger(config, folder, None)
        harness = open_harness(config, policy, ChatFormat(policy.tokenizer), ledger, AgentHarness)
        train, held_out = (
            [replace(task, answer=RIGHT) for task in load_tasks(config.task, data)]
            for data in (config.task.train, config.task.held_out)
        )
        begun = time.perf_counter()
        Run(config, folder, harness, train, held_out, None, stop, memory).train()
        seconds = time.perf_counter() - begun - policy.seconds
        return {"rollouts": ledger.rollouts, "seconds": seconds, "memory_mib": memory.after_step}
