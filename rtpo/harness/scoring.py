"""Which rows of an update are scored before it, and which its diagnostics cover."""

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
    """Indices of an update's rows, ascending.

    measured: the rows that diagnostics cover.
    before: the rows scored before the update.
    served: the rows of the first optimizer step, if any of them needs log-probs; its forward pass, under the weights
        before the update, gives them.
    recorded: further rows to score, the tokens of the measured rows in their recorded contexts; empty if the measured
        rows have these contexts.
    """

    measured: list[int]
    before: list[int]
    served: list[int]
    recorded: list[TrainRow]


def scoring(
    rows: Sequence[TrainRow], loss: Loss, minibatches: int, *, share: float, all_before: bool, rng: np.random.Generator
) -> Scoring:
    """Choose the rows whose log-probs before the update are needed:

    - all rows, if the algorithm asks for them (`all_before`);
    - all rows with a gradient, if the ratio's denominator is recomputed;
    - the rows that diagnostics cover. Whole groups are drawn until they have `share` of the rows, so that what a
      group's rows begin with is still computed once. If all rows are needed anyway and have recorded contexts,
      diagnostics cover all.
    """
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
