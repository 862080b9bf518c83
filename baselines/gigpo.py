"""GiGPO on GRPO's chains (arXiv 2505.10978): a turn is also compared with the prompt's other turns in the same state.

Rewards come only at the end and are not discounted, so the return from any state is the chain's return. For a turn
alone in its state the second term is 0. A chain's own return is in the mean of its prompt and in those of its states.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from baselines.grpo import GRPOConfig, chain_rows, group_credit, rollouts_per_task
from baselines.grpo import check as check_grpo
from rtpo.credit import group_advantages
from rtpo.types import Role, Rollout, Task
from rtpo.verbs import Algorithm, Harness


@dataclass(frozen=True)
class GiGPOConfig(GRPOConfig):
    """omega: weight of the advantage among the turns in the same state.
    normalise_std: divide both advantages by their standard deviations, within the group and within the state; GiGPO's
        code has one `mode` for both, too.
    """

    omega: float


def step(harness: Harness, tasks: Sequence[Task], config: GiGPOConfig) -> None:
    """One data step."""
    chains = harness.rollout(tasks, n=config.chains, role=Role.CHAIN)
    rows = chain_rows(chains, config, lambda group: state_credit(group, config))
    harness.update(rows, config.loss, epochs=config.epochs, minibatches=config.minibatches)


def state_credit(group: Sequence[Rollout], config: GiGPOConfig) -> list[list[float]]:
    """A_k = A^E + omega A^S: the advantage within the group, and that among the turns in the same state (same
    digest)."""
    stood: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for i, chain in enumerate(group):
        for turn in chain.turns:
            stood[turn.snapshot.digest].append((i, turn.k))
    credit = [[a] * len(chain.turns) for a, chain in zip(group_credit(group, config), group, strict=True)]
    for turns in stood.values():
        returns = [group[i].reward for i, _ in turns]
        for (i, k), among in zip(turns, group_advantages(returns, config.normalise_std), strict=True):
            credit[i][k] += config.omega * float(among)
    return credit


def check(config: GiGPOConfig) -> list[str]:
    problems = check_grpo(config)
    if not 0 <= config.omega < math.inf:
        problems.append(f"algorithm.omega is {config.omega}: it is a weight; use a finite number of 0 or more.")
    return problems


ALGORITHM = Algorithm(
    config=GiGPOConfig,
    step=step,
    rollouts_per_task=rollouts_per_task,
    check=check,
    plan="n independent chains",
    credit="return's z-score within the prompt plus omega times its z-score among the turns taken in the state",
    schedule="one update a step",
    contexts="recorded c_k, or flattened history",
    loss="token clip",
    trained="all model tokens of every chain",
)
