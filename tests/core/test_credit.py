"""Advantages: zero-mean groups, ties. Theorem 2's factor is tested on a table (tests/methods/test_baseline_bias.py)."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtpo.credit import group_advantages, group_scale, sibling_advantages, standardised
from rtpo.errors import NonFinite
from rtpo.harness.diagnostics import first_outcome, outcome


def test_advantages_by_hand() -> None:
    assert sibling_advantages([1, 0, 0, 0]).tolist() == [0.75, -0.25, -0.25, -0.25]
    assert sibling_advantages([1.0, 0.0]).dtype == np.float32
    assert group_advantages([1, 0, 0, 1], normalise_std=False).tolist() == [0.5, -0.5, -0.5, 0.5]
    np.testing.assert_allclose(group_advantages([1, 0, 0, 1], normalise_std=True), [0.866, -0.866, -0.866, 0.866], 1e-3)
    assert [group_scale([1, 0], normalise) for normalise in (False, True)] == [1, pytest.approx(0.5**0.5 + 1e-6, 1e-9)]


@given(st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=8))
def test_advantages_have_mean_0_and_unit_deviation(values: list[float]) -> None:
    advantages, scores = sibling_advantages(values), group_advantages(values, normalise_std=True)
    assert abs(float(advantages.sum(dtype=np.float64))) < 1e-5
    np.testing.assert_array_equal(advantages, group_advantages(values, normalise_std=False))
    if len(set(values)) > 1:
        deviation = float(np.std(values, ddof=1))
        np.testing.assert_allclose(scores.std(ddof=1), deviation / (deviation + 1e-6), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("value", [1.0, 0.1, 1 / 3])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 16])
def test_ties_are_exact_zeros_and_so_is_a_group_of_one(value: float, size: int) -> None:
    assert size == 1 or not sibling_advantages([value] * size).any()
    for normalise_std in (False, True):
        assert group_advantages([value] * size, normalise_std=normalise_std).tolist() == [0.0] * size
        assert group_scale([value] * size, normalise_std) == np.inf


def test_bad_rewards_are_refused() -> None:
    for bad in (
        *(lambda: sibling_advantages([1.0]), lambda: sibling_advantages([[1.0, 0.0]])),
        *(lambda: group_advantages([], True), lambda: group_scale([], True), lambda: standardised([])),
    ):
        with pytest.raises(ValueError, match=r"siblings|at least one|shape"):
            bad()
    with pytest.raises(NonFinite, match="grader"):
        sibling_advantages([1.0, float("nan")])


def test_a_steps_success_and_mean_reward_are_those_of_its_first_paths() -> None:
    """Success is the share of paths with reward 1."""

    def call(*rewards: float, **terminations: int) -> dict[str, Any]:
        return {"graded": len(rewards), **outcome(rewards), "terminations": terminations}

    trunks, siblings = call(1.0, 0.5, 0.0, 0.5, answered=4), call(*[1.0] * 8, answered=8)
    grown = [call(1.0, answered=1, open=3), call(open=3), call(0.5, 0.5, 0.0, answered=2, turn_limit=1), siblings]
    for calls in ([trunks, siblings], grown):
        assert first_outcome(calls) == {"success": 0.25, "mean_reward": 0.5}
    assert first_outcome([call(open=2)]) == {"success": None, "mean_reward": None}
