"""GSPO on multi-turn trajectories: GRPO's chains and advantages, but one clipped ratio for each row instead of each
token.

The group's mean includes the chain's own return.
"""

from dataclasses import dataclass

from baselines import grpo
from rtpo.verbs import Algorithm, SequenceClip


@dataclass(frozen=True)
class GSPOConfig(grpo.GRPOConfig):
    """dual_clip: must be null, since a dual clip bounds a token's ratio.
    old_logprobs: the ratio's denominator. The narrow clip ranges of GSPO's paper need ratios that start at 1. Under
        flattened history, ratios to the engine's log-probs (`rollout`) start elsewhere.

    A flattened chain is one row, so it has one ratio; with recorded contexts each turn has its own.
    """

    @property
    def loss(self) -> SequenceClip:
        return SequenceClip(self.clip_low, self.clip_high, self.old_logprobs, self.kl)


def check(config: GSPOConfig) -> list[str]:
    problems = grpo.check(config)
    if config.dual_clip is not None:
        problems.append(f"algorithm.dual_clip is {config.dual_clip}: it bounds a token's ratio; use null.")
    return problems


ALGORITHM = Algorithm(
    config=GSPOConfig,
    step=grpo.step,
    rollouts_per_task=grpo.rollouts_per_task,
    check=check,
    plan="n independent chains",
    credit="return minus the prompt's mean, over its standard deviation",
    schedule="one update a step",
    contexts="flattened history, or recorded c_k",
    loss="sequence clip",
    trained="all model tokens of every chain",
)
