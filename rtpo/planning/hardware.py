"""Machines, model shapes, episodes and assumptions from which plans are estimated (rtpo/planning/hardware.yaml)."""

import json
from dataclasses import dataclass, fields
from functools import cache
from math import nan
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from rtpo.core.names import nearest
from rtpo.errors import DataError

FILE = Path(__file__).with_name("hardware.yaml")
GIB = 2**30
MODEL_TYPES = ("qwen3", "qwen2", "llama")


@dataclass(frozen=True)
class Hardware:
    """A node."""

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
        """Rows and columns of a layer's weights: q, k, v, o; norms of q and k (Qwen3) or biases of q, k and v (Qwen2);
        gate, up, down; two norms."""
        hidden, inner = self.hidden_size, self.intermediate_size
        query, key = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        own = {"qwen3": 2 * ((self.head_dim, 1),), "qwen2": ((query, 1), (key, 1), (key, 1))}.get(self.model_type, ())
        attention = ((query, hidden), (key, hidden), (key, hidden), (hidden, query), *own)
        return (*attention, (inner, hidden), (inner, hidden), (hidden, inner), (hidden, 1), (hidden, 1))

    @property
    def matrices(self) -> tuple[tuple[int, int], ...]:
        """Rows and columns of all weights; a tied output head adds none."""
        ends = (1 if self.tie_word_embeddings else 2) * ((self.vocab_size, self.hidden_size),)
        return (*self.num_hidden_layers * self.layer_matrices, *ends, (self.hidden_size, 1))

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
        """Bytes of a token's keys and values in bf16."""
        return 2 * 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim


@dataclass(frozen=True)
class Episodes:
    """What a whole episode of an environment is assumed to be, on average."""

    turns: float
    tokens_per_turn: float
    prompt_tokens: float
    feedback_tokens: float  # of each tool result
    success: float  # the share with reward 1


@dataclass(frozen=True)
class Known:
    """The contents of hardware.yaml."""

    hardware: dict[str, Hardware]  # by profile
    models: dict[str, Shape]  # by model name
    episodes: dict[str, Episodes]  # by environment
    assumptions: dict[str, float]  # by name


@cache
def known() -> Known:
    """The file's contents, checked."""
    return TypeAdapter(Known).validate_python(yaml.safe_load(FILE.read_text(encoding="utf-8")))


def model_shape(name: str, folder: str) -> Shape:
    """A model's shape: by name from the file, else from its folder's config.json. Raises DataError if neither has
    it."""
    if name in known().models:
        return known().models[name]
    file = Path(folder) / "config.json"
    try:
        config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        heads = config["num_attention_heads"]
        usual = {"num_key_value_heads": heads, "tie_word_embeddings": False, "head_dim": config["hidden_size"] // heads}
        shape = Shape(**{field.name: (usual | config)[field.name] for field in fields(Shape)})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"model.name is {name!r}: {FILE.name} has no such shape ({nearest(name, known().models)}), and {file} "
            f"gives none ({error!r})."
        ) from error
    if shape.model_type not in MODEL_TYPES:
        raise DataError(f"{file}: model_type {shape.model_type} is not one of {', '.join(MODEL_TYPES)}.")
    return shape
