"""A policy without a network: an engine that follows a script, and a trainer whose weights are one number.

The harness, the episodes, the toy environment, the tokenizer and the losses around them are the real ones. Replies are
text; the engine and the trainer share `logprobs_of`, so that they disagree exactly when their weights or contexts do.
"""

import json
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rtpo.core.chat import ChatFormat
from rtpo.core.losses import TokenBatch
from rtpo.core.losses import loss as loss_of
from rtpo.core.packing import Packed
from rtpo.engines.backend import StepResult, TokenScores
from rtpo.engines.base import Generation, Request, Sampling
from rtpo.envs.toy.math import ToyMathEnv, parse_question
from rtpo.errors import InfrastructureError
from rtpo.harness.budget import Budget, Ledger
from rtpo.harness.episodes import EpisodeLimits, EpisodeWorld, Plan, run_episodes
from rtpo.harness.harness import AgentHarness
from rtpo.rows import trajectory_rows
from rtpo.toy.tokenizer import STOP, build_tokenizer, encode_strict
from rtpo.types import Floats, Group, Ids, Rollout, StopReason, Task, TrainingContext, TrainRow, as_ids
from rtpo.verbs import Loss, Update

TOKENIZER = build_tokenizer()
CHAT = ChatFormat(TOKENIZER)

TASK = Task("t", " compute 12 + 5 * 3", 27)
"""12 + 5 * 3: first 5 * 3 is 15, then 12 + 15 is 27."""
CALL_1 = "<think> first 5 * 3</think><tool_call> 5 * 3</tool_call>"
CALL_2 = "<think> then 12 + 15</think><tool_call> 12 + 15</tool_call>"
RIGHT = "<think> so answer 27</think> answer\\boxed{ 27}"
WRONG = "<think> so</think> answer\\boxed{ 15}"


def ids(text: str) -> list[int]:
    return encode_strict(TOKENIZER, text)


@dataclass(frozen=True)
class Cut:
    """A reply that reached its token limit: no stop token."""

    text: str


Reply = str | Cut
Script = Callable[[str, np.random.Generator], Reply]
"""From a decoded context and the request's random numbers to a reply, without its stop token."""


def in_turn(*replies: Reply) -> Script:
    """These replies one after another. Episodes of a call that need not wait for each other take theirs in order."""
    left = list(replies)
    return lambda context, rng: left.pop(0)


def always(reply: Reply) -> Script:
    return lambda context, rng: reply


def solver(slips: float) -> Script:
    """Solves the toy task and slips in that share of its turns: a wrong call, a broken one, an early or wrong answer,
    thinking that does not end, or none."""

    def reply(context: str, rng: np.random.Generator) -> Reply:
        match = re.search(r"user\n( compute[^<]*)<", context)
        assert match is not None
        problem = parse_question(match[1])
        results = [int(r) for r in re.findall(r"<tool_response> (\d+)</tool_response>", context)][:2]
        plan = " plan" + "".join(f" {n}" for n in rng.integers(100, size=rng.integers(4)))
        number = int(rng.integers(100))
        if rng.random() < slips:
            replies: list[Reply] = [
                f"<think>{plan}</think><tool_call> {number} + 1</tool_call>",
                f"<think>{plan}</think><tool_call> {number}</tool_call>",
                f"<think>{plan}</think> answer\\boxed{{ {number}}}",
                Cut(f"<think>{plan}"),
                f" answer\\boxed{{ {problem.answer}}}",
            ]
            return replies[int(rng.integers(5))]
        if len(results) == 2:
            return f"<think>{plan}</think> answer\\boxed{{ {results[1]}}}"
        call = problem.second(results[0]) if results else problem.first
        return f"<think>{plan}</think><tool_call>{call}</tool_call>"

    return reply


def logprobs_of(sequence: Ids, first: int, weights: float) -> Floats:
    """Log-probs of the ids from `first` on: by the id, by how many ids are before it, and by the weights."""
    place = np.arange(first, len(sequence))
    return (-0.05 - 0.01 * ((7 * sequence[first:] + 3 * place) % 50) - weights).astype(np.float32)


def _top_logprobs(count: int, n: int, rng: np.random.Generator) -> Floats:
    """Rows of a distribution over n tokens, more or less peaked, whose last token was cut off."""
    odds = np.exp(-np.arange(n) * rng.uniform(0.1, 3.0, (count, 1)))
    odds[:, -1] = 0
    with np.errstate(divide="ignore"):
        return np.log(odds / odds.sum(axis=1, keepdims=True)).astype(np.float32)


