"""Attention for trees laid end to end (`rtpo.core.trees`). It replaces a transformers model's own attention.

On CUDA it is FlexAttention with a block mask. On a CPU it is torch's attention, called for each `Run` of nodes. A run
attends to a few hundred keys; with one mask for all pairs of nodes, it would compute scores for thousands of keys.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch.nn.attention.flex_attention import BlockMask
from torch.utils.weak import WeakTensorKeyDictionary
from transformers import AttentionInterface
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.integrations.sdpa_attention import repeat_kv

from rtpo.core.names import counted
from rtpo.errors import MachineError

NAME = "prefix trees"
"""this attention's name in transformers' registry"""
BLOCK = 128
"""nodes in a block of the mask; on CUDA a sequence of trees is padded to a multiple, to have few shapes"""
KERNELS = 32
"""most shapes that torch may compile FlexAttention for; tests need fewer than half. It replaces torch's limit of 8
(torch._dynamo.config.recompile_limit). Beyond a limit torch computes all pairs of nodes, so `attend` raises there"""
FAMILIES = ("llama", "qwen2", "qwen3")
"""model types whose layers compute plain causal attention through transformers' registry"""
LENGTH_DEPENDENT = ("dynamic", "longrope")
"""kinds of RoPE whose angles depend on the longest context of a batch"""


def why_not_trees(config: Any) -> str | None:
    """The reason why a model cannot compute rows as prefix trees; None if it can. Every layer must attend to the whole
    context."""
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    if config.model_type not in FAMILIES:
        return f"model_type is {config.model_type!r}"
    if getattr(config, "use_sliding_window", False):
        return "use_sliding_window is true"
    return f"its RoPE is {rope}" if rope in LENGTH_DEPENDENT else None


def choose_attention(config: Any, end: Tensor | None) -> Tensor | BlockMask | None:
    """Set the attention of the model with this config, and return the mask to call the model with.

    end: [nodes], as in `rtpo.core.trees.Forest`; None for the model's own causal attention, without a mask.
    """
    # every layer reads this in each forward pass, and again when checkpointing repeats the pass for the gradient
    config._attn_implementation = "sdpa" if end is None else NAME
    if end is None:
        return None
    # transformers leaves a mask of four dimensions unchanged
    return block_mask(end) if end.is_cuda else end[None, None, None]


def read_at(model: Any, nodes: Tensor) -> None:
    """Make the model's output layer get only the hidden states at these nodes, [1, nodes, hidden]."""

    def read(_: Any, __: Any, output: Any) -> Any:
        output.last_hidden_state = output[0].flatten(0, 1).index_select(0, model.read_nodes)[None]
        return output

    if not hasattr(model, "read_nodes"):
        getattr(model, model.base_model_prefix).register_forward_hook(read)
    model.read_nodes = nodes


