"""Intervals with known answers."""

import numpy as np
import pandas as pd
import pytest
from test_fair_by_hand import half_width

from analysis.stats import Interval, holm, interval, over_seeds, p_value, together, verdict, wilson


def test_one_run_is_the_usual_interval_over_questions() -> None:
    values = np.repeat([0.0, 1.0], [150, 50])[None]
    found = interval(values)
    half = 1.972 * np.sqrt(0.25 * 0.75 / 199)
    assert (found.mean, found.runs, found.questions) == (0.25, 1, 200)
    assert (found.low, found.high) == pytest.approx((0.25 - half, 0.25 + half), abs=1e-4)


def test_single_values_have_the_t_interval() -> None:
    found = interval([[1.0], [2.0], [6.0]])
    half = 4.3027 * np.sqrt(7 / 3)
    assert found.mean == 3.0
    assert (found.low, found.high) == pytest.approx((3 - half, 3 + half), abs=1e-3)


@pytest.mark.parametrize(
    ("values", "mean", "half"), [([1, 2, 6], 3.0, 4.3027 * (7 / 3) ** 0.5), ([1, 3], 2.0, 12.7062)]
)
def test_a_number_a_seed_has_the_t_interval(values: list[float], mean: float, half: float) -> None:
    for found in (over_seeds(values), interval(np.array(values)[:, None])):
        assert (found.mean, found.low, found.high) == pytest.approx((mean, mean - half, mean + half), abs=1e-3)
    assert np.isnan(over_seeds(values[:1]).low)


@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_the_interval_is_that_computed_by_pandas(spread: float) -> None:
    random, strata = np.random.default_rng(1), ["a", "a", "a", "b", "b"]
    values = random.normal(random.normal(0, spread, 40), 0.2, (5, 40)) + random.normal(0, 0.05, (5, 1))
    table = pd.DataFrame(values, pd.MultiIndex.from_arrays([strata, range(5)]))
    found = interval(values, strata=strata)
    assert found.high - found.mean == pytest.approx(half_width(table))


def test_noise_of_answers_is_counted_once() -> None:
    # what other questions would change is nothing here: the interval is that over runs
    random = np.random.default_rng(4)
    values = (random.random((10, 400)) < 0.5).astype(float)
    found, runs = interval(values), interval(values.mean(axis=1, keepdims=True))
    assert runs.high - runs.low - 1e-12 <= found.high - found.low < 1.25 * (runs.high - runs.low)


def test_strata_keep_what_they_differ_in_out_of_the_interval() -> None:
    random = np.random.default_rng(0)
    low = 0.2 + random.normal(0, 0.01, (3, 50))
    values, strata = np.concatenate([low, low + 0.5]), ["a"] * 3 + ["b"] * 3
    mixed, apart = interval(values), interval(values, strata=strata)
    assert mixed.mean == apart.mean
    assert apart.high - apart.low < 0.02 < 0.2 < mixed.high - mixed.low
    turned = [0, 3, 1, 4, 2, 5]
    again = interval(values[turned], strata=[strata[place] for place in turned])
    assert (again.low, again.high) == pytest.approx((apart.low, apart.high))
    # 4 degrees of freedom are left of the 6 values 0, 2, 4 and 10, 12, 14
    few = interval([[0.0], [2.0], [4.0], [10.0], [12.0], [14.0]], strata=strata)
    assert few.high - few.mean == pytest.approx(2.7764 * np.sqrt(16 / 4 / 6), abs=1e-3)
    with pytest.raises(ValueError, match="6 runs need as many strata, got 2"):
        interval(values, strata=["a", "b"])


def test_runs_without_a_partner_say_nothing_of_other_seeds() -> None:
    random = np.random.default_rng(0)
    found = interval(random.random((3, 50)), strata=range(3))
    assert found.low < found.high
    assert np.isnan(interval(random.random((3, 1)), strata=range(3)).low)


def test_wilson() -> None:
    assert wilson(0.0, 10) == pytest.approx((0, 0.2775), abs=1e-4)
    assert wilson(1.0, 10) == pytest.approx((0.7225, 1), abs=1e-4)
    assert wilson(1 / 3, 30) == pytest.approx((0.192, 0.512), abs=1e-3)
    assert wilson(0.5, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    with pytest.raises(ValueError, match="0 answers"):
        wilson(0.5, 0)


def test_what_is_not_a_full_table_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        interval([1, 2, 3])
    with pytest.raises(ValueError, match=r"shape \(2, 0\)"):
        interval(np.zeros((2, 0)))
    with pytest.raises(ValueError, match="whole"):
        interval([[1.0, float("nan")]])


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.4, 0.9]) == [0.8, 0.9]
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_a_p_value_is_one_less_the_level_of_the_interval_that_ends_at_0() -> None:
    values = np.array([[1.0], [2.0], [6.0]])
    # t = 3 / sqrt(7 / 3) with 2 degrees of freedom
    assert p_value([values / 3], [0, 0, 0]) == pytest.approx(0.1885, abs=1e-4)
    assert p_value([-values / 3], [0, 0, 0]) == pytest.approx(0.1885, abs=1e-4)
    assert np.isnan(p_value([values[:1]], [0]))


@pytest.mark.parametrize(
    ("low", "high", "runs", "slack", "word"),
    [
        (0.1, 0.3, 10, None, "supported"),
        (-0.3, -0.1, 10, None, "contradicted"),
        (-0.1, 0.3, 10, None, "undecided"),
        (0.1, 0.3, 2, None, "undecided"),
        (0.1, 0.3, 3, None, "supported"),
        (-0.01, 0.01, 10, 0.05, "supported"),
        (0.2, 0.4, 10, 0.05, "contradicted"),
        (-0.2, 0.2, 10, 0.05, "undecided"),
    ],
)
def test_the_one_rule(low: float, high: float, runs: int, slack: float | None, word: str) -> None:
    assert verdict(Interval((low + high) / 2, low, high, runs, 1), runs=runs, slack=slack) == word


def test_a_claim_of_several_parts() -> None:
    assert together(["supported", "supported"]) == "supported"
    assert together(["supported", "undecided", "contradicted"]) == "contradicted"
    assert together(["supported", "undecided"]) == together([]) == "undecided"
