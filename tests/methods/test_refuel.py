"""REFUEL on the scripted engine and on a table: what a pair is, and what regressing its log-ratios comes to."""

from dataclasses import replace

import numpy as np
import pytest
from methods import IDS, advantage_of, one_step, parts_of, spelled
from scripted import CALL_1, CALL_2, RIGHT, TASK, WRONG, always, in_turn, scripted_harness, solver
from tables import RecordingHarness, harness_on, lure, random_logits, random_mdp

from baselines.refuel import pair_rows, step
from rtpo.algorithms import configured
from rtpo.theory.tabular import tasks
from rtpo.types import Grade, GradeOutcome, Role, TrainRow
from rtpo.verbs import SquaredPair

CONFIG = configured("refuel", kl=0.0)


# pairs


def test_pairs_are_neighbours_that_share_a_boundary() -> None:
    harness = one_step(CONFIG)
    (rows,) = harness.updated
    assert len(rows) % 2 == 0
    paths = {rollout.uid: rollout for rollout in harness.rollouts}
    for first, second in zip(rows[::2], rows[1::2], strict=True):
        (one,), (other,) = first.turns, second.turns
        assert first.group == second.group == f"{first.rollout_uid}/{one.k}"
        assert paths[second.rollout_uid].parent_uid == first.rollout_uid
        assert one.k == other.k == paths[second.rollout_uid].start_k
        assert one.context_ids.tobytes() == other.context_ids.tobytes()
        assert one.snapshot.digest == other.snapshot.digest
        assert one.output_ids.tobytes() != other.output_ids.tobytes()
        difference = advantage_of(first) - advantage_of(second)
        assert difference == paths[first.rollout_uid].reward - paths[second.rollout_uid].reward
    assert {row.turns[0].k for row in rows} == {0, 1, 2}


def test_the_turn_is_uniform_over_those_taken() -> None:
    """All chains take three turns."""
    branches = [r for r in one_step(replace(CONFIG, pairs=200), script=solver(0.0)).rollouts if r.role is Role.BRANCH]
    assert len(branches) == 600
    for k in range(3):
        assert abs(sum(branch.start_k == k for branch in branches) / 600 - 1 / 3) < 3.5 * (2 / 9 / 600) ** 0.5


def test_the_pairs_of_a_step_stay_together() -> None:
    harness = one_step(replace(CONFIG, epochs=2, minibatches=4))
    assert len(harness.backend.steps) == 8
    (rows,) = harness.updated
    place: dict[bytes, list[int]] = {}
    for i, row in enumerate(rows):
        place.setdefault(row.ids.tobytes(), []).append(i // 2)
    for taken in harness.backend.steps:
        assert isinstance(taken.loss, SquaredPair)
        split = np.split(taken.packed.ids, np.cumsum(taken.packed.lengths)[:-1])
        real = [ids.tobytes() for ids in split if len(ids) > 2]
        assert len(real) % 2 == 0
        for one, other in zip(real[::2], real[1::2], strict=True):
            assert set(place[one]) & set(place[other])


def test_pairs_of_the_same_reply_are_dropped_and_tied_ones_kept() -> None:
    harness = one_step(CONFIG, script=always(CALL_1))
    assert harness.updated == [[]]
    (rows,) = one_step(CONFIG).updated
    tied = [first for first, second in zip(rows[::2], rows[1::2], strict=True) if advantage_of(first) == 0]
    assert 0 < len(tied) < len(rows) / 2


def test_pairs_with_a_member_without_a_reward_are_dropped() -> None:
    harness = scripted_harness(in_turn(RIGHT, WRONG, WRONG, RIGHT))
    (chains,) = harness.rollout([TASK], n=2, role=Role.CHAIN)
    boundaries = [chain.boundary(0) for chain in chains]
    seconds = harness.rollout(boundaries, n=1, role=Role.BRANCH)
    ungraded = replace(chains[0], grade=Grade(GradeOutcome.UNGRADABLE, None))
    assert len(pair_rows(chains, boundaries, seconds)) == 4
    rows = pair_rows([ungraded, chains[1]], boundaries, seconds)
    assert [row.rollout_uid for row in rows] == [chains[1].uid, seconds[1][0].uid]


# the loss


def one_pair(harness: RecordingHarness) -> tuple[list[TrainRow], float]:
    """A pair of different actions and returns at turn 1 of a path, and the difference of the returns."""
    (chains, *_) = harness.rollout(tasks(harness.mdp), n=50, role=Role.CHAIN)
    firsts = [chain for chain in chains if len(chain.turns) > 1]
    boundaries = [first.boundary(1) for first in firsts]
    rows = pair_rows(firsts, boundaries, harness.rollout(boundaries, n=1, role=Role.BRANCH))
    i = next(i for i in range(0, len(rows), 2) if advantage_of(rows[i]) != 0)
    return rows[i : i + 2], advantage_of(rows[i]) - advantage_of(rows[i + 1])


@pytest.mark.parametrize("eta", [1.0, 0.3])
def test_the_loss_is_zero_where_the_log_ratios_differ_by_eta_times_the_returns(eta: float) -> None:
    harness = harness_on(random_mdp(2), logits=random_logits(random_mdp(2), 1), learning_rate=0.05)
    pair, difference = one_pair(harness)
    (first,) = pair[0].turns
    harness.logits[1, first.snapshot.state, first.output_ids[0]] += eta * difference
    there = harness.logits
    assert harness.update(pair, SquaredPair(eta, old_logprobs="rollout")).optimizer_steps == 1
    assert harness.logits == pytest.approx(there, abs=1e-6)
    harness.update(pair, SquaredPair(2 * eta, old_logprobs="rollout"))
    assert np.abs(harness.logits - there).max() > 1e-3


# token by token


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


def test_only_the_turn_of_a_pair_is_trained() -> None:
    mdp = lure()
    trained = set()
    for seed in range(12):
        harness = harness_on(mdp, seed=seed)
        step(harness, tasks(mdp), replace(CONFIG, pairs=1, epochs=3, minibatches=1))
        (rows,) = harness.all_of("update")
        moved = {(int(k), int(s)) for k, s, _ in np.argwhere(harness.logits != 0)}
        places = {(row.turns[0].k, int(row.turns[0].snapshot.state)) for row in rows}
        assert moved in (places, set())
        assert len(places) <= 1
        trained |= moved
    assert {k for k, _ in trained} == {0, 1, 2}