def block_mask(end: Tensor) -> BlockMask:
    """The mask: node q attends to node k if k <= q < end[k]. Its memory grows with the square of the number
    of blocks (BLOCK nodes each), not of nodes. end: [nodes], a multiple of BLOCK."""
    nodes = len(end)
    ends = end.view(-1, BLOCK)
    first = torch.arange(0, nodes, BLOCK, device=end.device)
    rows, columns = first[:, None], first[None, :]
    reached = (columns < rows) & (ends.amax(1) > rows) | (columns == rows)
    full = (columns < rows) & (ends.amin(1) >= rows + BLOCK)

    def chosen_first(chosen: Tensor) -> tuple[Tensor, Tensor]:
        # each row's columns, the chosen ones first and in order
        order = torch.argsort(chosen.int(), dim=-1, descending=True, stable=True)
        return chosen.sum(-1).int()[None, None], order.int()[None, None]

    def sees(tree: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return (column <= row) & (row < end[column])

    mask: Any = BlockMask.from_kv_blocks(
        *chosen_first(reached & ~full), *chosen_first(full), BLOCK_SIZE=BLOCK, mask_mod=sees, seq_lengths=(nodes, nodes)
    )
    return mask


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """The attention of a transformers layer. query: [1, heads, nodes, size]; key, value: [1, kv heads, nodes, size].
    Raises MachineError if torch would compile FlexAttention for more than KERNELS kinds of shapes."""
    if not isinstance(mask, BlockMask):
        return _run_by_run(query, key, value, mask, options.get("scaling")), None
    try:
        # set here: torch's settings hold for one thread, and gradients are computed in another
        with torch._dynamo.config.patch(recompile_limit=KERNELS, fail_on_recompile_limit_hit=True):
            return flex_attention_forward(module, query, key, value, mask, **options)
    except FailOnRecompileLimitHit as error:
        raise MachineError(
            f"torch would compile FlexAttention for more than {KERNELS} kinds of trees, and beyond that compute all "
            f"pairs of {counted(query.shape[2], 'node')}: raise KERNELS in rtpo/core/tree_attention.py, and report "
            "the shapes."
        ) from error


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Consecutive nodes of a tree down to a leaf, each a child of the one before."""

    size: int  # number of nodes
    keys: Tensor | None  # the run's ancestors, then its nodes; None without ancestors
    mask: Tensor | None  # [1, 1, size, keys], true where a node attends; None without ancestors

    def select(self, x: Tensor, own: slice) -> Tensor:
        """The keys or values that the run's nodes attend to. own: the slice of the run's nodes."""
        return x[:, :, own] if self.keys is None else x.index_select(2, self.keys)

    def mask_arguments(self, query: Tensor) -> dict[str, Any]:
        """Arguments that limit torch's attention to the keys that the run's nodes attend to."""
        if self.mask is None:
            return {"is_causal": True}
        scores = torch.zeros_like(self.mask, dtype=query.dtype).masked_fill_(~self.mask, -torch.inf)
        return {"is_causal": False, "attn_mask": scores}


def runs(end: Tensor) -> list[Run]:
    """Cut trees into runs, one for each leaf. end: [nodes], as in `rtpo.core.trees.Forest`."""
    node = torch.arange(len(end))
    stops = (node[end == node + 1] + 1).tolist()
    parts, start = [], 0
    for stop in stops:
        size, own = stop - start, node[start:stop]
        before = node[:start][end[:start] > start]
        mask = torch.ones(size, len(before) + size, dtype=torch.bool).tril(len(before))
        parts.append(Run(size, torch.cat([before, own]), mask[None, None]) if len(before) else Run(size, None, None))
        start = stop
    return parts


_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_attention_gradient = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
_runs = WeakTensorKeyDictionary()
"""the runs of each mask; all layers of a forward pass get the same mask"""


def _run_by_run(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None) -> Tensor:
    """[1, nodes, heads, size]. A run attends only to its own path, a small part of the tree."""
    parts = _runs.get(mask)
    if parts is None:
        parts = _runs[mask] = runs(mask[0, 0, 0])
    groups = query.shape[1] // key.shape[1]
    mixed: Tensor = _Paths.apply(query, repeat_kv(key, groups), repeat_kv(value, groups), parts, scaling)
    return mixed.transpose(1, 2)


class _Paths(torch.autograd.Function):
    """Attention of each run to its path. Query, key, value and result are [1, heads, nodes, size].

    The gradients of all runs are added up in one tensor. Autograd would make a tensor of all nodes for every run.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, parts: Sequence[Run], scaling: float | None
    ) -> Tensor:
        mixed = torch.empty_like(query)
        normalisers = []
        for own, part in _with_slices(parts):
            key_value = part.select(key, own), part.select(value, own)
            mask = part.mask_arguments(query)
            mixed[:, :, own], normaliser = _attention(query[:, :, own], *key_value, **mask, scale=scaling)
            normalisers.append(normaliser)
        ctx.save_for_backward(query, key, value, mixed, *normalisers)
        ctx.parts, ctx.scaling = parts, scaling
        return mixed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, mixed, *normalisers = ctx.saved_tensors
        query_gradient = torch.empty_like(query)
        wide = torch.promote_types(query.dtype, torch.float32)
        key_gradient, value_gradient = (torch.zeros_like(x, dtype=wide) for x in (key, value))
        for (own, part), normaliser in zip(_with_slices(ctx.parts), normalisers, strict=True):
            tensors = query[:, :, own], part.select(key, own), part.select(value, own), mixed[:, :, own], normaliser
            query_gradient[:, :, own], *run_gradients = _attention_gradient(
                gradient[:, :, own], *tensors, 0.0, **part.mask_arguments(query), scale=ctx.scaling
            )
            for total, run_gradient in zip((key_gradient, value_gradient), run_gradients, strict=True):
                if part.keys is None:
                    total[:, :, own] += run_gradient
                else:
                    total.index_add_(2, part.keys, run_gradient.to(wide))
        return query_gradient, key_gradient.to(key.dtype), value_gradient.to(value.dtype), None, None


def _with_slices(parts: Sequence[Run]) -> Iterator[tuple[slice, Run]]:
    """Each run after the slice of its nodes."""
    start = 0
    for part in parts:
        yield slice(start, start + part.size), part
        start += part.size


AttentionInterface.register(NAME, attend)
