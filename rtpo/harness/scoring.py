"""Which rows of an update are scored before it, and which its diagnostics are of."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rtpo.core.packing import first_batch, has_gradient
from rtpo.rows import recorded_rows
from rtpo.types import TrainRow
from rtpo.verbs import Loss


@dataclass(frozen=True, slots=True)
class Scoring:
    """Of an update's rows, by index, ascending: `measured`, those that diagnostics are of; `before`, those that are
    scored before the update; `served`, those of the first optimizer step, where its forward, which has the weights
    before the update, too, gives what would be scored of them. recorded: the rows to be scored besides, of the
    measured ones' tokens in their recorded contexts; none where these are the rows' own."""

    measured: list[int]
    before: list[int]
    served: list[int]
    recorded: list[TrainRow]


def scoring(
    rows: Sequence[TrainRow], loss: Loss, minibatches: int, *, share: float, all_before: bool, rng: np.random.Generator
) -> Scoring:
    """Log-probs before the update are needed of every row where the algorithm asks for them (`all_before`), of every
    row with a gradient where the ratio's denominator is recomputed, and of those that diagnostics are of: whole groups,
    drawn until they have `share` of the rows, so that what a group's rows begin with is still computed once; all rows,
    where that costs nothing."""
    is_recomputed = loss.old_logprobs == "recompute"
    needed = [i for i, row in enumerate(rows) if all_before or (is_recomputed and has_gradient(row, loss))]
    if len(needed) == len(rows) and _are_recorded(rows):
        share = 1.0
    groups = defaultdict(list)
    for index, row in enumerate(rows):
        groups[row.group].append(index)
    measured: list[int] = []
    for group in rng.permutation(list(groups)).tolist():
        if len(measured) < share * len(rows):
            measured += groups[group]
    measured.sort()
    first = first_batch(rows, loss, minibatches)
    wanted = {*needed, *measured}
    looked_at = [rows[index] for index in measured]
    return Scoring(
        measured,
        sorted(wanted - {*first}),
        first if wanted & {*first} else [],
        [] if _are_recorded(looked_at) else [alone for row in looked_at for alone in recorded_rows(row)],
    )


def _are_recorded(rows: Sequence[TrainRow]) -> bool:
    """Whether each trains one turn in its recorded context."""
    return all(recorded_rows(row)[0] is row for row in rows)
