"""The supplement's airline tables, from episodes made to have the supplement's own counts."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from rtpo.envs.airline.statistics import Episode, episode_of, held_out, tool_use, trunks, writing
from rtpo.errors import DataError
from rtpo.types import (
    Grade,
    GradeOutcome,
    Role,
    Rollout,
    Snapshot,
    StopReason,
    Task,
    Termination,
    ToolOutcome,
    ToolUse,
    Turn,
    as_ids,
)

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
PLAIN = Episode("0", success=False, turns=1, ended=True, cut=False, tokens=100, executed=0, failed=0, writes=0)


def lengths(count: int, mean: float, first: list[int]) -> list[int]:
    """`count` lengths with this mean, to two digits: `first`, and the rest as even as they can be."""
    left = round(count * mean) - sum(first)
    rest = count - len(first)
    return first + [left // rest + (n < left % rest) for n in range(rest)] if rest else first


def step(row: tuple[float, ...]) -> list[Episode]:
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
    row = SUPPLEMENT[number]
    table = trunks(step(row))
    assert table.episodes == TRUNKS
    shares = (table.success, table.ended_failure, table.no_signal, *table.failed_within.values())
    assert [round(100 * share, 1) for share in shares] == pytest.approx(row[:7], abs=0.06)
    assert table.success_turns == pytest.approx(row[7], abs=0.02)
    assert table.failure_turns == pytest.approx(row[8], abs=0.02)


def test_the_table_of_all_trunks_is_that_of_the_steps_together() -> None:
    table = trunks([episode for row in SUPPLEMENT.values() for episode in step(row)])
    assert table.episodes == 160
    assert 100 * table.success == pytest.approx(ALL["success"], abs=0.01)
    assert 100 * table.no_signal == pytest.approx(ALL["no_signal"], abs=0.01)
    assert {k: 100 * share for k, share in table.failed_within.items()} == pytest.approx(
        {k: ALL[k] for k in (1, 2, 3, 5)}, abs=0.01
    )
    assert table.turns == pytest.approx(ALL["turns"], abs=0.005)
    assert all(one <= other for one, other in pairwise(table.failed_within.values()))


def test_turns_of_nothing_have_no_mean() -> None:
    assert trunks([PLAIN]).success_turns is None
    assert trunks([replace(PLAIN, success=True)]).failure_turns is None


def episodes(wins: list[int], samples: int = 4) -> list[Episode]:
    """Tasks with so many successes in so many episodes."""
    return [replace(PLAIN, task=str(t), success=n < won) for t, won in enumerate(wins) for n in range(samples)]


def test_passes_over_twenty_tasks() -> None:
    """RTPO's row of the supplement: 14 of 80, six tasks at least once, two always."""
    table = held_out(episodes([4, 4, 2, 2, 1, 1] + [0] * 14))
    assert (table.pass_at_1, table.pass_at_k, table.pass_hat_k) == pytest.approx((0.175, 0.30, 0.10))


def test_passes_of_more_episodes_than_k_are_unbiased() -> None:
    table = held_out(episodes([2], samples=4), k=2)
    assert (table.pass_at_1, table.pass_at_k, table.pass_hat_k) == pytest.approx((1 / 2, 5 / 6, 1 / 6))


def test_ends_and_tokens() -> None:
    some = [replace(PLAIN, ended=n < 1, cut=n < 3, tokens=100 * n) for n in range(4)]
    table = held_out(some)
    assert (table.ended, table.cut, table.tokens) == (0.25, 0.75, 150)


def test_tools_as_the_supplement_counts_them() -> None:
    """GRPO's rows: 118 calls of which 68 ran, 2,469.7 tokens a reply of 80 episodes with 9 successes."""
    some = [replace(PLAIN, tokens=2470, success=n < 9) for n in range(79)] + [replace(PLAIN, tokens=2446)]
    some[0] = replace(some[0], executed=68, failed=50)
    table = tool_use(some)
    assert (table.attempted, table.executed, table.failed) == (118, 68, 50)
    assert table.execution == pytest.approx(0.5763, abs=5e-5)
    assert table.calls_per_episode == pytest.approx(1.475)
    assert table.tokens_per_success == pytest.approx(21952.9, abs=0.1)
    assert table.successes_per_1k_tokens == pytest.approx(0.046, abs=5e-4)


def test_rates_of_nothing_are_none() -> None:
    table = tool_use([replace(PLAIN, tokens=0)])
    assert (table.execution, table.tokens_per_success, table.successes_per_1k_tokens) == (None, None, None)


def test_writes_and_tasks_that_need_none() -> None:
    some = [
        replace(PLAIN, task=t, success=s, writes=w) for t, s, w in [("a", True, 0), ("b", False, 3), ("c", True, 1)]
    ]
    table = writing(some, needs_write=frozenset("bc"), no_op_scores=frozenset("a"))
    assert (table.no_op, table.success, table.write_required) == pytest.approx((1 / 3, 2 / 3, 1 / 2))
    assert (table.no_op_tasks, table.successes_by_no_op, table.writes_per_episode) == pytest.approx((1, 1 / 2, 4 / 3))
    nothing = writing([PLAIN], needs_write=frozenset(), no_op_scores=frozenset())
    assert (nothing.write_required, nothing.no_op_tasks, nothing.successes_by_no_op) == (None, None, None)


def test_no_episode_is_no_table() -> None:
    for table in (trunks, held_out, tool_use):
        with pytest.raises(ValueError, match="no episodes"):
            table([])
    with pytest.raises(ValueError, match="no episodes"):
        writing([], frozenset(), frozenset())
    with pytest.raises(DataError, match="pass@4 takes k = 4 graded samples"):
        held_out([PLAIN])


def rollout(detail: str, termination: Termination, stops: list[StopReason], reward: float | None) -> Rollout:
    outcomes = [("cancel", ToolOutcome.OK), ("read", ToolOutcome.OK), ("", ToolOutcome.MALFORMED)]
    calls = tuple(ToolUse(*one) for one in [*outcomes, ("cancel", ToolOutcome.PROGRAM_ERROR)])
    ids = as_ids([1, 2, 3])
    turns = tuple(
        Turn(k, ids, ids, np.zeros(3, np.float32), 0, stop, Snapshot(k, str(k)), ids, calls if k == 0 else ())
        for k, stop in enumerate(stops)
    )
    outcome = GradeOutcome.UNGRADABLE if reward is None else GradeOutcome.GRADED
    task, grade = Task("airline/7", "q", ()), Grade(outcome, reward, detail)
    return Rollout("r", task, Role.EVAL, 0, None, turns, termination, grade)


def test_an_episode_of_a_rollout() -> None:
    stop, cut = StopReason.STOP, StopReason.LENGTH
    writes = frozenset({"cancel"})
    ended = episode_of(rollout("", Termination.ANSWERED, [stop, stop], 1.0), "7", writes)
    assert ended == Episode("7", True, 2, True, False, 6, executed=2, failed=2, writes=2)
    assert not episode_of(rollout("too many errors", Termination.ANSWERED, [stop], 0.0), "7", writes).ended
    for termination in (Termination.TURN_LIMIT, Termination.CONTEXT_LIMIT):
        found = episode_of(rollout("", termination, [stop], 0.0), "7", writes)
        assert (found.ended, found.cut) == (False, termination is Termination.CONTEXT_LIMIT)
    assert episode_of(rollout("", Termination.ANSWERED, [cut, stop], 0.0), "7", writes).cut
    with pytest.raises(ValueError, match="has no reward"):
        episode_of(rollout("", Termination.ANSWERED, [stop], None), "7", writes)
