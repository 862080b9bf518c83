"""Warm start: fine-tunes a tiny Qwen3 model to imitate a demonstrator, with one sample (c_k, u_k) per turn.

Contexts are built as at rollout, mostly without past thinking. A few episodes keep it, so that the model also knows
flattened histories (`flattened_ratio` near 1).
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import torch.nn.functional as F
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from rtpo.core.chat import ChatFormat
from rtpo.core.contexts import next_context
from rtpo.core.files import check_is_free, sha256, whole_folder
from rtpo.core.seeds import generator
from rtpo.engines.base import PAPER_DECODING, BatchingEngine, Generation, Request, Sampling
from rtpo.engines.decoder import Decoder
from rtpo.envs.base import Env
from rtpo.envs.registry import ENVIRONMENTS, make_env
from rtpo.errors import ConfigError
from rtpo.harness.episodes import EpisodeLimits, EpisodeWorld, Plan, run_episodes
from rtpo.rows import trajectory_rows
from rtpo.toy import variance
from rtpo.toy.demonstrator import Demonstration
from rtpo.toy.recipes import ARCHITECTURE, Recipe
from rtpo.toy.record import HeldOut, TurnRecord, WarmStart, WarmStartRecord, write_record
from rtpo.toy.tokenizer import build_tokenizer, encode_strict
from rtpo.types import Ids, Role, Rollout, RolloutContext, StopReason, Task, as_ids

MAX_TURN_TOKENS = 32
RECORD_EVERY = 10
"""steps averaged in one entry of the loss curve"""
CHUNK = 128
"""rows scored at once"""
SHIPPED = Path(__file__).parent


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """c_k followed by u_k. Only u_k carries loss."""

    ids: Ids
    context_length: int  # of c_k


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
    """Yield one sample per turn, with its context built as at rollout."""
    context = chat.opening(demonstration.opening)
    for turn in demonstration.turns:
        output = as_ids(encode_strict(tokenizer, turn.reply))
        yield Sample(as_ids(np.concatenate([context, output])), len(context))
        if turn.feedback:
            feedback = chat.feedback(turn.feedback, StopReason.STOP)
            context = next_context(context, output, feedback, chat.tags, mode)


def problems(recipe: Recipe, split: str, count: int) -> list[Task]:
    """Draw `count` problems of the recipe's task. Raises ConfigError if the task cannot draw problems."""
    environment = ENVIRONMENTS.get(recipe.settings.task)
    if environment is None or environment.generate is None:
        raise ConfigError(f"task {recipe.settings.task!r} does not exist or cannot draw problems: use a toy task.")
    return environment.generate(split, count, recipe.settings.seed)


def default_env(recipe: Recipe) -> Env:
    """A new environment of the task, with default settings."""
    task = recipe.settings.task
    return make_env(task, ENVIRONMENTS[task].settings(), recipe.max_turns)


def demonstrations(recipe: Recipe, count: int) -> list[Demonstration]:
    """Play one demonstration on each of `count` training problems."""
    rng, tasks = generator(recipe.settings.seed, "demonstrations"), problems(recipe, "train", count)

    async def demonstrate_all() -> list[Demonstration]:
        return [await recipe.demonstrate(task, default_env(recipe), rng, recipe.max_turns) for task in tasks]

    return asyncio.run(demonstrate_all())


def training_samples(
    episodes: Sequence[Demonstration], settings: WarmStart, tokenizer: PreTrainedTokenizerFast
) -> list[Sample]:
    """Make one sample of each turn of the episodes, in random order."""
    chat, rng = ChatFormat(tokenizer), generator(settings.seed, "samples")
    samples: list[Sample] = []
    for episode in episodes:
        mode: RolloutContext = "full" if rng.random() < settings.full_history else "strip_think"
        samples += turn_samples(episode, tokenizer, chat, mode)
    return [samples[place] for place in rng.permutation(len(samples))]


def _padded(sequences: Sequence[Ids]) -> torch.Tensor:
    """[B, T] ids, padded on the right; causal attention ignores the padding."""
    tensors = [torch.tensor(ids, dtype=torch.int64) for ids in sequences]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)


