"""What planning reckons with: machines, models' shapes, episodes and assumptions (rtpo/planning/hardware.yaml)."""

import json
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from rtpo.core.names import nearest
from rtpo.errors import ConfigError, DataError
from rtpo.planning.prompts import prompt_lengths
from rtpo.run.config import RunConfig, build

FILE = Path(__file__).with_name("hardware.yaml")
GIB = 2**30
SHAPED = ("qwen3", "qwen2", "llama")
"""the kinds of model whose matrices are counted"""


@dataclass(frozen=True)
class Hardware:
    """A node. memory_gib is of each of its GPUs; host_gib is None where it is not known."""

    name: str
    title: str
    gpus: int
    memory_gib: float
    host_gib: float | None = None

    @property
    def memory_bytes(self) -> float:
        return self.memory_gib * GIB


@dataclass(frozen=True)
class Shape:
    """A model's shape, by the names of its config.json."""

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
        """Rows and columns of one layer's: q, k, v, o, the norms of q and k (Qwen3) or the biases of q, k and v
        (Qwen2), gate, up, down, and the layer's two norms."""
        hidden, inner = self.hidden_size, self.intermediate_size
        query, key = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        own = {"qwen3": 2 * ((self.head_dim, 1),), "qwen2": ((query, 1), (key, 1), (key, 1))}.get(self.model_type, ())
        attention = ((query, hidden), (key, hidden), (key, hidden), (hidden, query), *own)
        return (*attention, (inner, hidden), (inner, hidden), (hidden, inner), (hidden, 1), (hidden, 1))

    @property
    def matrices(self) -> tuple[tuple[int, int], ...]:
        """Of the whole model; the output head is one where it is not the same matrix as the embeddings."""
        ends = 1 if self.tie_word_embeddings else 2
        rest = (*ends * ((self.vocab_size, self.hidden_size),), (self.hidden_size, 1))
        return self.num_hidden_layers * self.layer_matrices + rest

    @property
    def layer_parameters(self) -> int:
        return sum(rows * columns for rows, columns in self.layer_matrices)

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
        return sum(rows * columns for rows, columns in self.matrices)

    @property
    def cache_bytes(self) -> int:
        """Keys and values of one token in bf16."""
        return 2 * 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim


@dataclass(frozen=True)
class Episodes:
    """What an environment's episodes are taken to be: mean turns of a whole one, tokens of each, of q and of each f_k,
    and the share that earns 1 (which counts only where ties alone decide whether a step is taken). None is unknown.
    measured_on: the set whose prompts `prompt_tokens` is the mean of; None where it is assumed."""

    turns: float
    tokens_per_turn: float | None
    prompt_tokens: float | None
    feedback_tokens: float | None
    success: float
    measured_on: str | None = None


@dataclass(frozen=True)
class Assumptions:
    """Those that hardware.yaml explains."""

    thinking_share: float
    overhead_gib: float
    engine_gib: float
    process_gib: float
    logit_bytes: float
    fused_chunk: int


@cache
def _data() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return loaded


def all_hardware() -> dict[str, Hardware]:
    """The machines that a plan can be held against, by name."""
    return {name: build(Hardware, {"name": name, **one}, name) for name, one in _data()["hardware"].items()}


def gpu_hours(run: RunConfig, hardware: Hardware, rollouts: int) -> float | None:
    """Of training with these rollouts, in proportion to the paper's for the same model on the same GPU; None for any
    other."""
    paper = _data()["trained"]
    known = paper.get(run.task.name)
    if known is None or paper["gpu"] not in hardware.title or run.model.name != known["model"]:
        return None
    return float(known["gpu_hours"] * rollouts / known["rollouts"])


def find_hardware(name: str) -> Hardware:
    """Raises ConfigError for a name that there is none of."""
    known = all_hardware()
    if name not in known:
        raise ConfigError(f"hardware is {name!r}: no such machine in {FILE.name}; {nearest(name, known)}.")
    return known[name]


def assumptions() -> Assumptions:
    found: Assumptions = build(Assumptions, _data()["assumptions"], "assumptions")
    return found


def episodes(run: RunConfig) -> Episodes | None:
    """What is assumed of the environment's, with prompts as they were measured with a known model's tokenizer, on the
    set to train on or else to evaluate on; or what the record beside a toy model's weights has; None for neither."""
    found = _data()["episodes"].get(run.task.env)
    if found is not None:
        assumed: Episodes = build(Episodes, found, run.task.env)
        files = [Path(data.file).stem for data in (run.task.train, run.task.held_out) if data.file is not None]
        known = [name for name in files if name in prompt_lengths() and run.model.name in _data()["models"]]
        if not known:
            return assumed
        return replace(assumed, prompt_tokens=prompt_lengths()[known[0]].mean, measured_on=known[0])
    record = Path(run.model.path) / "warm_start.json"
    if not record.exists():
        return None
    made = json.loads(record.read_text(encoding="utf-8"))
    if made["settings"]["task"] != run.task.name:
        return None
    seen = made["held_out"]
    return Episodes(seen["turns_per_episode"], seen["tokens_per_turn"], None, None, seen["sampled_success"])


def model_shape(name: str, folder: str) -> Shape:
    """A model's shape: by its name from the file, else from its folder's config.json. Raises DataError where neither
    has it."""
    known = _data()["models"]
    if name in known:
        return Shape(**known[name])
    file = Path(folder) / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        if config["model_type"] not in SHAPED:
            raise DataError(
                f"{file} is a {config['model_type']} model's, whose shape is not reckoned with: give a model of "
                f"{', '.join(SHAPED)}, or list its shape in {FILE.name} as the one of these that has its matrices."
            )
        usual = {"num_key_value_heads": config["num_attention_heads"], "tie_word_embeddings": False}
        usual["head_dim"] = config["hidden_size"] // config["num_attention_heads"]
        return Shape(**{field.name: (usual | config)[field.name] for field in fields(Shape)})
    except FileNotFoundError:
        raise DataError(
            f"model.name is {name!r}: its shape is not in {FILE.name}, which has {', '.join(known)}, and {file} is not "
            "there. Put the model's folder there, or choose one of these."
        ) from None
    except (ValueError, KeyError) as error:
        raise DataError(f"{file} has no whole shape of a model ({error}): give the model's own config.json.") from error
