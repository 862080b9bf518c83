"""Intervals with known answers."""

import numpy as np
import pytest

from analysis.intervals import bootstrap_difference, bootstrap_mean, wilson


def coverage(runs: int, seed_sd: float, question_sd: float, trials: int = 400) -> float:
    """Share of intervals that hold the true mean success of .5."""
    random = np.random.default_rng(1)
    held = 0
    for trial in range(trials):
        chance = 0.5 + random.normal(0, seed_sd, (runs, 1)) + random.normal(0, question_sd, 60)
        interval = bootstrap_mean(random.random((runs, 60)) < chance, draws=400, seed=trial)
        held += interval.low <= 0.5 <= interval.high
    return held / trials


def test_one_run_covers_questions_as_it_should() -> None:
    assert coverage(runs=1, seed_sd=0, question_sd=0.2) == pytest.approx(0.95, abs=0.03)


def test_many_runs_cover_seeds_and_questions() -> None:
    assert coverage(runs=10, seed_sd=0.1, question_sd=0.2) == pytest.approx(0.96, abs=0.035)


def test_one_run_is_the_usual_interval_over_questions() -> None:
    values = np.repeat([0.0, 1.0], [150, 50])[None]
    interval = bootstrap_mean(values)
    half = 1.96 * np.sqrt(0.25 * 0.75 / 200)
    assert (interval.mean, interval.runs, interval.questions) == (0.25, 1, 200)
    assert interval.low == pytest.approx(0.25 - half, abs=0.006)
    assert interval.high == pytest.approx(0.25 + half, abs=0.006)


def test_runs_that_differ_widen_the_interval() -> None:
    questions = np.tile([0.0, 1.0], 100)
    alike = bootstrap_mean(np.stack([questions] * 3))
    apart = bootstrap_mean(np.stack([questions - 0.3, questions, questions + 0.3]))
    assert alike.mean == pytest.approx(apart.mean) == 0.5
    assert apart.high - apart.low > 2 * (alike.high - alike.low)
    assert (apart.runs, apart.questions) == (3, 200)


def test_more_runs_do_not_make_up_for_questions() -> None:
    questions = np.tile([0.0, 1.0], 50)
    one, ten = bootstrap_mean(questions[None]), bootstrap_mean(np.stack([questions] * 10))
    assert ten.high - ten.low == pytest.approx(one.high - one.low, abs=0.02)


def test_a_pair_cancels_what_its_questions_share() -> None:
    random = np.random.default_rng(0)
    before = random.random((3, 100))
    shifted = bootstrap_difference(before, before + 0.125)
    assert (shifted.mean, shifted.low, shifted.high) == pytest.approx((0.125, 0.125, 0.125))
    noisy = bootstrap_difference(before, before + 0.1 + random.normal(0, 0.05, before.shape))
    assert 0.05 < noisy.low < noisy.mean < noisy.high < 0.15


def test_the_same_values_give_the_same_interval() -> None:
    values = np.random.default_rng(0).random((2, 30))
    assert bootstrap_mean(values) == bootstrap_mean(values)
    assert bootstrap_mean(values, seed=1) != bootstrap_mean(values)


def test_strata_keep_what_they_differ_in_out_of_the_interval() -> None:
    random = np.random.default_rng(0)
    low = 0.2 + random.normal(0, 0.01, (3, 50))
    values, strata = np.concatenate([low, low + 0.5]), ["a"] * 3 + ["b"] * 3
    mixed, apart = bootstrap_mean(values), bootstrap_mean(values, strata=strata)
    assert mixed.mean == apart.mean
    assert apart.high - apart.low < 0.02 < 0.2 < mixed.high - mixed.low
    turned = [0, 3, 1, 4, 2, 5]
    again = bootstrap_mean(values[turned], strata=[strata[place] for place in turned])
    assert (again.low, again.high) == pytest.approx((apart.low, apart.high), abs=1e-3)
    single = bootstrap_mean(values[:, :1], strata=range(6))
    assert (single.low, single.high) == pytest.approx((single.mean, single.mean))
    with pytest.raises(ValueError, match="6 runs need as many strata, got 2"):
        bootstrap_mean(values, strata=["a", "b"])


def test_wilson() -> None:
    assert wilson(0.0, 10) == pytest.approx((0, 0.2775), abs=1e-4)
    assert wilson(1.0, 10) == pytest.approx((0.7225, 1), abs=1e-4)
    assert wilson(0.5, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    with pytest.raises(ValueError, match="0 answers"):
        wilson(0.5, 0)


def test_what_is_not_a_full_table_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        bootstrap_mean([1, 2, 3])
    with pytest.raises(ValueError, match=r"shape \(2, 0\)"):
        bootstrap_mean(np.zeros((2, 0)))
    with pytest.raises(ValueError, match="1 values are missing"):
        bootstrap_mean([[1.0, float("nan")]])
    with pytest.raises(ValueError, match="one shape"):
        bootstrap_difference(np.zeros((1, 3)), np.zeros((2, 3)))
