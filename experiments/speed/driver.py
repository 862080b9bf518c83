"""What the driver itself costs a rollout, and whether its memory grows: whole runs, with their records, ledger and
saves, on an engine and a trainer that cost almost nothing. What they do cost is timed and taken off.

RTPO on the toy math task; every path reaches the turn limit, so each task takes its worst case of rollouts.
"""

import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
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
from rtpo.harness.harness import AgentHarness
from rtpo.run.config import RunConfig
from rtpo.run.records import RunFolder
from rtpo.run.run import Run, StopRequest, open_harness, open_ledger
from rtpo.run.tasks import load_tasks
from rtpo.toy.tokenizer import STOP, build_tokenizer, encode_strict
from rtpo.types import Floats, Ids, StopReason, as_ids
from rtpo.verbs import Loss

STEPS = (10, 100, 1000)
RIGHT, WRONG = 27, 15
REPLIES = 2000
MOST_TASKS = 20_000
LOGPROB = -1.0
"""of every token, for the engine and the trainer alike"""


class Clock:
    """Wall-clock and processor seconds of what is done inside `running`."""

    def __init__(self) -> None:
        self.wall = 0.0
        self.cpu = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall += time.perf_counter() - wall
        self.cpu += time.process_time() - cpu


class CannedPolicy:
    """`rtpo.engines.backend.Backend` without a model: replies written beforehand, one log-prob for all tokens.

    Two calls, then an answer that is as often right as wrong. A reply's seed chooses among many, so that few are alike.
    """

    ranks = 1
    is_serving = True

    def __init__(self, clock: Clock, thinking: int) -> None:
        self._clock = clock
        self._version = 0
        self.turns = 0
        self.engine = BatchingEngine(self._generate)
        self.tokenizer = build_tokenizer()
        (self._result_id,) = encode_strict(self.tokenizer, "</tool_response>")
        numbers = np.random.default_rng(0).integers(2, 100, size=(REPLIES, 3)).tolist()
        think = "<think>" + " plan" * thinking
        self._calls = [
            self._reply(f"{think} first {a} * {b}</think><tool_call> {a} * {b}</tool_call>") for a, b, _ in numbers
        ]
        self._answers = [
            self._reply(f"{think} plan {a} {b} {c} so answer {box}</think> answer\\boxed{{ {box}}}")
            for (a, b, c), box in zip(numbers, [RIGHT, WRONG] * (REPLIES // 2), strict=True)
        ]

    def _reply(self, text: str) -> Ids:
        return as_ids(encode_strict(self.tokenizer, text + STOP))

    async def _generate(self, requests: list[Request]) -> list[Generation]:
        with self._clock.running():
            self.turns += len(requests)
            return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Generation:
        results = np.count_nonzero(request.context_ids == self._result_id)
        ids = (self._calls if results < 2 else self._answers)[request.seed % REPLIES].copy()
        logprobs = np.full(len(ids), LOGPROB, np.float32)
        return Generation(as_ids(ids), logprobs, self._version, StopReason.STOP, None)

    def score(self, packed: Packed) -> TokenScores:
        with self._clock.running():
            return TokenScores(self._logprobs(packed), self._logprobs(packed))

    def reference(self, packed: Packed) -> Floats:
        with self._clock.running():
            return self._logprobs(packed)

    def step(self, packed: Packed, reference: Floats | None, loss: Loss) -> StepResult:
        sums = {"tokens": 1.0, "clipped": 0.0, "policy_loss": 0.0, "kl_loss": 0.0, "residual": 0.0}
        return StepResult(grad_norm=1.0, loss=0.0, sums=sums, lr=0.0)

    def push(self, version: int) -> None:
        self._version = version

    def save(self, folder: Path) -> None:
        folder.mkdir()

    def load(self, folder: Path) -> None:
        raise NotImplementedError("a benchmark is not resumed")

    @staticmethod
    def _logprobs(packed: Packed) -> Floats:
        return np.full(np.count_nonzero(packed.mask), LOGPROB, np.float32)


class Memory:
    """A tracking backend that notes the process's resident memory after each step, in MiB."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self.after_step: list[float] = []

    def log(self, data: dict[str, float], step: int) -> None:
        if "rollouts" in data:  # a step's numbers, not an evaluation's
            self.after_step.append(self._process.memory_info().rss / 2**20)


def measure(repeats: int, prompts: int = 64, thinking: int = 0) -> Iterator[Case]:
    """Runs of 10, 100 and 1,000 steps. The shortest is repeated; a longer one is made of many steps and is run once.

    thinking: tokens of thinking put before each reply's own.
    """
    for steps in STEPS:
        runs = []
        for _ in range(repeats if steps == min(STEPS) else 1):
            # memory is a process's, so each run has one of its own; Ctrl-C is for this one to hear
            with ProcessPoolExecutor(1, get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN)) as alone:
                runs.append(alone.submit(driver_run, steps, prompts, thinking).result())
        yield from driver_cases(runs)


def driver_cases(runs: Sequence[dict[str, Any]]) -> list[Case]:
    """Time and memory of equal runs."""
    steps, prompts, rollouts = (runs[0][size] for size in ("steps", "prompts", "rollouts"))
    sizes = f"{prompts} x {rollouts // (steps * prompts)} x {steps} steps"
    wall, cpu = ([1e3 * run[f"{kind}_seconds"] / run["rollouts"] for run in runs] for kind in ("wall", "cpu"))
    grown = [run["grown_mib"] for run in runs]
    return [
        Case(
            f"driver, wall-clock a rollout, {sizes}",
            median(wall),
            "ms",
            1.0,
            False,
            f"{spread(wall)}; processor time {spread(cpu)}; runs: {len(runs)}",
            {"runs": runs},
        ),
        Case(
            f"driver, memory grown, {sizes}",
            median(grown),
            "MiB",
            8.0,
            False,
            f"{spread(grown)} from the first tenth's end on; {runs[0]['memory_mib'][-1]:.0f} MiB in all",
            {"grown_mib": grown},
        ),
    ]


def driver_run(steps: int, prompts: int, thinking: int = 0) -> dict[str, Any]:
    """One run of `steps` steps of `prompts` tasks: its sizes, its seconds without the canned policy's, and its memory
    after each tenth. The first tenth warms up: what memory has `grown` by is counted from its end on."""
    with TemporaryDirectory() as results:
        config = driver_configuration(steps, prompts, thinking, results)
        clock, whole, memory = Clock(), Clock(), Memory()
        policy = CannedPolicy(clock, thinking)
        stop = StopRequest()
        run, harness = open_run(config, policy, stop, memory)
        with stop.listening(), whole.running():
            run.train()
        tenth = max(1, steps // 10)
        return {
            "steps": len(memory.after_step),
            "prompts": prompts,
            "rollouts": harness.ledger.rollouts,
            "turns": policy.turns,
            "wall_seconds": whole.wall - clock.wall,
            "cpu_seconds": whole.cpu - clock.cpu,
            "canned_wall_seconds": clock.wall,
            "canned_cpu_seconds": clock.cpu,
            "memory_mib": memory.after_step[tenth - 1 :: tenth],
            "grown_mib": memory.after_step[-1] - memory.after_step[tenth - 1],
        }


def driver_configuration(steps: int, prompts: int, thinking: int, results: str) -> RunConfig:
    """RTPO on toy math as the defaults have it. With a KL term no row is dropped before packing."""
    given = ("algorithm=rtpo", "task=toy_math")
    default = configuration(*given)
    worst = default.descriptor.rollouts_per_task(default.algorithm_config, default.task.max_turns)
    return configuration(
        *(*given, f"results={results}", "algorithm.kl=0.02", "evaluation.greedy=false", "task.held_out.count=1"),
        f"task.train.count={min(steps * prompts, MOST_TASKS)}",
        *(f"task.max_turn_tokens={32 + thinking}", f"task.max_context_tokens={256 + thinking}"),
        *(f"budget.tasks_per_step={prompts}", f"budget.rollouts={steps * prompts * worst}"),
    )


def open_run(config: RunConfig, policy: CannedPolicy, stop: StopRequest, track: Memory) -> tuple[Run, AgentHarness]:
    """What experiments/train.py opens, on the canned policy and tasks with the answer that it knows."""
    folder = RunFolder(config.folder)
    folder.open(config.as_dict())
    ledger = open_ledger(config, folder, None)
    harness = open_harness(config, policy, ChatFormat(policy.tokenizer), ledger, AgentHarness)
    train, held_out = (
        [replace(task, answer=RIGHT) for task in load_tasks(config.task, data)]
        for data in (config.task.train, config.task.held_out)
    )
    return Run(config, folder, harness, train, held_out, None, stop, track), harness
