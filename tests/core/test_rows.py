"""Rows token by token: which ids, which carry loss, with what weight."""

from dataclasses import replace

import made_paths
import numpy as np
import pytest

from rtpo.core.chat import ThinkTags
from rtpo.core.contexts import next_context
from rtpo.errors import NonFinite
from rtpo.rows import path_weight, recorded_rows, trajectory_rows, turn_row
from rtpo.types import Rollout, Task, Turn, as_ids

OPEN, CLOSE, STOP = 91, 92, 93
TAGS = ThinkTags(OPEN, CLOSE, STOP, frozenset())
OUTPUTS = ([OPEN, 3, CLOSE, 4, STOP], [OPEN, 5, CLOSE, STOP], [6])
FEEDBACKS: tuple[list[int], ...] = ([7, 8], [9], [])


def rollout(outputs: tuple[list[int], ...] = OUTPUTS, start_k: int = 0) -> Rollout:
    """c_0 = [1, 2], then outputs and feedback, thinking stripped; log-probs -0.1, -0.2, ... along the path."""
    context, turns, count = as_ids([1, 2]), list[Turn](), 0
    for k, (output, feedback) in enumerate(zip(outputs, FEEDBACKS, strict=False)):
        logprobs = -0.1 * np.arange(count + 1, count + 1 + len(output), dtype=np.float32)
        count += len(output)
        turns.append(made_paths.turn(k, context, output, feedback, k, logprobs=logprobs, policy_version=5))
        context = next_context(context, as_ids(output), as_ids(feedback), TAGS, "strip_think")
    return made_paths.rollout("r", Task("t", "q", None), turns, 1.0, start_k)


def test_turn_row() -> None:
    path = rollout()
    row = turn_row(path.turns[1], path, 0.5, 1.0, "t/1")
    assert row.ids.tolist() == [1, 2, 4, STOP, 7, 8, OPEN, 5, CLOSE, STOP]
    assert row.mask.tolist() == [False] * 6 + [True] * 4
    assert row.advantage.tolist() == [0.0] * 6 + [0.5] * 4
    assert row.weight.tolist() == [0.0] * 6 + [0.25] * 4
    assert row.turn_index.tolist() == [0] * 6 + [1] * 4
    np.testing.assert_allclose(row.rollout_logprobs, [0.0] * 6 + [-0.6, -0.7, -0.8, -0.9], rtol=1e-6)
    assert (row.group, row.rollout_uid, row.turns) == ("t/1", "r", (path.turns[1],))
    dtypes = (row.ids.dtype, row.mask.dtype, row.advantage.dtype, row.turn_index.dtype)
    assert dtypes == (np.int32, np.bool_, np.float32, np.int16)


def test_flattened_row_holds_the_whole_path() -> None:
    (row,) = trajectory_rows(rollout(), "flattened", -0.25, 1.0, "t")
    assert row.ids.tolist() == [1, 2, OPEN, 3, CLOSE, 4, STOP, 7, 8, OPEN, 5, CLOSE, STOP, 9, 6]
    assert row.mask.tolist() == [False] * 2 + [True] * 5 + [False] * 2 + [True] * 4 + [False, True]
    assert row.turn_index.tolist() == [0] * 9 + [1] * 4 + [0, 2]
    np.testing.assert_allclose(row.weight, 0.1 * row.mask, rtol=1e-6)
    np.testing.assert_allclose(row.advantage, -0.25 * row.mask)
    np.testing.assert_allclose(row.rollout_logprobs, -0.1 * row.mask * row.mask.cumsum(), rtol=1e-6)


