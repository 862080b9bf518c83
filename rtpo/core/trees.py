"""Rows of ids as prefix trees: ids that several rows begin with are computed once (docs/extend/harness.md).

Rows in lexicographic order are a tree in depth-first order: each row adds the ids that it does not share with the row
before. A log-prob belongs to a pair: a node and the next id of a row. So a node with several next ids has a log-prob
for each. Rows keep their own masks, advantages, weights and denominators.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from rtpo.core.names import counted
from rtpo.core.packing import by_length
from rtpo.types import Ids

Indices = npt.NDArray[np.int64]

BREAK_EVEN = 6
"""in a forward pass over 6 x (hidden size) nodes, a usual transformer's attention costs as much as all the rest"""


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """Prefix trees of rows, one after another, in depth-first order: `len(ids)` nodes."""

    ids: Ids
    depth: Indices  # [nodes], the node's place in its rows
    end: Indices  # [nodes], the node after the last descendant; node q attends to node k if k <= q < end[k]
    path: Indices  # [ids of all rows], the node of each id, row after row in the caller's order


def tree(rows: Sequence[Ids]) -> Tree:
    """The prefix trees of rows. Rows may have any order and length; they may be equal or prefixes of each other.

    Raises ValueError without rows, and for a row that is not a sequence of at least one id.
    """
    order, shared = depth_first(rows)
    new = [len(rows[row]) - common for row, common in zip(order, shared, strict=True)]
    starts = np.concatenate([[0], np.cumsum(new)]).astype(np.int64)
    end, paths = np.empty(starts[-1], np.int64), [np.empty(0, np.int64)] * len(rows)
    path = np.empty(0, np.int64)
    for row, common, start, stop in zip(order, shared, starts[:-1], starts[1:], strict=True):
        end[path[common:]] = start
        path = np.concatenate([path[:common], np.arange(start, stop)])
        paths[row] = path
    end[path] = starts[-1]
    new_ids = [(row, slice(common, len(rows[row]))) for row, common in zip(order, shared, strict=True)]
    return Tree(
        ids=np.concatenate([rows[row][part] for row, part in new_ids]).astype(np.int32),
        depth=np.concatenate([np.arange(part.start, part.stop) for _, part in new_ids]),
        end=end,
        path=np.concatenate(paths),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """Trees as a model takes them: end to end in one sequence, then padding. Only padding attends to padding. If no
    tree has branches, each tree is a sequence of its own, padded to the longest.

    ids, depth: [sequences, nodes], as in Tree.
    end: [nodes], as in Tree; None without branches, since attention is then causal.
    nodes, labels: [pairs], the distinct pairs of a node and a trained next id. Nodes are numbered across sequences.
    read: [trained], the index of each trained id's pair, row after row.
    """

    ids: npt.NDArray[np.int64]
    depth: Indices
    end: Indices | None
    nodes: Indices
    labels: Indices
    read: Indices


def forest(
    rows: Sequence[Ids], masks: Sequence[npt.NDArray[np.bool_]], tree_of: Sequence[int], *, multiple: int = 1
) -> Forest:
    """The trees of rows; `tree_of` has each row's tree.

    masks: [len(ids)] for each row, true for the ids that it trains, never for its first.
    multiple: if a tree has branches, the one sequence of all trees is padded to a multiple of this length.

    Raises ValueError as `tree` does.
    """
    rows_of_tree: dict[int, list[int]] = {}
    for row, number in enumerate(tree_of):
        rows_of_tree.setdefault(number, []).append(row)
    trees = [tree([rows[row] for row in members]) for members in rows_of_tree.values()]
    sizes = np.array([len(each.ids) for each in trees])
    longest = sizes.max()
    branches = any(sizes > [max(len(rows[row]) for row in members) for members in rows_of_tree.values()])
    if branches:
        total = -(-sizes.sum() // multiple) * multiple
        starts, shape = np.cumsum(sizes) - sizes, (1, total)
    else:
        total = len(trees) * longest
        starts, shape = np.arange(len(trees)) * longest, (len(trees), longest)
    # without branches, depth counts on through the padding, as transformers expects of a sequence
    ids, depth, end = np.zeros(total, np.int64), np.arange(total) % longest, np.full(total, total)
    paths: dict[int, Indices] = {}
    for start, part, members in zip(starts, trees, rows_of_tree.values(), strict=True):
        own = slice(start, start + len(part.ids))
        ids[own], depth[own], end[own] = part.ids, part.depth, part.end + start
        lengths = np.cumsum([len(rows[row]) for row in members])[:-1]
        paths |= zip(members, np.split(part.path + start, lengths), strict=True)
    parents = np.concatenate([paths[row][:-1][mask[1:]] for row, mask in enumerate(masks)])
    trained = np.concatenate([rows[row][mask] for row, mask in enumerate(masks)]).astype(np.int64)
    pairs, read = np.unique(np.stack([parents, trained]), axis=1, return_inverse=True)
    return Forest(
        ids.reshape(shape), depth.reshape(shape), end if branches else None, pairs[0], pairs[1], read.reshape(-1)
    )


def cut(rows: Sequence[Ids], limit: int, *, break_even: int, together: int = 1) -> list[list[int]]:
    """Divide rows into trees of at most `limit` nodes with the least total cost. Returns each tree's rows, ascending.

    A tree of n nodes costs n + n^2 / break_even. At n = break_even, attention costs as much as all else. Each run of
    `together` consecutive rows stays in one tree. With runs of one row, the trees never cost more than single rows. A
    tree is above the limit only if no cut can divide its rows.

    Raises ValueError as `tree` does, and for an incomplete run of rows.
    """
    if len(rows) % together:
        raise ValueError(f"{counted(len(rows), 'row')} do not divide into runs of {together}")
    order, shared = depth_first(rows)
    may_begin = _possible_starts(order, together)
    # nodes of the sorted rows start..stop-1: ids that row `start` shares with the row before, and ids that rows add
    added_before = np.concatenate([[0], np.cumsum([len(rows[row]) for row in order] - shared)])
    before_tree = added_before[:-1] - shared
    best, begin = np.zeros(len(order) + 1), np.zeros(len(order) + 1, np.int64)
    for stop in range(1, len(order) + 1):
        starts = np.arange(np.searchsorted(before_tree[:stop], added_before[stop] - limit), stop)
        starts = starts[may_begin[starts]]
        if not len(starts):  # over the limit even with the last possible start
            starts = np.flatnonzero(may_begin[:stop])[-1:]
        nodes = added_before[stop] - before_tree[starts]
        cost = best[starts] + nodes + nodes**2 / break_even
        chosen = int(np.argmin(cost))
        best[stop], begin[stop] = cost[chosen], starts[chosen]
    trees, stop = [], len(order)
    while stop:
        trees.append(sorted(order[begin[stop] : stop]))
        stop = int(begin[stop])
    return trees[::-1]


@dataclass(frozen=True, slots=True, eq=False)
class Dealt:
    """Rows in the order of the ranks that compute them. Trees stay whole. Blank rows of BLANK ids give all ranks the
    same number of rows.

    source: [ids], each id's place in the given rows laid end to end; -1 in a blank row. lengths: [rows].
    tree, batch: [rows], numbers of a row's tree and micro-batch, distinct in its rank. Ranks have equally many batches.
    nodes: number of computed nodes, without blank rows and padding.
    """

    source: Indices
    lengths: npt.NDArray[np.int32]
    tree: Indices
    batch: Indices
    nodes: int


BLANK = 2
"""ids in a blank row"""


def deal(
    rows: Sequence[Ids], ranks: int, limit: int, *, break_even: int, together: int = 1, apart: bool = False
) -> Dealt:
    """Cut rows into trees (`cut`), and deal the most expensive first, each to the rank with the least work.

    A micro-batch is one tree, or trees of similar size with at most `limit` nodes, padding to the largest included.
    apart: each row is a tree of its own, as some models need. Runs of `together` rows stay in one micro-batch.

    Raises ValueError as `cut` does.
    """
    if apart:
        trees = np.arange(len(rows)).reshape(-1, together).tolist()
        sizes = together * np.array([max(len(rows[row]) for row in chosen) for chosen in trees])
    else:
        trees = cut(rows, limit, break_even=break_even, together=together)
        sizes = np.array([len(tree([rows[row] for row in chosen]).ids) for chosen in trees])
    costs = sizes + sizes**2 / break_even
    trees_of_rank: list[list[int]] = [[] for _ in range(ranks)]
    loads = np.zeros(ranks)
    for number in np.argsort(-costs, kind="stable").tolist():
        rank = int(np.argmin(loads))
        trees_of_rank[rank].append(number)
        loads[rank] += costs[number]
    # each of several ranks has a tree of blank rows, which grows until all ranks have equally many rows
    blank = [(BLANK, [-1] * together)] if ranks > 1 else []
    parts = [[*((int(sizes[number]), trees[number]) for number in sorted(own)), *blank] for own in trees_of_rank]
    count = max(len(by_length([size for size, _ in part], limit)) for part in parts)
    for part in parts:
        part[:0] = blank * (count - len(part))
    largest = max(sum(len(chosen) for _, chosen in part) for part in parts)
    for part in parts:
        missing = largest - sum(len(chosen) for _, chosen in part)
        part[-1] = (part[-1][0], [*part[-1][1], *[-1] * missing])
    order: list[int] = []
    tree_of, batch_of = [], []
    for part in parts:
        for batch, members in enumerate(by_length([size for size, _ in part], limit, count)):
            for place in members:
                order += part[place][1]
                tree_of += [place] * len(part[place][1])
                batch_of += [batch] * len(part[place][1])
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    blank_ids = np.full(BLANK, -1)
    source = [np.arange(starts[row], starts[row + 1]) if row >= 0 else blank_ids for row in order]
    return Dealt(
        source=np.concatenate(source),
        lengths=np.array([len(row) for row in source], np.int32),
        # blank rows stay one tree, or each would be padded to the longest row
        tree=np.where(np.array(order) < 0, -1 - np.array(tree_of), np.arange(len(order)))
        if apart
        else np.array(tree_of),
        batch=np.array(batch_of),
        nodes=sum(map(len, rows)) if apart else int(sizes.sum()),
    )


def _possible_starts(order: Sequence[int], together: int) -> npt.NDArray[np.bool_]:
    """[rows]: whether a tree may begin at each place of the sorted rows without dividing a run."""
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    runs = place.reshape(-1, together)
    opened = np.zeros(len(order) + 1, np.int64)
    np.add.at(opened, runs.min(axis=1) + 1, 1)
    np.add.at(opened, runs.max(axis=1) + 1, -1)
    return opened.cumsum()[:-1] == 0


def depth_first(rows: Sequence[Ids]) -> tuple[list[int], Indices]:
    """The rows in lexicographic order, and how many ids each shares with the one before it in this order.

    Raises ValueError as `tree` does.
    """
    if not rows:
        raise ValueError("a tree needs at least one row")
    for row in rows:
        if np.ndim(row) != 1 or not len(row) or not np.issubdtype(np.asarray(row).dtype, np.integer):
            raise ValueError("a row of a tree must be a sequence of at least one id")
    keys = [np.asarray(row).astype(">u4").tobytes() for row in rows]
    order = sorted(range(len(rows)), key=keys.__getitem__)
    shared = [0]
    for before, after in pairwise(order):
        count = min(len(rows[before]), len(rows[after]))
        differ = np.flatnonzero(rows[before][:count] != rows[after][:count])
        shared.append(int(differ[0]) if len(differ) else count)
    return order, np.array(shared)
