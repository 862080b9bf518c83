"""GRPO on multi-turn trajectories: n independent chains for each prompt, one advantage for all tokens of a chain.

With `training_context=flattened` under a stripped rollout context it is the paper's GRPO baseline (eq. flat-short);
with `recorded` it is the control that differs in conditioning only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rtpo.credit import group_advantages
from rtpo.rows import trajectory_rows
from rtpo.types import Group, OldLogprobs, Role, Task, TrainingContext, TrainRow
from rtpo.verbs import Algorithm, AlgorithmConfig, Harness, TokenClip


@dataclass(frozen=True)
class GRPOConfig(AlgorithmConfig):
    """Defaults for the paper's scale; docs/grpo.md lists where each comes from, since the paper does not give all.

    chains: rollouts for each prompt.
    normalise_std: divide by the group's standard deviation.
    old_logprobs: the ratio's denominator, from the engine under the rollout context (`rollout`, eq. is-mismatch-short)
        or from the trainer under the training context (`recompute`).
    dual_clip: verl's bound on the loss of tokens with negative advantage; null for none.
    """

    chains: int = 16
    normalise_std: bool = True
    old_logprobs: OldLogprobs = "rollout"
    dual_clip: float | None = 3.0
    training_context: TrainingContext = "flattened"
    minibatches: int = 4


def step(harness: Harness, tasks: Sequence[Task], config: GRPOConfig) -> None:
    """One data step."""
    loss = TokenClip(config.clip_low, config.clip_high, config.dual_clip, config.old_logprobs, config.kl)
    chains = harness.rollout(tasks, n=config.chains, role=Role.CHAIN)
    harness.update(chain_rows(chains, config), loss, epochs=config.epochs, minibatches=config.minibatches)


def chain_rows(groups: Sequence[Group], config: GRPOConfig) -> list[TrainRow]:
    """Every chain weighs the same, its tokens equally, in whichever context they are trained (eq. flat-short).

    A chain that could not be graded is left out.
    """
    graded = [[chain for chain in group if chain.is_graded] for group in groups]
    weight = 1 / max(1, sum(len(group) for group in graded))
    return [
        row
        for group in graded
        if group
        for chain, advantage in zip(
            group, group_advantages([c.reward for c in group], config.normalise_std), strict=True
        )
        for row in trajectory_rows(chain, config.training_context, float(advantage), weight, chain.task.uid)
    ]


def rollouts_per_task(config: GRPOConfig, max_turns: int) -> int:
    return config.chains


def check(config: GRPOConfig) -> list[str]:
    problems = []
    if config.chains < 2:
        problems.append(f"algorithm.chains is {config.chains}: a chain is compared with its group; use 2 or more.")
    if config.dual_clip is not None and config.dual_clip <= 1:
        problems.append(f"algorithm.dual_clip is {config.dual_clip}: it bounds a ratio; use more than 1, or null.")
    return problems


ALGORITHM = Algorithm(
    config=GRPOConfig,
    step=step,
    rollouts_per_task=rollouts_per_task,
    check=check,
    plan="n independent chains",
    credit="return minus the prompt's mean, over its standard deviation",
    schedule="one update a step",
    contexts="flattened history (as in the paper), or recorded c_k",
    loss="token clip",
    trained="all model tokens of every chain",
)
