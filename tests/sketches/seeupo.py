"""SeeUPO: one rollout phase, then the turns in reverse, each weighed by how far the later ones moved the policy."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rtpo.credit import STD_EPSILON, group_advantages
from rtpo.rows import turn_row
from rtpo.types import Group, Role, Task
from rtpo.verbs import AlgorithmConfig, Harness, SequenceClip


@dataclass(frozen=True)
class SeeUPOConfig(AlgorithmConfig):
    """chains: rollouts for each prompt. advantage_limit: clamp of the batch-standardised advantage. factor_low,
    factor_high: clamp of a turn's sequence ratio and of the product of them."""

    chains: int = 16
    advantage_limit: float = 3.0
    factor_low: float = 0.8
    factor_high: float = 1.2


def step(harness: Harness, tasks: Sequence[Task], config: SeeUPOConfig) -> None:
    """One data step."""
    loss = SequenceClip(config.clip_low, config.clip_high, kl=config.kl)
    groups = harness.rollout(tasks, n=config.chains, role=Role.CHAIN)
    advantage = batch_advantages(groups, config.advantage_limit)
    chains = [chain for group in groups for chain in group if chain.is_graded]
    factor = {chain.uid: 1.0 for chain in chains}
    for k in reversed(range(harness.max_turns)):
        taking = [chain for chain in chains if len(chain.turns) > k]
        rows = [
            turn_row(chain.turns[k], chain, advantage[chain.uid] * factor[chain.uid], 1 / len(taking), chain.task.uid)
            for chain in taking
        ]
        before = harness.score(rows)
        harness.update(rows, loss, epochs=config.epochs, minibatches=config.minibatches)
        for chain, old, new in zip(taking, before, harness.score(rows), strict=True):
            ratio = np.exp(np.clip(np.mean(new - old), -10, 10)).clip(config.factor_low, config.factor_high)
            factor[chain.uid] = float(np.clip(factor[chain.uid] * ratio, config.factor_low, config.factor_high))


def batch_advantages(groups: Sequence[Group], limit: float) -> dict[str, float]:
    """R minus its prompt's mean, standardised over the batch and clamped, by chain."""
    graded = [[chain for chain in group if chain.is_graded] for group in groups]
    centred = {
        chain.uid: float(advantage)
        for group in graded
        if group
        for chain, advantage in zip(group, group_advantages([c.reward for c in group], False), strict=True)
    }
    values = np.array(list(centred.values()))
    mean, std = (values.mean(), values.std(ddof=1)) if len(values) > 1 else (0.0, 0.0)
    return {uid: float(np.clip((value - mean) / (std + STD_EPSILON), -limit, limit)) for uid, value in centred.items()}


def rollouts_per_task(config: SeeUPOConfig, max_turns: int) -> int:
    return config.chains
