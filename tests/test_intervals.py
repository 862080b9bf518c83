"""Intervals with known answers."""

import numpy as np
import pytest

from analysis.intervals import bootstrap_difference, bootstrap_mean, fisher, holm, newcombe, wilson


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
    assert wilson(1 / 3, 30) == pytest.approx((0.192, 0.512), abs=1e-3)
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


@pytest.mark.parametrize(
    ("counts", "p"),
    [
        ((10, 30, 6, 30), 0.3817),
        ((10, 30, 3, 30), 0.0575),
        ((30, 103, 24, 103), 0.4285),
        ((15, 100, 8, 100), 0.1827),
        ((3, 4, 1, 4), 34 / 70),  # the lady tasting tea, two-sided
        ((4, 4, 0, 4), 2 / 70),
        ((5, 10, 5, 10), 1.0),
        ((0, 7, 0, 3), 1.0),
    ],
)
def test_fisher(counts: tuple[int, int, int, int], p: float) -> None:
    assert fisher(*counts) == pytest.approx(p, abs=1e-4)
    assert fisher(counts[2], counts[3], counts[0], counts[1]) == pytest.approx(fisher(*counts))


@pytest.mark.parametrize(
    ("counts", "low", "high"),
    # Newcombe 1998, table II, method 10
    [
        ((56, 70, 48, 80), 0.0524, 0.3339),
        ((9, 10, 3, 10), 0.1705, 0.8090),
        ((6, 7, 2, 7), 0.0582, 0.8062),
        ((5, 56, 0, 29), -0.0381, 0.1926),
        ((0, 10, 0, 20), -0.1611, 0.2775),
        ((10, 10, 0, 20), 0.6791, 1.0),
    ],
)
def test_newcombe(counts: tuple[int, int, int, int], low: float, high: float) -> None:
    assert newcombe(*counts) == pytest.approx((low, high), abs=1e-4)


def test_counts_that_cannot_be_are_refused() -> None:
    for function in (fisher, newcombe):
        with pytest.raises(ValueError, match="11 of 10 is no share"):
            function(1, 10, 11, 10)
        with pytest.raises(ValueError, match="0 of 0 is no share"):
            function(0, 0, 1, 10)


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.4, 0.9]) == [0.8, 0.9]
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []
