"""A pretrained language model is shown a task: LoRA matrices are trained on the replies of a demonstrator."""

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from rtpo.core.chat import ChatFormat
from rtpo.core.files import check_is_free, sha256
from rtpo.engines.base import Sampling
from rtpo.envs.registry import ENVIRONMENTS, make_env
from rtpo.envs.textworld.games import read_games
from rtpo.harness.episodes import EpisodeLimits, EpisodeWorld, Plan, run_episodes
from rtpo.toy.demonstrator import Demonstration
from rtpo.toy.warm_start import local_engine
from rtpo.types import Role, Rollout, Task
from rtpo.warm_starts.demonstrated import Row, batch_of, episode_row, logprobs
from rtpo.warm_starts.recipes import AdapterRecipe
from rtpo.warm_starts.textworld_demonstrator import demonstrate

GROUP = 8
"""episodes a training game, of which a group is mixed when some are won and some are not"""
LIMITS = EpisodeLimits(max_turns=8, max_prompt_tokens=512, max_turn_tokens=48, max_context_tokens=1536)
CACHE_TOKENS = 65536
"""of contexts, that later turns of the games go on from"""
DELAY = 0.05
"""seconds that the engine waits for further games to answer"""
ENVIRONMENT = "textworld"


def read_splits(folder: Path) -> dict[str, list[Task]]:
    """A family's games by split. Raises DataError where a split is missing."""
    return {split: read_games(folder / f"{split}.jsonl") for split in ("demonstrations", "held_out", "train")}


def demonstrations(recipe: AdapterRecipe, games: Sequence[Task]) -> list[Demonstration]:
    """Every game in each pass, with other slips and thoughts."""
    settings = ENVIRONMENTS[ENVIRONMENT].settings()

    async def demonstrate_all() -> list[Demonstration]:
        shown = []
        for passed in range(recipe.passes):
            rng = _rng(recipe, passed)
            for game in games:
                env = make_env(ENVIRONMENT, settings, LIMITS.max_turns)
                shown.append(await demonstrate(game, env, rng, LIMITS.max_turns, recipe.slips))
        return shown

    return asyncio.run(demonstrate_all())


def adapted(model: Any, recipe: AdapterRecipe, tags: Mapping[int, int]) -> Any:
    """The model with LoRA matrices that do nothing yet, and rows of its own for the tags of thinking; nothing else is
    trained.

    tags: a tag's id, and the id of the token whose row it begins with. A row that is the mean of others' can never be
    the likeliest token where the embeddings are tied, since its logit is the mean of theirs.
    """
    import peft

    torch.manual_seed(recipe.seed)
    with torch.no_grad():
        embedding = model.get_input_embeddings().weight
        for tag, like in tags.items():
            embedding[tag] = embedding[like]
    settings = peft.LoraConfig(
        r=recipe.rank,
        lora_alpha=2 * recipe.rank,
        target_modules="all-linear",
        trainable_token_indices={"embed_tokens": sorted(tags)},
    )
    return peft.get_peft_model(model, settings, autocast_adapter_dtype=False)


def tags_of(chat: ChatFormat, tokenizer: Any) -> dict[int, int]:
    """The tags of thinking, each with the token that its row begins with: one that text has hardly ever."""
    first, last = tokenizer.convert_tokens_to_ids(["<issue_start>", "<issue_closed>"])
    assert chat.tags.open_id is not None
    assert chat.tags.close_id is not None
    return {chat.tags.open_id: first, chat.tags.close_id: last}


def train(model: Any, rows: Sequence[Row], recipe: AdapterRecipe) -> list[float]:
    """Train the LoRA matrices in place, by AdamW on fp32 copies; the loss of each step, in nats a token.

    rows: pass after pass. The learning rate rises over the first tenth of the steps and falls to 0.
    """
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    masters = [weight.detach().float().clone().requires_grad_() for weight in weights]
    optimizer = torch.optim.AdamW(masters, lr=recipe.learning_rate, weight_decay=0.0)
    batches = list(_batches(len(rows), recipe))
    warm_up = max(1, len(batches) // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm_up, (len(batches) - step) / len(batches))
    )
    losses = []
    for batch in batches:
        tokens, loss = sum(len(rows[place].targets) for place in batch), 0.0
        for place in batch:  # one at a time: the memory of one
            part = -logprobs(model.get_base_model(), batch_of([rows[place]])).sum() / tokens
            part.backward()
            loss += part.item()
            for master, weight in zip(masters, weights, strict=True):
                master.grad = weight.grad.float() if master.grad is None else master.grad + weight.grad
                weight.grad = None
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        with torch.no_grad():
            for master, weight in zip(masters, weights, strict=True):
                weight.copy_(master)
        losses.append(round(loss, 4))
        print(f"step {len(losses)} of {len(batches)}: loss {loss:.3f}", flush=True)
    return losses


