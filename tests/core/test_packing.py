"""Packing: mini-batches of whole groups, weights that sum to 1, padding that changes nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtpo.core.packing import by_length, minibatches, normalised_weights, pack, training_batches
from rtpo.errors import NonFinite
from rtpo.types import Floats, TrainRow, as_ids
from rtpo.verbs import Loss, SequenceClip, SquaredPair, TokenClip


def row(
    context: list[int], output: list[int], advantage: float = 1.0, weight: float = 1.0, group: str = "g"
) -> TrainRow:
    """A row that trains `output` after `context`; its log-probs are minus a tenth of its ids."""
    ids = as_ids([*context, *output])
    mask = np.array([False] * len(context) + [True] * len(output))

    def on_mask(value: float) -> Floats:
        return np.where(mask, np.float32(value), np.float32(0))

    logprobs = np.where(mask, -ids.astype(np.float32) / 10, np.float32(0))
    per_token = on_mask(weight / max(len(output), 1))
    return TrainRow(ids, mask, on_mask(advantage), per_token, logprobs, np.zeros(len(ids), np.int16), group, "r", ())


def test_pack() -> None:
    """Old log-probs stand at the ids they are of."""
    rows = [row([1, 2], [3], 0.5), row([4], [5, 6], -0.5, 3.0), row([7, 8], [9], 1.0)]
    packed = pack(rows)
    assert packed.ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert packed.lengths.tolist() == [3, 3, 3]
    assert packed.mask.tolist() == [False, False, True, False, True, True, False, False, True]
    assert packed.advantage.tolist() == [0, 0, 0.5, 0, -0.5, -0.5, 0, 0, 1.0]
    assert packed.weight.tolist() == [0, 0, 1.0, 0, 1.5, 1.5, 0, 0, 1.0]
    assert (packed.ids.dtype, packed.mask.dtype, packed.weight.dtype) == (np.int32, np.bool_, np.float32)
    assert packed.old_logprobs is None
    old = pack(rows[:2], [np.array([-1.0], np.float32), np.array([-2.0, -3.0], np.float32)]).old_logprobs
    assert old is not None
    assert (old.tolist(), old.dtype) == ([0, 0, -1, 0, -2, -3], np.float32)


def test_what_cannot_be_packed_is_refused() -> None:
    good, single = row([1], [2]), np.zeros(1, np.float32)
    for bad in (
        *(lambda: pack([]), lambda: pack([row([1], [])]), lambda: pack([row([], [1])]), lambda: minibatches([good], 0)),
        *(lambda: pack([good], [single] * 2), lambda: pack([good], [np.zeros(2, np.float32)])),
        *(lambda: pack([good], weights=[np.ones(3, np.float32)]), lambda: pack([good], weights=[])),
    ):
        with pytest.raises(ValueError, match=r"at least|old_logprobs|trained token|weights"):
            bad()
    with pytest.raises(NonFinite, match="old log-prob"):
        pack([good], [single * np.nan])
    for weights in ([0.0], [3.0, -1.0], [float("nan")]):
        with pytest.raises(ValueError, match="negative"):
            normalised_weights([row([1], [2], weight=w) for w in weights])


@given(st.text(alphabet="abcdefgh", max_size=20), st.integers(1, 6))
def test_minibatches_split_groups_evenly_and_whole(groups: str, count: int) -> None:
    batches = minibatches([row([1], [2], group=group) for group in groups], count)
    order = [i for batch in batches for i in batch]
    assert sorted(order) == list(range(len(groups)))
    assert list(dict.fromkeys(groups[i] for i in order)) == list(dict.fromkeys(groups))
    assert all(batch == sorted(batch) and batch for batch in batches)
    held = [len({groups[i] for i in batch}) for batch in batches]
    assert sum(held) == len(set(groups))
    assert held == sorted(held, reverse=True)
    assert not held or held[0] - held[-1] <= 1
    assert len(batches) == min(count, len(set(groups)))


def test_weights_sum_to_one_tied_rows_included() -> None:
    rows = [row([1], [2, 3], 0.0, 1.0), row([1], [2], 1.0, 1.0), row([1], [2, 3, 4, 5], -1.0, 2.0)]
    weights = normalised_weights(rows)
    assert [w.tolist() for w in weights] == [[0, 0.125, 0.125], [0, 0.25], [0, *[0.125] * 4]]
    (packed,) = training_batches(rows, [r.rollout_logprobs[r.mask] for r in rows], TokenClip(), epochs=1, count=1)
    assert packed.ids.tolist() == [*rows[1].ids, *rows[2].ids]
    assert packed.weight.tolist() == [0, 0.25, 0, *[0.125] * 4]
    assert rows[1].weight.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("loss", "trained"),
    [(TokenClip(), [2, 3]), (TokenClip(kl=0.1), [1, 2, 3]), (SequenceClip(), [2, 3]), (SquaredPair(), [1, 2, 3])],
)
def test_rows_without_a_gradient_and_mini_batches_of_them_are_left_out(loss: Loss, trained: list[int]) -> None:
    """Row i trains id i."""
    rows = [row([9], [1], 0.0, group="a"), row([9], [2], 1.0, group="b"), row([9], [3], -1.0, group="c")]
    old = [np.zeros(1, np.float32)] * 3
    (packed,) = training_batches(rows, old, loss, epochs=1, count=1)
    assert packed.ids[1::2].tolist() == trained
    assert [packed.ids[1] for packed in training_batches(rows, old, loss, epochs=2, count=3)] == trained * 2


def test_micro_batches_hold_rows_of_like_length() -> None:
    assert by_length([5, 2, 9, 2, 5], limit=10) == [[1, 3], [0, 4], [2]]
    assert by_length([30, 2], limit=10) == [[1], [0]]


@given(st.lists(st.integers(2, 50), min_size=1, max_size=40), st.integers(1, 200), st.integers(1, 9))
def test_micro_batches_are_a_partition(lengths: list[int], limit: int, at_least: int) -> None:
    batches = by_length(lengths, limit, at_least)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    assert min(len(batch) for batch in batches) > 0
    assert len(batches) >= min(at_least, len(lengths))
    assert all(len(batch) == 1 or len(batch) * max(lengths[row] for row in batch) <= limit for batch in batches)