def initial_model(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """A model with random weights, or the recipe's shipped model for this seed."""
    if not recipe.starts:
        return Qwen3ForCausalLM(build_config(tokenizer, recipe.architecture))
    return Qwen3ForCausalLM.from_pretrained(SHIPPED / recipe.starts[recipe.settings.seed % len(recipe.starts)])


def train(model: Qwen3ForCausalLM, samples: Sequence[Sample], settings: WarmStart) -> list[tuple[int, float]]:
    """Fine-tune in place. Returns the loss curve: (step, mean loss since the previous entry), in nats a token."""
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
                trained[row, sample.context_length : len(sample.ids)] = True
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
    return [(RECORD_EVERY * i + len(part), _mean(part)) for i, part in enumerate(parts)]


def local_engine(model: PreTrainedModel, stop_id: int, cache_tokens: int = 0, delay: float = 0.0) -> BatchingEngine:
    """An engine that runs the embedded decoder in this process, in the model's precision.
    cache_tokens: as in `Decoder`. delay: as in `BatchingEngine`."""
    decoder = Decoder(model.config, {stop_id}, cache_tokens, model.dtype)
    decoder.load(model.state_dict().items(), version=0)

    async def generate(requests: list[Request]) -> list[Generation]:
        return decoder.generate(requests)

    return BatchingEngine(generate, delay)


def play(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, recipe: Recipe, sampling: Sampling
) -> list[Rollout]:
    """Play one episode of each held-out problem, with past thinking stripped."""
    tasks, limits = problems(recipe, "held_out", recipe.settings.held_out), _limits(model, recipe.max_turns)
    plans = [Plan(task.uid, task, Role.EVAL) for task in tasks]
    return play_plans(model, tokenizer, partial(default_env, recipe), limits, plans, recipe.settings.seed, sampling)


def play_plans(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    env: Callable[[], Env],
    limits: EpisodeLimits,
    plans: Sequence[Plan],
    seed: int,
    sampling: Sampling,
) -> list[Rollout]:
    """Play these plans' episodes in this process, with past thinking stripped."""
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


def measure(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> HeldOut:
    """Measure success, lengths and `flattened_ratio` on held-out problems."""
    sampled = play(model, tokenizer, recipe, Sampling())
    greedy = play(model, tokenizer, recipe, Sampling(temperature=0))
    paper = play(model, tokenizer, recipe, PAPER_DECODING)
    turns = [turn for rollout in sampled for turn in rollout.turns]
    return HeldOut(
        problems=len(sampled),
        sampled_success=_mean(rollout.reward == 1 for rollout in sampled),
        greedy_success=_mean(rollout.reward == 1 for rollout in greedy),
        turns_per_episode=_mean(len(rollout.turns) for rollout in sampled),
        tokens_per_turn=_mean(len(turn.output_ids) for turn in turns),
        flattened_ratio=round(flattened_ratio(model, sampled), 4),
        paper_decoding_success=_mean(rollout.reward == 1 for rollout in paper),
    )


def measure_turns(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> dict[str, TurnRecord]:
    """Measure at temperature 1 which turns decide the return (`rtpo.toy.variance`), under each of `recipe.decided`."""
    settings, max_turns = recipe.settings, recipe.max_turns
    tasks = problems(recipe, "held_out", variance.PROBLEMS)
    limits, measured = _limits(model, max_turns), {}
    for name, task_settings in recipe.decided.items():
        env = partial(make_env, settings.task, task_settings, max_turns)
        play_paths = partial(play_plans, model, tokenizer, env, limits, seed=settings.seed, sampling=Sampling())
        turns = variance.measure_turns(play_paths, tasks, max_turns)
        facts = {key: np.round(values, 4).tolist() for key, values in asdict(turns).items()}
        measured[name] = TurnRecord(problems=len(tasks), paths=variance.PATHS, **facts)
    return measured


def _limits(model: Qwen3ForCausalLM, max_turns: int) -> EpisodeLimits:
    positions = model.config.max_position_embeddings
    return EpisodeLimits(max_turns, positions, MAX_TURN_TOKENS, positions)


def _mean(values: Iterable[float]) -> float:
    return round(float(np.mean(list(values))), 4)


def warm_start(recipe: Recipe, output: Path) -> WarmStartRecord:
    """Train, measure and save a checkpoint folder with its record, warm_start.json, which is returned. The folder
    appears whole or not at all. Raises DataError if `output` is not empty."""
    check_is_free(output)
    settings = recipe.settings
    begun = time.process_time()
    tokenizer = build_tokenizer(recipe.words)
    # enough demonstrations that training sees no sample twice
    turns = settings.steps * settings.cycles * settings.batch_size
    episodes = demonstrations(recipe, max(1, turns // recipe.turns))
    samples = training_samples(episodes, settings, tokenizer)
    torch.manual_seed(settings.seed)
    model = initial_model(recipe, tokenizer)
    losses = train(model, samples, settings)
    trained = time.process_time()
    with whole_folder(output) as partial:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        record = WarmStartRecord(
            settings=settings,
            held_out=measure(model, tokenizer, recipe),
            demonstrator_success=_mean(episode.grade.reward == 1 for episode in episodes),
            parameters=model.num_parameters(),
            training_cpu_seconds=round(trained - begun, 1),
            sha256={path.name: sha256(path) for path in sorted(partial.iterdir())},
            versions={module.__name__: module.__version__ for module in (torch, transformers, tokenizers)},
            loss=losses,
            decided=measure_turns(model, tokenizer, recipe) or None,
        )
        write_record(partial, record)
    return record
