"""The supplement's airline tables, from episodes made to have the supplement's own counts."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

from analysis.paper import metrics
from analysis.paper.metrics import AUDIT, COLUMNS, QA

PLAIN = {**dict.fromkeys(COLUMNS, 0.0), "unit": "0", "success": 0.0, "turns": 1.0, "ended": 1.0, "tokens": 100.0}
SHARES = ("success", "ended_failed", "no_signal", *(f"failed_{k}" for k in (1, 2, 3, 5)))


def value_of(name: str, samples: Sequence[dict[str, object]]) -> float:
    frame = pd.DataFrame([PLAIN | sample for sample in samples])
    return metrics.value_of(name, frame.assign(**dict.fromkeys((*QA, *AUDIT), float("nan"))))


def test_the_failure_table() -> None:
    """Its first step: of 32 trunks 5 succeed, 15 end and fail, 12 give no signal; 1, 5, 7 and 8 fail within 1, 2, 3 and
    5 turns; a success takes 4.40 turns, a failure 13.30."""
    turns = [1, 2, 2, 2, 2, 3, 3, 4, *[17] * 2, *[18] * 17]
    lost = [{"turns": k, "ended": float(place < 15)} for place, k in enumerate(turns)]
    won = [{"turns": k, "success": 1.0} for k in (4, 4, 4, 5, 5)]
    shares = [round(100 * value_of(name, [*won, *lost]), 2) for name in SHARES]
    assert shares == pytest.approx([15.63, 46.88, 37.50, 3.13, 15.63, 21.88, 25.00], abs=0.02)
    assert value_of("success_turns", [*won, *lost]) == pytest.approx(4.40)
    assert value_of("failed_turns", [*won, *lost]) == pytest.approx(13.30, abs=0.04)


def test_passes_over_twenty_tasks() -> None:
    """RTPO's row of the supplement: 14 of 80, six tasks at least once, two always."""
    wins = [4, 4, 2, 2, 1, 1] + [0] * 14
    found = [{"unit": str(task), "success": float(n < won)} for task, won in enumerate(wins) for n in range(4)]
    assert [value_of(name, found) for name in ("pass_at_1", "pass_at_4", "pass_all_4")] == pytest.approx(
        [0.175, 0.3, 0.1]
    )
    assert np.isnan(value_of("pass_at_4", [{}]))


def test_tools_as_the_supplement_counts_them() -> None:
    """GRPO's rows: 118 calls of which 68 ran, 2,469.7 tokens a reply of 80 episodes with 9 successes."""
    found = [{"tokens": 2470 - 24 * (n == 79), "success": float(n < 9)} for n in range(80)]
    found[0] |= {"attempted": 118, "executed": 118, "ok": 68}
    values = [value_of(name, found) for name in ("execution", "calls_each", "tokens_per_success", "successes_per_1k")]
    assert values == pytest.approx([0.5763, 1.475, 21952.9, 0.046], rel=0.01)


def test_rates_of_nothing_have_no_value() -> None:
    for name in ("execution", "tokens_per_success", "successes_per_1k", "success_turns"):
        assert np.isnan(value_of(name, [{"tokens": 0}]))
    assert np.isnan(value_of("failed_turns", [{"success": 1.0}]))
