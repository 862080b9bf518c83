"""Warm start: a tiny Qwen3 model fine-tuned to imitate the imperfect demonstrator, one sample a turn (c_k, u_k).

Contexts are built as at rollout, most without past thinking; a share of the episodes keeps it, so that scoring the
model under the whole history is a mild mismatch and not nonsense.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import torch.nn.functional as F
import transformers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from rtpo.core.chat import ChatFormat
from rtpo.core.contexts import next_context
from rtpo.core.files import check_is_free, sha256
from rtpo.core.seeds import generator
from rtpo.engines.base import PAPER_DECODING, BatchingEngine, Generation, Request, Sampling
from rtpo.engines.decoder import Decoder
from rtpo.envs.base import Env
from rtpo.envs.registry import ENVIRONMENTS, make_env
from rtpo.envs.toy import knowledge_problems, math_problems, walk_problems
from rtpo.envs.toy.luck import Luck, ToySettings
from rtpo.envs.toy.walk import WalkSettings
from rtpo.errors import ConfigError
from rtpo.harness.episodes import EpisodeLimits, EpisodeWorld, Plan, run_episodes
from rtpo.rows import trajectory_rows
from rtpo.toy import knowledge_demonstrator, math_demonstrator, variance, walk_demonstrator
from rtpo.toy.demonstrator import Demonstration
from rtpo.toy.tokenizer import build_tokenizer, encode_strict
from rtpo.types import Ids, Role, Rollout, RolloutContext, StopReason, Task, as_ids

MAX_TURN_TOKENS = 32
RECORD_EVERY = 10
CHUNK = 128
SHIPPED = Path(__file__).parent
ARCHITECTURE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 192,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuning:
    """How a model is fine-tuned.

    steps: optimizer steps of a cycle, in which the learning rate rises and falls to 0. cycles: how many, one after
    another, each with a new optimizer. Copying is learnt late; a second cycle sharpens what the first one found.
    batch_size: samples a step.
    """

    steps: int
    cycles: int
    batch_size: int
    learning_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart(FineTuning):
    """The settings of one warm start.

    full_history: share of the episodes whose contexts keep past thinking.
    held_out: number of held-out problems the result is measured on.
    """

    batch_size: int = 64
    learning_rate: float = 3e-3
    task: str
    seed: int = 0
    full_history: float
    held_out: int = 1000


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a warm start is made of. starts: shipped models that it begins from instead of random weights, by seed."""

    settings: WarmStart
    demonstrate: Callable[..., Awaitable[Demonstration]]
    starts: tuple[str, ...] = ()


COPIERS = ("warm_start_knowledge", "warm_start_knowledge_1")
"""models that can copy already"""
RECIPES = {
    "math": Recipe(WarmStart(task="toy_math", steps=1400, cycles=1, full_history=0.01), math_demonstrator.demonstrate),
    "knowledge": Recipe(
        WarmStart(task="toy_knowledge", steps=800, cycles=2, full_history=0.03),
        partial(knowledge_demonstrator.demonstrate, manner=knowledge_demonstrator.NOVICE),
    ),
    "knowledge_habits": Recipe(
        WarmStart(task="toy_knowledge", steps=500, cycles=1, batch_size=32, full_history=0.03, held_out=400),
        partial(knowledge_demonstrator.demonstrate, manner=knowledge_demonstrator.OF_HABIT),
        COPIERS,
    ),
    "walk": Recipe(
        WarmStart(task="toy_walk", steps=350, cycles=1, batch_size=32, full_history=0.03, held_out=400),
        walk_demonstrator.demonstrate,
        COPIERS,
    ),
}
"""by what the shipped folder is called after `warm_start_`"""
TASKS: dict[str, tuple[Callable[[str, int, int], list[Task]], int, int]] = {
    "toy_math": (math_problems.problems, 3, 2),
    "toy_knowledge": (knowledge_problems.problems, knowledge_problems.MAX_TURNS, 4),
    "toy_walk": (walk_problems.problems, walk_problems.LENGTH, walk_problems.LENGTH),
}
"""a task's problems by split, K, and how many turns a demonstration has at least, on average"""
DECIDED: Mapping[str, Mapping[str, ToySettings]] = {
    "toy_walk": {
        "early": WalkSettings(decided="early"),
        "even": WalkSettings(decided="even"),
        "late": WalkSettings(decided="late"),
        "even, luck after the first turn": WalkSettings(Luck((0,), 1.0), "even"),
    }
}
"""settings of a task of which it is measured where they decide the return"""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """c_k followed by u_k; the first `context` ids carry no loss."""

    ids: Ids
    context: int


