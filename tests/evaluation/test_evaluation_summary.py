"""An evaluation's figures, on lines made by hand."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.metrics import pass_at_k, pass_hat_k
from analysis.summary import QA_SCORES, summarise, table
from analysis.tables import NO_VALUE

LINE = {"turns": 2, "cut_turns": 0, "generated_tokens": 10, "calls": {}, "retries": 0, "seconds": 1.0, "qa": None}


def line(position: int, sample: int, reward: float | None, **facts: Any) -> dict[str, Any]:
    graded = {"grade": "ungradable", "detail": "no verdict"} if reward is None else {"grade": "graded", "detail": ""}
    of = {"position": position, "uid": f"q{position}", "sample": sample, "reward": reward, "termination": "answered"}
    return {**LINE, **of, **graded, **facts}


def panel(*rewards: list[float | None]) -> list[dict[str, Any]]:
    return [line(p, s, reward) for p, of_question in enumerate(rewards) for s, reward in enumerate(of_question)]


def test_pass_at_1_k_and_hat_k_on_a_table_made_by_hand() -> None:
    summary = summarise(panel([1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]), ks=(1, 2, 4))
    first = (2 / 4 + 1 / 4 + 0 + 1) / 4
    assert (summary["questions"], summary["samples"], summary["notes"]) == (4, 16, [])
    assert (summary["pass@1"], summary["reward"]) == pytest.approx((first, first))
    # 1 - C(n - c, 2) / C(4, 2), and C(c, 2) / C(4, 2)
    assert summary["pass@k"] == pytest.approx({"1": first, "2": (5 / 6 + 3 / 6 + 0 + 1) / 4, "4": (1 + 1 + 0 + 1) / 4})
    assert summary["pass^k"] == pytest.approx({"1": first, "2": (1 / 6 + 0 + 0 + 1) / 4, "4": (0 + 0 + 0 + 1) / 4})
    low, high = summary["pass@1_interval"]
    assert 0 <= low < first < high <= 1


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_estimates_are_means_over_all_ways_to_take_k(case: tuple[int, int, int]) -> None:
    n, c, k = case
    draws = list(combinations([1] * c + [0] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(np.mean([max(draw) for draw in draws]))
    assert pass_hat_k(n, c, k) == pytest.approx(np.mean([min(draw) for draw in draws]))


def test_lines_may_come_in_any_order_and_alike_questions_have_wilsons_interval() -> None:
    lines = panel([1, 0], [0, 0], [1, 1])
    assert summarise(lines[::-1], (1, 2)) == summarise(lines, (1, 2))
    assert summarise(panel(*[[1, 1]] * 10), (1,))["pass@1_interval"] == pytest.approx([0.7225, 1], abs=1e-4)


def test_scores_tokens_turns_calls_ends_cuts_retries_are_means_over_questions() -> None:
    python = {"attempted": 3, "executed": 2, "failed": 1}
    scores = [dict.fromkeys(QA_SCORES, score) for score in (1, 0.5, 0)]
    lines = [
        line(0, 0, 1, generated_tokens=30, turns=3, calls={"python": python, "none": python}, retries=2, qa=scores[0]),
        line(0, 1, 0, termination="turn_limit", cut_turns=2, seconds=3.0, qa=scores[1]),
        line(1, 0, 0, calls={"python": python}, termination="context_limit", qa=scores[2]),
        line(1, 1, 0),
    ]
    summary = summarise(lines, (1,))
    assert (summary["generated_tokens"], summary["turns"], summary["seconds"]) == (15, 2.25, 1.5)
    assert summary["calls"] == {"none": python, "python": {key: 2 * count for key, count in python.items()}}
    assert summary["terminations"] == {"answered": 2, "turn_limit": 1, "context_limit": 1}
    assert (summary["cut"], summary["retries"]) == (0.25, 2)
    assert summary["qa"] == dict.fromkeys(QA_SCORES, (0.75 + 0) / 2)
    assert summarise(panel([1]), (1,))["qa"] is None


def test_what_could_not_be_graded_is_left_out_and_alarms() -> None:
    summary = summarise(panel([1, None], [0, 1]), (1, 2))
    assert summary["pass@1"] == pytest.approx((1 + 0.5) / 2)
    assert (summary["ungradable"], summary["ungradable_share"]) == (1, 0.25)
    assert summary["alarm"]
    assert (summary["pass@k"]["2"], summary["pass^k"]["2"]) == (1, 0)
    (note,) = summary["notes"]
    assert "q0" in note  # it has fewer graded samples than k
    nothing = summarise(panel([None, None]), (1,))
    assert nothing["pass@1"] is nothing["pass@1_interval"] is nothing["reward"] is None
    assert NO_VALUE in table({"set": nothing}, {"set": "temperature 1"})


def test_fractional_rewards_have_a_mean_and_no_pass_at_k() -> None:
    summary = summarise(panel([0.5, 1], [0, 0.25]), (1,))
    assert (summary["reward"], summary["pass@1"]) == (pytest.approx((0.75 + 0.125) / 2), None)
    assert "43.8" in table({"set": summary}, {"set": "temperature 1"})
