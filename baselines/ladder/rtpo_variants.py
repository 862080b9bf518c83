"""RTPO that forks only a share of the trunks' boundaries, or trains its turns in another order.

With `forked` = 1 and `order` = reverse it is RTPO.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rtpo.rtpo import fork, sibling_rows
from rtpo.types import Boundary, Role, Task
from rtpo.verbs import Algorithm, AlgorithmConfig, Harness, TokenClip


@dataclass(frozen=True)
class RTPOVariantsConfig(AlgorithmConfig):
    """trunks: M, number of trunks for each prompt.
    group_size: G, 3 or more; G-1 siblings are sampled from each forked boundary.
    forked: share of a data step's boundaries that are forked, drawn anew in each step; 1 forks all.
    order: `reverse` and `forward` update each turn by itself, from the last or from the first, on siblings of the
        newest weights. `together` updates all turns at once, on siblings of the weights at the step's start. Its
        objective is the mean of the turns' objectives.
    """

    trunks: int
    group_size: int
    forked: float
    order: Literal["reverse", "forward", "together"]

    @property
    def loss(self) -> TokenClip:
        return TokenClip(self.clip_low, self.clip_high, kl=self.kl)


def step(harness: Harness, tasks: Sequence[Task], config: RTPOVariantsConfig) -> None:
    """One data step."""
    trunks = [trunk for group in harness.rollout(tasks, n=config.trunks, role=Role.TRUNK) for trunk in group]
    boundaries_by_turn = {
        k: boundaries
        for k in reversed(range(harness.max_turns))
        if (boundaries := [trunk.boundary(k) for trunk in trunks if len(trunk.turns) > k])
    }
    chosen = draw_share(boundaries_by_turn, config.forked, harness.random("forks"))
    phases = [list(chosen)] if config.order == "together" else [[k] for k in chosen]
    for phase in reversed(phases) if config.order == "forward" else phases:
        harness.sync()
        siblings = fork(harness, {k: chosen[k] for k in phase}, config.group_size - 1)
        rows = [row for k in phase for row in sibling_rows(chosen[k], siblings[k], k)]
        harness.update(rows, config.loss, epochs=config.epochs, minibatches=config.minibatches)


def draw_share(
    boundaries_by_turn: Mapping[int, Sequence[Boundary]], share: float, rng: np.random.Generator
) -> dict[int, list[Boundary]]:
    """Draw `share` of every turn's boundaries, each equally likely. So `share` does not change the expected gradient of
    a turn's update. If a turn's share is below one boundary, some steps leave the turn out."""
    ends = np.cumsum([len(boundaries) for boundaries in boundaries_by_turn.values()])
    total = max(1, int(share * int(ends[-1])))
    counts = np.diff(np.floor(ends * total / ends[-1] + rng.random()).astype(int), prepend=0)
    return {
        k: [boundaries[i] for i in sorted(rng.permutation(len(boundaries))[:count])]
        for (k, boundaries), count in zip(boundaries_by_turn.items(), counts, strict=True)
        if count
    }


def rollouts_per_task(config: RTPOVariantsConfig, max_turns: int) -> int:
    """Worst case: every trunk takes all K turns. It bounds the mean over a step's tasks. A single task may exceed it,
    since forks are drawn over all tasks."""
    forks = int(np.ceil(config.forked * config.trunks * max_turns))
    return config.trunks + forks * (config.group_size - 1)


def check(config: RTPOVariantsConfig) -> list[str]:
    problems = []
    if config.trunks < 1:
        problems.append(f"algorithm.trunks is {config.trunks}: boundaries come from trunks; use 1 or more.")
    if config.group_size < 3:
        problems.append(
            f"algorithm.group_size is {config.group_size}: G-1 siblings are compared with each other; use 3 or more."
        )
    if config.training_context != "recorded":
        problems.append(
            f"algorithm.training_context is {config.training_context}: turn k is trained on the c_k it was sampled "
            "from; use recorded."
        )
    if not 0 < config.forked <= 1:
        problems.append(f"algorithm.forked is {config.forked}: it is a share; use a number above 0, 1 at most.")
    return problems


ALGORITHM = Algorithm(
    config=RTPOVariantsConfig,
    step=step,
    rollouts_per_task=rollouts_per_task,
    check=check,
    plan="M trunks; G-1 siblings forked at a share of the realised turn boundaries",
    credit="return minus the mean of the siblings of the same boundary, no std",
    schedule="turns in reverse, forward or together; weights synchronised and siblings sampled anew before each",
    contexts="recorded c_k",
    loss="token clip",
    trained="the siblings' turn-k tokens",
    is_rung=True,
)