def build_config(tokenizer: PreTrainedTokenizerFast, architecture: Mapping[str, Any] = ARCHITECTURE) -> Qwen3Config:
    """A tiny model's configuration for a tokenizer."""
    return Qwen3Config(
        **architecture,
        vocab_size=len(tokenizer),
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def turn_samples(
    demonstration: Demonstration, tokenizer: PreTrainedTokenizerFast, chat: ChatFormat, mode: RolloutContext
) -> Iterator[Sample]:
    """One sample a turn, its context built as at rollout."""
    context = chat.opening(demonstration.opening)
    for turn in demonstration.turns:
        output = as_ids(encode_strict(tokenizer, turn.reply))
        yield Sample(as_ids(np.concatenate([context, output])), len(context))
        if turn.feedback:
            feedback = chat.feedback(turn.feedback, StopReason.STOP)
            context = next_context(context, output, feedback, chat.tags, mode)


def default_env(task: str, max_turns: int) -> Env:
    """One of the task's environments, with none of its settings."""
    return make_env(task, ENVIRONMENTS[task].settings(), max_turns)


def demonstrations(recipe: Recipe, count: int) -> list[Demonstration]:
    """Demonstrations on `count` training problems."""
    settings = recipe.settings
    problems, max_turns, _ = TASKS[settings.task]
    rng = generator(settings.seed, "demonstrations")

    async def demonstrate_all() -> list[Demonstration]:
        return [
            await recipe.demonstrate(problem, default_env(settings.task, max_turns), rng, max_turns)
            for problem in problems("train", count, settings.seed)
        ]

    return asyncio.run(demonstrate_all())


def training_samples(
    demonstrated: Sequence[Demonstration], settings: WarmStart, tokenizer: PreTrainedTokenizerFast
) -> list[Sample]:
    """The samples of all turns, in random order."""
    chat = ChatFormat(tokenizer)
    rng = generator(settings.seed, "samples")
    samples = [
        sample
        for episode in demonstrated
        for sample in turn_samples(
            episode, tokenizer, chat, "full" if rng.random() < settings.full_history else "strip_think"
        )
    ]
    return [samples[place] for place in rng.permutation(len(samples))]


def _padded(sequences: Sequence[Ids]) -> torch.Tensor:
    """[B, T] ids, padded on the right, where causal attention makes padding harmless."""
    tensors = [torch.tensor(ids, dtype=torch.int64) for ids in sequences]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)


