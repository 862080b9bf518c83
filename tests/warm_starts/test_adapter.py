"""Warm starts of language models: the demonstrator, its episodes as rows, and the adapter, on a small random Llama."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from byte_tokenizer import MARKUP, byte_tokenizer
from safetensors.torch import load_file
from small_models import small_model
from textworld_games import game, needs_textworld

from rtpo.core.chat import ChatFormat
from rtpo.core.contexts import next_context
from rtpo.core.files import sha256
from rtpo.core.seeds import generator
from rtpo.envs.textworld.env import TextWorldEnv, TextWorldSettings
from rtpo.errors import DataError
from rtpo.harness.episodes import EpisodeLimits
from rtpo.run.config import DTYPES, DataConfig, Precision, TaskConfig
from rtpo.toy.demonstrator import Demonstration
from rtpo.toy.warm_start import local_engine
from rtpo.types import StopReason, as_ids
from rtpo.warm_starts import adapter
from rtpo.warm_starts.adapter import make_adapter, measure_turns, train, with_lora
from rtpo.warm_starts.demonstrated import EpisodeRow, batch_of, episode_row, logprobs
from rtpo.warm_starts.pretrained import with_adapter
from rtpo.warm_starts.recipes import (
    SHIPPED,
    TURNS,
    WARM_START,
    AdapterRecipe,
    adapter_recipes,
    read_adapter,
    read_turns,
)
from rtpo.warm_starts.textworld_demonstrator import demonstrate, parts, thought

TOKENIZER = byte_tokenizer()
CHAT = ChatFormat(TOKENIZER)


def encode(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False))


TAGS = {encode("<think>")[0]: 3, encode("</think>")[0]: 4}
RECIPE = AdapterRecipe(
    family="quests", first=0, games=4, held_out=1, groups=1, passes=2, slips=0.3, batch_size=2, learning_rate=0.02
)
model_of = partial(small_model, TOKENIZER, tie_word_embeddings=True, initializer_range=0.3)


def shown(kind: str, slips: float, seed: int = 0) -> Demonstration:
    env = TextWorldEnv(TextWorldSettings(interpreters=1))
    return asyncio.run(demonstrate(game(kind), env, generator(seed, "test"), 8, slips))


def rows() -> list[EpisodeRow]:
    episodes = [shown(kind, 0.3, seed) for seed in range(2) for kind in ("quests", "treasure")]
    return [episode_row(episode, CHAT, encode) for episode in episodes]


@needs_textworld
@pytest.mark.parametrize("kind", ["quests", "treasure"])
def test_the_demonstrator_wins_by_the_shortest_way_and_slips_as_often_as_it_should(kind: str) -> None:
    perfect = shown(kind, 0.0)
    assert perfect.grade.reward == 1
    assert [turn.reply.partition("</think>")[2] for turn in perfect.turns] == list(game(kind).answer)
    slipping = [shown(kind, 0.5, seed) for seed in range(12)]
    share = np.mean([turn.reply.startswith("<think>I try") for episode in slipping for turn in episode.turns])
    assert 0.25 < share < 0.75
    assert shown(kind, 0.5, 3) == slipping[3]


def test_thoughts_are_short_and_name_what_the_commands_handle() -> None:
    ahead = ["go east", "open safe", "take key from safe", "unlock box with key"]
    assert parts(ahead[2]) == ("take", "key", "safe")
    for seed in range(8):
        assert "key" in thought(ahead, generator(seed, "test"))
        assert "box" in thought(ahead[3:], generator(seed, "test"))
        assert len(thought(ahead, generator(seed, "test")).split()) <= 10


@needs_textworld
def test_a_row_gives_each_reply_the_log_probs_that_its_own_context_gives() -> None:
    model, episode = model_of(), shown("quests", 0.3)
    expected, context = [], CHAT.opening(episode.opening)
    for turn in episode.turns:
        reply = as_ids([*encode(turn.reply), CHAT.tags.stop_id])
        ids = torch.tensor(np.concatenate([context, reply])).long()
        scored = model(ids[None]).logits[0].log_softmax(-1)[len(context) - 1 : -1]
        expected.append(scored.gather(-1, ids[len(context) :, None])[:, 0])
        if turn.feedback:
            feedback = CHAT.feedback(turn.feedback, StopReason.STOP)
            context = next_context(context, reply, feedback, CHAT.tags, "strip_think")
    row, longer = episode_row(episode, CHAT, encode), episode_row(shown("treasure", 0.3), CHAT, encode)
    got = logprobs(model, batch_of([row, longer]))[: len(row.targets)]
    torch.testing.assert_close(got, torch.cat(expected), atol=2e-5, rtol=0)


@needs_textworld
def test_training_moves_the_adapter_alone_lowers_the_loss_and_gives_the_same_again() -> None:
    shown_rows = rows() * 8
    recipe = replace(RECIPE, passes=4)

    def trained() -> tuple[list[float], dict[str, torch.Tensor], Any]:
        model = with_lora(model_of(), recipe, TAGS)
        losses = train(model, shown_rows, recipe)
        return losses, {name: weight for name, weight in model.named_parameters() if weight.requires_grad}, model

    losses, weights, model = trained()
    assert np.mean(losses[-4:]) < 0.9 * np.mean(losses[:4])
    assert all("lora_" in name or "trainable_tokens" in name for name in weights)
    again, same, _ = trained()
    assert again == losses
    assert all(torch.equal(weights[name], same[name]) for name in weights)
    row = batch_of(shown_rows[:1])
    adapted_logprobs = logprobs(model.get_base_model(), row)
    merged = logprobs(model.merge_and_unload(), row)
    torch.testing.assert_close(merged, adapted_logprobs, atol=1e-4, rtol=0)
    assert (merged - logprobs(model_of(), row)).abs().max() > 0.1


@needs_textworld
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_an_adapter_is_trained_in_the_fastest_precision_and_played_as_it_is_shipped(
    precision: Precision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained_in, played = set(), []

    def noted_train(model: Any, rows: Sequence[EpisodeRow], recipe: AdapterRecipe) -> list[float]:
        trained_in.update(weight.dtype for weight in model.parameters())
        return train(model, rows, recipe)

    def noted_engine(model: Any, *settings: Any) -> Any:
        played.append(model)
        return local_engine(model, *settings)

    monkeypatch.setattr(adapter, "fastest_precision", lambda: precision)
    monkeypatch.setattr(adapter, "train", noted_train)
    monkeypatch.setattr(adapter, "local_engine", noted_engine)
    monkeypatch.setattr(adapter, "LIMITS", EpisodeLimits(2, 3000, 8, 4000))
    base, output, quest = tmp_path / "base", tmp_path / "quests_0", game("quests")
    rare = ("<issue_start>", "<issue_closed>") if precision == "bf16" else ()  # else the tags' own rows are trained
    small_model(byte_tokenizer((*MARKUP, *rare)), base, tie_word_embeddings=True)
    games = {"demonstrations": [quest] * 4, "held_out": [quest], "train": [quest]}
    for split in games:
        with pytest.raises(DataError, match=split):
            make_adapter(RECIPE, base, games | {split: []}, output)
    record = make_adapter(RECIPE, base, games, output)
    assert read_adapter(output) == record
    assert {weight.dtype for weight in load_file(output / "adapter_model.safetensors").values()} == {torch.bfloat16}
    assert record.measured.entropy > 0
    dtype = getattr(torch, DTYPES[precision])
    assert (record.precision, trained_in) == (precision, {dtype})
    games = DataConfig("all", 1)
    task = TaskConfig("made", "textworld", games, games, 2, 3000, 8, 4000)
    with pytest.raises(DataError, match="same return"):
        measure_turns(base, output, task, [quest])
    monkeypatch.setattr(adapter.variance, "_covariance", lambda *returns: 1.0)  # this model wins no game
    turns = measure_turns(base, output, task, [quest])
    assert turns.task == "made"
    assert (turns.precision, turns.sha256, turns.measured.reached) == (precision, record.sha256, [1.0, 1.0])
    shipped = with_adapter(base, output).to(dtype).state_dict()
    for model in played:
        torch.testing.assert_close(model.state_dict(), shipped, rtol=0, atol=0)


def test_no_two_warm_starts_of_a_family_share_a_game() -> None:
    recipes = list(adapter_recipes().values())
    places = [
        (recipe.family, place) for recipe in recipes for place in range(recipe.first, recipe.first + recipe.games)
    ]
    assert len(places) == len(set(places))


@pytest.mark.parametrize("folder", sorted(SHIPPED.iterdir()), ids=lambda folder: folder.name)
def test_the_record_of_a_shipped_adapter_has_its_recipe_and_checksum(folder: Path) -> None:
    record = read_adapter(folder)
    assert record.settings == adapter_recipes()[folder.name]
    assert record.sha256 == {name: sha256(folder / name) for name in record.sha256}
    assert 0 < record.measured.sampled_success < record.demonstrator_success <= 1
    assert record.loss[-1] < record.loss[0]


def test_what_turns_decide_was_measured_on_the_shipped_weights() -> None:
    measured = [file.parent for file in SHIPPED.glob(f"*/{TURNS}")]
    assert measured
    for folder in measured:
        turns = read_turns(folder)
        assert turns.sha256 == read_adapter(folder).sha256


def test_a_damaged_record_of_an_adapter_is_refused_by_its_field(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=WARM_START):
        read_adapter(tmp_path)
    record = json.loads((SHIPPED / "quests_0" / WARM_START).read_bytes())
    for damaged, field in ((record | {"loss": ["low"]}, "loss.0"), (record | {"measured": {}}, "measured")):
        (tmp_path / WARM_START).write_text(json.dumps(damaged))
        with pytest.raises(DataError, match=field):
            read_adapter(tmp_path)
