"""Recipes of the language models' adapters."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SHIPPED = Path(__file__).parent / "adapters"
"""holds the shipped adapters; each folder has its recipe's name"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRecipe:
    """How to train an adapter, and what to measure it on."""

    family: str  # of games: a folder of data/textworld
    first: int  # index of the first game in the split `demonstrations`
    games: int  # number of games to demonstrate
    passes: int = 1  # over the games, each with new slips and thoughts
    slips: float = 0.1  # share of turns with a random command
    seed: int = 0
    rank: int = 8  # of the LoRA matrices, in all linear layers
    learning_rate: float = 2e-3
    batch_size: int = 4  # episodes per step
    held_out: int = 64  # number of held-out games to measure on, one episode each
    groups: int = 16  # number of training games to measure on, eight episodes each


def adapter_recipes() -> Mapping[str, AdapterRecipe]:
    """All recipes by name. Recipes of one family use disjoint games."""
    return {
        "quests_0": AdapterRecipe(family="quests", first=0, games=200),
        "quests_1": AdapterRecipe(family="quests", first=200, games=156, passes=2, seed=1),
        "quests_2": AdapterRecipe(family="quests", first=356, games=156, passes=2, seed=2),
        "treasure_0": AdapterRecipe(family="treasure", first=0, games=200),
    }
