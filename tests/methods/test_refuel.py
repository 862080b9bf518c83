"""REFUEL on the scripted engine: what a pair is, and what regressing its log-ratios comes to."""

from dataclasses import replace

import numpy as np
import pytest
from methods import IDS, advantage_of, graded, one_step, parts_of, spelled
from scripted import CALL_1, CALL_2, RIGHT, TASK, WRONG, always, in_turn, scripted_harness, solver

from baselines.refuel import pair_rows
from rtpo.algorithms import configured
from rtpo.types import Role

CONFIG = configured("refuel", kl=0.0)


def test_pairs_are_neighbours_that_share_a_boundary() -> None:
    harness = one_step(CONFIG)
    (rows,) = harness.updated
    assert len(rows) % 2 == 0
    paths = {rollout.uid: rollout for rollout in harness.rollouts}
    for first, second in zip(rows[::2], rows[1::2], strict=True):
        (turn,), (twin,) = first.turns, second.turns
        assert first.group == second.group == f"{first.rollout_uid}/{turn.k}"
        assert paths[second.rollout_uid].parent_uid == first.rollout_uid
        assert turn.k == twin.k == paths[second.rollout_uid].start_k
        difference = advantage_of(first) - advantage_of(second)
        assert difference == paths[first.rollout_uid].reward - paths[second.rollout_uid].reward
    assert {row.turns[0].k for row in rows} == {0, 1, 2}


def test_the_turn_is_uniform_over_those_taken() -> None:
    """All chains take three turns."""
    branches = [r for r in one_step(replace(CONFIG, pairs=200), script=solver(0.0)).rollouts if r.role is Role.BRANCH]
    assert len(branches) == 600
    for k in range(3):
        assert abs(sum(branch.start_k == k for branch in branches) / 600 - 1 / 3) < 3.5 * (2 / 9 / 600) ** 0.5


def test_pairs_of_the_same_reply_or_without_a_reward_are_dropped_and_tied_ones_kept() -> None:
    assert one_step(CONFIG, script=always(CALL_1)).updated == [[]]
    (rows,) = one_step(CONFIG).updated
    tied = [first for first, second in zip(rows[::2], rows[1::2], strict=True) if advantage_of(first) == 0]
    assert 0 < len(tied) < len(rows) / 2
    harness = scripted_harness(in_turn(RIGHT, WRONG, WRONG, RIGHT))
    (chains,) = harness.rollout([TASK], n=2, role=Role.CHAIN)
    boundaries = [chain.boundary(0) for chain in chains]
    seconds = harness.rollout(boundaries, n=1, role=Role.BRANCH)
    assert len(pair_rows(chains, boundaries, seconds)) == 4
    pair = [chains[1].uid, seconds[1][0].uid]
    without_first = [graded(chains[0], None), chains[1]], seconds
    without_second = chains, [(graded(seconds[0][0], None),), seconds[1]]
    for firsts, others in (without_first, without_second):
        assert [row.rollout_uid for row in pair_rows(firsts, boundaries, others)] == pair


def test_rows_token_by_token() -> None:
    """12 + 5 * 3: call, call, right, and from its second turn again: wrong."""
    harness = scripted_harness(in_turn(CALL_1, CALL_2, RIGHT, WRONG))
    ((chain,),) = harness.rollout([TASK], n=1, role=Role.CHAIN)
    boundary = chain.boundary(1)
    rows = pair_rows([chain], [boundary], harness.rollout([boundary], n=1, role=Role.BRANCH))
    assert [parts_of(row) for row in rows] == [
        spelled((IDS.before_turn_1, None), (IDS.call_2, 0.5)),
        spelled((IDS.before_turn_1, None), (IDS.wrong, -0.5)),
    ]
    assert [float(row.weight.sum()) for row in rows] == pytest.approx([0.5, 0.5])


def test_the_residual_is_reported() -> None:
    """At the only step from the sampling policy the log-ratios are 0, so the error is eta (R1 - R2)."""
    harness = one_step(replace(CONFIG, eta=3.0, epochs=1, minibatches=1))
    (rows,), (update,) = harness.updated, harness.step_log.updates
    errors = [3.0 * (advantage_of(a) - advantage_of(b)) for a, b in zip(rows[::2], rows[1::2], strict=True)]
    assert update["residual"] == pytest.approx(np.mean(np.square(errors)))
    assert update["residual"] == update["loss"] > 0
