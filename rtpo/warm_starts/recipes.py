"""The warm starts of language models, and where their adapters stand."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SHIPPED = Path(__file__).parent / "adapters"
"""a folder of each shipped adapter, by its recipe's name"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRecipe:
    """How a pretrained model is shown a task.

    family: of the games, a folder of data/textworld. first, games: which games of the demonstrations' split. passes:
    over them, each with other slips and thoughts. slips: share of turns with a drawn command. rank: of the LoRA
    matrices, at every linear layer. batch_size: episodes a step. held_out: games that success is measured on, one
    episode each. groups: training games on which eight episodes are played.
    """

    family: str
    first: int
    games: int
    passes: int = 1
    slips: float = 0.1
    seed: int = 0
    rank: int = 8
    learning_rate: float = 2e-3
    batch_size: int = 6
    held_out: int = 64
    groups: int = 16


def adapter_recipes() -> Mapping[str, AdapterRecipe]:
    """By name. No two of a family share a game."""
    return {
        "quests_0": AdapterRecipe(family="quests", first=0, games=200),
        "quests_1": AdapterRecipe(family="quests", first=200, games=156, seed=1),
        "quests_2": AdapterRecipe(family="quests", first=356, games=156, seed=2),
        "treasure_0": AdapterRecipe(family="treasure", first=0, games=200),
    }