@dataclass
class ScriptedEngine:
    """`rtpo.engines.base.Engine` on a script. It reports the version it was last told.

    requests: all it was asked. failures: how many of the next requests fail. broken: log-probs to return instead.
    """

    script: Script
    weights: float = 0.0
    version: int = 0
    failures: int = 0
    broken: float | None = None
    requests: list[Request] = field(default_factory=list)

    async def generate(self, request: Request) -> Generation:
        self.requests.append(request)
        if self.failures:
            self.failures -= 1
            raise InfrastructureError("the engine does not answer")
        rng = np.random.default_rng([request.seed, int.from_bytes(struct.pack("d", self.weights), "big")])
        reply = self.script(CHAT.decode(request.context_ids), rng)
        text, stop = (reply.text, StopReason.LENGTH) if isinstance(reply, Cut) else (reply + STOP, StopReason.STOP)
        output = ids(text)
        if len(output) > request.sampling.max_tokens:
            output, stop = output[: request.sampling.max_tokens], StopReason.LENGTH
        whole = np.concatenate([request.context_ids, as_ids(output)])
        logprobs = logprobs_of(whole, len(request.context_ids), self.weights)
        top = request.sampling.top_logprobs
        return Generation(
            as_ids(output),
            logprobs if self.broken is None else np.full_like(logprobs, self.broken),
            self.version,
            stop,
            _top_logprobs(len(output), top, rng) if top else None,
        )


@dataclass
class Step:
    """What the trainer was given for one optimizer step."""

    packed: Packed
    reference: Floats | None
    loss: Loss


def batch_of(packed: Packed, logprobs: Tensor, reference: Floats | None) -> TokenBatch:
    trained = packed.mask
    return TokenBatch(
        logprobs=logprobs,
        old=None if packed.old_logprobs is None else torch.tensor(packed.old_logprobs[trained]),
        advantage=torch.tensor(packed.advantage[trained]),
        weight=torch.tensor(packed.weight[trained]),
        row=torch.tensor(np.repeat(np.arange(len(packed.lengths)), packed.lengths)[trained]),
        rows=len(packed.lengths),
        reference=None if reference is None else torch.tensor(reference),
    )


@dataclass
class MemoryBackend:
    """`rtpo.engines.backend.Backend` in memory: the weights are one number that each step moves.

    broken: values to return instead: of `logprob`, the first one, `loss` and `grad_norm`. tree_error: by how much the
    last log-prob is off where rows are not computed apart. rounding: by how much all are off where positions are
    shifted. tells: whether the engine tells what it computed.
    """

    engine: ScriptedEngine
    is_serving: bool = True
    has_reference: bool = True
    learning_rate: float = 1e-3
    weights: float = 0.0
    broken: dict[str, float] = field(default_factory=dict)
    tree_error: float = 0.0
    rounding: float = 0.0
    tells: bool = True
    steps: list[Step] = field(default_factory=list)
    scored: list[Packed] = field(default_factory=list)
    pushes: list[int] = field(default_factory=list)

    @property
    def prefilled_tokens(self) -> int | None:
        return sum(len(request.context_ids) for request in self.engine.requests) if self.tells else None

    def score(self, packed: Packed, *, apart: bool = False, shift: int = 0) -> TokenScores:
        self.scored.append(packed)
        logprobs = self._trainers_logprobs(packed)
        logprobs[-1] += 0 if apart else self.tree_error
        logprobs += self.rounding if shift else 0
        return TokenScores(logprobs, np.full_like(logprobs, 0.5), len(packed.ids))

    def _trainers_logprobs(self, packed: Packed) -> Floats:
        logprobs = self._logprobs(packed, self.weights)
        logprobs[0] = self.broken.get("logprob", logprobs[0])
        return logprobs

    def reference(self, packed: Packed) -> TokenScores:
        return TokenScores(self._logprobs(packed, 0.0), np.empty(0, np.float32), len(packed.ids))

    def step(self, packed: Packed, reference: Floats | None, loss: Loss, *, scored: bool = False) -> StepResult:
        self.steps.append(Step(packed, reference, loss))
        known = self._logprobs(packed, self.weights)
        scores = TokenScores(self._trainers_logprobs(packed), np.full_like(known, 0.5), 0) if scored else None
        logprobs = torch.tensor(known, requires_grad=True)
        value, sums = loss_of(batch_of(packed, logprobs, reference), loss)
        (gradient,) = torch.autograd.grad(value, logprobs)
        self.weights += self.learning_rate * (1 + 0.5 * float(gradient.sum()))
        grad_norm, loss_value = float(gradient.norm()), float(value.detach())
        grad_norm, loss_value = self.broken.get("grad_norm", grad_norm), self.broken.get("loss", loss_value)
        return StepResult(grad_norm, loss_value, sums, self.learning_rate, len(packed.ids), scores)

    def push(self, version: int) -> None:
        self.pushes.append(version)
        self.is_serving = True
        self.engine.version = version
        self.engine.weights = self.weights

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "weights.json").write_text(json.dumps(self.weights))

    def load(self, folder: Path) -> None:
        self.weights = json.loads((folder / "weights.json").read_text())

    def _logprobs(self, packed: Packed, weights: float) -> Floats:
        ends = np.cumsum(packed.lengths)[:-1]
        rows = [logprobs_of(sequence, 0, weights) for sequence in np.split(packed.ids, ends)]
        return np.concatenate(rows)[packed.mask]


