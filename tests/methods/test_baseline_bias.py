"""A baseline must not move the gradient: E[grad log pi(u_k) x A] is that of the true advantage, times what a path's own
return in the mean takes of it; also where chains end early."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from methods import config_of
from tables import harness_on

from baselines import anchored
from rtpo.algorithms import load_algorithm
from rtpo.theory.mdp import MDP, advantages
from rtpo.theory.tabular import start_task
from rtpo.types import Role, Task, TrainRow

LIMIT = 4.5
"""standard errors"""


def coin_game() -> MDP:
    """A coin falls at turn 0, whatever the policy does. Then action 0 ends the episode and action 1 goes on, and the
    coin alone decides the return: no action has an advantage."""
    start, high, low, high_end, low_end = range(5)
    transition = np.zeros((5, 2, 5))
    transition[start, :, [high, low]] = 0.5
    for state, end in ((high, high_end), (low, low_end)):
        transition[state, 0, end] = transition[state, 1, state] = 1
    transition[[high_end, low_end], :, low_end] = 1
    return MDP(transition, np.array([0, 0.9, 0.1, 0.9, 0.1]), np.eye(5)[start], 4, frozenset({high_end, low_end}))


def random_game() -> MDP:
    """Every state may follow every other; two of them end the episode, with other returns than going on has."""
    transition = np.random.default_rng(3).dirichlet(np.ones(5), (5, 2))
    return MDP(transition, np.array([0.1, 0.3, 0.6, 1.0, 0.0]), np.eye(5)[0], 4, frozenset({3, 4}))


def tasks(prompts: int) -> list[Task]:
    return [replace(start_task(0), uid=str(number)) for number in range(prompts)]


def trained(mdp: MDP, name: str, prompts: int, config: Any) -> list[TrainRow]:
    """The rows of a data step, whose policy stays the uniform one over two actions."""
    harness = harness_on(mdp, learning_rate=0.0)
    load_algorithm(name).step(harness, tasks(prompts), config)
    return [row for rows in harness.all_of("update") for row in rows]


def deviations(mdp: MDP, rows: Sequence[TrainRow], first: float, later: float) -> dict[tuple[int, int], float]:
    """By turn and state, the sum over rows of grad log pi x (A - (1 - share) x the true advantage), in standard errors
    over groups. The policy is uniform over two actions, so the gradient of an action's logit is 1/2 or -1/2. first,
    later: the share of a path's own return in its baseline, at turn 0 and after."""
    true = advantages(mdp, np.full(mdp.shape, 0.5))
    sums: defaultdict[tuple[int, int], defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows:
        (turn,), (advantage,) = row.turns, row.advantage[row.mask]
        k, state, action = turn.k, int(turn.snapshot.state), int(turn.output_ids[0])
        expected = (1 - (later if k else first)) * true[k, state, action]
        sums[k, state][row.group] += (0.5 - action) * (float(advantage) - expected)
    cells = {cell: np.array(list(by_group.values())) for cell, by_group in sums.items()}
    return {cell: float(x.sum() / np.sqrt(x @ x)) for cell, x in cells.items() if np.abs(x).max() > 1e-6}


FRESH = {"chains": 8, "continuations": 8, "order": "reverse", "fresh": True}
"""as many chains that hardly ever all of them tie, which leaves a prompt out"""
FORKED = {"chains": 8, "forks": 4, "shrinkage": 0.25}


@pytest.mark.parametrize(("game", "least"), [(coin_game, 1), (random_game, 10)])
@pytest.mark.parametrize(
    ("name", "prompts", "fields", "first", "later"),
    [
        ("anchored", 700, {**FORKED, "fork_turn": 1}, 0.0, 0.0),
        ("anchored", 1200, {**FORKED, "fork_turn": "uniform"}, 0.0, 0.0),
        ("anchored", 700, {"chains": 4, "forks": 0}, 0.0, 0.0),
        ("grpo_state_values", 600, {"chains": 4, "continuations": 2}, 1 / 4, 0.0),
        ("grpo_state_values", 150, FRESH, 0.0, 0.0),
        # their own return is in the mean
        ("grpo", 600, {"chains": 4, "training_context": "recorded"}, 1 / 4, 1 / 4),
        ("rtpo", 400, {"trunks": 1, "group_size": 4}, 1 / 3, 1 / 3),
    ],
)
def test_the_gradient_is_that_of_the_true_advantage(
    name: str, prompts: int, fields: dict[str, Any], first: float, later: float, game: Any, least: int
) -> None:
    plain = {"normalise_std": False} if "chains" in fields else {}
    config = config_of(name, **fields, **plain)
    scores = deviations(game(), trained(game(), name, prompts, config), first, later)
    assert len(scores) >= least
    assert max(abs(z) for z in scores.values()) < LIMIT, scores


def test_the_estimated_turn_is_the_one_after_the_luck() -> None:
    """All of the return is decided by the coin at turn 0, so a fork at turn 1 saves most."""
    config = config_of("anchored", chains=8, forks=4, fork_turn="estimated")
    harness = harness_on(coin_game(), learning_rate=0.0)
    chains = harness.rollout(tasks(500), n=config.chains - config.forks, role=Role.CHAIN)
    groups = anchored.with_forks(harness, chains, config)
    assert anchored.best_fork_turn(groups) == harness.state["fork_turn"] == 1
    forks = [path for group in anchored.with_forks(harness, chains, config) for path in group if path.start_k]
    assert {fork.start_k for fork in forks} == {1}
    anchored.with_forks(other := harness_on(coin_game()), chains, replace(config, fork_turn="uniform"))
    assert other.state == {}
    assert anchored.best_fork_turn([group[:1] for group in groups]) is None
