"""GRPO with baselines by state: an extension of this project. A chain's turn is compared with the others that took one
in the same state, shrunk towards the baseline of the state before.

Some of a prompt's paths may be forked from others, so that states recur where they would not by themselves. A fork is a
rollout like any other, trained on the turns that it sampled itself, and counts nowhere before its fork: there its past
is another's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from baselines.grpo import GRPOConfig, chain_rows, rollouts_per_task
from baselines.grpo import check as check_grpo
from rtpo.credit import group_scale
from rtpo.types import Group, Role, Rollout, Task
from rtpo.verbs import Algorithm, Harness


@dataclass(frozen=True)
class AnchoredConfig(GRPOConfig):
    """chains: rollouts for each prompt, forks included, 2 or more.
    shrinkage: kappa, how many returns the baseline of the state before counts for.
    forks: of the chains, those that begin at another's boundary of turn fork_turn, one chain after another in turn.
    fork_turn: a chain that ended before it is forked at its last boundary.
    """

    shrinkage: float
    forks: int
    fork_turn: int


def step(harness: Harness, tasks: Sequence[Task], config: AnchoredConfig) -> None:
    """One data step."""
    groups = harness.rollout(tasks, n=config.chains - config.forks, role=Role.CHAIN)
    if config.forks:
        groups = [own + forks for own, forks in zip(groups, forked(harness, groups, config), strict=True)]
    rows = chain_rows(groups, config, lambda group: anchored_credit(group, config))
    harness.update(rows, config.loss, epochs=config.epochs, minibatches=config.minibatches)


def forked(harness: Harness, groups: Sequence[Group], config: AnchoredConfig) -> list[Group]:
    """Of each prompt."""
    places = [
        chain.boundary(min(config.fork_turn, len(chain.turns) - 1))
        for group in groups
        for chain in (group[j % len(group)] for j in range(config.forks))
    ]
    forks = [fork for (fork,) in harness.rollout(places, n=1, role=Role.BRANCH)]
    return [tuple(forks[i * config.forks : (i + 1) * config.forks]) for i in range(len(groups))]


def anchored_credit(group: Sequence[Rollout], config: AnchoredConfig) -> list[list[float]]:
    """A_k = (R - B(S_k)) over the group's scale, of the turns that each path sampled itself."""
    scale = group_scale([path.reward for path in group], config.normalise_std)
    return [
        [(path.reward - baseline) / scale for baseline in baselines(path, group, config)[path.start_k :]]
        for path in group
    ]


def baselines(path: Rollout, group: Sequence[Rollout], config: AnchoredConfig) -> list[float]:
    """B(S_k) = (sum of the others' returns at S_k + kappa B(S_{k-1})) / (their number + kappa), and at S_0 the others'
    mean. The others are the paths that sampled a turn of their own there: given S_k, they owe nothing to this one's.
    Where there are none at S_0 all baselines are the path's own return, so that it has no advantage."""
    found: list[float] = []
    for k in range(len(path.turns)):
        here = path.turns[k].snapshot.digest
        others = [
            other.reward
            for other in group
            if other is not path and other.start_k <= k < len(other.turns) and other.turns[k].snapshot.digest == here
        ]
        if k > 0:
            found.append((sum(others) + config.shrinkage * found[-1]) / (len(others) + config.shrinkage))
        elif others:
            found.append(float(np.mean(others)))
        else:
            return [path.reward] * len(path.turns)
    return found


def check(config: AnchoredConfig) -> list[str]:
    problems = check_grpo(config)
    if config.shrinkage <= 0:
        problems.append(
            f"algorithm.shrinkage is {config.shrinkage}: a state that one path alone came to has the baseline of the "
            "one before; use a number above 0."
        )
    if not 0 <= config.forks <= config.chains - 2:
        problems.append(
            f"algorithm.forks is {config.forks} and algorithm.chains {config.chains}: forks are some of the chains, "
            "and two others are compared at S_0; use 0 or more, and at least 2 fewer than chains."
        )
    if config.fork_turn < 1:
        problems.append(f"algorithm.fork_turn is {config.fork_turn}: a fork at S_0 is a chain; use 1 or more.")
    return problems


ALGORITHM = Algorithm(
    config=AnchoredConfig,
    step=step,
    rollouts_per_task=rollouts_per_task,
    check=check,
    plan="n independent chains, of which some may be forked from others at one turn",
    credit="return minus the others' mean in the same state, shrunk to the state before, over the prompt's standard "
    "deviation",
    schedule="one update a step",
    contexts="recorded c_k, or flattened history",
    loss="token clip",
    trained="the turns that each path sampled itself",
)