class RecordingHarness(AgentHarness):
    """The harness, remembering the rows and the loss of each update."""

    backend: MemoryBackend

    def __init__(self, backend: MemoryBackend, *arguments: Any, **settings: Any) -> None:
        super().__init__(backend, *arguments, **settings)
        self.backend = backend
        self.updated: list[list[TrainRow]] = []
        self.losses: list[Loss] = []

    @property
    def engine(self) -> ScriptedEngine:
        return self.backend.engine

    @property
    def rollouts(self) -> list[Rollout]:
        """All rollouts of the step."""
        return self.step_log.samples

    def update(self, rows: Sequence[TrainRow], loss: Loss, **settings: Any) -> Update:
        self.updated.append(list(rows))
        self.losses.append(loss)
        return super().update(rows, loss, **settings)


LIMITS = {"max_turns": 3, "max_prompt_tokens": 32, "max_turn_tokens": 32, "max_context_tokens": 256}


def make_world(
    engine: Any, *, make_env: Any = ToyMathEnv, rollout_context: Any = "strip_think", seed: int = 0, **limits: int
) -> EpisodeWorld:
    return EpisodeWorld(engine, CHAT, make_env, EpisodeLimits(**LIMITS | limits), rollout_context, seed)


def episodes(script: Script, plans: Sequence[Plan], **world: Any) -> list[Rollout]:
    """Those of the plans, none of which may be begun again; `world` as for `make_world`."""
    return run_episodes(make_world(ScriptedEngine(script), **world), plans, Sampling(), on_retry=pytest.fail)


def scripted_harness(
    script: Script,
    *,
    reserve: int = 10_000,
    budget: int = 100_000,
    engine_kl_limit: float = 1e-3,
    check_trees: bool = False,
    scored_share: float = 1.0,
    learning_rate: float = 1e-3,
    **world: Any,
) -> RecordingHarness:
    """A harness in memory, its engine synchronised, in a step of `reserve` rollouts; `world` as for `make_world`."""
    backend = MemoryBackend(ScriptedEngine(script), learning_rate=learning_rate)
    harness = RecordingHarness(
        backend,
        make_world(backend.engine, **world),
        Sampling(),
        Ledger(Budget(budget)),
        engine_kl_limit=engine_kl_limit,
        check_trees=check_trees,
        scored_share=scored_share,
        samples_per_rollout=budget,
    )
    harness.begin_step(0, reserve)
    harness.sync()
    return harness


def rows_of(
    groups: Sequence[Group], advantages: Sequence[float] | None = None, context: TrainingContext = "recorded"
) -> list[TrainRow]:
    """Rows of whole chains, of equal weight; without `advantages`, alternately 1 and -1."""
    chains = [chain for group in groups for chain in group]
    values = [(-1.0) ** i for i in range(len(chains))] if advantages is None else advantages
    rows = []
    for chain, advantage in zip(chains, values, strict=True):
        rows += trajectory_rows(chain, context, advantage, 1 / len(chains), chain.task.uid)
    return rows
