"""Divides rows into mini-batches, and lays these out as the arrays that a trainer takes.

The order is fixed: split into mini-batches of whole groups, normalise the weights of each mini-batch, then drop rows
without a gradient. A tied row (all advantages 0) has none, unless the loss has a KL or trains ties. Dropped rows count
in the denominator of the mean of eq. per-turn-obj, so an update is as large as if they were computed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rtpo.core.names import counted
from rtpo.errors import NonFinite
from rtpo.types import Floats, Ids, TrainRow
from rtpo.verbs import Loss


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Rows laid end to end, n ids in all.

    ids, mask, advantage, weight, old_logprobs: [n]; all but ids are 0 where mask is False. If old_logprobs is None,
        the optimizer step uses the log-probs of its own forward pass, before the weights change.
    lengths: [rows], the number of ids of each row, in the caller's order.
    """

    ids: Ids
    lengths: npt.NDArray[np.int32]
    mask: npt.NDArray[np.bool_]
    advantage: Floats
    weight: Floats
    old_logprobs: Floats | None


def pack(
    rows: Sequence[TrainRow],
    old_logprobs: Sequence[Floats] | None = None,
    *,
    weights: Sequence[Floats] | None = None,
) -> Packed:
    """Lay rows end to end. Their order is kept, so SquaredPair's pairs stay rows 2i and 2i+1.

    old_logprobs: an array of [mask.sum()] for each row, in nats; None leaves them to the optimizer step.
    weights: an array of [len(ids)] for each row (see `normalised_weights`); None takes the rows' own.

    Raises ValueError without rows, for a row that trains no id or its first id, and for old log-probs or weights that
    do not match the rows; NonFinite for an old log-prob that is not finite.
    """
    if not rows:
        raise ValueError("pack needs at least one row")
    if old_logprobs is not None and len(old_logprobs) != len(rows):
        raise ValueError(f"{counted(len(rows), 'row')} but old_logprobs of {counted(len(old_logprobs), 'row')}")
    weights = [row.weight for row in rows] if weights is None else weights
    if [len(weight) for weight in weights] != [len(row.ids) for row in rows]:
        raise ValueError("weights must have one array of a row's length for each row")
    for row in rows:
        if not row.mask.any() or row.mask[0]:
            raise ValueError(f"row of rollout {row.rollout_uid} must train at least one id, and not its first")
    old = None if old_logprobs is None else np.concatenate(list(map(_old_logprobs, rows, old_logprobs)))
    return Packed(
        ids=np.concatenate([row.ids for row in rows]),
        lengths=np.array([len(row.ids) for row in rows], np.int32),
        mask=np.concatenate([row.mask for row in rows]),
        advantage=np.concatenate([row.advantage for row in rows]),
        weight=np.concatenate(weights),
        old_logprobs=old,
    )


def minibatches(rows: Sequence[TrainRow], count: int) -> list[list[int]]:
    """Row indices of each mini-batch, ascending. Mini-batches hold whole groups, in order of first appearance. Their
    numbers of groups are equal, or the first mini-batches have one more.

    With fewer groups than `count`, each group is a mini-batch: none is empty. No rows give no mini-batches. Raises
    ValueError for a `count` below 1.
    """
    if count < 1:
        raise ValueError(f"minibatches must be at least 1, got {count}")
    if not rows:
        return []
    groups = list(dict.fromkeys(row.group for row in rows))
    parts = np.array_split(np.array(groups, dtype=object), min(count, len(groups)))
    batch_of = {group: batch for batch, part in enumerate(parts) for group in part}
    batches: list[list[int]] = [[] for _ in parts]
    for index, row in enumerate(rows):
        batches[batch_of[row.group]].append(index)
    return batches


def normalised_weights(rows: Sequence[TrainRow]) -> list[Floats]:
    """The weights of one mini-batch's rows divided by their sum, [len(ids)] each, so that its loss is a weighted mean.

    Tied rows count in the sum. Raises ValueError when a weight is negative or all are 0.
    """
    total = sum(float(row.weight.sum(dtype=np.float64)) for row in rows)
    if not total > 0 or any((row.weight < 0).any() for row in rows):
        raise ValueError(f"weights of a mini-batch must not be negative and must not all be 0, their sum is {total}")
    return [(row.weight / total).astype(np.float32) for row in rows]


def training_batches(
    rows: Sequence[TrainRow],
    old_logprobs: Sequence[Floats],
    loss: Loss,
    *,
    epochs: int,
    count: int,
    first_uses_own: bool = False,
) -> Iterator[Packed]:
    """The mini-batches of an update, at most `count` in each epoch; each is one optimizer step.

    first_uses_own: the first mini-batch has None for old log-probs (see `Packed`). After its step the caller must put
        its rows' log-probs into `old_logprobs`, because later epochs read them.

    Rows without a gradient are left out. So is a mini-batch that has only such rows. A row whose advantages are all 0
    has a gradient only with a KL, or if the loss `trains_ties`.
    """
    parts = minibatches(rows, count)
    uses_own = first_uses_own
    for _ in range(epochs):
        for part in parts:
            weights = normalised_weights([rows[i] for i in part])
            kept = [
                (rows[i], old_logprobs[i], weight)
                for i, weight in zip(part, weights, strict=True)
                if has_gradient(rows[i], loss)
            ]
            if kept:
                chosen, old, weights = (list(values) for values in zip(*kept, strict=True))
                yield pack(chosen, None if uses_own else old, weights=weights)
                uses_own = False


def first_batch(rows: Sequence[TrainRow], loss: Loss, count: int) -> list[int]:
    """The row indices of the first of `training_batches`; empty if there is none."""
    kept = ([i for i in part if has_gradient(rows[i], loss)] for part in minibatches(rows, count))
    return next(filter(None, kept), [])


def has_gradient(row: TrainRow, loss: Loss) -> bool:
    return bool(loss.kl) or loss.trains_ties or not row.is_tied


def by_length(lengths: Sequence[int], limit: int, at_least: int = 1) -> list[list[int]]:
    """Row indices of micro-batches, which have rows of similar length. A micro-batch has at most `limit` tokens,
    padding to its longest row included, unless it is a single row. The micro-batch with most rows is halved
    until there are `at_least` micro-batches, or one for each row."""
    batches: list[list[int]] = []
    for row in np.argsort(lengths, kind="stable").tolist():
        if not batches or (len(batches[-1]) + 1) * lengths[row] > limit:
            batches.append([])
        batches[-1].append(row)
    while len(batches) < min(at_least, len(lengths)):
        largest = max(range(len(batches)), key=lambda i: len(batches[i]))
        whole = batches[largest]
        batches[largest : largest + 1] = [whole[: len(whole) // 2], whole[len(whole) // 2 :]]
    return batches


def _old_logprobs(row: TrainRow, trained: Floats) -> Floats:
    """[len(ids)]: the [mask.sum()] old log-probs at the trained ids, 0 elsewhere."""
    count = int(row.mask.sum())
    if np.shape(trained) != (count,):
        raise ValueError(
            f"row of rollout {row.rollout_uid}: {counted(count, 'trained token')}, {np.shape(trained)} old log-probs"
        )
    if not np.isfinite(trained).all():
        raise NonFinite(f"Row of rollout {row.rollout_uid}: an old log-prob is NaN or infinite; check the engine.")
    placed = np.zeros(len(row.ids), np.float32)
    placed[row.mask] = trained
    return placed
