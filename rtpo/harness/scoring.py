"""Chooses the rows of an update that are scored before it, and the rows that its diagnostics cover."""

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
    """An update's rows to score. The first three fields hold row indices, ascending.

    measured: the rows that diagnostics cover.
    before: the rows that a forward pass scores before the update.
    first_step: the rows of the first optimizer step, if any of them needs log-probs; else empty. The step's own forward
        pass gives these log-probs, under the weights before the update.
    recorded: further rows to score: the measured rows' tokens in recorded contexts. Empty if the measured rows already
        have recorded contexts.
    """

    measured: list[int]
    before: list[int]
    first_step: list[int]
    recorded: list[TrainRow]


def choose_rows(
    rows: Sequence[TrainRow], loss: Loss, minibatches: int, *, share: float, all_before: bool, rng: np.random.Generator
) -> Scoring:
    """Choose the rows whose log-probs before the update are needed:

    - all rows, if the algorithm requests them (`all_before`);
    - all rows with a gradient, if the ratio's denominator is recomputed;
    - the rows that diagnostics cover: whole groups, drawn until they have `share` of the rows. So a prefix that a
      group's rows share is still computed once. If all rows are needed anyway and have recorded contexts, diagnostics
      cover all rows.
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
    scored = {*needed, *measured}
    measured_rows = [rows[index] for index in measured]
    return Scoring(
        measured,
        sorted(scored - {*first}),
        first if scored & {*first} else [],
        [] if _are_recorded(measured_rows) else [turn_row for row in measured_rows for turn_row in recorded_rows(row)],
    )


def _are_recorded(rows: Sequence[TrainRow]) -> bool:
    """Whether each row trains one turn in its recorded context."""
    return all(recorded_rows(row)[0] is row for row in rows)
