"""Qwen3, Qwen2 and Llama (with SmolLM2) in plain torch: weights by their Hugging Face names, and a forward pass over
packed tokens.

Grouped-query attention, RMSNorm, RoPE, SwiGLU; with or without norms of q and k, biases, and tied embeddings. The
caller computes attention, since it holds the keys and values. Weights and matrix products are of one type, float32 or
bfloat16; the residual stream, norms, RoPE and logits are float32. Shapes: N packed tokens, D head size, V vocabulary.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedConfig

from rtpo.core.model_family import EMBEDDING, HEAD, MODEL_TYPES
from rtpo.errors import ConfigError, DataError

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""attend(layer, q [N, heads, D], k [N, kv heads, D], v as k) -> [N, heads * D]; q comes scaled"""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model's sizes, and which optional parts it has."""

    layers: int
    hidden: int
    inner: int  # width of the MLP
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    positions: int  # tokens of the longest context
    norm_eps: float
    rope_theta: float
    has_tied_embeddings: bool
    has_qk_norm: bool
    has_qkv_bias: bool
    has_output_bias: bool
    has_mlp_bias: bool


def architecture_of(config: PreTrainedConfig) -> Architecture:
    """Read the architecture from a config. Raises ConfigError naming a field that is not supported."""
    model_type: str = config.model_type
    rope: dict[str, Any] = dict(getattr(config, "rope_parameters", None) or {})
    unsupported = {"model_type": model_type not in MODEL_TYPES}
    if model_type in MODEL_TYPES:  # other types lack these fields
        unsupported = {
            "use_sliding_window": getattr(config, "use_sliding_window", False),
            "layer_types": any(layer != "full_attention" for layer in getattr(config, "layer_types", None) or ()),
            "hidden_act": config.hidden_act != "silu",
            "rope_parameters": rope.get("rope_type") != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0,
        }
    for name, is_unsupported in unsupported.items():
        if is_unsupported:
            raise ConfigError(
                f"{name} is {getattr(config, name)!r}: the embedded engine computes models of the types "
                f"{', '.join(MODEL_TYPES)}, with full attention, silu and default RoPE."
            )
    heads = config.num_attention_heads
    has_bias = bool(getattr(config, "attention_bias", False))
    return Architecture(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        inner=config.intermediate_size,
        heads=heads,
        kv_heads=config.num_key_value_heads or heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocabulary=config.vocab_size,
        positions=config.max_position_embeddings,
        norm_eps=config.rms_norm_eps,
        rope_theta=rope["rope_theta"],
        has_tied_embeddings=config.tie_word_embeddings,
        has_qk_norm=model_type == "qwen3",
        has_qkv_bias=model_type == "qwen2" or has_bias,  # Qwen2 always has them, and no field says so
        has_output_bias=model_type != "qwen2" and has_bias,
        has_mlp_bias=bool(getattr(config, "mlp_bias", False)),
    )


