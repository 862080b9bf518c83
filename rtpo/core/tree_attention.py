"""Who attends to whom in trees (`rtpo.core.trees`): a mask of nodes by nodes, or one of blocks for FlexAttention."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

BLOCK = 128
KERNELS = 16
"""more than torch compiles for one model: of one tree or several, below a block of nodes, of one and of more, with a
gradient or none, and of the first shape. Its own limit is 8 a function (torch._dynamo.config.recompile_limit), beyond
which FlexAttention is computed nodes by nodes"""


def dense_mask(end: Tensor) -> Tensor:
    """[trees, 1, nodes, nodes], true where a node (row) attends to a node (column). end: [trees, nodes]."""
    node = torch.arange(end.shape[1], device=end.device)
    return ((node <= node[:, None]) & (node[:, None] < end[:, None, :]))[:, None]


def block_mask(end: Tensor) -> BlockMask:
    """The same, without a mask of nodes by nodes: memory goes by the square of the number of blocks of 128 nodes."""
    trees, nodes = end.shape
    blocks = -(-nodes // BLOCK)
    # nodes beyond the last are seen by none
    padded = torch.zeros(trees, blocks * BLOCK, dtype=end.dtype, device=end.device)
    padded[:, :nodes] = end
    ends = padded.view(trees, blocks, BLOCK)
    first = torch.arange(blocks, device=end.device) * BLOCK
    rows, columns = first[:, None], first[None, :]
    some = (columns < rows) & (ends.amax(2)[:, None, :] > rows) | (columns == rows)
    every = (columns < rows) & (ends.amin(2)[:, None, :] >= rows + BLOCK)

    def listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
        # the chosen columns of each row first, in order
        order = torch.argsort(chosen.int(), dim=-1, descending=True, stable=True)
        return chosen.sum(-1).int()[:, None], order.int()[:, None]

    def sees(tree: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return (column <= row) & (row < padded[tree, column])

    found: Any = BlockMask.from_kv_blocks(
        *listed(some & ~every), *listed(every), BLOCK_SIZE=BLOCK, mask_mod=sees, seq_lengths=(nodes, nodes)
    )
    return found
