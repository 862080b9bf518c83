"""The supplement's airline tables, from episodes made to have the supplement's own counts."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import pytest

from analysis.paper import metrics
from analysis.paper.metrics import AUDIT, COLUMNS, QA

PLAIN = {**dict.fromkeys(COLUMNS, 0.0), "unit": "0", "success": 0.0, "turns": 1.0, "ended": 1.0, "tokens": 100.0}


def check(samples: Sequence[dict[str, Any]], **expected: float) -> None:
    frame = pd.DataFrame([PLAIN | sample for sample in samples]).assign(**dict.fromkeys((*QA, *AUDIT), float("nan")))
    values = {name: metrics.value_of(name, frame) for name in expected}
    assert values == pytest.approx(expected, rel=0.003, abs=0.0002, nan_ok=True)


def test_the_failure_table() -> None:
    """Its first step: of 32 trunks 5 succeed, 15 end and fail, 12 give no signal; 1, 5, 7 and 8 fail within 1, 2, 3 and
    5 turns; a success takes 4.40 turns, a failure 13.30."""
    turns = [1, 2, 2, 2, 2, 3, 3, 4, *[17] * 2, *[18] * 17]
    lost = [{"turns": k, "ended": float(place < 15)} for place, k in enumerate(turns)]
    samples = [*lost, *({"turns": k, "success": 1.0} for k in (4, 4, 4, 5, 5))]
    check(samples, success=0.1563, ended_failed=0.4688, no_signal=0.375, success_turns=4.4, failed_turns=13.3)
    check(samples, failed_1=0.0313, failed_2=0.1563, failed_3=0.2188, failed_5=0.25)
    check(samples[:1], success_turns=float("nan"))


def test_passes_over_twenty_tasks_and_tools() -> None:
    """RTPO's row: 14 of 80, six tasks at least once, two always. GRPO's: 118 calls of which 68 ran, 2,469.7 tokens a
    reply of 80 episodes with 9 successes."""
    wins = [4, 4, 2, 2, 1, 1] + [0] * 14
    samples = [{"unit": str(task), "success": float(n < won)} for task, won in enumerate(wins) for n in range(4)]
    check(samples, pass_at_1=0.175, pass_at_4=0.3, pass_all_4=0.1)
    samples = [{"tokens": 2470 - 24 * (n == 79), "success": float(n < 9)} for n in range(80)]
    samples[0] |= {"attempted": 118, "executed": 118, "ok": 68}
    check(samples, execution=0.5763, calls_each=1.475, tokens_per_success=21952.9, successes_per_1k=0.0456)