def initial_model(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Random weights, or those of the shipped model of the same seed that it begins from."""
    if not recipe.starts:
        return Qwen3ForCausalLM(build_config(tokenizer))
    model: Qwen3ForCausalLM = Qwen3ForCausalLM.from_pretrained(SHIPPED / recipe.starts[recipe.settings.seed])
    return model


def train(model: Qwen3ForCausalLM, samples: Sequence[Sample], settings: FineTuning) -> list[tuple[int, float]]:
    """Fine-tune in place; returns (step, mean loss over the steps since the last record), loss in nats a token."""
    model.train()
    losses: list[float] = []
    warm_up = max(1, settings.steps // 20)
    for _ in range(settings.cycles):
        optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min((step + 1) / warm_up, (settings.steps - step) / settings.steps)
        )
        for _ in range(settings.steps):
            start = len(losses) * settings.batch_size
            batch = [samples[place % len(samples)] for place in range(start, start + settings.batch_size)]
            ids = _padded([sample.ids for sample in batch])
            trained = torch.zeros_like(ids, dtype=torch.bool)
            for row, sample in enumerate(batch):
                trained[row, sample.context : len(sample.ids)] = True
            logits = model(input_ids=ids).logits[:, :-1][trained[:, 1:]]
            loss = F.cross_entropy(logits, ids[trained])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
    model.eval()
    parts = [losses[start : start + RECORD_EVERY] for start in range(0, len(losses), RECORD_EVERY)]
    return [(RECORD_EVERY * i + len(part), round(_mean(part), 4)) for i, part in enumerate(parts)]


def local_engine(model: Qwen3ForCausalLM, stop_id: int) -> BatchingEngine:
    """The embedded decoder in this process."""
    decoder = Decoder(model.config, {stop_id}, cache_tokens=0)
    decoder.load(model.state_dict().items(), version=0)

    async def generate(requests: list[Request]) -> list[Generation]:
        return decoder.generate(requests)

    return BatchingEngine(generate)


def play(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, settings: WarmStart, sampling: Sampling
) -> list[Rollout]:
    """One episode of each held-out problem, past thinking stripped."""
    problems, max_turns, _ = TASKS[settings.task]
    held_out = problems("held_out", settings.held_out, settings.seed)
    plans = [Plan(problem.uid, problem, Role.EVAL) for problem in held_out]

    def env() -> Env:
        return default_env(settings.task, max_turns)

    return play_plans(model, tokenizer, env, _limits(model, max_turns), plans, settings.seed, sampling)


def play_plans(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    env: Callable[[], Env],
    limits: EpisodeLimits,
    plans: Sequence[Plan],
    seed: int,
    sampling: Sampling,
) -> list[Rollout]:
    """These episodes in this process, past thinking stripped."""
    chat = ChatFormat(tokenizer)
    world = EpisodeWorld(local_engine(model, chat.tags.stop_id), chat, env, limits, "strip_think", seed)
    return run_episodes(world, plans, sampling, on_retry=print)


@torch.no_grad()
def flattened_ratio(model: Qwen3ForCausalLM, rollouts: Sequence[Rollout]) -> float:
    """Geometric mean, over sampled tokens, of pi(u | flattened history) / pi(u | c_k)."""
    rows = [row for rollout in rollouts for row in trajectory_rows(rollout, "flattened", 0.0, 1.0, rollout.uid)]
    differences = []
    for start in range(0, len(rows), CHUNK):
        part = rows[start : start + CHUNK]
        ids = _padded([row.ids for row in part])
        logprobs = model(input_ids=ids).logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0].numpy()
        for row, scored in zip(part, logprobs, strict=True):
            sampled = np.flatnonzero(row.mask)
            differences.append(scored[sampled - 1] - row.rollout_logprobs[sampled])
    return float(np.exp(np.concatenate(differences).mean()))


def measure(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, settings: WarmStart) -> dict[str, int | float]:
    """Held-out success, lengths and mismatch. `sampled` is at temperature 1."""
    sampled = play(model, tokenizer, settings, Sampling())
    greedy = play(model, tokenizer, settings, Sampling(temperature=0))
    paper = play(model, tokenizer, settings, PAPER_DECODING)
    turns = [turn for rollout in sampled for turn in rollout.turns]
    figures = {
        "sampled_success": _mean(rollout.reward == 1 for rollout in sampled),
        "greedy_success": _mean(rollout.reward == 1 for rollout in greedy),
        "turns_per_episode": _mean(len(rollout.turns) for rollout in sampled),
        "tokens_per_turn": _mean(len(turn.output_ids) for turn in turns),
        "flattened_ratio": flattened_ratio(model, sampled),
        "paper_decoding_success": _mean(rollout.reward == 1 for rollout in paper),
    }
    return {"problems": len(sampled)} | {name: round(value, 4) for name, value in figures.items()}


def measure_turns(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, settings: WarmStart
) -> dict[str, dict[str, Any]]:
    """Where the return is decided at temperature 1, by the settings that DECIDED names."""
    problems, max_turns, _ = TASKS[settings.task]
    tasks = problems("held_out", variance.PROBLEMS, settings.seed)
    chat = ChatFormat(tokenizer)
    engine = variance.Remembering(local_engine(model, chat.tags.stop_id))

    def of(chosen: ToySettings) -> dict[str, Any]:
        def env() -> Env:
            return make_env(settings.task, chosen, max_turns)

        def play_paths(plans: Sequence[Plan]) -> list[Rollout]:
            world = EpisodeWorld(engine, chat, env, _limits(model, max_turns), "strip_think", settings.seed)
            return run_episodes(world, plans, Sampling(), on_retry=print)

        found = variance.decided(play_paths, tasks, max_turns)
        left = [round(share, 3) for share in found.left]
        n = {"problems": len(tasks), "paths": variance.PATHS}
        return n | {"deviation": round(found.deviation, 4), "left": left}

    return {name: of(chosen) for name, chosen in DECIDED[settings.task].items()}


def _limits(model: Qwen3ForCausalLM, max_turns: int) -> EpisodeLimits:
    room = model.config.max_position_embeddings
    return EpisodeLimits(max_turns, room, MAX_TURN_TOKENS, room)


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def warm_start(recipe: Recipe, output: Path) -> dict[str, Any]:
    """Train, measure and save a checkpoint folder; returns its record, which is written last, as warm_start.json.

    Raises DataError when `output` has something in it.
    """
    check_is_free(output)
    settings, starts = recipe.settings, recipe.starts
    if settings.seed >= len(starts) > 0:
        raise ConfigError(
            f"seed is {settings.seed}: this one begins from a shipped model of the same seed; use 0 to "
            f"{len(starts) - 1}."
        )
    begun = time.process_time()
    tokenizer = build_tokenizer()
    # as many that no sample is seen twice
    turns = settings.steps * settings.cycles * settings.batch_size
    demonstrated = demonstrations(recipe, max(1, turns // TASKS[settings.task][2]))
    samples = training_samples(demonstrated, settings, tokenizer)
    torch.manual_seed(settings.seed)
    model = initial_model(recipe, tokenizer)
    losses = train(model, samples, settings)
    trained = time.process_time()
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    record = {
        "settings": asdict(settings),
        "held_out": measure(model, tokenizer, settings),
        "demonstrator_success": round(_mean(episode.reward == 1 for episode in demonstrated), 4),
        "parameters": model.num_parameters(),
        "training_cpu_seconds": round(trained - begun, 1),
        "sha256": {path.name: sha256(path) for path in sorted(output.iterdir())},
        "versions": {module.__name__: module.__version__ for module in (torch, transformers, tokenizers)},
        "loss": losses,
    }
    if settings.task in DECIDED:
        record["decided"] = measure_turns(model, tokenizer, settings)
    (output / "warm_start.json").write_text(json.dumps(record, indent=1) + "\n")
    return record
