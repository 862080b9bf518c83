"""GRPO with nearly exact state baselines: rungs c, d and e between GRPO and RTPO (docs/method/methods.md).

The baseline of a chain's turn k is V(S_k), the mean return of many continuations of its boundary. The budget does not
count continuations. So the rungs show what such credit is worth at best, and are not methods to compare. Without
`fresh`, V(S_0) is the mean return of the group, which includes the chain itself.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from baselines.grpo import Credit, GRPOConfig, chain_rows
from baselines.grpo import check as check_grpo
from rtpo.credit import group_scale
from rtpo.rows import path_weight, trajectory_rows
from rtpo.types import Group, Role, Rollout, Task, TrainRow
from rtpo.verbs import Algorithm, Harness

Order = Literal["together", "reverse"]


@dataclass(frozen=True)
class StateValuesConfig(GRPOConfig):
    """continuations: number for each boundary, outside the budget; S_0 has some only with `fresh`.
    order: one update of all turns (`together`), or one for each turn from the last (`reverse`).
    fresh: before each turn's update, synchronise and continue the turn's boundaries anew. In place of each chain, train
        one continuation against the mean of the boundary's other continuations.
    """

    continuations: int
    order: Order
    fresh: bool


def step(harness: Harness, tasks: Sequence[Task], config: StateValuesConfig) -> None:
    """One data step."""
    sampled = harness.rollout(tasks, n=config.chains, role=Role.CHAIN)
    groups = [tuple(chain for chain in group if chain.is_graded) for group in sampled]
    turns = range(harness.max_turns)
    if config.fresh:
        for k in reversed(turns):
            harness.sync()
            train(harness, fresh_rows(harness, groups, k, config), config)
        return
    rows = chain_rows(groups, config, state_credit(harness, groups, config))
    if config.order == "together":
        train(harness, rows, config)
        return
    for k in reversed(turns):
        train(harness, [row for row in rows if row.turns[0].k == k], config)


def train(harness: Harness, rows: Sequence[TrainRow], config: StateValuesConfig) -> None:
    harness.update(rows, config.loss, epochs=config.epochs, minibatches=config.minibatches)


def state_credit(harness: Harness, groups: Sequence[Group], config: StateValuesConfig) -> Credit:
    """A_k = (R - V(S_k)) / `group_scale`; V(S_0) is the group's mean, as in GRPO. The advantage is 0
    if no continuation could be graded."""
    boundaries = shared_boundaries(groups, range(1, harness.max_turns))
    continued = continuations(harness, boundaries, config)
    values = {
        (chain.uid, k): float(np.mean(returns))
        for (k, chains), group in zip(boundaries, continued, strict=True)
        if (returns := [path.reward for path in group if path.is_graded])
        for chain in chains
    }

    def credit(group: Sequence[Rollout]) -> list[list[float]]:
        rewards = [chain.reward for chain in group]
        scale = group_scale(rewards, config.normalise_std)
        mean = float(np.mean(rewards))
        return [
            [
                (chain.reward - (values.get((chain.uid, k), chain.reward) if k else mean)) / scale
                for k in range(len(chain.turns))
            ]
            for chain in group
        ]

    return credit


def fresh_rows(harness: Harness, groups: Sequence[Group], k: int, config: StateValuesConfig) -> list[TrainRow]:
    """Rows of turn k: for each chain one continuation of its S_k, against the mean return of the other continuations.
    The divisor is the `group_scale` of the chain's group, so a tied group stays tied."""
    scale = {
        chain.uid: group_scale([each.reward for each in group], config.normalise_std)
        for group in groups
        for chain in group
    }
    boundaries = shared_boundaries(groups, [k])
    rows = []
    for (_, chains), paths in zip(boundaries, continuations(harness, boundaries, config), strict=True):
        graded = [path for path in paths if path.is_graded]
        for chain, path in zip(chains, graded, strict=False):
            others = [other.reward for other in graded if other is not path]
            if others:
                advantage = (path.reward - float(np.mean(others))) / scale[chain.uid]
                weight = path_weight(path, config.aggregation)
                rows.append(trajectory_rows(path, "recorded", advantage, weight, chain.task.uid, first_k=0)[k])
    return rows


SharedBoundary = tuple[int, Sequence[Rollout]]
"""k, and the chains of one prompt that have the same state and context at S_k"""


def shared_boundaries(groups: Sequence[Group], turns: Sequence[int]) -> list[SharedBoundary]:
    boundaries: defaultdict[tuple[int, int, str, bytes], list[Rollout]] = defaultdict(list)
    for i, group in enumerate(groups):
        for chain in group:
            for k in (k for k in turns if k < len(chain.turns)):
                turn = chain.turns[k]
                boundaries[i, k, turn.snapshot.digest, turn.context_ids.tobytes()].append(chain)
    return [(k, chains) for (_, k, _, _), chains in boundaries.items()]


def continuations(harness: Harness, boundaries: Sequence[SharedBoundary], config: StateValuesConfig) -> list[Group]:
    """Sample `config.continuations` paths from each boundary. All chains of the boundary use the same paths."""
    starts = [chains[0].boundary(k) for k, chains in boundaries]
    return harness.rollout(starts, n=config.continuations, role=Role.FREE) if starts else []


def rollouts_per_task(config: StateValuesConfig, max_turns: int) -> int:
    return config.chains


def check(config: StateValuesConfig) -> list[str]:
    problems = check_grpo(config)
    if config.training_context != "recorded":
        problems.append(
            f"algorithm.training_context is {config.training_context}: turn k has its own baseline, in the c_k it was "
            "sampled from; use recorded."
        )
    if config.continuations < 1:
        problems.append(f"algorithm.continuations is {config.continuations}: V(S_k) is their mean; use 1 or more.")
    if config.order not in get_args(Order):
        problems.append(f"algorithm.order is {config.order!r}: use {' or '.join(map(repr, get_args(Order)))}.")
    if config.fresh and config.order != "reverse":
        problems.append(f"algorithm.fresh is true and algorithm.order {config.order}: use reverse.")
    if config.fresh and config.continuations < max(2, config.chains):
        problems.append(
            f"algorithm.fresh is true, algorithm.continuations {config.continuations} and algorithm.chains "
            f"{config.chains}: chains in one state train different continuations; use as many continuations or more."
        )
    return problems


ALGORITHM = Algorithm(
    config=StateValuesConfig,
    step=step,
    rollouts_per_task=rollouts_per_task,
    check=check,
    plan="n independent chains; outside the budget, many continuations of every later boundary",
    credit="return minus the mean of the boundary's continuations (k = 0: the prompt's mean), over the prompt's "
    "standard deviation",
    schedule="one update a step; or one for each turn, in reverse, with or without new continuations before each",
    contexts="recorded c_k",
    loss="token clip",
    trained="all model tokens of every chain; or turn k of a fresh continuation",
    is_rung=True,
)
