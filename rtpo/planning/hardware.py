"""Machines, model shapes, episodes and assumptions from which plans are estimated (rtpo/planning/hardware.yaml)."""

import json
from dataclasses import dataclass, fields
from functools import cache
from math import nan
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from rtpo.core.model_family import MODEL_TYPES
from rtpo.core.names import nearest
from rtpo.errors import DataError

FILE = Path(__file__).with_name("hardware.yaml")
GIB = 2**30


@dataclass(frozen=True)
class Hardware:
    """A node of a cluster."""

    title: str
    gpus: int
    memory_gib: float  # of each GPU
    host_gib: float | None = None  # of the node; None: unknown
    tflops: float = nan  # of each GPU, dense in bf16
    memory_tb_s: float = nan  # bandwidth of each GPU's memory


@dataclass(frozen=True)
class Shape:
    """A model's shape, with the field names of its config.json."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    tie_word_embeddings: bool
    model_type: str = "qwen3"

    @property
    def layer_matrices(self) -> tuple[tuple[int, int], ...]:
        """(rows, columns) of each weight of a layer. Qwen3 adds norms of q and k, Qwen2 biases of q, k and v."""
        hidden, inner = self.hidden_size, self.intermediate_size
        query, key = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        model_specific = {"qwen3": 2 * ((self.head_dim, 1),), "qwen2": ((query, 1), (key, 1), (key, 1))}.get(
            self.model_type, ()
        )
        attention = ((query, hidden), (key, hidden), (key, hidden), (hidden, query), *model_specific)
        return (*attention, (inner, hidden), (inner, hidden), (hidden, inner), (hidden, 1), (hidden, 1))

    @property
    def matrices(self) -> tuple[tuple[int, int], ...]:
        """(rows, columns) of every weight of the model. A tied output head adds none."""
        embeddings = (1 if self.tie_word_embeddings else 2) * ((self.vocab_size, self.hidden_size),)
        return (*self.num_hidden_layers * self.layer_matrices, *embeddings, (self.hidden_size, 1))

    @property
    def layer_parameters(self) -> int:
        return sum(rows * columns for rows, columns in self.layer_matrices)

    @property
    def head_parameters(self) -> int:
        """Parameters of the output head, or of the embedding that it shares."""
        return self.vocab_size * self.hidden_size

    @property
    def parameters(self) -> int:
        return sum(rows * columns for rows, columns in self.matrices)

    @property
    def cache_bytes(self) -> int:
        """Bytes of a token's keys and values in bf16, over all layers."""
        return 2 * 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim


@dataclass(frozen=True)
class TypicalEpisode:
    """An environment's average episode, as plans assume it."""

    turns: float
    tokens_per_turn: float
    prompt_tokens: float
    feedback_tokens: float  # of each tool result
    success: float  # the share with reward 1


@dataclass(frozen=True)
class PlanningData:
    """The contents of hardware.yaml."""

    hardware: dict[str, Hardware]  # by profile
    models: dict[str, Shape]  # by model name
    episodes: dict[str, TypicalEpisode]  # by environment
    assumptions: dict[str, float]  # by name


@cache
def planning_data() -> PlanningData:
    """The file's contents, checked."""
    return TypeAdapter(PlanningData).validate_python(yaml.safe_load(FILE.read_text(encoding="utf-8")))


def model_shape(name: str, folder: str) -> Shape:
    """Look up a model's shape by name in hardware.yaml, or else in its folder's config.json. Raises DataError if
    neither has it."""
    if name in planning_data().models:
        return planning_data().models[name]
    file = Path(folder) / "config.json"
    try:
        config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        heads = config["num_attention_heads"]
        head_dim = config["hidden_size"] // heads
        values = {"num_key_value_heads": heads, "tie_word_embeddings": False, "head_dim": head_dim}
        values |= {key: value for key, value in config.items() if value is not None}
        shape = Shape(**{field.name: values[field.name] for field in fields(Shape)})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"model.name is {name!r}: {FILE.name} has no such shape ({nearest(name, planning_data().models)}), and "
            f"{file} gives none ({error!r})."
        ) from error
    if shape.model_type not in MODEL_TYPES:
        raise DataError(f"{file}: model_type {shape.model_type} is not one of {', '.join(MODEL_TYPES)}.")
    return shape
