"""Recipes of the toy tasks' warm-started models. Each `*_demonstrator.py` of this folder ends with its RECIPES."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from rtpo.envs.base import Settings
from rtpo.toy.demonstrator import Demonstration
from rtpo.toy.record import WarmStart
from rtpo.toy.tokenizer import TOY_WORDS

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
"""the shipped models' architecture, with the argument names of `Qwen3Config`"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to warm-start a model."""

    settings: WarmStart
    demonstrate: Callable[..., Awaitable[Demonstration]]  # plays an episode: (task, env, rng, max_turns)
    max_turns: int  # K
    turns: int  # demonstrations have at least this mean number of turns; decides how many episodes to play
    words: tuple[str, ...] = TOY_WORDS  # all words of demonstrator and environment, in the order of their ids
    architecture: Mapping[str, Any] = field(default_factory=lambda: ARCHITECTURE)
    starts: tuple[str, ...] = ()  # shipped models to start from (the seed chooses one); empty: random weights
    decided: Mapping[str, Settings] = field(default_factory=dict)  # task settings by name, for `measure_turns`


def recipes() -> dict[str, Recipe]:
    """All recipes by name. The folder of a shipped model is warm_start_<recipe>, with _<seed> unless the seed is 0."""
    files = sorted(Path(__file__).parent.glob("*_demonstrator.py"))
    return {name: recipe for file in files for name, recipe in import_module(f"rtpo.toy.{file.stem}").RECIPES.items()}
