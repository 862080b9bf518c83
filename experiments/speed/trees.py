"""What one data step's training costs, update and scoring: flattened rows, exact rows, and exact rows as prefix trees.

Each method takes one data step, and what it gave the trainer is trained again and again, at a learning rate too small
to move the weights: the same rows, computed each by itself or as trees, in turns. First the toy tasks, then a
random-weight Qwen3 of 25 million parameters on conversations of eight turns, whose contexts grow from 512 to 1,023
tokens; its replies are written by a script, so that lengths are as said.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from transformers import Qwen3ForCausalLM

from experiments.speed.shared import Case, configuration, in_turns, spread
from rtpo.engines.base import BatchingEngine, Generation, Request
from rtpo.envs.base import Env
from rtpo.envs.toy.env import Exchange, ToyEnv
from rtpo.harness.budget import Budget, Ledger
from rtpo.harness.harness import AgentHarness
from rtpo.run.config import RunConfig
from rtpo.run.model_folder import chat_format
from rtpo.run.run import open_harness
from rtpo.run.tasks import load_tasks
from rtpo.toy.tokenizer import NUMBERS, STOP, build_tokenizer, encode_strict
from rtpo.toy.warm_start import build_config
from rtpo.types import Floats, Grade, GradeOutcome, StopReason, Task, TrainRow, as_ids
from rtpo.verbs import Loss, Update

METHODS = {
    "grpo_exact": "grpo",
    "seeupo": "seeupo_flat",
    "arpo_exact": "arpo",
    "tree_grpo_exact": "tree_grpo",
    "rtpo": None,
}
"""with exact contexts, and the same method on flattened history where there is one"""
TOY_TASKS = ("toy_math", "toy_knowledge")
SMALL_LIMIT, LARGE_LIMIT = 1.15, 0.5
"""of GRPO with exact contexts as trees against flattened rows"""
LARGE_REPEATS = 1
"""timings there, the first included: one takes minutes"""
STILL = "optimizer.lr=1e-12"

TURNS = 8
QUESTION, THOUGHT, CALL, RESULT = 503, 32, 16, 46
"""tokens; with those of the chat format c_0 has 512, and each turn adds 73 to the context"""
LARGE = {
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "intermediate_size": 1536,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
FEW = {
    "grpo": ("algorithm.chains=4",),
    "grpo_exact": ("algorithm.chains=4",),
    "seeupo": ("algorithm.chains=4",),
    "seeupo_flat": ("algorithm.chains=4",),
    "arpo": ("algorithm.paths=4", "algorithm.roots=2"),
    "arpo_exact": ("algorithm.paths=4", "algorithm.roots=2"),
    "tree_grpo": ("algorithm.trees=2", "algorithm.branches=1"),
    "tree_grpo_exact": ("algorithm.trees=2", "algorithm.branches=1"),
    "rtpo": ("algorithm.trunks=1",),
}
"""rollouts enough for every beginning to be shared as the method shares it"""


class Recording(AgentHarness):
    """A harness that keeps what an algorithm gives the trainer, to have it done again."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.calls: list[partial[Any]] = []

    def score(self, rows: Sequence[TrainRow]) -> list[Floats]:
        self.calls.append(partial(AgentHarness.score, self, rows))
        return super().score(rows)

    def update(self, rows: Sequence[TrainRow], loss: Loss, **settings: Any) -> Update:
        self.calls.append(partial(AgentHarness.update, self, rows, loss, **settings))
        return super().update(rows, loss, **settings)

    def replay(self) -> None:
        for call in self.calls:
            call()

    def replay_apart(self) -> None:
        """With every row computed by itself."""
        together, self._backend = self._backend, Apart(self._backend)
        self.replay()
        self._backend = together


class Apart:
    """A backend that scores and trains every row by itself; the toy tasks have no KL term, and so no reference."""

    def __init__(self, backend: Any) -> None:
        self._together = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._together, name)

    def score(self, *given: Any, **named: Any) -> Any:
        return self._together.score(*given, **named | {"apart": True})

    def step(self, *given: Any, **named: Any) -> Any:
        return self._together.step(*given, **named | {"apart": True})


class ReadingEnv(ToyEnv):
    """A tool that answers every call at length, to the last turn, and a coin for a grade."""

    tool = "reader"

    def _use_tool(self, task: Task, call: str, earlier: tuple[Exchange, ...]) -> str | None:
        return words(np.random.default_rng([len(earlier), *call.encode()]), RESULT)

    def _read_answer(self, boxed: str) -> int | None:
        return None

    async def grade(self) -> Grade:
        return Grade(GradeOutcome.GRADED, float(int(self.snapshot().digest, 16) % 2))


