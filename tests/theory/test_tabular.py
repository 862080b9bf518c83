"""The verbs on a table: algorithm files run unchanged on a finite MDP, and what they do there is checked exactly."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from methods import TRAINED
from tables import GOING, KEY, harness_on, lure, random_logits, random_mdp, trained

from rtpo import rtpo
from rtpo.algorithms import configured, load_algorithm
from rtpo.core.losses import TokenBatch
from rtpo.core.losses import loss as loss_of
from rtpo.credit import sibling_advantages
from rtpo.errors import ConfigError, DataError, NonFinite
from rtpo.rows import trajectory_rows
from rtpo.theory.mdp import MDP, Table, action_values, advantages, backward_induction, state_values, value
from rtpo.theory.mdps import greedy, uniform
from rtpo.theory.tabular import TabularHarness, log_softmax, softmax, start_task, tasks
from rtpo.types import Role, Task, TrainRow
from rtpo.verbs import Loss, SequenceClip, SquaredPair, TokenClip, Update

# exact values


def test_no_deterministic_policy_is_better_than_backward_induction() -> None:
    mdp = random_mdp(1, states=3, actions=2, horizon=2)
    every = [np.eye(2)[np.reshape(choice, (2, 3))] for choice in product(range(2), repeat=6)]
    values = [value(mdp, policy) for policy in every]
    assert value(mdp, backward_induction(mdp)) == pytest.approx(max(values), abs=1e-12)
    assert max(values) > min(values)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_optimum_bounds_every_policy_in_every_state(seed: int) -> None:
    mdp = random_mdp(seed)
    policy, best = softmax(random_logits(mdp, seed)), backward_induction(mdp)
    assert (state_values(mdp, best) >= state_values(mdp, policy) - 1e-12).all()
    improved = greedy(action_values(mdp, policy))
    assert (state_values(mdp, improved) >= state_values(mdp, policy) - 1e-12).all()
    going = ~mdp.is_terminal
    assert (policy * advantages(mdp, policy)).sum(-1)[:, going] == pytest.approx(0, abs=1e-12)


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


# algorithms


def test_rtpo_reaches_the_optimum_of_backward_induction() -> None:
    mdp = lure()
    config = configured("rtpo", kl=0.0, trunks=32, group_size=5)
    harness = trained(rtpo, config, mdp, steps=60, learning_rate=6.0, seed=0)
    best = backward_induction(mdp)
    chosen = greedy(harness.policy)
    assert [chosen[place].tolist() for place in GOING] == [best[place].tolist() for place in GOING]
    assert value(mdp, harness.policy) > value(mdp, best) - 0.03


SETTINGS: dict[str, dict[str, Any]] = {
    "rtpo": {"trunks": 3, "epochs": 2, "minibatches": 2},
    "grpo": {"epochs": 2, "old_logprobs": "recompute"},
    "tree_grpo": {"expansions": 2},
}
LEARNING_RATES = {"refuel": 0.2}
"""a squared loss has a curvature that bounds it"""


@pytest.mark.parametrize("name", TRAINED)
def test_every_method_learns_within_its_worst_case(name: str) -> None:
    method = load_algorithm(name)
    config = configured(name, **SETTINGS.get(name, {}))
    mdp = lure()
    harness = trained(method, config, mdp, steps=40, learning_rate=LEARNING_RATES.get(name, 4.0), seed=1)
    assert value(mdp, harness.policy) > value(mdp, uniform(mdp)) + 0.15
    assert harness.ledger.optimizer_steps >= harness.policy_version > 0


# Theorem 2a and the share of tied groups


def test_the_sibling_advantage_is_shrunk_by_its_own_share_of_the_mean() -> None:
    """E[A_j | S_k, u_j] = (G-2)/(G-1) A(S_k, u_j), by action, on siblings forked from one boundary. One sibling of each
    group is looked at, so that the sample is independent."""
    mdp = lure()
    logits = random_logits(mdp, 5)
    logits[2] += 2 * backward_induction(mdp)[2]
    harness = harness_on(mdp, logits=logits)
    (trunks,) = harness.rollout(tasks(mdp), n=50, role=Role.TRUNK)
    boundary = next(t.boundary(1) for t in trunks if len(t.turns) > 1 and t.turns[1].snapshot.state == KEY)
    true = advantages(mdp, harness.policy)[1, KEY]
    assert (np.abs(true) > 0.1).all()
    for group_size in (3, 4, 6):
        groups = harness.rollout([boundary] * 5000, n=group_size - 1, role=Role.SIBLING)
        action = np.array([int(group[0].turns[1].output_ids[0]) for group in groups])
        estimate = np.array([sibling_advantages([sibling.reward for sibling in group])[0] for group in groups])
        mean = np.array([estimate[action == a].mean() for a in range(3)])
        error = np.array([estimate[action == a].std(ddof=1) / (action == a).sum() ** 0.5 for a in range(3)])
        assert (np.abs(mean - (group_size - 2) / (group_size - 1) * true) < 3 * error).all()
        if group_size == 3:
            assert (np.abs(mean - true) > 5 * error).all()


# versions


def test_paths_are_sampled_by_the_weights_last_synchronised() -> None:
    mdp = random_mdp(0)
    harness = harness_on(mdp, learning_rate=300.0)
    rows = sampled_rows(harness, "recorded", n=10)
    assert harness.sync() == 0
    assert took(harness.update(rows, TokenClip())) == (1, 1)
    (stale, *others), *_ = harness.rollout(tasks(mdp), n=400, role=Role.CHAIN)
    assert np.abs(harness.policy[0, 0] - 1 / 3).max() > 0.3
    for action in range(3):
        check_mean([float(other.turns[0].output_ids[0] == action) for other in others], 1 / 3)
    assert stale.turns[0].policy_version == 0
    assert stale.turns[0].logprobs[0] == pytest.approx(np.log(1 / 3))
    assert harness.sync() == harness.sync() == 1
    (fresh, *_), *_ = harness.rollout(tasks(mdp), n=1, role=Role.CHAIN)
    assert fresh.turns[0].policy_version == 1
    action = int(fresh.turns[0].output_ids[0])
    assert fresh.turns[0].logprobs[0] == pytest.approx(np.log(harness.policy[0, 0, action]), abs=1e-6)
    assert fresh.turns[0].logprobs[0] != pytest.approx(np.log(1 / 3), abs=0.01)
    assert harness.ledger.syncs == 2


# updates


def took(update: Update) -> tuple[int, int]:
    return update.optimizer_steps, update.policy_version


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
        TokenClip(old_logprobs="rollout"),
        TokenClip(dual_clip=1.5, old_logprobs="rollout"),
        TokenClip(old_logprobs="rollout", kl=0.5),
        SequenceClip(old_logprobs="rollout"),
        SequenceClip(old_logprobs="rollout", kl=0.5),
        SquaredPair(eta=0.7, old_logprobs="rollout"),
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


def test_an_update_that_is_not_finite_is_not_applied() -> None:
    harness = harness_on(random_mdp(1))
    rows = sampled_rows(harness, "recorded")
    harness.logits[0] = np.nan
    with pytest.raises(NonFinite):
        harness.update(rows, TokenClip(old_logprobs="rollout"))
    assert np.isfinite(harness.logits[1:]).all()
    assert harness.policy_version == 0


# wrong input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"transition": np.full((2, 2, 2), 0.4)}, r"MDP\.transition"),
        ({"transition": np.full((2, 1, 2), 0.5)}, "shapes"),
        ({"start": np.array([1.5, -0.5])}, r"MDP\.start"),
        ({"reward": np.array([0.0, 2.0])}, r"MDP\.reward"),
        ({"reward": np.array([0.0, np.nan]), "bernoulli": False}, r"MDP\.reward"),
        ({"horizon": 0}, r"MDP\.horizon"),
        ({"terminal": frozenset({0})}, r"MDP\.terminal"),
    ],
)
def test_an_mdp_that_cannot_be_is_refused(change: dict[str, Any], message: str) -> None:
    fields: dict[str, Any] = {
        "transition": np.full((2, 2, 2), 0.5),
        "reward": np.array([0.0, 1.0]),
        "start": np.array([1.0, 0.0]),
        "horizon": 1,
        "bernoulli": True,
    }
    MDP(**fields)
    with pytest.raises(ConfigError, match=message):
        MDP(**fields | change)


def test_logits_and_tasks_of_another_mdp_are_refused() -> None:
    mdp = random_mdp(0)
    with pytest.raises(ConfigError, match="logits"):
        harness_on(mdp, logits=np.zeros((1, 2)))
    for task in (Task("t", "?", 1), start_task(3), start_task(4)):
        with pytest.raises(DataError, match=f"task {task.uid}"):
            harness_on(mdp).rollout([task], n=1, role=Role.CHAIN)
