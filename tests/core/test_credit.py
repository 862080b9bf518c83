"""Advantages: Theorem 2's factor, zero-mean groups, ties."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtpo.credit import group_advantages, sibling_advantages
from rtpo.errors import NonFinite
from rtpo.harness.diagnostics import first_outcome, outcome

rewards = st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=8)


def test_sibling_advantages_of_binary_rewards() -> None:
    assert sibling_advantages([1.0, 0.0]).tolist() == [0.5, -0.5]
    assert sibling_advantages([1, 0, 0, 0]).tolist() == [0.75, -0.25, -0.25, -0.25]
    assert sibling_advantages([1.0, 1.0]).tolist() == [0.0, 0.0]
    assert sibling_advantages([1.0, 0.0]).dtype == np.float32


@given(rewards)
def test_advantages_of_a_group_sum_to_zero(values: list[float]) -> None:
    assert abs(float(sibling_advantages(values).sum(dtype=np.float64))) < 1e-5
    assert abs(float(group_advantages(values, normalise_std=False).sum(dtype=np.float64))) < 1e-5
    np.testing.assert_array_equal(sibling_advantages(values), group_advantages(values, normalise_std=False))


@given(rewards)
def test_group_advantages_have_unit_deviation_unless_constant(values: list[float]) -> None:
    advantages = group_advantages(values, normalise_std=True)
    deviation = float(np.std(values, ddof=1))
    if len(set(values)) == 1:
        assert advantages.tolist() == [0.0] * len(values)
    else:
        np.testing.assert_allclose(advantages.std(ddof=1), deviation / (deviation + 1e-6), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("value", [1.0, 0.1, 1 / 3])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 16])
def test_ties_are_exact_zeros_and_so_is_a_group_of_one(value: float, size: int) -> None:
    assert size == 1 or not sibling_advantages([value] * size).any()
    for normalise_std in (False, True):
        assert group_advantages([value] * size, normalise_std=normalise_std).tolist() == [0.0] * size


def test_grpo_golden() -> None:
    np.testing.assert_allclose(group_advantages([1, 0, 0, 1], normalise_std=True), [0.866, -0.866, -0.866, 0.866], 1e-3)
    assert group_advantages([1, 0, 0, 1], normalise_std=False).tolist() == [0.5, -0.5, -0.5, 0.5]


def test_bad_rewards_are_refused() -> None:
    with pytest.raises(ValueError, match="siblings"):
        sibling_advantages([1.0])
    with pytest.raises(ValueError, match="reward"):
        group_advantages([], normalise_std=True)
    with pytest.raises(ValueError, match="shape"):
        sibling_advantages([[1.0, 0.0]])
    with pytest.raises(NonFinite, match="grader"):
        sibling_advantages([1.0, float("nan")])


@pytest.mark.parametrize(
    ("rewards", "success", "mean_reward"),
    [([0.66] * 3, 0.0, 0.66), ([1.0, 0.5, 0.0, 0.5], 0.25, 0.5), ([1.0, 0.0], 0.5, 0.5), ([], None, None)],
)
def test_success_is_the_share_with_reward_1(
    rewards: list[float], success: float | None, mean_reward: float | None
) -> None:
    assert outcome(rewards) == {"success": success, "mean_reward": pytest.approx(mean_reward)}


def test_a_steps_success_and_mean_reward_are_those_of_its_first_paths() -> None:
    def call(*rewards: float, **terminations: int) -> dict[str, Any]:
        return {"graded": len(rewards), **outcome(rewards), "terminations": terminations}

    trunks, siblings = call(1.0, 0.5, 0.0, 0.5, answered=4), call(*[1.0] * 8, answered=8)
    grown = [call(1.0, answered=1, open=3), call(open=3), call(0.5, 0.5, 0.0, answered=2, turn_limit=1), siblings]
    for calls in ([trunks, siblings], grown):
        assert first_outcome(calls) == {"success": 0.25, "mean_reward": 0.5}
    assert first_outcome([call(open=2)]) == {"success": None, "mean_reward": None}


@pytest.mark.parametrize("siblings", [2, 3, 5])
def test_expected_sibling_advantage_is_shrunk_by_theorem_2(siblings: int) -> None:
    """E[A_j | S, u_j] = (G-2)/(G-1) A(S, u_j), with G - 1 siblings, on a two-armed bandit."""
    samples, probability, success = 12_000, 0.4, np.array([0.3, 0.8])
    random = np.random.default_rng(siblings)
    actions = (random.random((samples, siblings)) < probability).astype(int)
    actions[:, 0] = 1
    outcomes = (random.random((samples, siblings)) < success[actions]).astype(float)
    advantages = np.array([sibling_advantages(group)[0] for group in outcomes])
    true_advantage = success[1] - (probability * success[1] + (1 - probability) * success[0])
    expected = (siblings - 1) / siblings * true_advantage
    assert abs(advantages.mean() - expected) < 3 * advantages.std() / np.sqrt(samples)
    assert abs(advantages.mean() - true_advantage) > 3 * advantages.std() / np.sqrt(samples)
