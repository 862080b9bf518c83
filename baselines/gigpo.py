"""GiGPO on GRPO's chains (arXiv 2505.10978): a turn is also compared with the prompt's other turns in the same state.

Rewards come only at the end and are not discounted, so the return from any state is the chain's return. If no other
turn has the same state, the advantage within the state is 0. Both means, of the prompt and of the state, include the
chain's own return.
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
    """omega: weight of the advantage within the state.
    normalise_std: divide both advantages by their standard deviations, within the group and within the state.
    """

    omega: float


def step(harness: Harness, tasks: Sequence[Task], config: GiGPOConfig) -> None:
    """One data step."""
    chains = harness.rollout(tasks, n=config.chains, role=Role.CHAIN)
    rows = chain_rows(chains, config, lambda group: state_credit(group, config))
    harness.update(rows, config.loss, epochs=config.epochs, minibatches=config.minibatches)


def state_credit(group: Sequence[Rollout], config: GiGPOConfig) -> list[list[float]]:
    """A_k = A^E + omega A^S: the advantages within the group and within the state (turns with the same snapshot
    digest)."""
    turns_in_state: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for i, chain in enumerate(group):
        for turn in chain.turns:
            turns_in_state[turn.snapshot.digest].append((i, turn.k))
    credit = [[a] * len(chain.turns) for a, chain in zip(group_credit(group, config), group, strict=True)]
    for turns in turns_in_state.values():
        returns = [group[i].reward for i, _ in turns]
        for (i, k), advantage in zip(turns, group_advantages(returns, config.normalise_std), strict=True):
            credit[i][k] += config.omega * float(advantage)
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
    credit="return's z-score within the prompt plus omega times its z-score among turns in the same state",
    schedule="one update a step",
    contexts="recorded c_k, or flattened history",
    loss="token clip",
    trained="all model tokens of every chain",
)