def test_recorded_rows_condition_on_what_was_sent() -> None:
    path = rollout()
    rows = trajectory_rows(path, "recorded", 1.0, 2.0, "t")
    assert [row.ids.tolist() for row in rows] == [
        [1, 2, OPEN, 3, CLOSE, 4, STOP],
        [1, 2, 4, STOP, 7, 8, OPEN, 5, CLOSE, STOP],
        [1, 2, 4, STOP, 7, 8, STOP, 9, 6],
    ]
    for row, turn in zip(rows, path.turns, strict=True):
        assert row.ids[row.mask].tolist() == turn.output_ids.tolist()
        np.testing.assert_allclose(row.weight, 0.2 * row.mask, rtol=1e-6)


def test_a_branch_trains_its_own_turns_or_all_of_them() -> None:
    branch = rollout(start_k=1)
    (own,) = trajectory_rows(branch, "flattened", 1.0, 1.0, "t")
    (whole,) = trajectory_rows(branch, "flattened", 1.0, 1.0, "t", first_k=0)
    assert own.ids.tolist() == whole.ids.tolist()
    assert own.mask.tolist() == [False] * 9 + [True] * 4 + [False, True]
    assert own.turns == branch.own_turns
    np.testing.assert_allclose(own.weight[own.mask], 0.2, rtol=1e-6)
    assert int(whole.mask.sum()) == 10
    for first_k, turns in ((None, [1, 2]), (0, [0, 1, 2])):
        rows = trajectory_rows(branch, "recorded", 1.0, 1.0, "t", first_k=first_k)
        assert [row.turns[0].k for row in rows] == turns


def test_an_advantage_for_each_token() -> None:
    each = np.linspace(-1, 1, 10, dtype=np.float32)
    (flat,) = trajectory_rows(rollout(), "flattened", each, 1.0, "t")
    rows = trajectory_rows(rollout(), "recorded", each, 1.0, "t")
    for values in (flat.advantage[flat.mask], np.concatenate([row.advantage[row.mask] for row in rows])):
        np.testing.assert_array_equal(values, each)
    (own,) = trajectory_rows(rollout(start_k=1), "flattened", each[5:], 1.0, "t")
    np.testing.assert_array_equal(own.advantage[own.mask], each[5:])
    with pytest.raises(ValueError, match="10"):
        trajectory_rows(rollout(), "recorded", each[1:], 1.0, "t")


def test_recorded_rows_of_a_flattened_row() -> None:
    path = rollout()
    (flat,) = trajectory_rows(path, "flattened", [0.5, 0.0, -1.0], 0.5, "t")
    direct = trajectory_rows(path, "recorded", [0.5, 0.0, -1.0], 0.5, "t")
    for ours, theirs in zip(recorded_rows(flat), direct, strict=True):
        for name in ("ids", "mask", "advantage", "weight", "rollout_logprobs", "turn_index"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
        assert (ours.group, ours.rollout_uid, ours.turns) == (theirs.group, theirs.rollout_uid, theirs.turns)
    assert recorded_rows(direct[1]) == [direct[1]]
    (last,) = trajectory_rows(rollout(start_k=2), "flattened", 1.0, 1.0, "t")
    assert [row.ids.tolist() for row in recorded_rows(last)] == [[1, 2, 4, STOP, 7, 8, STOP, 9, 6]]
    with pytest.raises(ValueError, match="sampled"):
        recorded_rows(replace(flat, ids=as_ids(flat.ids + 1)))


def test_a_path_weighs_one_or_its_trained_tokens() -> None:
    assert path_weight(rollout(), "path") == 1.0
    assert [path_weight(rollout(), "token", first_k) for first_k in (0, 1)] == [10.0, 5.0]


def test_bad_rows_are_refused() -> None:
    path = rollout()
    for bad, context in ((path, "flat"), (rollout(start_k=3), "recorded"), (rollout(([3], [], [4])), "flattened")):
        with pytest.raises(ValueError, match=r"training_context|turn \d"):
            trajectory_rows(bad, context, 1.0, 1.0, "t")  # type: ignore[arg-type]
    with pytest.raises(NonFinite, match="advantage"):
        turn_row(path.turns[0], path, float("nan"), 1.0, "t")
