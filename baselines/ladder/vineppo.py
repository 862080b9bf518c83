"""VinePPO on GRPO's chains (arXiv 2410.01679): continuations of each boundary after S_0 estimate its value.

Continuations are not trained, but they are charged to the budget, so chains are few. V(S_0) is the chains' mean return.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from baselines.grpo import GRPOConfig, chain_rows
from baselines.grpo import check as check_grpo
from rtpo.credit import group_scale
from rtpo.types import Role, Rollout, Task
from rtpo.verbs import Algorithm, Harness


@dataclass(frozen=True)
class VinePPOConfig(GRPOConfig):
    """continuations: number for each boundary of a chain after S_0; V(S_k) is the mean of their returns.
    normalise_std: divide by the standard deviation of all the prompt's returns, continuations included.
    """

    continuations: int


def step(harness: Harness, tasks: Sequence[Task], config: VinePPOConfig) -> None:
    """One data step."""
    groups = harness.rollout(tasks, n=config.chains, role=Role.CHAIN)
    boundaries = [
        chain.boundary(k) for group in groups for chain in group for k in range(1, len(chain.turns)) if chain.is_graded
    ]
    continued = harness.rollout(boundaries, n=config.continuations, role=Role.SIBLING) if boundaries else []
    returns = {
        (boundary.rollout_uid, boundary.k): [path.reward for path in group if path.is_graded]
        for boundary, group in zip(boundaries, continued, strict=True)
    }

    def credit(group: Sequence[Rollout]) -> list[list[float]]:
        """A_k = (V(S_{k+1}) - V(S_k)) / scale. V(S_0) is the chains' mean return. V after the last turn is the chain's
        return. If no continuation of a boundary could be graded, its value is that of the next boundary."""
        rewards = [chain.reward for chain in group]
        sampled = [r for chain in group for k in range(1, len(chain.turns)) for r in returns[chain.uid, k]]
        scale = group_scale([*rewards, *sampled], config.normalise_std)
        advantages = []
        for chain in group:
            values = [chain.reward]
            for k in reversed(range(1, len(chain.turns))):
                continued_returns = returns[chain.uid, k]
                values.append(float(np.mean(continued_returns)) if continued_returns else values[-1])
            values.append(float(np.mean(rewards)))
            advantages.append([float(a) / scale for a in -np.diff(values)[::-1]])
        return advantages

    rows = chain_rows(groups, config, credit)
    harness.update(rows, config.loss, epochs=config.epochs, minibatches=config.minibatches)


def rollouts_per_task(config: VinePPOConfig, max_turns: int) -> int:
    """Worst case: every chain takes all K turns."""
    return config.chains * (1 + (max_turns - 1) * config.continuations)


def check(config: VinePPOConfig) -> list[str]:
    problems = check_grpo(config)
    if config.continuations < 1:
        problems.append(f"algorithm.continuations is {config.continuations}: V(S_k) is their mean; use 1 or more.")
    return problems


ALGORITHM = Algorithm(
    config=VinePPOConfig,
    step=step,
    rollouts_per_task=rollouts_per_task,
    check=check,
    plan="n independent chains; a few continuations of every later boundary",
    credit="mean return of the next boundary's continuations minus mean return of this boundary's, over the standard "
    "deviation of all the prompt's returns",
    schedule="one update a step",
    contexts="recorded c_k, or flattened history",
    loss="token clip",
    trained="all model tokens of every chain",
    is_rung=True,
)
