"""The verbs on a table: algorithm files run unchanged on a finite MDP, and what they do there is checked exactly."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from methods import TRAINED
from tables import GOING, harness_on, lure, random_logits, random_mdp, trained

from rtpo import rtpo
from rtpo.algorithms import configured, load_algorithm
from rtpo.core.losses import TokenBatch
from rtpo.core.losses import loss as loss_of
from rtpo.rows import trajectory_rows
from rtpo.theory.mdp import Table, action_values, backward_induction, log_softmax, state_values, value
from rtpo.theory.mdps import greedy, uniform
from rtpo.theory.tabular import TabularHarness, tasks
from rtpo.types import Role, TrainRow
from rtpo.verbs import Loss, SequenceClip, SquaredPair, TokenClip


def test_no_deterministic_policy_is_better_than_backward_induction() -> None:
    mdp = random_mdp(1, states=3, actions=2, horizon=2)
    every = [np.eye(2)[np.reshape(choice, (2, 3))] for choice in product(range(2), repeat=6)]
    best = state_values(mdp, backward_induction(mdp))
    values = np.array([state_values(mdp, policy) for policy in every])
    assert best == pytest.approx(values.max(axis=0), abs=1e-12)
    assert (values.max(axis=0)[0] > values.min(axis=0)[0]).any()


@pytest.mark.parametrize("bernoulli", [False, True])
def test_rollouts_have_the_exact_values_as_their_means(bernoulli: bool) -> None:
    """From each start, and after each action of a boundary in the middle."""
    mdp = random_mdp(3, bernoulli=bernoulli)
    harness = harness_on(mdp, logits=random_logits(mdp, 4))
    values, actions = state_values(mdp, harness.policy), action_values(mdp, harness.policy)
    groups = harness.rollout(tasks(mdp), n=4000, role=Role.CHAIN)
    for state, group in enumerate(groups):
        check_mean([rollout.reward for rollout in group], values[0, state])
        first = [int(rollout.turns[0].output_ids[0]) for rollout in group]
        for action, probability in enumerate(harness.policy[0, state]):
            check_mean([float(a == action) for a in first], probability)
    boundary = next(r.boundary(1) for r in groups[0] if len(r.turns) > 1)
    (forked,) = harness.rollout([boundary], n=4000, role=Role.SIBLING)
    check_mean([rollout.reward for rollout in forked], values[1, boundary.snapshot.state])
    for action in range(3):
        taken = [rollout.reward for rollout in forked if rollout.turns[1].output_ids[0] == action]
        check_mean(taken, actions[1, boundary.snapshot.state, action])


def check_mean(sample: Sequence[float], expected: float) -> None:
    """Within 3.5 standard errors: some thirty means are looked at."""
    assert abs(np.mean(sample) - expected) < 3.5 * np.std(sample, ddof=1) / len(sample) ** 0.5


def test_rtpo_reaches_the_optimum_of_backward_induction() -> None:
    mdp = lure()
    config = configured("rtpo", kl=0.0, trunks=32, group_size=5)
    harness = trained(rtpo, config, mdp, steps=60, learning_rate=6.0, seed=0)
    best = backward_induction(mdp)
    chosen = greedy(harness.policy)
    assert [chosen[place].tolist() for place in GOING] == [best[place].tolist() for place in GOING]
    assert value(mdp, harness.policy) > value(mdp, best) - 0.03


@pytest.mark.parametrize("name", TRAINED)
def test_every_method_learns_within_its_worst_case(name: str) -> None:
    mdp, method = lure(), load_algorithm(name)
    rate = 0.2 if name == "refuel" else 4.0  # a squared loss has a curvature that bounds it
    harness = trained(method, configured(name), mdp, steps=40, learning_rate=rate, seed=1)
    assert value(mdp, harness.policy) > value(mdp, uniform(mdp)) + 0.15
    assert harness.ledger.optimizer_steps >= harness.policy_version > 0


def test_paths_are_sampled_by_the_weights_last_synchronised() -> None:
    mdp = random_mdp(0)
    harness = harness_on(mdp, learning_rate=300.0)
    rows = sampled_rows(harness, "recorded", n=10)
    assert harness.sync() == 0
    update = harness.update(rows, TokenClip())
    assert (update.optimizer_steps, update.policy_version) == (1, 1)
    (stale, *others), *_ = harness.rollout(tasks(mdp), n=400, role=Role.CHAIN)
    assert np.abs(harness.policy[0, 0] - 1 / 3).max() > 0.3
    for action in range(3):
        check_mean([float(other.turns[0].output_ids[0] == action) for other in others], 1 / 3)
    assert stale.turns[0].policy_version == 0
    assert stale.turns[0].logprobs[0] == pytest.approx(np.log(1 / 3))
    assert harness.sync() == harness.sync() == 1
    (fresh, *_), *_ = harness.rollout(tasks(mdp), n=1, role=Role.CHAIN)
    assert fresh.turns[0].policy_version == 1
    chance = harness.policy[0, 0, int(fresh.turns[0].output_ids[0])]
    assert fresh.turns[0].logprobs[0] == pytest.approx(np.log(chance), abs=1e-6)
    assert harness.ledger.syncs == 2


def sampled_rows(harness: TabularHarness, context: Any, n: int = 8, seed: int = 0) -> list[TrainRow]:
    """Rows of whole paths with random advantages and weights, two paths of a task to a group."""
    rng = np.random.default_rng(seed)
    groups = harness.rollout(tasks(harness.mdp), n=n, role=Role.CHAIN)
    paths = [(path, f"{path.task.uid}/{i // 2}") for group in groups for i, path in enumerate(group)]
    values, weights = rng.normal(size=len(paths)), rng.uniform(0.5, 2.0, len(paths))
    return [
        row
        for (path, name), a, w in zip(paths, values, weights, strict=True)
        for row in trajectory_rows(path, context, float(a), float(w), name)
    ]


def exact_loss(logits: Table, initial: Table, rows: Sequence[TrainRow], loss: Loss) -> tuple[float, float]:
    """The mini-batch's loss in double precision from the rows' turns, and how many of its tokens are clipped."""
    total = sum(float(row.weight.sum()) for row in rows)
    tokens = [
        (turn.k, turn.snapshot.state, int(turn.output_ids[0]), i) for i, row in enumerate(rows) for turn in row.turns
    ]
    k, state, action, row_of = np.array(tokens).T

    def column(name: str) -> torch.Tensor:
        return torch.tensor(np.concatenate([getattr(row, name)[row.mask] for row in rows]), dtype=torch.float64)

    batch = TokenBatch(
        logprobs=torch.tensor(log_softmax(logits)[k, state, action]),
        old=column("rollout_logprobs"),
        advantage=column("advantage"),
        weight=column("weight") / total,
        row=torch.tensor(row_of),
        rows=len(rows),
        reference=torch.tensor(log_softmax(initial)[k, state, action]) if loss.kl else None,
    )
    result, sums = loss_of(batch, loss)
    return float(result), sums["clipped"]


@pytest.mark.parametrize(
    "loss",
    [
        TokenClip(dual_clip=1.5, old_logprobs="rollout"),
        TokenClip(old_logprobs="rollout", kl=0.5),
        SequenceClip(old_logprobs="rollout", kl=0.5),
        SquaredPair(eta=0.7, old_logprobs="rollout", kl=0.5),
    ],
    ids=str,
)
def test_a_step_is_the_gradient_of_the_loss(loss: Loss) -> None:
    """Against central differences, with a policy that has moved from the one sampled and from the reference."""
    mdp = random_mdp(6)
    initial = random_logits(mdp, 1)
    harness = harness_on(mdp, learning_rate=1.0, logits=initial)
    rows = sampled_rows(harness, "flattened", n=6)
    before = harness.logits = initial + 0.5 * random_logits(mdp, 2)
    _, clipped = exact_loss(before, initial, rows, loss)
    assert (0 < clipped < sum(len(row.turns) for row in rows)) != isinstance(loss, SquaredPair)
    harness.update(rows, loss)
    expected = np.zeros_like(before)
    for place in np.ndindex(before.shape):
        shift = np.zeros_like(before)
        shift[place] = 1e-5
        up, down = (exact_loss(before + sign * shift, initial, rows, loss)[0] for sign in (1, -1))
        expected[place] = (up - down) / 2e-5
    assert np.abs(expected).max() > 0.01
    assert before - harness.logits == pytest.approx(expected, abs=1e-6)
