"""Theorem 2: bias and error of the advantages of RTPO's siblings and of GRPO's chains."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from baselines import grpo
from rtpo import rtpo
from rtpo.algorithms import configured
from rtpo.harness.budget import Budget, Ledger
from rtpo.theory.mdp import MDP, Table, advantages, state_values
from rtpo.theory.mdps import deviations, mixing, three_coins, visits
from rtpo.theory.tabular import TabularHarness, tasks
from rtpo.types import Role, TrainRow

TURN = 1
"""the turn whose advantages are measured: not the first, and in Theorem 2a not the last"""
CHAIN_CONFIG: grpo.GRPOConfig = configured("grpo", training_context="recorded", normalise_std=False)


@dataclass(frozen=True)
class CreditSettings:
    """Settings of Theorem 2."""

    # 2a: the factor (G-2)/(G-1) of RTPO's advantages, and the contamination (N-1)/N (V(S) - mean R) of GRPO's
    mdps: int = 2
    turns: int = 3
    paths: int = 24_000  # siblings or chains in each measurement
    group_sizes: tuple[int, ...] = (3, 4, 5, 6, 7, 8, 9)
    chains: tuple[int, ...] = (3, 9)  # N, sizes of GRPO's groups
    least_sigma_v: float = 0.15  # MDPs below this sigma_V or sigma_A (`rtpo.theory.mdps.deviations`) are not used
    least_sigma_a: float = 0.2
    least_cell: int = 300  # a mean of fewer estimates is not recorded
    # 2b: the mean squared errors of RTPO's and GRPO's advantages
    error_paths: int = 8_000
    sizes: tuple[tuple[int, int], ...] = ((2, 2), (4, 4), (8, 8), (2, 3), (4, 5), (2, 16))  # n siblings, N chains
    sigmas: tuple[tuple[float, float, float], ...] = (  # sigma_V, sigma_A, sigma_xi
        (0.3, 1.0, 0.3),
        (1.0, 0.3, 0.3),
        (0.3, 0.3, 1.0),
        (1.0, 1.0, 1.0),
    )


@dataclass(frozen=True, eq=False)
class Credit:
    """Estimated advantages of turn TURN with their states and actions, each [groups, group size]."""

    estimate: Table  # advantages
    state: npt.NDArray[np.int64]
    action: npt.NDArray[np.int64]


def lines(settings: CreditSettings) -> Iterator[dict[str, Any]]:
    """Yield the records: factors and contaminations (Theorem 2a), and errors (Theorem 2b)."""
    for number in range(settings.mdps):
        mdp, logits = mixing(number, settings.turns, TURN, settings.least_sigma_v, settings.least_sigma_a)
        least = settings.least_cell
        for group_size in settings.group_sizes:
            harness = harness_on(mdp, logits, seed=group_size)
            credit = sibling_credit(harness, settings.paths // (group_size - 1), group_size - 1)
            yield {"kind": "factor", "mdp": number, "seed": group_size, "group_size": group_size} | by_action(
                mdp, harness.policy, credit, least
            )
        for chains in settings.chains:
            harness = harness_on(mdp, logits, seed=chains)
            credit = chain_credit(harness, settings.paths // chains, chains)
            yield {"kind": "contamination", "mdp": number, "seed": chains, "chains": chains} | by_state(
                mdp, harness.policy, credit, least
            )
    for sigmas in settings.sigmas:
        mdp = three_coins(*sigmas)
        for seed, (siblings, chains) in enumerate(settings.sizes):
            harness = harness_on(mdp, None, seed)
            true = advantages(mdp, harness.policy)[TURN]
            sibling_estimates = sibling_credit(harness, settings.error_paths // siblings, siblings)
            chain_estimates = chain_credit(harness, settings.error_paths // chains, chains)
            sigma_v, sigma_a, sigma_xi = deviations(mdp, harness.policy, TURN)
            yield {
                "kind": "error",
                "seed": seed,
                "siblings": siblings,
                "chains": chains,
                "sigma_v": sigma_v,
                "sigma_a": sigma_a,
                "sigma_xi": sigma_xi,
                "of_siblings": squared_error(sibling_estimates, true),
                "of_chains": squared_error(chain_estimates, true),
            }


def harness_on(mdp: MDP, logits: Table | None, seed: int) -> TabularHarness:
    """A harness that is ready for rollouts: synchronised, in an open step, with a large budget."""
    reservation = 10_000_000
    harness = TabularHarness(mdp, Ledger(Budget(reservation)), learning_rate=1.0, seed=seed, logits=logits)
    harness.begin_step(0, reservation)
    harness.sync()
    return harness


def sibling_credit(harness: TabularHarness, groups: int, siblings: int) -> Credit:
    """RTPO's advantages: `siblings` siblings of each of `groups` trunks."""
    (trunks,) = harness.rollout(tasks(harness.mdp), n=groups, role=Role.TRUNK)
    boundaries = [trunk.boundary(TURN) for trunk in trunks]
    forked = harness.rollout(boundaries, n=siblings, role=Role.SIBLING)
    return _credit(rtpo.sibling_rows(boundaries, forked, TURN), siblings)


