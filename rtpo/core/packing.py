"""Rows to mini-batches, and mini-batches to the arrays a trainer takes.

The order is fixed: split into mini-batches of whole groups, normalise the weights over each mini-batch, and only then
drop tied rows. A tied row has no gradient but keeps its place in the denominator of eq. per-turn-obj's mean, so that
an update's size does not depend on whether its rows were computed or skipped.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rtpo.errors import NonFinite
from rtpo.types import Floats, Ids, TrainRow
from rtpo.verbs import Loss


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Rows laid end to end: nnz ids in all, those of row i being the lengths[i] after the rows before it.

    ids, mask, advantage, weight, old_logprobs: [nnz]; what is off the mask is 0 (ids excepted). old_logprobs None: a
    step takes those of its own forward, under the weights before it.
    lengths: [rows]; the caller's rows in order.
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
    """Rows laid end to end.

    `old_logprobs` has an array of [mask.sum()] for each row, in nats; None leaves them to the step.
    `weights` has one of [len(ids)] (see `normalised_weights`); None takes the rows' own. Order is kept, so that
    SquaredPair's pairs stay rows 2i and 2i+1. Raises ValueError for no rows, a row that
    trains nothing or its first id, old log-probs or weights that do not match; NonFinite.
    """
    if not rows:
        raise ValueError("pack needs at least one row")
    if old_logprobs is not None and len(old_logprobs) != len(rows):
        raise ValueError(f"{len(rows)} rows but old_logprobs of {len(old_logprobs)} rows")
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
    """Row indices of each mini-batch, ascending: whole groups in order of first appearance, as equal in number of
    groups as can be (the first ones get one more).

    With fewer groups than `count` there are as many mini-batches as groups: none is ever empty, and no rows give none.
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
    own_first: bool = False,
) -> Iterator[Packed]:
    """The mini-batches of an update, `count` an epoch at most, each to be one optimizer step. own_first: the first one
    is given no old log-probs; those of its rows are asked for when a later epoch comes to them.

    Rows that cannot give a gradient are left out, and a mini-batch with no other. A row whose advantages are 0 gives
    one under a KL term alone, or where the loss `trains_ties`.
    """
    parts = minibatches(rows, count)
    is_own = own_first
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
                yield pack(chosen, None if is_own else old, weights=weights)
                is_own = False


def first_batch(rows: Sequence[TrainRow], loss: Loss, count: int) -> list[int]:
    """The indices of the rows in the first of `training_batches`; none where there is no batch."""
    kept = ([i for i in part if has_gradient(rows[i], loss)] for part in minibatches(rows, count))
    return next(filter(None, kept), [])


def has_gradient(row: TrainRow, loss: Loss) -> bool:
    return bool(loss.kl) or loss.trains_ties or not row.is_tied


def by_length(lengths: Sequence[int], limit: int, at_least: int = 1) -> list[list[int]]:
    """Row indices of micro-batches whose rows are of like length: at most `limit` tokens each, padding to the longest
    row included, or one row. Where that gives fewer than `at_least`, and rows for more, the largest are halved."""
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
    """[mask.sum()] values put where the row trains, 0 elsewhere."""
    count = int(row.mask.sum())
    if np.shape(trained) != (count,):
        raise ValueError(f"row of rollout {row.rollout_uid}: {count} trained tokens, {np.shape(trained)} old log-probs")
    if not np.isfinite(trained).all():
        raise NonFinite(f"Row of rollout {row.rollout_uid}: an old log-prob is NaN or infinite; check the engine.")
    placed = np.zeros(len(row.ids), np.float32)
    placed[row.mask] = trained
    return placed