class WrittenReplies:
    """A backend that trains, and whose replies come from a script: their length is the same in every turn."""

    is_serving = True

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self._tokenizer = build_tokenizer()
        self._version = 0
        self.engine = BatchingEngine(self._generate)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def push(self, version: int) -> None:
        self._version = version

    async def _generate(self, requests: list[Request]) -> list[Generation]:
        return [self._reply(request) for request in requests]

    def _reply(self, request: Request) -> Generation:
        rng = np.random.default_rng(request.seed)
        thought, call = words(rng, THOUGHT - 2), words(rng, CALL - 3)
        text = f"<think>{thought}</think><tool_call>{call}</tool_call>{STOP}"
        ids = as_ids(encode_strict(self._tokenizer, text))
        top = request.sampling.top_logprobs
        even = np.full((len(ids), top), -np.log(len(self._tokenizer)), np.float32) if top else None
        return Generation(ids, np.full(len(ids), -1, np.float32), self._version, StopReason.STOP, even)


def measure(repeats: int) -> Iterator[Case]:
    for task in TOY_TASKS:
        yield from cases(task, partial(toy_step, task), repeats, SMALL_LIMIT)
    with TemporaryDirectory() as name:
        folder = Path(name)
        count = write_model(folder)
        title = f"{count / 1e6:.0f} M parameters, {TURNS} turns"
        taken = partial(long_step, model=folder)
        yield from cases(title, taken, min(repeats, LARGE_REPEATS), LARGE_LIMIT, warm_up=False)


def cases(
    title: str, taken: Callable[[str], Recording], repeats: int, limit: float, warm_up: bool = True
) -> Iterator[Case]:
    """One method after another: its exact rows as trees against themselves one by one, and against flattened rows."""
    for label, flattened in METHODS.items():
        exact = taken(label)
        runs = {"rows": exact.replay_apart, "trees": exact.replay}
        if flattened is not None:
            runs["flattened"] = taken(flattened).replay_apart
        seconds = in_turns(runs, repeats, warm_up=warm_up)
        records = {"task": title, "method": label, "seconds": seconds}
        for name in [name for name in runs if name != "trees"]:
            bound = 1.0 if name == "rows" else limit if label == "grpo_exact" else None
            yield Case(
                f"update and scoring, {title}: {label} as trees / {name if name == 'rows' else 'flattened rows'}",
                median(seconds["trees"]) / median(seconds[name]),
                "x",
                bound,
                False,
                f"{spread(seconds['trees'])} / {spread(seconds[name])} s",
                records,
            )


def toy_step(task: str, label: str) -> Recording:
    """The harness of a method that took one data step of a toy task."""
    config = configuration(f"task={task}", f"algorithm={label}", STILL)
    return one_step(config, backend_of(config))


def long_step(label: str, model: Path) -> Recording:
    """Likewise of the long conversations, one prompt."""
    config = long_conversations(label, f"model.path={model}")
    return one_step(config, WrittenReplies(backend_of(config)), ReadingEnv, question)


def long_conversations(label: str, *overrides: str) -> RunConfig:
    return configuration(
        *(f"algorithm={label}", *FEW[label], STILL, *overrides),
        *(f"task.max_turns={TURNS}", "task.max_prompt_tokens=600", "task.max_turn_tokens=64"),
        *("task.max_context_tokens=2048", "budget.tasks_per_step=1", "profile.engine_kl_limit=1e9"),
    )


def question(task: Task) -> Task:
    return replace(task, question="compute" + words(np.random.default_rng(0), QUESTION))


def backend_of(config: RunConfig) -> Any:
    from rtpo.verl_harness.session import open_backend

    return open_backend(config)


def one_step(
    config: RunConfig,
    backend: Any,
    make_env: Callable[[], Env] | None = None,
    asked: Callable[[Task], Task] = lambda task: task,
) -> Recording:
    harness = open_harness(config, backend, chat_format(config), Ledger(Budget(10**9)), Recording, make_env)
    harness.sync()
    tasks = [asked(task) for task in load_tasks(config.task, config.task.train)[: config.budget.tasks_per_step]]
    harness.begin_step(0, 10**6)
    config.descriptor.step(harness, tasks, config.algorithm_config)
    harness.end_step()
    harness.begin_step(1, 10**6)
    return harness


def write_model(folder: Path) -> int:
    """A random-weight Qwen3 with the toy tasks' tokenizer; the number of its parameters."""
    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(build_config(tokenizer, LARGE))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return int(model.num_parameters())


def words(rng: np.random.Generator, count: int) -> str:
    return "".join(f" {word}" for word in rng.choice(NUMBERS, count))
