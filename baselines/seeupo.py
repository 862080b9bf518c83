"""SeeUPO: chains are sampled once, then updated turn by turn, from the last turn to the first. A chain's
advantage is multiplied by M, which measures how far earlier updates moved the policy on this chain.

With `training_context=recorded` it is the official algorithm: each turn is trained in the context it was sampled in.
With `flattened` it has the contexts that the RTPO paper describes. A turn's update leaves out chains without this
turn. The prompt's mean includes the chain's own return.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rtpo.credit import group_advantages, standardised
from rtpo.rows import turn_row
from rtpo.types import Floats, Group, OldLogprobs, Role, Rollout, Task
from rtpo.verbs import Algorithm, AlgorithmConfig, Harness, SequenceClip


@dataclass(frozen=True)
class SeeUPOConfig(AlgorithmConfig):
    """chains: rollouts for each prompt, 2 or more.
    advantage_limit: bound of the advantages' size, after standardisation over the batch's chains.
    factor_low, factor_high: bounds of a turn's sequence ratio, and of M, the product of a chain's ratios.
    order: of the turns' updates; SeeUPO's is `reverse`.
    old_logprobs: the ratio's denominator, from the trainer before each turn's update (`recompute`) or from the engine
        (`rollout`).
    """

    chains: int
    advantage_limit: float
    factor_low: float
    factor_high: float
    order: Literal["reverse", "forward"]
    old_logprobs: OldLogprobs

    @property
    def loss(self) -> SequenceClip:
        return SequenceClip(self.clip_low, self.clip_high, self.old_logprobs, self.kl)


def step(harness: Harness, tasks: Sequence[Task], config: SeeUPOConfig) -> None:
    """One data step."""
    groups = harness.rollout(tasks, n=config.chains, role=Role.CHAIN)
    advantages = chain_advantages(groups, config.advantage_limit)
    chains = [chain for group in groups for chain in group if chain.is_graded]
    factor = {chain.uid: 1.0 for chain in chains}
    turns = range(harness.max_turns)
    order = turns[::-1] if config.order == "reverse" else turns
    for k in order:
        with_turn = [chain for chain in chains if len(chain.turns) > k]
        if not with_turn:
            continue
        rows = [
            turn_row(
                chain.turns[k],
                chain,
                advantages[chain.uid] * factor[chain.uid],
                1 / len(with_turn),
                chain.task.uid,
                config.training_context,
            )
            for chain in with_turn
        ]
        update = harness.update(
            rows, config.loss, epochs=config.epochs, minibatches=config.minibatches, scores=k != order[-1]
        )
        if update.optimizer_steps and k != order[-1]:
            update_factors(factor, with_turn, update.scores, harness.score(rows), config)


def update_factors(
    factor: dict[str, float],
    chains: Sequence[Rollout],
    before: Sequence[Floats],
    after: Sequence[Floats],
    config: SeeUPOConfig,
) -> None:
    """Update each chain's factor: M <- clip(M x clip(s)). s = exp(mean(log pi_new - log pi_old)) is the turn's sequence
    ratio."""
    for chain, old, new in zip(chains, before, after, strict=True):
        ratio = np.exp(np.mean(new - old, dtype=np.float64))
        product = factor[chain.uid] * ratio.clip(config.factor_low, config.factor_high)
        factor[chain.uid] = float(product.clip(config.factor_low, config.factor_high))


def chain_advantages(groups: Sequence[Group], limit: float) -> dict[str, float]:
    """The advantage of each chain, the same at all its turns: its centred return, standardised over all chains of the
    batch and clamped."""
    centred = centred_returns(groups)
    if not centred:
        return {}
    # rounded, so that a score of 0 is exactly 0
    scores = standardised(list(centred.values())).round(6).clip(-limit, limit)
    return dict(zip(centred, scores.tolist(), strict=True))


def centred_returns(groups: Sequence[Group]) -> dict[str, float]:
    """R minus its prompt's mean, by chain; chains that could not be graded are left out."""
    graded = [[chain for chain in group if chain.is_graded] for group in groups]
    return {
        chain.uid: float(advantage)
        for group in graded
        if group
        for chain, advantage in zip(group, group_advantages([c.reward for c in group], False), strict=True)
    }


def rollouts_per_task(config: SeeUPOConfig, max_turns: int) -> int:
    return config.chains


def check(config: SeeUPOConfig) -> list[str]:
    problems = []
    if config.chains < 2:
        problems.append(f"algorithm.chains is {config.chains}: a chain is compared with its group; use 2 or more.")
    if config.advantage_limit <= 0:
        problems.append(f"algorithm.advantage_limit is {config.advantage_limit}: use a number above 0.")
    if not 0 < config.factor_low <= 1 <= config.factor_high:
        problems.append(
            f"algorithm.factor_low is {config.factor_low} and algorithm.factor_high {config.factor_high}: M starts at "
            "1; use 0 < factor_low <= 1 <= factor_high."
        )
    return problems


ALGORITHM = Algorithm(
    config=SeeUPOConfig,
    step=step,
    rollouts_per_task=rollouts_per_task,
    check=check,
    plan="n independent chains",
    credit="return minus the prompt's mean, standardised over the batch's chains, times the clipped product of the "
    "chain's sequence ratios at the turns already updated",
    schedule="one update for each turn, in reverse, on the same rollouts",
    contexts="recorded c_k (official), or flattened history (as the paper describes it)",
    loss="sequence clip",
    trained="turn k of every chain that took it, in that turn's update",
)
