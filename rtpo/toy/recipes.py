"""What a toy task's warm-started model is made of: each `*_demonstrator.py` of this folder ends with its RECIPES."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from rtpo.envs.toy.luck import ToySettings
from rtpo.toy.demonstrator import Demonstration
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
"""of the shipped models"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """The settings of one warm start.

    steps: optimizer steps of a cycle, in which the learning rate rises and falls to 0. cycles: how many, one after
    another, each with a new optimizer. Copying is learnt late; a second cycle sharpens what the first one found.
    batch_size: samples a step. full_history: share of the episodes whose contexts keep past thinking. held_out: number
    of held-out problems the result is measured on.
    """

    steps: int
    cycles: int
    batch_size: int = 64
    learning_rate: float = 3e-3
    task: str
    seed: int = 0
    full_history: float
    held_out: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a model is warm-started.

    demonstrate: one episode, (task, env, rng, max_turns). max_turns: K. turns: what a demonstration has at least, on
    average. words: of the vocabulary, each once, in the order of their ids; the demonstrator and the environment say no
    others. architecture: of the model, as Qwen3Config has it. starts: shipped models to begin from, by turns of the
    seed; random weights without any. decided: settings of the task under which it is measured where they decide the
    return.
    """

    settings: WarmStart
    demonstrate: Callable[..., Awaitable[Demonstration]]
    max_turns: int
    turns: int
    words: tuple[str, ...] = TOY_WORDS
    architecture: Mapping[str, Any] = field(default_factory=lambda: ARCHITECTURE)
    starts: tuple[str, ...] = ()
    decided: Mapping[str, ToySettings] = field(default_factory=dict)


def recipes() -> dict[str, Recipe]:
    """By name; the shipped ones are called after the folder's name without `warm_start_`."""
    files = sorted(Path(__file__).parent.glob("*_demonstrator.py"))
    return {name: recipe for file in files for name, recipe in import_module(f"rtpo.toy.{file.stem}").RECIPES.items()}
