"""GRPO with a critic for each turn: a ridge regression of the return on counts of the context's ids, fitted on earlier
steps alone, so that no return of a prompt is in its own baseline but through the group's mean.

What the ids of c_k do not tell, it cannot know. The policy's last hidden state would tell more, at the price of a pass
of the trainer over every context and of larger sums in every save.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from baselines.grpo import GRPOConfig, chain_rows, rollouts_per_task
from baselines.grpo import check as check_grpo
from rtpo.credit import group_scale
from rtpo.types import Group, Ids, Role, Rollout, Task
from rtpo.verbs import Algorithm, Harness

Doubles = npt.NDArray[np.float64]
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
"""of Fibonacci hashing"""


@dataclass(frozen=True)
class CriticConfig(GRPOConfig):
    """features: places that the hashed ids and pairs of neighbouring ids of a context share.
    ridge: of the regression.
    memory: what an earlier step's sums weigh a step later.
    """

    features: int
    ridge: float
    memory: float


def step(harness: Harness, tasks: Sequence[Task], config: CriticConfig) -> None:
    """One data step."""
    groups = [
        tuple(chain for chain in group if chain.is_graded)
        for group in harness.rollout(tasks, n=config.chains, role=Role.CHAIN)
    ]
    weights = fitted(harness, config)

    def credit(group: Sequence[Rollout]) -> list[list[float]]:
        """A_k = (R - v(S_k)) over the group's scale, v moved so that v(S_0) is the group's mean."""
        rewards = [chain.reward for chain in group]
        scale, mean = group_scale(rewards, config.normalise_std), float(np.mean(rewards))
        return [
            [(chain.reward - mean - v) / scale for v in (since_start(chain, harness, config) @ weights).tolist()]
            for chain in group
        ]

    rows = chain_rows(groups, config, credit)
    remember(harness, groups, config)
    harness.update(rows, config.loss, epochs=config.epochs, minibatches=config.minibatches)


def fitted(harness: Harness, config: CriticConfig) -> Doubles:
    """The regression's weights; none of the present step is in them, and before the first they are 0."""
    size = config.features + harness.max_turns
    if not harness.state:
        return np.zeros(size)
    products = np.array(harness.state["products"]) + config.ridge * np.eye(size)
    return np.linalg.solve(products, np.array(harness.state["targets"]))


def remember(harness: Harness, groups: Sequence[Group], config: CriticConfig) -> None:
    """Add this step's sums: of features' products, and of features times the return less its group's mean."""
    size = config.features + harness.max_turns
    products, targets = np.zeros((size, size)), np.zeros(size)
    if harness.state:
        products += config.memory * np.array(harness.state["products"])
        targets += config.memory * np.array(harness.state["targets"])
    for group in groups:
        for chain in group:
            x = since_start(chain, harness, config)
            products += x.T @ x
            targets += x.sum(0) * (chain.reward - float(np.mean([one.reward for one in group])))
    harness.state["products"], harness.state["targets"] = products.tolist(), targets.tolist()


def since_start(chain: Rollout, harness: Harness, config: CriticConfig) -> Doubles:
    """[turns, features + K] of each c_k and its k, less those of c_0: what a prompt's chains have in common cancels, so
    that the regression learns v(S_k) - v(S_0)."""
    counts = np.array([hashed(turn.context_ids, config.features) for turn in chain.turns])
    turns = np.eye(harness.max_turns)[: len(chain.turns)]
    rows = np.concatenate([counts, turns], axis=1)
    return rows - rows[0]


def hashed(ids: Ids, size: int) -> Doubles:
    """Signed counts of ids and of neighbouring pairs, over `size` places; the same in every process."""
    single = ids.astype(np.uint64) + np.uint64(1)
    pairs = single[:-1] * np.uint64(1 << 32) + single[1:]
    mixed = np.concatenate([single, pairs]) * MULTIPLIER
    place = (mixed >> np.uint64(33)) % np.uint64(size)
    sign = 1.0 - 2.0 * ((mixed >> np.uint64(32)) & np.uint64(1)).astype(np.float64)
    return np.bincount(place.astype(np.int64), sign, size).astype(np.float64)


def check(config: CriticConfig) -> list[str]:
    problems = check_grpo(config)
    if config.features < 1:
        problems.append(f"algorithm.features is {config.features}: use 1 or more places.")
    if config.ridge <= 0:
        problems.append(f"algorithm.ridge is {config.ridge}: use a number above 0.")
    if not 0 <= config.memory <= 1:
        problems.append(f"algorithm.memory is {config.memory}: it is a weight; use 0 to 1.")
    return problems


ALGORITHM = Algorithm(
    config=CriticConfig,
    step=step,
    rollouts_per_task=rollouts_per_task,
    check=check,
    plan="n independent chains",
    credit="return minus a ridge regression on the turn's context, fitted on earlier steps and moved to the prompt's "
    "mean at k = 0, over its standard deviation",
    schedule="one update a step",
    contexts="recorded c_k, or flattened history",
    loss="token clip",
    trained="all model tokens of every chain",
    is_rung=True,
)
