"""Recipes and records of the language models' adapters."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rtpo.core.names import missing_file
from rtpo.errors import ConfigError, DataError
from rtpo.run.building import build
from rtpo.run.config import Precision
from rtpo.run.reading import json_object
from rtpo.toy.record import TurnRecord

SHIPPED = Path(__file__).parent / "adapters"
"""folder of the shipped adapters; each has a folder with its recipe's name"""
WARM_START = "warm_start.json"
"""file of an adapter's folder that holds its `AdapterRecord`"""
TURNS = "turns.json"
"""file that holds its `AdapterTurns`, if they were measured"""
NOISE = "gradient_noise.json"
"""file that holds its `AdapterNoise`, if it was measured"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRecipe:
    """How to train an adapter, and what to measure it on."""

    family: str  # name of the demonstrated games' folder in data/textworld
    first: int  # index of the first game in the split `demonstrations`
    games: int  # number of games to demonstrate
    passes: int = 1  # number of passes over the games, each with new slips and thoughts
    slips: float = 0.1  # share of turns with a random command
    seed: int = 0
    rank: int = 8  # of the LoRA matrices, in all linear layers
    learning_rate: float = 2e-3
    batch_size: int = 4  # episodes per step
    held_out: int = 64  # number of held-out games to measure on
    groups: int = 16  # number of training games to measure on, eight episodes each


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterMeasures:
    """Measurements of an adapted model. It plays each held-out game once at temperature 1 and once greedily, and each
    training game eight times (a group)."""

    held_out_games: int  # number of games
    groups: int  # number of training games
    sampled_success: float  # share of held-out games won at temperature 1
    greedy_success: float  # share of held-out games won by greedy decoding
    training_success: float  # share of the groups' episodes won at temperature 1
    mixed_groups: float  # share of groups with both wins and losses
    turns_per_episode: float  # mean over held-out games at temperature 1
    tokens_per_turn: float  # mean over these episodes' turns
    entropy: float  # minus the mean log-prob of these episodes' sampled tokens, in nats


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRecord:
    """How an adapter was made, and what was measured."""

    settings: AdapterRecipe
    base: Mapping[str, str]  # sha256 of the pretrained model's weights, by file name
    measured: AdapterMeasures
    demonstrator_success: float  # share of the demonstrated episodes that win
    training_seconds: float  # wall-clock time, loading and demonstrations included
    precision: Precision  # of training and measuring
    sha256: Mapping[str, str]  # of the adapter's weights, by file name
    loss: list[float]  # of each optimizer step, in nats per token


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterTurns:
    """Which turns of a task's training games decide an adapted model's return, before it is trained further."""

    task: str  # of configs/task/
    measured: TurnRecord
    precision: Precision
    sha256: Mapping[str, str]  # of the adapter's weights, by file name


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientMeasures:
    """Squared norms of two gradients of each game, RTPO's and exact GRPO's, whose means are equal."""

    grpo: list[float]  # by game
    rtpo: list[float]
    rtpo_turns: list[list[float]]  # [games][turns], of each turn's own gradient
    inner: list[float]  # inner product of a game's two gradients
    grpo_sum: float  # of the sum over games
    rtpo_sum: float
    inner_sum: float  # inner product of the two sums


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterNoise:
    """Gradients on training games of an adapter's family, before any training with rewards."""

    measured: GradientMeasures
    chains: int  # rollouts of a game by exact GRPO, and by RTPO if its trunk has all turns
    precision: Precision
    model: Mapping[str, str]  # sha256 of the merged model's weights, by file name


def read_adapter(folder: Path) -> AdapterRecord:
    """Read an adapter's record. Raises DataError if it is missing or damaged, and names the damaged field."""
    return cast(AdapterRecord, _read(AdapterRecord, folder / WARM_START))


def read_turns(folder: Path) -> AdapterTurns:
    """Read what was measured of its turns. Raises DataError as `read_adapter`."""
    return cast(AdapterTurns, _read(AdapterTurns, folder / TURNS))


def read_noise(folder: Path) -> AdapterNoise:
    """Read what was measured of its gradients. Raises DataError as `read_adapter`."""
    return cast(AdapterNoise, _read(AdapterNoise, folder / NOISE))


def _read(kind: type[Any], file: Path) -> Any:
    if not file.is_file():
        raise DataError(f"{missing_file(file)}: restore the adapter's folder.")
    try:
        return build(kind, json_object(file.read_bytes(), str(file), ()), str(file))
    except ConfigError as error:
        raise DataError(f"{error} Restore the adapter's folder.") from error


def adapter_recipes() -> Mapping[str, AdapterRecipe]:
    """All recipes by name. Recipes of one family use disjoint games."""
    return {
        "quests_0": AdapterRecipe(family="quests", first=0, games=200),
        "quests_1": AdapterRecipe(family="quests", first=200, games=156, passes=3, slips=0.05, seed=1),
        "quests_2": AdapterRecipe(family="quests", first=356, games=156, passes=3, slips=0.05, seed=2),
        "quests_3": AdapterRecipe(family="quests", first=512, games=156, passes=3, slips=0.05, seed=3),
        "treasure_0": AdapterRecipe(family="treasure", first=0, games=156, passes=3, slips=0.05),
    }
