"""The Qwen3 architecture in plain torch: weights by their Hugging Face names, and a forward pass over packed tokens.

Attention is the caller's, since where keys and values live is. Everything is float32. Shapes: N packed tokens, D head
size, V vocabulary.
"""

import hashlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedConfig, Qwen3Config

from rtpo.errors import ConfigError, DataError

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""attend(layer, q [N, heads, D], k [N, kv heads, D], v as k) -> [N, heads * D]; q comes scaled"""

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


class _Layer(NamedTuple):
    """q/k/v and gate/up are fused. Rows of q and k are ordered so that the pairs RoPE turns are neighbours."""

    input_norm: Tensor
    qkv: Tensor
    q_norm: Tensor
    k_norm: Tensor
    qk_scale: Tensor
    """[heads of q and k, D] `q_norm` with the attention scale, and `k_norm`; computed by `load`"""
    output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Qwen3:
    """Raises ConfigError for a config it does not compute, naming the field."""

    def __init__(self, config: Qwen3Config) -> None:
        check_architecture(config)
        self.layers = config.num_hidden_layers
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads or self.heads
        self.head_size = config.head_dim
        self._eps = config.rms_norm_eps
        self._tied = config.tie_word_embeddings
        exponents = torch.arange(0, self.head_size, 2, dtype=torch.int64).float() / self.head_size
        frequencies = 1.0 / dict(config.rope_parameters or {})["rope_theta"] ** exponents
        angles = torch.arange(config.max_position_embeddings)[:, None, None] * frequencies
        self._rotations = torch.polar(torch.ones_like(angles), angles)
        self._targets: dict[str, tuple[Tensor, tuple[int, ...]]] = {}
        """by a weight's name: where it is copied to, and its shape"""
        hidden = config.hidden_size
        self._embedding = self._place(EMBEDDING, torch.empty(config.vocab_size, hidden))
        self._head = self._embedding if self._tied else self._place(HEAD, torch.empty(config.vocab_size, hidden))
        self._norm = self._place("model.norm.weight", torch.empty(hidden))
        self._stack = [
            self._allocate(f"model.layers.{index}.", hidden, config.intermediate_size) for index in range(self.layers)
        ]

    def _place(self, name: str, memory: Tensor, pairs: bool = False) -> Tensor:
        """Note that the tensor `name` is copied to `memory`; with `pairs`, reordered from a head's two halves."""
        size = self.head_size
        view = memory.view(-1, size // 2, 2, *memory.shape[1:]).transpose(1, 2) if pairs else memory
        self._targets[name] = view, tuple(memory.shape)
        return memory

    def _allocate(self, prefix: str, hidden: int, inner: int) -> _Layer:
        heads, kv_heads, size = self.heads, self.kv_heads, self.head_size
        qkv = torch.empty((heads + 2 * kv_heads) * size, hidden)
        q, k, v = qkv.split([heads * size, kv_heads * size, kv_heads * size])
        self._place(prefix + "self_attn.q_proj.weight", q, pairs=True)
        self._place(prefix + "self_attn.k_proj.weight", k, pairs=True)
        self._place(prefix + "self_attn.v_proj.weight", v)
        gate_up = torch.empty(2 * inner, hidden)
        self._place(prefix + "mlp.gate_proj.weight", gate_up[:inner])
        self._place(prefix + "mlp.up_proj.weight", gate_up[inner:])
        return _Layer(
            input_norm=self._place(prefix + "input_layernorm.weight", torch.empty(hidden)),
            qkv=qkv,
            q_norm=self._place(prefix + "self_attn.q_norm.weight", torch.empty(size), pairs=True),
            k_norm=self._place(prefix + "self_attn.k_norm.weight", torch.empty(size), pairs=True),
            qk_scale=torch.empty(heads + kv_heads, size),
            output=self._place(prefix + "self_attn.o_proj.weight", torch.empty(hidden, heads * size)),
            mlp_norm=self._place(prefix + "post_attention_layernorm.weight", torch.empty(hidden)),
            gate_up=gate_up,
            down=self._place(prefix + "mlp.down_proj.weight", torch.empty(hidden, inner)),
        )

    @torch.no_grad()
    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copy in a full set of weights, of any float type. Each is copied as it comes: the iterable may reuse memory.

        Raises DataError for a missing, unknown or misshapen tensor; the weights are then a mixture not to be used.
        """
        missing = set(self._targets)
        for name, tensor in weights:
            place = EMBEDDING if self._tied and name == HEAD else name
            if place not in self._targets:
                raise DataError(f"Weight {name!r} is not part of this Qwen3 config: load a model of the same config.")
            view, shape = self._targets[place]
            if tuple(tensor.shape) != shape:
                raise DataError(
                    f"Weight {name!r} has shape {tuple(tensor.shape)} where the config asks for {shape}: "
                    "load a model of the same config."
                )
            view.copy_(tensor.reshape(view.shape))
            missing.discard(place)
        if missing:
            raise DataError(f"Weights {sorted(missing)} are missing: load the full set.")
        for layer in self._stack:
            layer.qk_scale[: self.heads] = layer.q_norm * self.head_size**-0.5
            layer.qk_scale[self.heads :] = layer.k_norm

    def checksum(self) -> str:
        """sha256 over names and float32 values, by sorted name."""
        digest = hashlib.sha256()
        for name in sorted(self._targets):
            view, shape = self._targets[name]
            digest.update(name.encode())
            digest.update(view.reshape(shape).contiguous().numpy().data)
        return digest.hexdigest()

    def logits(self, ids: Tensor, positions: Tensor, attend: Attend, keep: Tensor | None = None) -> Tensor:
        """Logits [N, V] after ids [N] at positions [N].

        With `keep` [M], only those tokens' logits [M, V]: `attend` must then give [M, heads * D] for the last layer.
        """
        qk_heads = self.heads + self.kv_heads
        rotation = self._rotations.index_select(0, positions)
        x = F.embedding(ids, self._embedding)
        for index, layer in enumerate(self._stack):
            qkv = F.linear(self._normed(x, layer.input_norm), layer.qkv).view(len(ids), -1, self.head_size)
            qk = F.rms_norm(qkv[:, :qk_heads], (self.head_size,), None, self._eps) * layer.qk_scale
            qk = torch.view_as_real(torch.view_as_complex(qk.unflatten(2, (-1, 2))) * rotation).flatten(2)
            mixed = attend(index, qk[:, : self.heads], qk[:, self.heads :], qkv[:, qk_heads:])
            if keep is not None and index == self.layers - 1:
                x = x[keep]
            x = torch.addmm(x, mixed, layer.output.t())
            gate, up = F.linear(self._normed(x, layer.mlp_norm), layer.gate_up).chunk(2, -1)
            x = torch.addmm(x, F.silu(gate).mul_(up), layer.down.t())
        return F.linear(self._normed(x, self._norm), self._head)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self._eps)


def check_architecture(config: PreTrainedConfig) -> None:
    """Raises ConfigError for what is not computed here, naming the field."""
    unsupported = {"model_type": config.model_type != "qwen3"}
    if config.model_type == "qwen3":  # others lack the fields
        rope = dict(config.rope_parameters or {})
        unsupported = {
            "attention_bias": config.attention_bias,
            "use_sliding_window": config.use_sliding_window,
            "layer_types": any(kind != "full_attention" for kind in config.layer_types or ()),
            "hidden_act": config.hidden_act != "silu",
            "rope_parameters": rope.get("rope_type") != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0,
        }
    for name, is_unsupported in unsupported.items():
        if is_unsupported:
            raise ConfigError(
                f"{name} is {getattr(config, name)!r}: the embedded engine computes plain Qwen3 models (no "
                "biases, full attention, silu, default RoPE)."
            )
