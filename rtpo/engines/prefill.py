"""Prefill of the embedded engine: contexts to keys, values and first logits, as prefix trees (rtpo.core.trees).

Shapes: D head size, V vocabulary, P the longest path.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from rtpo.core.trees import Indices, depth_first, tree
from rtpo.engines.transformer import Transformer
from rtpo.types import Ids

PREFILL_TOKENS: Final = 2048
"""contexts are prefilled in pieces, to bound activations: a piece has at most this many tokens plus one context"""
FEW_TOKENS: Final = 256
"""fewer tokens are not split among threads"""
BATCH_SCORES: Final = 1 << 16
"""bound of queries times keys in one attention product, padding included; one prompt alone may exceed it"""


class Prompt(NamedTuple):
    """A prefilled context of n tokens, and the logits [V] after it."""

    kv: Tensor
    """[layers, 2, n, kv heads, D]"""
    logits: Tensor

    @property
    def tokens(self) -> int:
        return self.kv.shape[2]


class PromptCache:
    """Prompts by their contexts' bytes, at most `capacity` tokens in all; the least recently used goes first. Logits,
    [V] float32 a prompt, are not counted."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.clear()

    def clear(self) -> None:
        self._prompts: OrderedDict[bytes, Prompt] = OrderedDict()
        self._count_by_length: Counter[int] = Counter()
        self._tokens = 0

    def __len__(self) -> int:
        return len(self._prompts)

    def get(self, key: bytes) -> Prompt | None:
        if key in self._prompts:
            self._prompts.move_to_end(key)
        return self._prompts.get(key)

    def beginnings(self, contexts: Sequence[Ids]) -> list[Tensor | None]:
        """For each context, keys and values of the longest cached prompt that it begins with, or None.

        This does not count as a use of the prompt: a dialogue's next, longer prompt replaces it.
        """
        lengths = sorted(self._count_by_length, reverse=True)

        def longest(context: Ids) -> Tensor | None:
            key = context.tobytes()
            parts = (key[: n * context.itemsize] for n in lengths if n < len(context))
            return next((prompt.kv for part in parts if (prompt := self._prompts.get(part))), None)

        return [longest(context) for context in contexts]

    def put(self, key: bytes, prompt: Prompt) -> None:
        """Add a new prompt; one larger than the whole cache is left out."""
        tokens = prompt.tokens
        if tokens > self._capacity:
            return
        self._prompts[key] = prompt
        self._count_by_length[tokens] += 1
        self._tokens += tokens
        while self._tokens > self._capacity:
            dropped = self._prompts.popitem(last=False)[1].tokens
            self._tokens -= dropped
            self._count_by_length[dropped] -= 1
            if not self._count_by_length[dropped]:
                del self._count_by_length[dropped]


