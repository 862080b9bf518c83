"""Theorem 1: how near RTPO comes to backward induction, and what reverse order and fresh continuations add.

There are two settings. A sweep is one data step. Its update of each turn is so large that the policy becomes greedy on
the sample. So one update trains each turn fully, as in the theorem. Training is many data steps of small updates,
as for a language model.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from rtpo.algorithms import configured, load_algorithm
from rtpo.harness.budget import Budget, Ledger
from rtpo.theory.mdp import MDP, action_values, backward_induction, value
from rtpo.theory.mdps import decisions, greedy, layered, lock, uniform
from rtpo.theory.tabular import TabularHarness, tasks, train


@dataclass(frozen=True)
class Regime:
    """How long and how fast a policy is trained."""

    steps: int  # data steps
    trunks: int  # of each data step
    group_size: int
    learning_rate: float  # of the logits


@dataclass(frozen=True)
class OrderSettings:
    """Settings of Theorem 1."""

    mdps: int = 4  # of each family
    seeds: tuple[int, ...] = (0, 1, 2)
    sweep: Regime = Regime(steps=1, trunks=800, group_size=5, learning_rate=1e4)
    training: Regime = Regime(steps=30, trunks=16, group_size=5, learning_rate=8.0)
    every: int = 3  # steps between two points of a curve


FAMILIES: dict[str, Callable[[int], MDP]] = {"lock": lock, "layered": layered}


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "reverse_fresh": ("rtpo", {}),
    "reverse_stale": ("rtpo", {"sync_every": None}),
    "forward_fresh": ("rtpo_variants", {"order": "forward"}),
}
"""By variant, the algorithm and the changes to its configuration. Forward order has no stale variant: it trains turn k
before later turns, so its continuations are never stale."""


def lines(settings: OrderSettings) -> Iterator[dict[str, Any]]:
    """The records: one line for each regime, MDP, seed and variant."""
    regimes = {"sweep": settings.sweep, "training": settings.training}
    for (family, make_mdp), number in product(FAMILIES.items(), range(settings.mdps)):
        mdp = make_mdp(number)
        for seed, variant, (name, regime) in product(settings.seeds, VARIANTS, regimes.items()):
            identity = {"kind": name, "family": family, "mdp": number, "seed": seed, "variant": variant}
            yield identity | train_and_compare(mdp, variant, regime, seed, settings.every)


def train_and_compare(mdp: MDP, variant: str, regime: Regime, seed: int, every: int) -> dict[str, Any]:
    """Train from the uniform policy and compare the result with backward induction. Successes are exact."""
    name, changes = VARIANTS[variant]
    algorithm = load_algorithm(name)
    config = configured(name, kl=0.0, trunks=regime.trunks, group_size=regime.group_size, **changes)
    most_rollouts = len(tasks(mdp)) * algorithm.rollouts_per_task(config, mdp.horizon)
    ledger = Ledger(Budget(most_rollouts * regime.steps))
    harness = TabularHarness(mdp, ledger, learning_rate=regime.learning_rate, seed=seed)
    curve = [[0, value(mdp, harness.policy)]]
    for number in train(harness, algorithm.step, config, algorithm.rollouts_per_task, regime.steps):
        if (number + 1) % every == 0 or number + 1 == regime.steps:
            curve.append([number + 1, value(mdp, harness.policy)])
    best, learned, reachable = backward_induction(mdp), greedy(harness.policy), decisions(mdp)
    return {
        "success": value(mdp, harness.policy),
        "optimum": value(mdp, best),
        "initial": value(mdp, uniform(mdp)),
        "one_improvement": value(mdp, greedy(action_values(mdp, uniform(mdp)))),  # greedy to the initial action values
        "agreeing": sum(bool((learned[place] == best[place]).all()) for place in reachable),  # optimal decisions
        "decisions": len(reachable),
        "rollouts": ledger.rollouts,
        "updates": harness.policy_version,
        "curve": curve,
    }
