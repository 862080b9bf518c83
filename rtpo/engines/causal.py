"""Any causal model of transformers' in the embedded decoder: the model's own layers, and the decoder's attention in
place of theirs. For models that `rtpo.engines.qwen3` does not compute, and slower than it.

Shapes: N packed tokens, D head size, V vocabulary.
"""

from collections.abc import Iterable
from copy import deepcopy
from threading import local
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedConfig, Qwen3Config

from rtpo.engines.qwen3 import Attend, Qwen3, checksum, load_weights
from rtpo.errors import ConfigError

NAME = "embedded decoder"
"""of the attention in transformers' registry: it has no mask there, since packed tokens need none"""
LENGTH_DEPENDENT = ("dynamic", "longrope")
"""kinds of RoPE whose angles depend on the longest context of a batch"""
UNKNOWN_TERMS = ("sliding_window", "softcap", "s_aux", "position_bias")
"""what some attentions add, by transformers' names; None where one does not"""

_call = local()
"""of each thread: the attention of the forward pass that it is in"""


class Network(Protocol):
    """What the decoder computes with."""

    layers: int
    kv_heads: int
    head_size: int

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None: ...

    def checksum(self) -> str: ...

    def logits(self, ids: Tensor, positions: Tensor, attend: Attend, keep: Tensor | None = None) -> Tensor: ...


def network(config: PreTrainedConfig) -> Network:
    """The project's own Qwen3 where it computes this config, else transformers' layers. Raises ConfigError for one that
    neither computes."""
    if why_not_qwen3(config):
        return CausalModel(config)
    assert isinstance(config, Qwen3Config)
    return Qwen3(config)


def check_config(config: PreTrainedConfig) -> None:
    """Raises ConfigError for a config that neither computes; no memory is taken for weights."""
    if why_not_qwen3(config):
        with torch.device("meta"):
            check_layers(_built(config))


def why_not_qwen3(config: Any) -> str | None:
    """Why `rtpo.engines.qwen3` does not compute this config; None where it does."""
    from rtpo.engines.qwen3 import check_architecture

    try:
        check_architecture(config)
    except ConfigError as error:
        return str(error)
    return None


def why_not_trees(config: PreTrainedConfig) -> str | None:
    """Why rows cannot be computed as prefix trees; None where a context's keys and values are those of all that goes on
    from it, and a mask says who sees them."""
    try:
        check_config(config)
    except ConfigError as error:
        return str(error)
    return None


class CausalModel:
    """As `rtpo.engines.qwen3.Qwen3`; raises ConfigError for a model whose attention is not the decoder's."""

    def __init__(self, config: PreTrainedConfig) -> None:
        with torch.device("meta"):
            self.layers, self.kv_heads, self.head_size = check_layers(_built(config))
        self._model = _built(config).eval()
        state = self._model.state_dict()
        self._targets = {name: (tensor, tuple(tensor.shape)) for name, tensor in state.items()}
        places = {tensor.data_ptr(): name for name, tensor in reversed(state.items())}
        self._tied = {name: places[tensor.data_ptr()] for name, tensor in state.items()}

    @torch.no_grad()
    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        load_weights(weights, self._targets, self._tied, "this model")

    def checksum(self) -> str:
        return checksum(self._targets)

    def logits(self, ids: Tensor, positions: Tensor, attend: Attend, keep: Tensor | None = None) -> Tensor:
        """As `Qwen3.logits`."""

        def whole(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            mixed = attend(layer, q, k, v)
            if keep is None or layer < self.layers - 1:
                return mixed
            # the layer goes on with all tokens; those beside `keep` are not looked at any more
            return mixed.new_zeros(len(q), mixed.shape[1]).index_copy_(0, keep, mixed)

        return forward(self._model, ids, positions, whole, keep)


def forward(model: Any, ids: Tensor, positions: Tensor, attend: Attend, keep: Tensor | None = None) -> Tensor:
    """Logits [N, V] of packed tokens, or of `keep` [M] alone."""
    _call.attend = attend
    kept: Any = 0 if keep is None else keep
    output = model(ids[None], position_ids=positions[None], use_cache=False, logits_to_keep=kept)
    logits: Tensor = output.logits[0]
    return logits


def check_layers(model: Any) -> tuple[int, int, int]:
    """Layers, heads of keys and values, and their size. Raises ConfigError unless each of a model's layers calls the
    attention that it is given, once, for keys and values of one size, with nothing added to the scores. The model may
    be on torch's device `meta`."""
    config = model.config
    seen: list[int] = []
    sizes: set[tuple[int, int]] = set()

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen.append(layer)
        sizes.update((x.shape[1], x.shape[2]) for x in (k, v))
        return q.flatten(1)

    try:
        rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
        if rope in LENGTH_DEPENDENT:
            raise ConfigError(f"its RoPE is {rope}")
        device = next(model.parameters()).device
        zero = torch.zeros(1, dtype=torch.long, device=device)
        forward(model, zero, zero, attend)
        if seen != list(range(config.num_hidden_layers)) or len(sizes) != 1:
            raise ConfigError("its layers have no attention, or one of their own")
        return len(seen), *sizes.pop()
    except ConfigError as error:
        why = str(error)
    except Exception as error:  # whatever a model's code does with one token
        why = f"transformers does not run it on one token ({' '.join(str(error).split())[:200]})"
    raise ConfigError(f"a {config.model_type} model: {why}")


def _built(config: PreTrainedConfig) -> Any:
    try:
        return AutoModelForCausalLM.from_config(deepcopy(config), dtype=torch.float32, attn_implementation=NAME)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"transformers makes no causal model of a {config.model_type} config ({' '.join(str(error).split())[:200]})"
        ) from error


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, *, scaling: float | None = None, **terms: Any
) -> tuple[Tensor, None]:
    """In a layer of transformers': query [1, heads, N, D], key and value [1, kv heads, N, D]."""
    if getattr(module, "is_causal", True) is False:
        raise ConfigError("its attention looks ahead")
    added = [name for name in UNKNOWN_TERMS if terms.get(name) is not None]
    if mask is not None or added:
        raise ConfigError(f"its attention has {', '.join(added) or 'a mask'}")
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    scale = q.shape[-1] ** -0.5 if scaling is None else scaling
    mixed = _call.attend(module.layer_idx, q * scale, k, v)
    return mixed.view(1, len(q), -1, v.shape[-1]), None


AttentionInterface.register(NAME, _attention)
