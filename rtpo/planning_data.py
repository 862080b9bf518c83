"""What planning reckons with (rtpo/hardware.yaml): machines, model shapes, assumptions, the paper's hours."""

import json
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from rtpo.config import build
from rtpo.errors import ConfigError, DataError

FILE = Path(__file__).with_name("hardware.yaml")
GIB = 2**30
End = Literal["low", "mid", "high"]
ENDS: tuple[End, ...] = ("low", "mid", "high")


@dataclass(frozen=True)
class Range:
    """An estimate, and the ends between which it is taken to be."""

    low: float
    mid: float
    high: float

    def __add__(self, other: "Range") -> "Range":
        return Range(self.low + other.low, self.mid + other.mid, self.high + other.high)

    def times(self, factor: float) -> "Range":
        return Range(self.low * factor, self.mid * factor, self.high * factor)

    def at(self, end: End) -> float:
        return float(getattr(self, end))


@dataclass(frozen=True)
class Hardware:
    """A machine. memory_gib, tflops (bf16, dense) and bandwidth_gb (GB/s) are of each GPU; host_gib is None where it is
    not known."""

    name: str
    title: str
    gpus: int
    memory_gib: float
    tflops: float
    bandwidth_gb: float
    host_gib: float | None
    source: str

    @property
    def memory_bytes(self) -> float:
        return self.memory_gib * GIB


@dataclass(frozen=True)
class Shape:
    """A Qwen3 model's shape, by the names of its config.json."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    tie_word_embeddings: bool

    @property
    def layer_parameters(self) -> int:
        """Of one layer: q, k, v, o, the norms of q and k, gate, up, down, and the layer's two norms."""
        query, key = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        attention = 2 * self.hidden_size * (query + key) + 2 * self.head_dim
        return attention + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size

    @property
    def embedding_parameters(self) -> int:
        """Embeddings, and the output head where it is not the same matrix."""
        return self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)

    @property
    def head_parameters(self) -> int:
        """The output head, or the matrix that it shares with the embeddings."""
        return self.vocab_size * self.hidden_size

    @property
    def parameters(self) -> int:
        return self.embedding_parameters + self.num_hidden_layers * self.layer_parameters + self.hidden_size

    @property
    def cache_bytes(self) -> int:
        """Keys and values of one token in bf16."""
        return 2 * 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim

    def forward_flops(self, tokens: float, pairs: float) -> float:
        """Of a forward pass over `tokens` positions that attend to `pairs` positions in all: 2 a weight that
        multiplies, 4 a pair and attention channel."""
        weights = self.num_hidden_layers * self.layer_parameters + self.vocab_size * self.hidden_size
        channels = self.num_hidden_layers * self.num_attention_heads * self.head_dim
        return 2.0 * weights * tokens + 4.0 * channels * pairs


@dataclass(frozen=True)
class Episodes:
    """What an environment's episodes are taken to be: turns of a whole one, tokens of each, of q and of each f_k, and
    the seconds that a turn's tools take. None is unknown."""

    turns: Range
    tokens_per_turn: Range | None
    prompt_tokens: float
    feedback_tokens: float
    tool_seconds: Range | None
    source: str


@dataclass(frozen=True)
class Assumption:
    name: str
    range: Range
    unit: str
    source: str


@dataclass(frozen=True)
class Target:
    """An element of an experiment, and what the paper says that it took. tokens: generated in training, where the paper
    says so."""

    name: str
    hours: float
    experiment: str
    overrides: tuple[str, ...]
    tokens: int | None = None


@dataclass(frozen=True)
class Values:
    """The assumptions at chosen ends."""

    thinking_share: float
    success: float
    training_mfu: float
    sync_seconds: float
    disk_gb: float
    overhead_gib: float
    engine_gib: float
    process_gib: float
    logit_bytes: float
    fused_chunk: float
    margin: float


@cache
def _data() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return loaded


def all_hardware() -> dict[str, Hardware]:
    """The machines that a plan is held against, by name."""
    return {name: build(Hardware, {"name": name, **one}, name) for name, one in _data()["hardware"].items()}


def find_hardware(name: str) -> Hardware:
    """Raises ConfigError for a name that there is none of."""
    known = all_hardware()
    if name not in known:
        raise ConfigError(f"hardware is {name!r}: no such machine in {FILE.name}; there are {', '.join(known)}.")
    return known[name]


def assumptions() -> tuple[Assumption, ...]:
    return tuple(
        Assumption(name, Range(*one["range"]), one["unit"], one["source"])
        for name, one in _data()["assumptions"].items()
    )


def values(moved: str | None = None, end: End = "mid") -> Values:
    """Every assumption at its middle, but for `moved`, which is at this end."""
    return Values(**{one.name: one.range.at(end if one.name == moved else "mid") for one in assumptions()})


def episodes(env: str) -> Episodes | None:
    """What is assumed of an environment's episodes; None where nothing is."""
    found = _data()["episodes"].get(env)
    if found is None:
        return None
    ranges = {
        name: Range(*found[name]) if found[name] is not None else None
        for name in ("turns", "tokens_per_turn", "tool_seconds")
    }
    return Episodes(**{**found, **ranges})


def live_search() -> tuple[str, ...]:
    """The search backends that ask a server."""
    return tuple(_data()["live_search"])


def targets(kind: Literal["calibration", "checks"]) -> tuple[Hardware, tuple[Target, ...]]:
    found = _data()[kind]
    return find_hardware(found["hardware"]), tuple(build(Target, one, kind) for one in found["targets"])


def stated(kind: Literal["calibration", "checks"], field: str) -> str:
    """What the file says of the calibration or the checks: `source`, `meaning`, `parameter`."""
    return str(_data()[kind][field])


def model_shape(name: str, folder: str) -> Shape:
    """A model's shape: by its name from the file, else from its folder's config.json. Raises DataError where neither
    has it."""
    known = _data()["models"]
    if name in known:
        return Shape(**known[name])
    file = Path(folder) / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        return Shape(**{field.name: config[field.name] for field in fields(Shape)})
    except FileNotFoundError:
        raise DataError(
            f"model.name is {name!r}: its shape is not in {FILE.name}, which has {', '.join(known)}, and {file} is not "
            "there. Put the model's folder there, or choose one of these."
        ) from None
    except (ValueError, KeyError) as error:
        raise DataError(f"{file} has no shape of a Qwen3 model ({error}): give the model's own config.json.") from error


def moved_episodes(known: Episodes, field: str, end: End) -> Episodes:
    """With one of its ranges at this end."""
    value: Range | None = getattr(known, field)
    moved: dict[str, Any] = {} if value is None else {field: Range(*[value.at(end)] * 3)}
    return replace(known, **moved)
