"""What of a first hour on GPUs needs none: every element's settings, taken by verl and by vLLM's server.

Without the GPU set, one experiment's by verl alone.
"""

import shutil
from dataclasses import asdict
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
from byte_tokenizer import byte_tokenizer
from elements import SERVER
from omegaconf import DictConfig
from transformers import AutoConfig

from rtpo.core.files import sha256
from rtpo.envs.textworld.games import GameRow, write_games
from rtpo.planning.hardware import model_shape
from rtpo.planning.plan import plan
from rtpo.run.experiments import experiments, load_experiment
from rtpo.toy.warm_start import SHIPPED

GPU_PROFILES = ("a100x8", "a100x1", "h100x8", "h100x1", "h200x8", "h200x1")
HAS_VLLM = any("cpu" not in installed.version for installed in distributions(name="vllm"))
"""the GPU set's, which can be configured without a GPU"""
NAMES = experiments() if HAS_VLLM else ["gsm8k_audit"]


def taken_by_vllm(settings: DictConfig, name: str, folder: Path) -> None:
    """folder: of the model's config.json, of a published shape, and a small tokenizer; no weights."""
    from vllm_engine_config import engine_config

    for file in (SHIPPED / "warm_start_math").glob("*token*.json"):
        shutil.copy(file, folder)
    shape: dict[str, Any] = asdict(model_shape(name, "")) | {"max_position_embeddings": 40960}
    AutoConfig.for_model(**shape, architectures=["Qwen3ForCausalLM"]).save_pretrained(folder)
    settings.actor_rollout_ref.model.path = str(folder)
    engine_config(settings)


@pytest.mark.parametrize("profile", GPU_PROFILES)
@pytest.mark.parametrize("name", NAMES)
def test_every_element_is_taken_by_verl_and_vllm(name: str, profile: str, tmp_path: Path) -> None:
    """Equal settings are asked about once."""
    elements = load_experiment(name, [f"profile={profile}", *(SERVER if "airline" in name else ())]).elements
    assert elements
    from rtpo.verl_harness.session import settings_of

    runs = {repr((run.model.name, run.verl["actor_rollout_ref"])): run for run in (each.run for each in elements)}
    for run in runs.values():
        settings = settings_of(run)
        if HAS_VLLM:
            taken_by_vllm(settings, run.model.name, tmp_path)


def test_a_language_model_on_text_games_is_planned_and_taken(tmp_path: Path) -> None:
    """By a config.json with SmolLM2's shape."""
    byte_tokenizer().save_pretrained(tmp_path)
    sizes = {"vocab_size": 49158, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "max_position_embeddings": 8192}
    whole = {"tie_word_embeddings": True, "architectures": ["LlamaForCausalLM"]}
    AutoConfig.for_model("llama", **sizes | heads | whole).save_pretrained(tmp_path)
    games = tmp_path / "games.jsonl"
    (tmp_path / "game").write_text("no game, only a file")
    write_games(games, [GameRow("quests/0", "game", "goal", ("look",), sha256(tmp_path / "game"), "texts")])
    made = [f"model.path={tmp_path}", "model.name=mine", f"data={games}"]
    overrides = ["profile=a100x1", "task=textworld", "seed=0", *made]
    rows = plan("main_table", overrides).rows
    assert all(row.fits and sum(row.hours) > 0 for row in rows)
    from rtpo.verl_harness.session import settings_of

    elements = load_experiment("main_table", overrides).elements
    assert len(elements) == len(rows) > 1
    for element in elements:
        settings = settings_of(element.run)
        if HAS_VLLM:
            from vllm_engine_config import engine_config

            engine_config(settings)