def chain_credit(harness: TabularHarness, groups: int, chains: int) -> Credit:
    """GRPO's advantages without division by the standard deviation: `groups` groups of `chains` chains of one
    prompt."""
    (start,) = tasks(harness.mdp)
    rows = grpo.chain_rows(harness.rollout([start] * groups, n=chains, role=Role.CHAIN), CHAIN_CONFIG)
    return _credit([row for row in rows if row.turns[0].k == TURN], chains)


def by_action(mdp: MDP, policy: Table, credit: Credit, least: int) -> dict[str, Any]:
    """Regress estimates on true advantages. `factor` is the slope. `cells` has the mean estimate of each state and
    action that has at least `least` estimates."""
    true = advantages(mdp, policy)[TURN]
    squares = (policy[TURN] * true**2).sum(-1)
    product = (credit.estimate * true[credit.state, credit.action]).mean(-1)
    factor, error = ratio(product, squares[credit.state[:, 0]])
    cells = []
    for state, action in np.ndindex(*true.shape):
        mask = (credit.state == state) & (credit.action == action)
        if mask.sum() >= least:
            cell, value = {"state": state, "action": action}, {"advantage": float(true[state, action])}
            cells.append(cell | mean_estimate(credit, mask) | value)
    return {"groups": len(credit.estimate), "factor": factor, "error": error, "cells": cells}


def by_state(mdp: MDP, policy: Table, credit: Credit, least: int) -> dict[str, Any]:
    """Regress estimates on V(S) - mean R. `cells` has the mean for each state with at least `least` estimates."""
    visit_chances, values = visits(mdp, policy)[TURN], state_values(mdp, policy)[TURN]
    excess = values - visit_chances @ values  # V(S) - mean R, `value_above` in the record
    variance = float(visit_chances @ excess**2)
    slope, error = ratio((credit.estimate * excess[credit.state]).mean(-1), np.full(len(credit.estimate), variance))
    cells = []
    for state in range(len(visit_chances)):
        mask = credit.state == state
        if mask.sum() >= least:
            cells.append({"state": state} | mean_estimate(credit, mask) | {"value_above": float(excess[state])})
    return {"groups": len(credit.estimate), "variance": variance, "slope": slope, "error": error, "cells": cells}


def mean_estimate(credit: Credit, mask: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """The mean estimate over the paths in `mask`, [groups, group size]."""
    mean, error = ratio((credit.estimate * mask).sum(-1), mask.sum(-1))
    return {"n": int(mask.sum()), "mean": mean, "error": error}


def squared_error(credit: Credit, true: Table) -> dict[str, Any]:
    """The mean squared error of the estimates, and its standard error over groups."""
    errors = ((credit.estimate - true[credit.state, credit.action]) ** 2).mean(-1)
    mean, error = ratio(errors, np.ones(len(errors)))
    return {"groups": len(errors), "mean": mean, "error": error}


def ratio(numerators: npt.ArrayLike, denominators: npt.ArrayLike) -> tuple[float, float]:
    """The ratio of two sums over independent groups, and its standard error. Inputs: [groups]."""
    numerator, denominator = np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)
    value = numerator.sum() / denominator.sum()
    return float(value), float(np.sqrt(((numerator - value * denominator) ** 2).sum()) / denominator.sum())


def _credit(rows: Sequence[TrainRow], group_size: int) -> Credit:
    """Read the credit from rows of one path each, ordered by group."""
    columns = [(row.advantage[row.mask][0], row.turns[0].snapshot.state, row.turns[0].output_ids[0]) for row in rows]
    estimate, state, action = (np.array(column).reshape(-1, group_size) for column in zip(*columns, strict=True))
    return Credit(estimate.astype(np.float64), state.astype(np.int64), action.astype(np.int64))
