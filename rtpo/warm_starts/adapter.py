"""Trains a LoRA adapter of a pretrained language model on a demonstrator's episodes of a task."""

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
from rtpo.core.files import check_is_free, readable, sha256, whole_folder
from rtpo.core.names import counted
from rtpo.engines.base import Sampling
from rtpo.envs.registry import ENVIRONMENTS, make_env
from rtpo.envs.textworld.games import read_games
from rtpo.errors import ConfigError, DataError
from rtpo.harness.episodes import EpisodeLimits, EpisodeWorld, Plan, run_episodes
from rtpo.run.config import DTYPES, TaskConfig, fastest_precision
from rtpo.toy import variance
from rtpo.toy.demonstrator import Demonstration
from rtpo.toy.record import TurnRecord
from rtpo.toy.warm_start import local_engine
from rtpo.types import Role, Rollout, Task
from rtpo.warm_starts.demonstrated import EpisodeRow, batch_of, episode_row, logprobs
from rtpo.warm_starts.pretrained import check_base, with_adapter
from rtpo.warm_starts.recipes import WARM_START, AdapterMeasures, AdapterRecipe, AdapterRecord, AdapterTurns
from rtpo.warm_starts.textworld_demonstrator import demonstrate

GROUP = 8
"""number of episodes of each training game. They form a group, which is mixed if it has wins and losses"""
LIMITS = EpisodeLimits(max_turns=8, max_prompt_tokens=512, max_turn_tokens=48, max_context_tokens=1536)
CACHE_TOKENS = 65536
"""size of the engine's cache, in which later turns find their earlier context"""
DELAY = 0.05
"""seconds that the engine waits for more games, to batch their turns"""
ENVIRONMENT = "textworld"


def read_splits(folder: Path) -> dict[str, list[Task]]:
    """Read a family's games by split. Raises DataError if a split is missing."""
    return {split: read_games(folder / f"{split}.jsonl") for split in ("demonstrations", "held_out", "train")}


def demonstrations(recipe: AdapterRecipe, games: Sequence[Task]) -> list[Demonstration]:
    """Demonstrate each game once per pass. Each pass draws new slips (random commands) and thoughts."""
    settings = ENVIRONMENTS[ENVIRONMENT].settings()

    async def demonstrate_all() -> list[Demonstration]:
        episodes = []
        for number in range(recipe.passes):
            rng = _rng(recipe, number)
            for game in games:
                env = make_env(ENVIRONMENT, settings, LIMITS.max_turns)
                episodes.append(await demonstrate(game, env, rng, LIMITS.max_turns, recipe.slips))
        return episodes

    return asyncio.run(demonstrate_all())


def with_lora(model: Any, recipe: AdapterRecipe, tags: Mapping[int, int]) -> Any:
    """Give a model LoRA matrices, and make the thinking tags' embedding rows trainable. Nothing else is trainable.

    tags: each tag's id, and the id of the token whose embedding row becomes the tag's initial row. The mean of
    several rows would not do: with tied embeddings, the tag's logit is the mean of their logits and never the largest.
    """
    import peft

    torch.manual_seed(recipe.seed)
    with torch.no_grad():
        embedding = model.get_input_embeddings().weight
        for tag, source in tags.items():
            embedding[tag] = embedding[source]
    settings = peft.LoraConfig(
        r=recipe.rank,
        lora_alpha=2 * recipe.rank,
        target_modules="all-linear",
        trainable_token_indices={"embed_tokens": sorted(tags)},
    )
    return peft.get_peft_model(model, settings, autocast_adapter_dtype=False)


def tags_of(chat: ChatFormat, tokenizer: Any) -> dict[int, int]:
    """The thinking tags' ids, each with the id of the token whose embedding row initialises the tag's row: a rare one
    of SmolLM2's, and in other vocabularies the tag's own. Raises ConfigError for a model without the tags."""
    if chat.tags.open_id is None or chat.tags.close_id is None:
        raise ConfigError("The model has no tokens for <think> and </think>: prepare_model.py adds them.")
    vocabulary = tokenizer.get_vocab()
    sources = {chat.tags.open_id: "<issue_start>", chat.tags.close_id: "<issue_closed>"}
    return {tag: vocabulary.get(source, tag) for tag, source in sources.items()}


def train(model: Any, rows: Sequence[EpisodeRow], recipe: AdapterRecipe) -> list[float]:
    """Train the trainable weights in place, with AdamW on fp32 copies. Returns each step's loss in nats per token.

    The learning rate rises over the first tenth of the steps, and then falls to 0. rows: pass after pass.
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
        tokens, loss = sum(len(rows[index].targets) for index in batch), 0.0
        for index in batch:  # one row at a time, to save memory
            part = -logprobs(model.get_base_model(), batch_of([rows[index]])).sum() / tokens
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
    """The indices of each step's rows. Each pass is shuffled separately. An incomplete last batch is dropped."""
    size = count // recipe.passes
    order: list[int] = []
    for number in range(recipe.passes):
        shuffled = _rng(recipe, number).permutation(size)
        order += (number * size + shuffled).tolist()
    for start in range(0, len(order) - recipe.batch_size + 1, recipe.batch_size):
        yield order[start : start + recipe.batch_size]


def _rng(recipe: AdapterRecipe, number: int) -> np.random.Generator:
    """The generator of pass `number`."""
    return np.random.default_rng(100 * recipe.seed + number)


