"""Turns that are compared with those that others took in the same state: GiGPO's and the anchored baselines."""

from collections import Counter
from dataclasses import replace

import pytest
from made_paths import rollout, turn
from methods import TASKS, advantage_of, config_of, graded, one_step
from scripted import solver

from baselines import anchored, gigpo
from rtpo.types import Role, Rollout


def path(uid: str, states: str, reward: float, start_k: int = 0) -> Rollout:
    """One that came through these states, each named by a letter; its turn k says k."""
    turns = [turn(k, [7], [k], state=state) for k, state in enumerate(states)]
    return rollout(uid, TASKS[0], turns, reward, start_k)


THREE = (path("a", "sxy", 1.0), path("b", "sxz", 0.0), path("c", "sw", 1.0))


def test_gigpo_adds_the_advantage_among_those_in_the_same_state() -> None:
    config = config_of("gigpo", normalise_std=False, omega=0.5)
    credit = gigpo.state_credit(THREE, config)
    assert credit[0] == pytest.approx([0.5, 1 / 3 + 0.25, 1 / 3])
    assert credit[1] == pytest.approx([-1.0, -2 / 3 - 0.25, -2 / 3])
    assert credit[2] == pytest.approx([0.5, 1 / 3])
    scaled = gigpo.state_credit(THREE, config_of("gigpo"))
    assert scaled[0][1] == pytest.approx(1 / 3 / 3**-0.5 + 0.5**0.5, rel=1e-5)


def test_an_anchored_baseline_is_of_the_others_and_of_the_state_before() -> None:
    """A fork counts for others only where it sampled turns itself."""
    config = config_of("anchored")
    assert anchored.baselines(THREE[0], THREE, config) == pytest.approx([0.5, 0.25, 0.25])
    assert anchored.baselines(THREE[1], THREE, config) == pytest.approx([1.0, 1.0, 1.0])
    assert anchored.baselines(THREE[2], THREE, config) == pytest.approx([0.5, 0.5])
    fork = path("f", "sxv", 0.0, start_k=1)
    four = (*THREE, fork)
    assert anchored.baselines(THREE[0], four, config) == pytest.approx([0.5, 0.5 / 3, 0.5 / 3])
    assert anchored.baselines(fork, four, config) == pytest.approx([2 / 3, 5 / 9, 5 / 9])
    assert [len(turns) for turns in anchored.anchored_credit(four, config)] == [3, 3, 2, 2]
    # of a chain alone at the start, and of its fork, which the chain is beside
    config = config_of("anchored", normalise_std=False)
    assert anchored.anchored_credit((THREE[0], fork), config) == [[0.0, 0.0, 0.0], [-1.0, -1.0]]


def test_shrunk_without_end_an_anchored_baseline_is_the_mean_of_the_others() -> None:
    harness = one_step(config_of("anchored", shrinkage=1e9))
    exact = one_step(config_of("grpo", training_context="recorded"))
    (rows,), (below,), chains = harness.updated, exact.updated, config_of("anchored").chains
    for row, other in zip(rows, below, strict=True):
        assert advantage_of(row) == pytest.approx(advantage_of(other) * chains / (chains - 1), abs=1e-5)


def test_forks_are_charged_and_train_what_they_sampled() -> None:
    """A prompt none of whose chains took a second turn has no forks."""
    harness = one_step(config_of("anchored", chains=6, forks=4, fork_turn=1), script=solver(0.2))
    forks = [path for path in harness.rollouts if path.role is Role.BRANCH]
    reached = {path.task.uid for path in harness.rollouts if path.role is Role.CHAIN and len(path.turns) > 1}
    assert harness.ledger.rollouts == 2 * len(TASKS) + len(forks)
    assert Counter(fork.task.uid for fork in forks) == dict.fromkeys(reached, 4)
    assert {fork.start_k for fork in forks} == {1}
    (rows,) = harness.updated
    trained = {(row.rollout_uid, row.turns[0].k) for row in rows}
    assert trained == {(path.uid, own.k) for path in harness.rollouts for own in path.own_turns}


@pytest.mark.parametrize(("shares", "best"), [((0.6, 0.1), 2), ((0.3, 0.05), 1)])
def test_the_turn_that_saves_most_has_little_variance_left(shares: tuple[float, float], best: int) -> None:
    """The chains' returns have the variance 1/4; four of their turns come after turn 0 and two after turn 1."""
    chains = path("a", "sxy", 1.0), path("b", "sxz", 0.0), path("c", "s", 0.5), graded(path("d", "s", 0.0), None)
    forks = [
        replace(path(f"f{t}", "sxy", 1 - (share / 2) ** 0.5, start_k=t), parent_uid="a")
        for t, share in enumerate(shares, start=1)
    ]
    assert anchored.best_fork_turn([(*chains, *forks)]) == best
    assert anchored.best_fork_turn([chains]) is None
    assert anchored.best_fork_turn([(chains[0], *forks)]) is None
