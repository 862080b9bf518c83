"""The supplement's airline tables, from episodes made to have the supplement's own counts."""

from dataclasses import replace

import numpy as np
import pytest

from analysis.evaluation import Sample
from analysis.paper.quantities import EARLY_TURNS, ratio

TRUNKS = 32
# by step: success, ended failure, no signal, failed within 1, 2, 3, 5 turns (percent), turns of a success, of a failure
SUPPLEMENT = {
    10: (15.63, 46.88, 37.50, 3.13, 15.63, 21.88, 25.00, 4.40, 13.30),
    20: (37.50, 53.13, 9.38, 6.25, 15.63, 25.00, 40.63, 3.92, 7.30),
    30: (50.00, 46.88, 3.13, 9.38, 31.25, 34.38, 40.63, 1.88, 4.06),
    40: (56.25, 40.63, 3.13, 6.25, 25.00, 25.00, 31.25, 2.06, 5.50),
    50: (40.63, 59.38, 0.00, 9.38, 25.00, 37.50, 59.38, 1.92, 2.84),
}
ALL = {"success": 40.00, 1: 6.88, 2: 22.50, 3: 28.75, 5: 39.38, "no_signal": 10.63, "turns": 5.39}
PLAIN = Sample("0", False, 1, True, False, 100, 0, 0, 0, None, None, None)
SHARES = ("success", "ended_failed", "no_signal", *(f"failed_{k}" for k in EARLY_TURNS))


def lengths(count: int, mean: float, first: list[int]) -> list[int]:
    """`count` lengths with this mean, to two digits: `first`, and the rest as even as they can be."""
    left = round(count * mean) - sum(first)
    rest = count - len(first)
    return first + [left // rest + (n < left % rest) for n in range(rest)] if rest else first


def step(row: tuple[float, ...]) -> list[Sample]:
    """32 episodes with a step's counts."""
    success, ended, silent, *within = (round(share * TRUNKS / 100) for share in row[:7])
    early = [turns for turns, n in zip((1, 2, 3, 4), np.diff([0, *within]), strict=True) for _ in range(n)]
    if within[-1] == ended + silent:
        early = early[: within[-2]]
    wins = [replace(PLAIN, success=True, turns=n) for n in lengths(success, row[7], [])]
    losses = [replace(PLAIN, turns=n) for n in lengths(ended + silent, row[8], early)]
    return wins + losses[: len(losses) - silent] + [replace(e, ended=False) for e in losses[len(losses) - silent :]]


@pytest.mark.parametrize("number", SUPPLEMENT)
def test_the_failure_table(number: int) -> None:
    row, found = SUPPLEMENT[number], step(SUPPLEMENT[number])
    assert len(found) == TRUNKS
    assert [round(100 * ratio(name, found), 1) for name in SHARES] == pytest.approx(row[:7], abs=0.06)
    assert ratio("success_turns", found) == pytest.approx(row[7], abs=0.02)
    assert ratio("failed_turns", found) == pytest.approx(row[8], abs=0.02)


def test_the_table_of_all_trunks_is_that_of_the_steps_together() -> None:
    found = [episode for row in SUPPLEMENT.values() for episode in step(row)]
    assert len(found) == 160
    names = {"success": "success", "no_signal": "no_signal"} | {k: f"failed_{k}" for k in EARLY_TURNS}
    assert {key: 100 * ratio(name, found) for key, name in names.items()} == pytest.approx(
        {key: ALL[key] for key in names}, abs=0.01
    )
    assert ratio("turns", found) == pytest.approx(ALL["turns"], abs=0.005)


def test_passes_over_twenty_tasks() -> None:
    """RTPO's row of the supplement: 14 of 80, six tasks at least once, two always."""
    wins = [4, 4, 2, 2, 1, 1] + [0] * 14
    found = [replace(PLAIN, unit=str(task), success=n < won) for task, won in enumerate(wins) for n in range(4)]
    passes = [ratio(name, found) for name in ("pass_at_1", "pass_at_4", "pass_all_4")]
    assert passes == pytest.approx([0.175, 0.30, 0.10])
    assert np.isnan(ratio("pass_at_4", [PLAIN]))


def test_tools_as_the_supplement_counts_them() -> None:
    """GRPO's rows: 118 calls of which 68 ran, 2,469.7 tokens a reply of 80 episodes with 9 successes."""
    found = [replace(PLAIN, tokens=2470, success=n < 9) for n in range(79)] + [replace(PLAIN, tokens=2446)]
    found[0] = replace(found[0], attempted=118, executed=118, ok=68)
    assert ratio("execution", found) == pytest.approx(0.5763, abs=5e-5)
    assert ratio("calls_each", found) == pytest.approx(1.475)
    assert ratio("tokens_per_success", found) == pytest.approx(21952.9, abs=0.1)
    assert 1000 * ratio("successes_per_1k", found) == pytest.approx(0.046, abs=5e-4)


def test_rates_of_nothing_have_no_value() -> None:
    for name in ("execution", "tokens_per_success", "successes_per_1k", "success_turns"):
        assert np.isnan(ratio(name, [replace(PLAIN, tokens=0)]))
    assert np.isnan(ratio("failed_turns", [replace(PLAIN, success=True)]))
