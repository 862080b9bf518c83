"""Estimates with what seeds and questions add to them: known values and pairing."""

import itertools
import warnings

import numpy as np
import numpy.typing as npt
import pytest

from analysis.evaluation import Sample, part
from analysis.intervals import interval
from analysis.paper import formulas
from analysis.paper.estimates import (
    Cells,
    Estimate,
    combined,
    estimate,
    evaluate,
    exact,
    mean,
    p_value,
)
from analysis.paper.quantities import QUANTITIES, by_order, cells_of
from rtpo.errors import DataError


def shares(values: npt.ArrayLike, units: str = "questions a", scale: float = 1.0) -> Cells:
    """A share of each question, [seeds, questions]."""
    table = np.asarray(values, np.float64)
    return Cells(table, np.ones_like(table), tuple(range(len(table))), units, table.shape[1], scale, share=True)


def sample(unit: str, success: bool | None, tokens: int = 1, turns: int = 1) -> Sample:
    return Sample(unit, success, turns, True, False, tokens, 0, 0, 0, None, None, None)


def test_the_interval_is_that_of_runs_everywhere() -> None:
    random = np.random.default_rng(0)
    table = random.random((3, 40))
    found, of_table = estimate(shares(table)), interval(table)
    assert (found.value, *found.interval) == pytest.approx((of_table.mean, of_table.low, of_table.high))


def test_a_ratio_of_sums_has_the_textbook_error() -> None:
    # tokens a success: of half of the questions
    random = np.random.default_rng(0)
    tokens, solved = random.normal(100, 30, (1, 400)), np.tile([0.0, 1.0], 200)[None]
    found = estimate(Cells(tokens, solved, (0,), "questions a", 400))
    error = np.sqrt(((tokens - found.value * solved) ** 2).sum() / 399 / 400) / solved.mean()
    assert found.interval[1] - found.value == pytest.approx(1.966 * error, rel=1e-3)
    assert found.value == pytest.approx(200, abs=5)


def test_a_ratio_of_sums_is_not_a_mean_of_ratios() -> None:
    quantity = QUANTITIES["tokens_per_success"]
    run = [sample("a", True, 100), sample("a", True, 100), sample("b", False, 600), sample("b", True, 200)]
    found = estimate(cells_of(quantity, [run], (0,), "questions a"))
    assert found.value == pytest.approx(1000 / 3)
    nothing = estimate(cells_of(quantity, [[sample("a", False, 5)]], (0,), "questions a"))
    assert np.isinf(nothing.value)


def test_what_two_methods_share_cancels_in_their_difference() -> None:
    random = np.random.default_rng(0)
    table = random.random((3, 50))
    difference = estimate(shares(table + 0.125)) - estimate(shares(table))
    assert difference.value == pytest.approx(0.125)
    assert np.isnan(difference.interval[0])  # the same for every question and seed
    others = estimate(shares(table + 0.125)) - estimate(shares(table, "questions b"))
    assert others.interval[0] < 0.05 < 0.2 < others.interval[1]


def test_a_mean_of_benchmarks_has_the_parts_of_both() -> None:
    random = np.random.default_rng(0)
    one, other = (estimate(shares(random.random((3, 50)), f"questions {name}")) for name in "ab")
    both = mean(one, other)
    assert both.value == pytest.approx((one.value + other.value) / 2)
    assert one.parts is not None
    assert both.parts is not None
    assert both.parts["questions a", 50].to_numpy() == pytest.approx(one.parts["questions a", 50].to_numpy() / 2)
    assert (both.seeds, both.units) == (3, {"questions a": 50, "questions b": 50})
    assert mean(one, one, other).value == both.value


def test_answers_that_are_all_alike_have_wilsons_interval() -> None:
    assert estimate(shares(np.zeros((3, 10)), scale=100)).interval == pytest.approx((0, 27.75), abs=0.01)
    assert estimate(shares(np.ones((1, 10)))).interval == pytest.approx((0.7225, 1), abs=1e-4)
    assert np.isnan(estimate(shares(np.full((3, 10), 0.5))).interval).all()


def test_more_seeds_do_not_make_up_for_questions() -> None:
    questions = np.tile([0.0, 1.0], 50)
    widths = [np.diff(estimate(shares(np.stack([questions] * seeds))).interval)[0] for seeds in (1, 10)]
    assert widths[0] == pytest.approx(widths[1], abs=0.02)


def test_the_same_records_give_the_same_interval() -> None:
    cells = shares(np.random.default_rng(0).random((2, 30)))
    assert estimate(cells).interval == estimate(cells).interval


