"""Attention for trees laid end to end (`rtpo.core.trees`). It replaces a transformers model's own attention.

On CUDA it is FlexAttention with a block mask. On a CPU it is torch's attention, called for each `Piece` of the nodes. A
piece attends to a few hundred keys. With one mask for all pairs of nodes, it would compute scores for thousands.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch.nn.attention.flex_attention import BlockMask
from torch.utils.weak import WeakTensorKeyDictionary
from transformers import AttentionInterface
from transformers.integrations.flex_attention import flex_attention_forward

from rtpo.core.model_family import MODEL_TYPES
from rtpo.core.names import counted
from rtpo.errors import MachineError

NAME = "prefix trees"
"""this attention's name in transformers' registry"""
BLOCK = 128
"""nodes in a block of the mask; on CUDA a sequence of trees is padded to a multiple, to have few shapes"""
KERNELS = 32
"""most shapes that torch may compile FlexAttention for; tests need fewer than half. It replaces torch's limit of 8
(torch._dynamo.config.recompile_limit). Beyond a limit torch computes all pairs of nodes, so `attend` raises there"""
PIECE = 256
"""most nodes in a piece, on a CPU. Smaller pieces take more calls of torch. Larger ones compute more scores of keys
that a node does not attend to"""
LENGTH_DEPENDENT = ("dynamic", "longrope")
"""kinds of RoPE whose angles depend on the longest context of a batch"""


def why_not_trees(config: Any) -> str | None:
    """The reason why a model cannot compute rows as prefix trees; None if it can. Every layer must attend to the whole
    context."""
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    if config.model_type not in MODEL_TYPES:
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
        return _piece_by_piece(query, key, value, mask, options.get("scaling")), None
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
class Piece:
    """Consecutive nodes of trees, and what they attend to. With g query heads for each key head, `mask` has g x nodes
    rows: those of the first of these heads, then those of the next."""

    own: slice  # of the piece's nodes
    ancestors: Tensor  # their ancestors before the piece
    mask: Tensor  # [1, 1, g x nodes, keys], 0 for keys that a node attends to, -inf for others

    def select(self, x: Tensor) -> Tensor:
        """The keys or values that the nodes may attend to: those of `ancestors`, then their own."""
        own = x[:, :, self.own]
        return torch.cat([x.index_select(2, self.ancestors), own], 2) if len(self.ancestors) else own

    def fold(self, x: Tensor, key_heads: int) -> Tensor:
        """The nodes of x, [1, heads, nodes, size], as [1, key_heads, g x nodes, size]."""
        return x[:, :, self.own].reshape(1, key_heads, -1, x.shape[-1])


def pieces(end: Tensor, heads_per_key: int, dtype: torch.dtype) -> list[Piece]:
    """Cut trees into pieces of at most PIECE nodes. end: [nodes], as in `rtpo.core.trees.Forest`. heads_per_key:
    query heads for each key head. dtype: of the queries."""
    node, parts = torch.arange(len(end)), []
    for start in range(0, len(end), PIECE):
        own = node[start : start + PIECE]
        ancestors = node[:start][end[:start] > start]
        keys = torch.cat([ancestors, own])
        hidden = (keys > own[:, None]) | (own[:, None] >= end[keys])
        mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -torch.inf)
        parts.append(Piece(slice(start, start + len(own)), ancestors, mask.repeat(heads_per_key, 1)[None, None]))
    return parts


_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_attention_gradient = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
_pieces = WeakTensorKeyDictionary()
"""the pieces of each mask; a mask belongs to one forward pass of one model, and all its layers get it"""


def _piece_by_piece(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None) -> Tensor:
    """[1, nodes, heads, size]."""
    parts = _pieces.get(mask)
    if parts is None:
        parts = _pieces[mask] = pieces(mask[0, 0, 0], query.shape[1] // key.shape[1], query.dtype)
    mixed: Tensor = _Paths.apply(query, key, value, parts, scaling)
    return mixed.transpose(1, 2)


class _Paths(torch.autograd.Function):
    """Attention of each node to its path. Query and result are [1, heads, nodes, size]; key and value have key heads.

    Query heads that share keys are computed as more queries, so keys are not copied for each. The gradients of all
    pieces are added up in one tensor. Autograd would make a tensor of all nodes for every piece.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, parts: Sequence[Piece], scaling: float | None
    ) -> Tensor:
        mixed = torch.empty_like(query)
        normalisers = []
        for part in parts:
            inputs = part.fold(query, key.shape[1]), part.select(key), part.select(value)
            own, normaliser = _attention(*inputs, attn_mask=part.mask, scale=scaling)
            mixed[:, :, part.own] = own.reshape(mixed[:, :, part.own].shape)
            normalisers.append(normaliser)
        ctx.save_for_backward(query, key, value, mixed, *normalisers)
        ctx.parts, ctx.scaling = parts, scaling
        return mixed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, mixed, *normalisers = ctx.saved_tensors
        query_gradient, heads = torch.empty_like(query), key.shape[1]
        wide = torch.promote_types(query.dtype, torch.float32)
        totals = [torch.zeros_like(x, dtype=wide) for x in (key, value)]
        for part, normaliser in zip(ctx.parts, normalisers, strict=True):
            inputs = part.fold(query, heads), part.select(key), part.select(value), part.fold(mixed, heads), normaliser
            of_query, *of_keys = _attention_gradient(
                part.fold(gradient, heads), *inputs, 0.0, is_causal=False, attn_mask=part.mask, scale=ctx.scaling
            )
            query_gradient[:, :, part.own] = of_query.reshape(query_gradient[:, :, part.own].shape)
            before = len(part.ancestors)
            for total, of_key in zip(totals, of_keys, strict=True):
                total.index_add_(2, part.ancestors, of_key[:, :, :before].to(wide))
                total[:, :, part.own] += of_key[:, :, before:]
        return query_gradient, totals[0].to(key.dtype), totals[1].to(value.dtype), None, None


AttentionInterface.register(NAME, attend)