def _batches(count: int, recipe: AdapterRecipe) -> Iterator[list[int]]:
    """Places of the rows of each step: every pass in an order of its own; what fills no step is left out."""
    size = count // recipe.passes
    order: list[int] = []
    for passed in range(recipe.passes):
        shuffled = _rng(recipe, passed).permutation(size)
        order += (passed * size + shuffled).tolist()
    for start in range(0, len(order) - recipe.batch_size + 1, recipe.batch_size):
        yield order[start : start + recipe.batch_size]


def _rng(recipe: AdapterRecipe, passed: int) -> np.random.Generator:
    """Of one pass over the games."""
    return np.random.default_rng(100 * recipe.seed + passed)


def play(model: Any, chat: ChatFormat, games: Sequence[Task], episodes: int, sampling: Sampling) -> list[Rollout]:
    """So many episodes of each game, one after another in the list."""
    settings = ENVIRONMENTS[ENVIRONMENT].settings()
    env = partial(make_env, ENVIRONMENT, settings, LIMITS.max_turns)
    world = EpisodeWorld(
        local_engine(model, chat.tags.stop_id, CACHE_TOKENS, DELAY), chat, env, LIMITS, "strip_think", 0
    )
    plans = [Plan(f"{game.uid}/{number}", game, Role.EVAL) for game in games for number in range(episodes)]
    return run_episodes(world, plans, sampling, on_retry=print)


def measure(model: Any, chat: ChatFormat, held_out: Sequence[Task], trained: Sequence[Task]) -> dict[str, int | float]:
    """Success on held-out games at temperature 1 and greedily, and what groups of eight on training games look like.

    entropy: minus the mean log-prob of the sampled tokens, in nats."""
    sampled = play(model, chat, held_out, 1, Sampling())
    greedy = play(model, chat, held_out, 1, Sampling(temperature=0))
    grouped = play(model, chat, trained, GROUP, Sampling())
    shares = np.array([rollout.reward for rollout in grouped]).reshape(-1, GROUP).mean(axis=1)
    turns = [turn for rollout in sampled for turn in rollout.turns]
    figures = {
        "sampled_success": np.mean([rollout.reward for rollout in sampled]),
        "greedy_success": np.mean([rollout.reward for rollout in greedy]),
        "training_success": shares.mean(),
        "mixed_groups": np.mean((shares > 0) & (shares < 1)),
        "turns_per_episode": len(turns) / len(sampled),
        "tokens_per_turn": np.mean([len(turn.output_ids) for turn in turns]),
        "entropy": -np.concatenate([turn.logprobs for turn in turns]).mean(),
    }
    counts = {"held_out_games": len(sampled), "groups": len(shares)}
    return counts | {name: round(float(value), 4) for name, value in figures.items()}


def save(model: Any, base: Path, output: Path) -> None:
    """Write an adapter, without the folder that its model was read from."""
    model.peft_config["default"].base_model_name_or_path = base.name
    model.save_pretrained(output)
    (output / "README.md").unlink()  # an empty form


def make_adapter(recipe: AdapterRecipe, base: Path, games: dict[str, list[Task]], output: Path) -> dict[str, Any]:
    """Train, measure and save an adapter's folder; returns its record, written last, as warm_start.json.

    base: folder of the pretrained model. games: of the splits demonstrations, held_out and train. Raises DataError when
    `output` has something in it."""
    check_is_free(output)
    begun = time.monotonic()
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    chat = ChatFormat(tokenizer)
    pretrained = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    model = adapted(pretrained, recipe, tags_of(chat, tokenizer))
    shown = demonstrations(recipe, games["demonstrations"][recipe.first : recipe.first + recipe.games])
    encode = partial(tokenizer.encode, add_special_tokens=False)
    losses = train(model, [episode_row(episode, chat, encode) for episode in shown], recipe)
    save(model, base, output)
    trained = time.monotonic()
    merged = model.merge_and_unload().eval()
    measured = measure(merged, chat, games["held_out"][: recipe.held_out], games["train"][: recipe.groups])
    record = {
        "settings": asdict(recipe),
        "base": {"model.safetensors": sha256(base / "model.safetensors")},
        "measured": measured,
        "demonstrator_success": float(np.mean([episode.grade.reward for episode in shown])),
        "training_seconds": round(trained - begun, 1),
        "sha256": {"adapter_model.safetensors": sha256(output / "adapter_model.safetensors")},
        "loss": losses,
    }
    (output / "warm_start.json").write_text(json.dumps(record, indent=1) + "\n")
    return record