def test_samples_without_a_grade_are_left_out_and_counted() -> None:
    runs = [[sample("a", True), sample("a", None), sample("b", False)], [sample("a", None), sample("b", True)]]
    cells = cells_of(QUANTITIES["pass_at_1"], runs, (0, 1), "questions x")
    assert cells.above.tolist() == [[1, 0], [0, 1]]
    assert cells.below.tolist() == [[1, 1], [0, 1]]
    assert (cells.ungraded, cells.count, estimate(cells).value) == (2, 2, pytest.approx(200 / 3))


def test_runs_with_units_of_their_own_go_by_order() -> None:
    runs = [[sample("x", True), sample("y", False)], [sample("z", True)]]
    cells = cells_of(QUANTITIES["success"], [by_order(run) for run in runs], (0, 1), "prompts")
    assert cells.above.tolist() == [[1, 0], [1, 0]]
    assert cells.below.tolist() == [[1, 1], [1, 0]]


def test_parts_are_in_order_and_as_equal_as_can_be() -> None:
    given = [sample(str(i), None if i == 3 else True) for i in range(12)]
    parts = [[one.unit for one in part(given, place, 5)] for place in range(1, 6)]
    assert list(itertools.chain(*parts)) == [one.unit for one in given if one.success is not None]
    assert [len(one) for one in parts] == [2, 2, 3, 2, 2]


def test_a_formula() -> None:
    values = {"a": exact(3), "b.c": exact(4)}
    assert formulas.names("mean(a, b.c) - (a / 2)") == ["a", "b.c"]
    assert evaluate("mean(a, b.c) - (a / 2)", values.__getitem__).value == 2
    assert evaluate("relative(b.c, a)", values.__getitem__).value == pytest.approx(100 / 3)
    assert evaluate("total(a, b.c, a)", values.__getitem__).value == 7
    for formula in ("a ** 2", "least(a, b.c)", "a if a else b", "'a'"):
        with pytest.raises(DataError, match=r"only \+ - \* / and mean"):
            evaluate(formula, lambda name: exact(1))
    with pytest.raises(DataError, match="cannot be read"):
        formulas.names("a +")


def test_a_p_value_is_where_the_interval_begins_to_hold_0() -> None:
    random = np.random.default_rng(3)
    for shift in (0.0, 0.1, 0.2):
        table = random.random((3, 40)) - 0.5 + shift
        found = estimate(Cells(table, np.ones_like(table), (0, 1, 2), "questions a", 40))
        p = p_value(found)
        assert found.half_width(1 - p) == pytest.approx(abs(found.value), rel=1e-3)
        assert (p < 0.05) == (not found.interval[0] <= 0 <= found.interval[1])
        assert p_value(exact(0) - found) == pytest.approx(p, abs=1e-4)


def test_one_seed_has_no_p_value() -> None:
    right, wrong = (estimate(shares(np.full((1, 30), share))) for share in (1.0, 0.0))
    assert np.isnan(p_value(right - wrong))
    assert np.isnan(p_value(estimate(shares(np.random.default_rng(0).random((1, 30)))) - exact(0.1)))
    assert np.isnan(p_value(exact(1)))


def test_seeds_that_all_differ_alike_have_the_sign_test() -> None:
    right, wrong = (estimate(shares(np.full((4, 30), share))) for share in (1.0, 0.0))
    assert p_value(right - wrong) == p_value(wrong - right) == 1 / 8
    assert p_value(right - right) == 1


def test_a_seed_that_one_method_lacks_counts_for_the_other() -> None:
    random = np.random.default_rng(0)
    table = random.random((3, 40))
    one, other = estimate(shares(table)), estimate(shares(table[:2]))
    assert (one - other).seeds == 2
    assert (one - other).interval[0] < 0 < (one - other).interval[1]


def test_a_number_without_a_bound_has_no_interval_and_no_warning() -> None:
    solved = np.zeros((1, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = estimate(Cells(solved + 1, solved, (0,), "questions a", 5))
        assert np.isinf(found.value)
        assert np.isnan(found.interval).all()


def test_exact_numbers_stay_exact_until_they_meet_a_random_one() -> None:
    assert (exact(3) - exact(2)).is_exact
    assert not combined(np.multiply, exact(2), estimate(shares([[0.0, 1.0]]))).is_exact
    half: Estimate = exact(1) / exact(2)
    assert (half.value, np.isnan(half.interval).all()) == (0.5, True)
