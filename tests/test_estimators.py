"""pass@k, pass^k and avg@k: tables made by hand, and what they mean."""

from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtpo.errors import DataError
from rtpo.evaluation.estimators import SampleCounts, avg_at_k, count_samples, pass_at_k, pass_hat_k


def counts(*pairs: tuple[int, int]) -> SampleCounts:
    """Of questions with n samples, c of them right."""
    return count_samples({f"q{i}": [1.0] * c + [0.0] * (n - c) for i, (n, c) in enumerate(pairs)})


HAND = [
    # n, c, k, pass@k, pass^k
    (4, 0, 4, 0, 0),
    (4, 1, 4, 1, 0),
    (4, 3, 4, 1, 0),
    (4, 4, 4, 1, 1),
    (4, 2, 1, 1 / 2, 1 / 2),
    (4, 2, 2, 1 - 1 / 6, 1 / 6),
    (4, 1, 2, 1 / 2, 0),
    (4, 3, 2, 1, 1 / 2),
    (5, 2, 3, 1 - 1 / 10, 0),
    (16, 8, 4, 1 - 70 / 1820, 70 / 1820),
    (16, 1, 4, 1 / 4, 0),
    (1, 1, 1, 1, 1),
]


@pytest.mark.parametrize(("n", "c", "k", "any_of", "all_of"), HAND)
def test_a_table_made_by_hand(n: int, c: int, k: int, any_of: float, all_of: float) -> None:
    assert pass_at_k(counts((n, c)), k).mean == pytest.approx(any_of, abs=1e-12)
    assert pass_hat_k(counts((n, c)), k).mean == pytest.approx(all_of, abs=1e-12)
    assert avg_at_k(counts((n, c)), k).mean == pytest.approx(c / n)


def test_a_mean_is_over_questions_and_keeps_them() -> None:
    """Questions with different n count alike."""
    three = counts((4, 2), (8, 8), (2, 0))
    estimate = pass_at_k(three, 2)
    assert estimate.values == pytest.approx([5 / 6, 1, 0])
    assert estimate.mean == pytest.approx((5 / 6 + 1 + 0) / 3)
    assert pass_hat_k(three, 2).values == pytest.approx([1 / 6, 1, 0])
    assert avg_at_k(three, 2).values == pytest.approx([1 / 2, 1, 0])
    assert [each(three, 2).name for each in (pass_at_k, pass_hat_k, avg_at_k)] == ["pass@2", "pass^2", "avg@2"]


def test_what_could_not_be_graded_is_no_sample_and_is_told() -> None:
    given = count_samples({"a": [1, None, 0], "b": [None, 1, 1]})
    assert given.questions == ("a", "b")
    assert (given.graded.tolist(), given.right.tolist(), given.ungradable.tolist()) == ([2, 2], [1, 2], [1, 1])
    estimate = pass_at_k(given, 1)
    assert (estimate.values.tolist(), estimate.ungradable) == ([0.5, 1.0], 2)
    with pytest.raises(
        DataError, match=r"pass@3 takes k = 3 .* 'a' has n = 2 \(1 could not be graded\); so have 2 of 2"
    ):
        pass_at_k(given, 3)


@pytest.mark.parametrize("estimator", [pass_at_k, pass_hat_k, avg_at_k])
def test_more_samples_than_there_are_cannot_be_asked_for(estimator: object) -> None:
    with pytest.raises(DataError, match=r"k = 4 .* question 'q1' has n = 3 .* so have 1 of 2 questions"):
        estimator(counts((4, 1), (3, 1)), 4)  # type: ignore[operator]
    with pytest.raises(DataError, match="k is 0"):
        estimator(counts((4, 1)), 0)  # type: ignore[operator]
    with pytest.raises(DataError, match=r"k = 1 .* has n = 0 \(1 could not be graded\)"):
        estimator(count_samples({"a": [None]}), 1)  # type: ignore[operator]


def test_rewards_between_0_and_1_are_no_successes() -> None:
    with pytest.raises(DataError, match=r"question 'a' has a reward of 0\.5"):
        count_samples({"a": [1.0, 0.5]})
    with pytest.raises(DataError, match="no questions"):
        count_samples({})


@settings(deadline=None)
@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_estimates_are_means_over_all_ways_to_take_k(case: tuple[int, int, int]) -> None:
    n, c, k = case
    draws = list(combinations([1] * c + [0] * (n - c), k))
    assert pass_at_k(counts((n, c)), k).mean == pytest.approx(np.mean([max(draw) for draw in draws]))
    assert pass_hat_k(counts((n, c)), k).mean == pytest.approx(np.mean([min(draw) for draw in draws]))
    assert avg_at_k(counts((n, c)), k).mean == pytest.approx(np.mean([np.mean(draw) for draw in draws]))
    assert not np.signbit(pass_hat_k(counts((n, c)), k).values).any()  # -0.0 would be printed so


def test_large_counts_are_exact() -> None:
    """Binomials of hundreds of samples are beyond floating point; their quotient is not."""
    n, c, k = 2000, 700, 500
    many = counts((n, c))
    assert pass_hat_k(many, k).mean == pytest.approx(comb(c, k) / comb(n, k), rel=1e-9)
    assert pass_at_k(counts((n, 1)), k).mean == pytest.approx(k / n, rel=1e-9)
