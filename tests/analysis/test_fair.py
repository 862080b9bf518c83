"""The verdicts of the study `fair`; its numbers are computed anew in test_fair_by_hand.py."""

from dataclasses import replace

import pytest

from analysis.fair import Comparison, estimates
from analysis.stats import Interval, holm

OF = Comparison("rtpo", "grpo_exact", ("walk_early",), 0.1, 0.3, in_family=True)


@pytest.mark.parametrize(
    ("low", "high", "p", "adjusted", "has_room", "verdict", "is_covered"),
    [
        (0.1, 0.3, 0.01, None, True, "above", True),
        (-0.3, -0.1, 0.001, 0.01, True, "below", False),
        (0.01, 0.3, 0.01, 0.06, True, "undecided", True),
        (0.01, 0.04, 0.01, 0.01, True, "undecided", False),
        (0.01, 0.02, 0.01, 0.01, True, "level", False),
        (0.1, 0.3, 0.01, 0.01, False, "no room", True),
    ],
)
def test_verdicts(
    low: float, high: float, p: float, adjusted: float | None, has_room: bool, verdict: str, is_covered: bool
) -> None:
    """By the adjusted p where there is one; a difference of less than 3 points is of no interest."""
    here = Interval((low + high) / 2, low, high, 10, 300)
    found = replace(OF, here=here, elsewhere=here, p=p, adjusted=adjusted, has_room=has_room)
    assert (found.verdict, found.is_covered) == (verdict, is_covered)


def test_holm_adjusts_the_family_alone() -> None:
    family = [each for each in estimates() if each.in_family]
    assert [each.adjusted for each in family] == holm([each.p for each in family])
    assert {each.adjusted for each in estimates() if not each.in_family} == {None}
