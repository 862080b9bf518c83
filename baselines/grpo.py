"""GRPO on multi-turn trajectories: n independent chains for each prompt, one advantage for all tokens of a chain. The
group's mean includes the chain's own return.

With `training_context=flattened` and stripped rollouts it is the paper's GRPO baseline (eq. flat-short). With
`recorded` it is the control, which differs from the baseline only in its training contexts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rtpo.credit import group_advantages
from rtpo.rows import path_weight, trajectory_rows
from rtpo.types import Group, Role, Rollout, Task, TrainRow
from rtpo.verbs import Algorithm, Harness, PathConfig

Credit = Callable[[Sequence[Rollout]], Sequence[float | Sequence[float]]]
"""takes a prompt's graded chains and gives each its advantage: one number, or one for each turn"""


@dataclass(frozen=True)
class GRPOConfig(PathConfig):
    """chains: rollouts for each prompt, 2 or more.
    normalise_std: divide by the group's standard deviation.
    """

    chains: int
    normalise_std: bool


def step(harness: Harness, tasks: Sequence[Task], config: GRPOConfig) -> None:
    """One data step."""
    chains = harness.rollout(tasks, n=config.chains, role=Role.CHAIN)
    harness.update(chain_rows(chains, config), config.loss, epochs=config.epochs, minibatches=config.minibatches)


def chain_rows(groups: Sequence[Group], config: GRPOConfig, credit: Credit | None = None) -> list[TrainRow]:
    """Rows of the graded chains. A chain's weight is spread evenly over its trained tokens, in either training context.
    Only turns that a path sampled itself are trained. credit: replaces GRPO's advantages."""
    graded = [[chain for chain in group if chain.is_graded] for group in groups]
    rows = []
    for group in filter(None, graded):
        for chain, advantage in zip(group, credit(group) if credit else group_credit(group, config), strict=True):
            weight = path_weight(chain, config.aggregation, chain.start_k)
            rows += trajectory_rows(chain, config.training_context, advantage, weight, chain.task.uid)
    return rows


def group_credit(group: Sequence[Rollout], config: GRPOConfig) -> list[float]:
    return [float(a) for a in group_advantages([chain.reward for chain in group], config.normalise_std)]


def rollouts_per_task(config: GRPOConfig, max_turns: int) -> int:
    return config.chains


def check(config: GRPOConfig) -> list[str]:
    if config.chains < 2:
        return [f"algorithm.chains is {config.chains}: a chain is compared with its group; use 2 or more."]
    return []


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