def play(model: Any, chat: ChatFormat, games: Sequence[Task], episodes: int, sampling: Sampling) -> list[Rollout]:
    """Play `episodes` episodes of each game. A game's rollouts are consecutive."""
    plans = [Plan(f"{game.uid}/{number}", game, Role.EVAL) for game in games for number in range(episodes)]
    return play_plans(model, chat, sampling, plans, LIMITS)


def play_plans(
    model: Any, chat: ChatFormat, sampling: Sampling, plans: Sequence[Plan], limits: EpisodeLimits
) -> list[Rollout]:
    """Play these plans' episodes in this process."""
    settings = ENVIRONMENTS[ENVIRONMENT].settings()
    env = partial(make_env, ENVIRONMENT, settings, limits.max_turns)
    world = EpisodeWorld(
        local_engine(model, chat.tags.stop_id, CACHE_TOKENS, DELAY), chat, env, limits, "strip_think", 0
    )
    return run_episodes(world, plans, sampling, on_retry=print)


def measure(model: Any, chat: ChatFormat, held_out: Sequence[Task], trained: Sequence[Task]) -> AdapterMeasures:
    """Play held-out games at temperature 1 and greedily, and training games in groups of GROUP episodes."""
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
    rounded = {name: round(float(value), 4) for name, value in figures.items()}
    return AdapterMeasures(held_out_games=len(sampled), groups=len(shares), **rounded)


def measure_turns(base: Path, adapter: Path, task: TaskConfig, games: Sequence[Task]) -> AdapterTurns:
    """Measure at temperature 1 which turns of these games decide the return (`rtpo.toy.variance`), in the processor's
    fastest precision.

    base: folder of the pretrained model. adapter: folder of its adapter. task: the games' task, which limits episodes.
    Raises DataError if the adapter was trained on another model.
    """
    check_base(base, adapter)
    precision = fastest_precision()
    model = with_adapter(base, adapter).to(getattr(torch, DTYPES[precision])).eval()
    chat = ChatFormat(transformers.AutoTokenizer.from_pretrained(base))

    def play_paths(plans: Sequence[Plan]) -> list[Rollout]:
        print(f"playing {len(plans)} episodes", flush=True)
        return play_plans(model, chat, Sampling(), plans, task.limits)

    turns = variance.measure_turns(play_paths, games, task.max_turns)
    facts = {key: np.round(values, 4).tolist() for key, values in asdict(turns).items()}
    return AdapterTurns(
        task=task.name,
        measured=TurnRecord(problems=len(games), paths=variance.PATHS, **facts),
        precision=precision,
        sha256={"adapter_model.safetensors": sha256(adapter / "adapter_model.safetensors")},
    )


def part_of(games: Mapping[str, Sequence[Task]], split: str, count: int, first: int = 0) -> Sequence[Task]:
    """`count` games of a split, from the game `first`. Raises DataError if the split has fewer."""
    if len(games[split]) < first + count:
        raise DataError(
            f"there are {counted(len(games[split]), 'game')} of the split {split}, and {first + count} are needed: "
            "make more of them (prepare_data.py)."
        )
    return games[split][first : first + count]


def save(model: Any, base: Path, output: Path) -> None:
    """Write an adapter. Its files have the base model's name, not the base's path."""
    model.peft_config["default"].base_model_name_or_path = base.name
    model.save_pretrained(output)
    (output / "README.md").unlink()  # an empty template of a model card


def make_adapter(recipe: AdapterRecipe, base: Path, games: dict[str, list[Task]], output: Path) -> AdapterRecord:
    """Train, measure and save an adapter's folder, and return its record. The folder appears whole or not at all. The
    adapter is saved in bf16. It is trained and measured in the processor's fastest precision.

    base: folder of the pretrained model. games: tasks by split (`read_splits`). Raises DataError if `output` is not
    empty, or if a split has too few games.
    """
    check_is_free(output)
    weights = base / "model.safetensors"
    with readable("model", weights):
        base_sha256 = sha256(weights)
    shown = part_of(games, "demonstrations", recipe.games, recipe.first)
    held_out, trained_on = part_of(games, "held_out", recipe.held_out), part_of(games, "train", recipe.groups)
    begun = time.monotonic()
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    chat = ChatFormat(tokenizer)
    precision = fastest_precision()
    pretrained = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=DTYPES[precision])
    model = with_lora(pretrained, recipe, tags_of(chat, tokenizer))
    episodes = demonstrations(recipe, shown)
    encode = partial(tokenizer.encode, add_special_tokens=False)
    losses = train(model, [episode_row(episode, chat, encode) for episode in episodes], recipe)
    trained = time.monotonic()
    with whole_folder(output) as folder:
        save(model.bfloat16(), base, folder)  # small, whatever it was trained in
        merged = with_adapter(base, folder).to(getattr(torch, DTYPES[precision])).eval()
        record = AdapterRecord(
            settings=recipe,
            base={weights.name: base_sha256},
            measured=measure(merged, chat, held_out, trained_on),
            demonstrator_success=float(np.mean([episode.grade.reward for episode in episodes])),
            training_seconds=round(trained - begun, 1),
            precision=precision,
            sha256={"adapter_model.safetensors": sha256(folder / "adapter_model.safetensors")},
            loss=losses,
        )
        (folder / WARM_START).write_text(json.dumps(asdict(record), indent=1) + "\n")
    return record
