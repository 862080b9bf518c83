"""Turns rollouts into the rows that an update trains on.

A row is a context and the sampled ids that carry loss. There are two training contexts (Sec. 3.1 of the paper).
`recorded` conditions each turn on its recorded c_k. `flattened` puts the whole path, thinking included, into one row.
Both train the same tokens with the same advantages and weights, so the two updates differ in conditioning only.
"""

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from rtpo.core.contexts import flattened_context
from rtpo.core.names import counted
from rtpo.errors import NonFinite
from rtpo.types import Aggregation, Floats, Ids, Rollout, TrainingContext, TrainRow, Turn, as_ids


def path_weight(rollout: Rollout, aggregation: Aggregation, first_k: int = 0) -> float:
    """A path's weight before `rtpo.core.packing` normalises it. With `path` aggregation it is 1. With `token` it is the
    number of sampled tokens from turn `first_k` on."""
    return 1.0 if aggregation == "path" else float(sum(len(turn.output_ids) for turn in rollout.turns[first_k:]))


def turn_row(
    turn: Turn,
    rollout: Rollout,
    advantage: float,
    weight: float,
    group: str,
    training_context: TrainingContext = "recorded",
) -> TrainRow:
    """The row of one turn: u_k after its recorded c_k (eq. per-turn-obj) or its flattened history. Every output id
    carries loss, the stop token included.

    `weight` is the row's total weight, spread evenly over its trained tokens. Raises ValueError for a turn without
    output or an unknown training context, NonFinite for NaN or infinity.
    """
    token_weight = _token_weight(weight, [turn], rollout.uid)
    if training_context not in get_args(TrainingContext):
        raise ValueError(f"unknown training_context {training_context!r}: use recorded or flattened")
    context = turn.context_ids if training_context == "recorded" else flattened_context(rollout.turns, turn.k)
    return _row([context], [turn], [advantage], [token_weight], rollout.uid, group)


def trajectory_rows(
    rollout: Rollout,
    training_context: TrainingContext,
    advantage: float | Sequence[float] | Floats,
    weight: float,
    group: str,
    *,
    first_k: int | None = None,
) -> list[TrainRow]:
    """The rows of a path's turns from `first_k` on. 0 gives all turns, None those that the path sampled itself.

    `recorded` gives one row for each turn; `flattened` gives one row, in which c_0, earlier turns and feedback carry no
    loss. `advantage` is one number, or one for each trained turn, or one for each trained token. `weight` is the path's
    total weight, spread evenly over its trained tokens. With 1/N for each of N paths, the loss averages over tokens and
    then over paths. Raises NonFinite for an advantage or weight that is NaN or infinite. Raises ValueError for an
    unknown training context, a path without turn `first_k`, a turn without output, and advantages of another shape.
    """
    start = rollout.start_k if first_k is None else first_k
    if not 0 <= start < len(rollout.turns):
        raise ValueError(
            f"rollout {rollout.uid} has {counted(len(rollout.turns), 'turn')}: it has no turn {start} to train from"
        )
    turns = rollout.turns[start:]
    token_weight = _token_weight(weight, turns, rollout.uid)
    ends = np.cumsum([len(turn.output_ids) for turn in turns])
    by_turn: list[npt.ArrayLike]
    if np.shape(advantage) == (ends[-1],):
        by_turn = list(np.split(np.asarray(advantage), ends[:-1]))
    elif np.shape(advantage) in ((), (len(turns),)):
        by_turn = list(np.broadcast_to(advantage, len(turns)))
    else:
        raise ValueError(
            f"rollout {rollout.uid}: {counted(len(turns), 'trained turn')} of {counted(ends[-1], 'token')}, "
            f"advantages of shape {np.shape(advantage)}"
        )
    if training_context == "recorded":
        return [
            _row([turn.context_ids], [turn], [a], [token_weight], rollout.uid, group)
            for turn, a in zip(turns, by_turn, strict=True)
        ]
    if training_context == "flattened":
        contexts = [flattened_context(rollout.turns, start), *(turn.feedback_ids for turn in turns[:-1])]
        return [_row(contexts, turns, by_turn, [token_weight] * len(turns), rollout.uid, group)]
    raise ValueError(f"unknown training_context {training_context!r}: use recorded or flattened")


def recorded_rows(row: TrainRow) -> list[TrainRow]:
    """The row's trained tokens in their recorded contexts, one row for each turn; advantages and weights are kept.

    Their scores, compared with the row's, split the mismatch into a context part and an engine part
    (`rtpo.core.mismatch`). Raises ValueError if the row's trained ids differ from its turns' sampled ids.
    """
    if len(row.turns) == 1 and _is_recorded(row, row.turns[0]):
        return [row]
    rows = []
    for turn in row.turns:
        turn_mask = row.mask & (row.turn_index == turn.k)
        if not np.array_equal(row.ids[turn_mask], turn.output_ids):
            raise ValueError(
                f"row of rollout {row.rollout_uid}: its trained ids of turn {turn.k} differ from the sampled ids"
            )
        advantage, weight = row.advantage[turn_mask], row.weight[turn_mask]
        rows.append(_row([turn.context_ids], [turn], [advantage], [weight], row.rollout_uid, row.group))
    return rows


def _is_recorded(row: TrainRow, turn: Turn) -> bool:
    start = len(turn.context_ids)
    return (
        np.array_equal(row.ids[:start], turn.context_ids)
        and np.array_equal(row.ids[start:], turn.output_ids)
        and not row.mask[:start].any()
        and bool(row.mask[start:].all())
    )


def _token_weight(weight: float, turns: Sequence[Turn], rollout_uid: str) -> float:
    for turn in turns:
        if not len(turn.output_ids):
            raise ValueError(f"rollout {rollout_uid}: turn {turn.k} has no output ids to train on")
    return weight / sum(len(turn.output_ids) for turn in turns)


def _row(
    contexts: Sequence[Ids],
    turns: Sequence[Turn],
    advantages: Sequence[npt.ArrayLike],
    weights: Sequence[npt.ArrayLike],
    rollout_uid: str,
    group: str,
) -> TrainRow:
    """The row contexts[0] + u + contexts[1] + u' + ..., with loss on the outputs. A turn has one
    advantage and weight, or one for each output id."""
    parts = [part for context, turn in zip(contexts, turns, strict=True) for part in (context, turn.output_ids)]
    ids = np.concatenate(parts)

    def column(values: Sequence[npt.ArrayLike], dtype: Any) -> npt.NDArray[Any]:
        array, end = np.zeros(len(ids), dtype), 0
        for context, turn, value in zip(contexts, turns, values, strict=True):
            start = end + len(context)
            end = start + len(turn.output_ids)
            array[start:end] = value
        array.flags.writeable = False
        return array

    advantage, weight = column(advantages, np.float32), column(weights, np.float32)
    for name, values in (("advantage", advantage), ("weight", weight)):
        if not np.isfinite(values).all():
            raise NonFinite(f"Row of rollout {rollout_uid}: its {name} is NaN or infinite; check its group's rewards.")
    return TrainRow(
        ids=as_ids(ids),
        mask=column([True] * len(turns), np.bool_),
        advantage=advantage,
        weight=weight,
        rollout_logprobs=column([turn.logprobs for turn in turns], np.float32),
        turn_index=column([turn.k for turn in turns], np.int16),
        group=group,
        rollout_uid=rollout_uid,
        turns=tuple(turns),
    )