def pieces(rows: Sequence[Ids], cached_lengths: Sequence[int], threads: int) -> list[list[int]]:
    """Split contexts into pieces to prefill together: neighbours in depth-first order. Ids that two pieces share are
    computed in both.

    cached_lengths: how many ids of each context are cached.
    """
    order, shared = depth_first(rows)
    new = [len(rows[i]) - max(common, cached_lengths[i]) for i, common in zip(order, shared.tolist(), strict=True)]
    # equally many pieces for each thread, so that none waits
    count = threads * -(-sum(new) // (threads * PREFILL_TOKENS))
    size = max(FEW_TOKENS, -(-sum(new) // count))
    groups: list[list[int]] = [[]]
    size_so_far = 0
    for i, added in zip(order, new, strict=True):
        if size_so_far >= size:
            groups.append([])
            size_so_far, added = 0, len(rows[i]) - cached_lengths[i]
        groups[-1].append(i)
        size_so_far += added
    return groups


@torch.inference_mode()
def prefill(
    model: Transformer, contexts: Sequence[Ids], cached_kv: Sequence[Tensor | None]
) -> tuple[list[Prompt], int]:
    """Prefill distinct contexts, computing shared ids once. Returns their prompts and the number of tokens computed.

    cached_kv: for each context, cached keys and values of its first ids, or None.
    """
    prefix_tree = tree(contexts)
    paths = np.split(prefix_tree.path, np.cumsum([len(ids) for ids in contexts])[:-1])
    kv = torch.empty(model.layers, 2, len(prefix_tree.ids), model.kv_heads, model.head_size, dtype=model.dtype)
    is_new = np.ones(len(prefix_tree.ids), np.bool_)
    context_of = np.empty(len(prefix_tree.ids), np.int64)
    for number, (path, cached) in enumerate(zip(paths, cached_kv, strict=True)):
        context_of[path] = number
        if cached is not None:
            cached_nodes = path[: cached.shape[2]]
            is_new[cached_nodes] = False
            kv.index_copy_(2, torch.from_numpy(cached_nodes), cached)
    last = np.array([path[-1] for path in paths])
    is_new[last] = True  # for its logits
    new = np.flatnonzero(is_new)
    all_batches = _attention_batches(new, context_of[new], prefix_tree.depth, paths)
    last_batches = _attention_batches(last, np.arange(len(paths)), prefix_tree.depth, paths)
    new_nodes, keep = torch.from_numpy(new), torch.from_numpy(np.searchsorted(new, last))

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        kv[layer].index_copy_(1, new_nodes, torch.stack([k, v]))
        is_last = layer == model.layers - 1  # only the logits after a context are needed
        q = q.index_select(0, keep) if is_last else q
        batches, position_of_query = last_batches if is_last else all_batches
        mixed = []
        for batch in batches:
            query = _gathered(q, batch.queries)
            key, value = (_gathered(x, batch.path) for x in kv[layer])
            mask = None if batch.mask is None else batch.mask.to(q.dtype)
            out = F.scaled_dot_product_attention(
                query, key, value, mask, is_causal=mask is None, scale=1.0, enable_gqa=True
            )
            mixed.append(out.transpose(1, 2).flatten(0, 1).flatten(1))
        return torch.cat(mixed).index_select(0, position_of_query)

    ids, positions = torch.from_numpy(prefix_tree.ids[new]).long(), torch.from_numpy(prefix_tree.depth[new])
    logits = model.logits(ids, positions, attend, keep)
    prompts = [Prompt(kv.index_select(2, torch.from_numpy(path)), logits[i].clone()) for i, path in enumerate(paths)]
    return prompts, len(new)


class _AttentionBatch(NamedTuple):
    """Contexts of similar length: their queries, [contexts, queries], and their paths, [contexts, P]; both padded."""

    queries: Tensor
    path: Tensor
    mask: Tensor | None
    """[contexts, 1, queries, P] added to scores; None if the queries are whole paths of one length"""


def _attention_batches(
    queries: Indices, context_of: Indices, depth: Indices, paths: Sequence[Indices]
) -> tuple[list[_AttentionBatch], Tensor]:
    """Batch queries for attention. Also returns [Q], the position of each query in the concatenated batches.

    queries: [Q] nodes of the tree.
    context_of: [Q] the context of each query, which attends along the context's path.
    depth: of each node.
    """
    order = np.argsort(context_of, kind="stable")
    queries_of_context = np.split(order, np.searchsorted(context_of[order], np.arange(1, len(paths))))
    batches, position_of_query, start = [], np.empty(len(queries), np.int64), 0
    for group in _group_by_length([len(members) for members in queries_of_context], [len(path) for path in paths]):
        members, is_query = _padded([queries_of_context[number] for number in group])
        path, _ = _padded([paths[number] for number in group])
        position_of_query[members[is_query]] = start + np.flatnonzero(is_query)
        start += members.size
        mask = None
        if members.shape != path.shape or not is_query.all():
            is_ahead = np.arange(path.shape[1]) > depth[queries[members]][:, None, :, None]
            mask = torch.from_numpy(np.where(is_ahead, np.float32(-np.inf), np.float32(0.0)))
        batches.append(_AttentionBatch(torch.from_numpy(members), torch.from_numpy(path), mask))
    return batches, torch.from_numpy(position_of_query)


def _group_by_length(query_counts: Sequence[int], key_counts: Sequence[int]) -> list[list[int]]:
    """Group the contexts that have queries, by their number of keys. A group has one context, or at most BATCH_SCORES
    scores (queries times keys), padding included."""
    batches: list[list[int]] = []
    most_queries = 0
    for number in sorted(np.flatnonzero(query_counts).tolist(), key=lambda i: (key_counts[i], query_counts[i])):
        most_queries = max(most_queries, query_counts[number])
        if not batches or (len(batches[-1]) + 1) * most_queries * key_counts[number] > BATCH_SCORES:
            batches.append([])
            most_queries = query_counts[number]
        batches[-1].append(number)
    return batches


def _padded(rows: Sequence[Indices]) -> tuple[Indices, npt.NDArray[np.bool_]]:
    """Rows padded with 0 to [rows, longest], and a mask of what is not padding."""
    lengths = np.array([len(row) for row in rows])
    is_real = np.arange(lengths.max()) < lengths[:, None]
    padded = np.zeros(is_real.shape, np.int64)
    padded[is_real] = np.concatenate(rows)
    return padded, is_real


def _gathered(x: Tensor, places: Tensor) -> Tensor:
    """[N, heads, D] at places [contexts, n], as [contexts, heads, n, D]."""
    return x.index_select(0, places.flatten()).view(*places.shape, *x.shape[1:]).transpose(1, 2)