class _Layer(NamedTuple):
    """A layer's weights, with q/k/v and gate/up fused; None for a weight that the model does not have. Rows of q and k
    are ordered so that RoPE rotates neighbours as pairs."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    qk_scale: Tensor
    """[heads + kv heads, D]: `q_norm` times the attention scale, then `k_norm`; computed by `load`"""
    output: Tensor
    output_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


class Transformer:
    """A model's weights and its forward pass. dtype: of weights and matrix products. Raises ConfigError for a config
    that is not supported, naming the field."""

    def __init__(self, config: PreTrainedConfig, dtype: torch.dtype = torch.float32) -> None:
        self.architecture = architecture = architecture_of(config)
        self.dtype = dtype
        self.layers, self.heads, self.kv_heads = architecture.layers, architecture.heads, architecture.kv_heads
        self.head_size = size = architecture.head_size
        exponents = torch.arange(0, size, 2, dtype=torch.int64).float() / size
        frequencies = 1.0 / architecture.rope_theta**exponents
        angles = torch.arange(architecture.positions)[:, None, None] * frequencies
        self._rotations = torch.polar(torch.ones_like(angles), angles)
        self._targets: dict[str, tuple[Tensor, tuple[int, ...]]] = {}
        """by a weight's name: where it is copied to, and its shape"""
        shape = architecture.vocabulary, architecture.hidden
        self._embedding = self._register(EMBEDDING, self._matrix(*shape))
        self._head = self._embedding if architecture.has_tied_embeddings else self._register(HEAD, self._matrix(*shape))
        self._norm = self._register("model.norm.weight", torch.empty(architecture.hidden))
        self._stack = [self._allocate(f"model.layers.{index}.") for index in range(self.layers)]
        self._laid_out: dict[int, Tensor] = {}
        """by address: matrices in oneDNN's layout, so that a product in bf16 need not convert them"""

    def _matrix(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype)

    def _register(self, name: str, memory: Tensor, pairs: bool = False) -> Tensor:
        """Let `load` copy the tensor `name` to `memory`. pairs: interleave the two halves of each head (`_Layer`)."""
        size = self.head_size
        view = memory.view(-1, size // 2, 2, *memory.shape[1:]).transpose(1, 2) if pairs else memory
        self._targets[name] = view, tuple(memory.shape)
        return memory

    def _allocate(self, prefix: str) -> _Layer:
        architecture, size = self.architecture, self.head_size
        hidden, inner, attention, mlp = architecture.hidden, architecture.inner, prefix + "self_attn.", prefix + "mlp."
        rows = [self.heads * size, self.kv_heads * size, self.kv_heads * size]

        def fused(parts: dict[str, int], kind: str, *width: int) -> Tensor:
            memory = self._matrix(sum(parts.values()), *width)
            for name, part in zip(parts, memory.split(list(parts.values())), strict=True):
                self._register(f"{name}_proj.{kind}", part, pairs=name in (attention + "q", attention + "k"))
            return memory

        qkv = dict(zip([attention + "q", attention + "k", attention + "v"], rows, strict=True))
        gate_up = {mlp + "gate": inner, mlp + "up": inner}
        output, down = {attention + "o": hidden}, {mlp + "down": hidden}
        norms = [
            self._register(f"{attention}{which}_norm.weight", torch.empty(size), pairs=True)
            if architecture.has_qk_norm
            else None
            for which in ("q", "k")
        ]
        return _Layer(
            input_norm=self._register(prefix + "input_layernorm.weight", torch.empty(hidden)),
            qkv=fused(qkv, "weight", hidden),
            qkv_bias=fused(qkv, "bias") if architecture.has_qkv_bias else None,
            q_norm=norms[0],
            k_norm=norms[1],
            qk_scale=torch.empty(self.heads + self.kv_heads, size),
            output=fused(output, "weight", rows[0]),
            output_bias=fused(output, "bias") if architecture.has_output_bias else None,
            mlp_norm=self._register(prefix + "post_attention_layernorm.weight", torch.empty(hidden)),
            gate_up=fused(gate_up, "weight", hidden),
            gate_up_bias=fused(gate_up, "bias") if architecture.has_mlp_bias else None,
            down=fused(down, "weight", inner),
            down_bias=fused(down, "bias") if architecture.has_mlp_bias else None,
        )

    @torch.no_grad()
    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copy in a full set of weights, of any float type. Each is copied as it comes: the iterable may reuse memory.

        Raises DataError for a missing, unknown or misshapen tensor, and for a head that differs from the embeddings
        where the config ties them; do not use the weights then: old and new are mixed.
        """
        missing = set(self._targets)
        for name, tensor in weights:
            place = EMBEDDING if self.architecture.has_tied_embeddings and name == HEAD else name
            if place not in self._targets:
                raise DataError(f"Weight {name!r} is not part of this model's config: load a model of the same config.")
            view, shape = self._targets[place]
            if tuple(tensor.shape) != shape:
                raise DataError(
                    f"Weight {name!r} has shape {tuple(tensor.shape)} where the config asks for {shape}: "
                    "load a model of the same config."
                )
            if place == EMBEDDING and place not in missing and not torch.equal(view, tensor.to(view)):
                raise DataError(
                    f"Weights {HEAD!r} and {EMBEDDING!r} differ where the config has tie_word_embeddings: true: set it "
                    "to false."
                )
            view.copy_(tensor.reshape(view.shape))
            missing.discard(place)
        if missing:
            raise DataError(f"Weights {sorted(missing)} are missing: load the full set.")
        for layer in self._stack:
            layer.qk_scale[: self.heads] = (
                self.head_size**-0.5 if layer.q_norm is None else (layer.q_norm * self.head_size**-0.5)
            )
            layer.qk_scale[self.heads :] = 1.0 if layer.k_norm is None else layer.k_norm
        # oneDNN has the layout only on processors that compute in bf16; elsewhere F.linear converts, slowly
        if self.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported():
            matrices = [getattr(layer, name) for layer in self._stack for name in ("qkv", "output", "gate_up", "down")]
            for weight in (*matrices, self._head):
                self._laid_out[weight.data_ptr()] = torch.ops.mkldnn._reorder_linear_weight(weight)

    def forget_layout(self) -> None:
        """Free the matrices in oneDNN's layout; `load` makes them again."""
        self._laid_out.clear()

    def checksum(self) -> str:
        """sha256 over names and values as float32, by sorted name."""
        digest = hashlib.sha256()
        for name in sorted(self._targets):
            view, shape = self._targets[name]
            digest.update(name.encode())
            digest.update(view.reshape(shape).float().contiguous().numpy().data)
        return digest.hexdigest()

    def logits(self, ids: Tensor, positions: Tensor, attend: Attend, keep: Tensor | None = None) -> Tensor:
        """Logits [N, V] after ids [N] at positions [N], float32.

        With `keep` [M], only those tokens' logits [M, V]: `attend` must then give [M, heads * D] for the last layer.
        """
        qk_heads = self.heads + self.kv_heads
        rotation = self._rotations.index_select(0, positions)
        x = F.embedding(ids, self._embedding).float()
        for index, layer in enumerate(self._stack):
            qkv = self._linear(self._normed(x, layer.input_norm), layer.qkv, layer.qkv_bias)
            qkv = qkv.view(len(ids), -1, self.head_size)
            qk = qkv[:, :qk_heads].float()
            if self.architecture.has_qk_norm:
                qk = F.rms_norm(qk, (self.head_size,), None, self.architecture.norm_eps)
            qk = qk * layer.qk_scale
            qk = torch.view_as_real(torch.view_as_complex(qk.unflatten(2, (-1, 2))) * rotation).flatten(2)
            qk = qk.to(self.dtype)
            mixed = attend(index, qk[:, : self.heads], qk[:, self.heads :], qkv[:, qk_heads:])
            if keep is not None and index == self.layers - 1:
                x = x[keep]
            x = self._plus_linear(x, mixed, layer.output, layer.output_bias)
            gate_up = self._linear(self._normed(x, layer.mlp_norm), layer.gate_up, layer.gate_up_bias)
            gate, up = gate_up.chunk(2, -1)
            x = self._plus_linear(x, F.silu(gate).mul_(up), layer.down, layer.down_bias)
        return self._linear(self._normed(x, self._norm), self._head).float()

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.architecture.norm_eps).to(self.dtype)

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        laid_out = self._laid_out.get(weight.data_ptr())
        if laid_out is None:
            return F.linear(x, weight, bias)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, laid_out, bias, "none", [], "")
        return product

    def _plus_linear(self, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x + y @ weight^T + bias, in x's type."""
        total = torch.addmm(x, y, weight.t()) if x.dtype == weight.dtype else x + self._linear(y, weight)
        return total if bias is None else total + bias
