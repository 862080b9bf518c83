"""Estimates with what seeds and questions add to them: known values and pairing."""

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from analysis.paper.estimates import Estimate, ratio
from analysis.paper.formulas import evaluate
from analysis.stats import interval


def shares(values: npt.ArrayLike, units: str = "questions a", *, is_share: bool = True) -> Estimate:
    """Of a share of each question, [seeds, questions]."""
    table = pd.DataFrame(np.asarray(values, np.float64))
    return ratio(table, 0 * table + 1, units, is_share=is_share)


def ends(estimate: Estimate) -> tuple[float, float]:
    return estimate.interval.low, estimate.interval.high


def test_the_interval_is_that_of_runs_everywhere() -> None:
    table = np.random.default_rng(0).random((3, 40))
    of_table = interval(table)
    assert ends(shares(table)) == pytest.approx((of_table.low, of_table.high))


def test_a_ratio_of_sums_has_the_textbook_error() -> None:
    # tokens a success: of half of the questions
    random = np.random.default_rng(0)
    tokens, solved = random.normal(100, 30, (1, 400)), np.tile([0.0, 1.0], 200)[None]
    ours = ratio(pd.DataFrame(tokens), pd.DataFrame(solved), "questions a")
    error = np.sqrt(((tokens - ours.value * solved) ** 2).sum() / 399 / 400) / solved.mean()
    assert ours.interval.high - ours.value == pytest.approx(1.966 * error, rel=1e-3)


def test_what_two_methods_share_cancels_in_their_difference() -> None:
    table = np.random.default_rng(0).random((3, 50))
    difference = shares(table + 0.125) - shares(table)
    assert difference.value == pytest.approx(0.125)
    assert np.isnan(difference.interval.low)  # the same for every question and seed
    other = shares(table + 0.125) - shares(table, "questions b")
    assert other.interval.low < 0.05 < 0.2 < other.interval.high


@pytest.mark.parametrize(
    "formula", ["a - b", "b - a", "a * b", "a / b", "b / a", "relative(a, b)", "mean(a, b, a)", "max(a, b) - a / 2"]
)
def test_parts_follow_the_formula_to_first_order(formula: str) -> None:
    """What each seed and question adds is multiplied by how the number moves with what is estimated."""
    estimated = shares(np.random.default_rng(1).uniform(0.5, 1, (2, 20)), is_share=False)

    def of(a: Estimate) -> Estimate:
        return evaluate(formula, {"a": a, "b": Estimate(0.6)}.__getitem__)

    slope = (of(Estimate(estimated.value + 1e-6)).value - of(Estimate(estimated.value)).value) / 1e-6
    parts, own = of(estimated).parts, estimated.parts
    assert parts is not None
    assert own is not None
    assert parts.to_numpy() == pytest.approx(slope * own.to_numpy(), rel=1e-3)
