"""RTPO: Reverse-Turn Policy Optimization (Algorithm 1 of the paper).

Trunks give boundaries and are never trained. Turn by turn from the last: the newest weights go to the engine, G-1
siblings are forked from every realised boundary S_k and continued to the end, each sibling's return is compared with
the mean of its boundary's siblings, and only the siblings' turn-k tokens are trained.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from rtpo.credit import sibling_advantages
from rtpo.rows import turn_row
from rtpo.types import Boundary, Group, Role, Rollout, Task, TrainRow
from rtpo.verbs import Algorithm, AlgorithmConfig, Harness, TokenClip


@dataclass(frozen=True)
class RTPOConfig(AlgorithmConfig):
    """Defaults for mathematical reasoning at the paper's scale; docs/rtpo.md lists where each comes from, since the
    paper does not give all.

    trunks: M, anchors for each prompt.
    group_size: G; G-1 siblings are forked from each boundary.
    pool_s0: compare all siblings of a prompt at k = 0, where its trunks share S_0, instead of each trunk's own.
    """

    trunks: int = 4
    group_size: int = 3
    pool_s0: bool = False


def step(harness: Harness, tasks: Sequence[Task], config: RTPOConfig) -> None:
    """One data step."""
    loss = TokenClip(config.clip_low, config.clip_high, kl=config.kl)
    trunks = [trunk for group in harness.rollout(tasks, n=config.trunks, role=Role.TRUNK) for trunk in group]
    for k in reversed(range(harness.max_turns)):
        boundaries = [trunk.boundary(k) for trunk in trunks if len(trunk.turns) > k]
        if not boundaries:
            continue
        harness.sync()
        siblings = harness.rollout(boundaries, n=config.group_size - 1, role=Role.SIBLING)
        rows = sibling_rows(boundaries, siblings, k, pool=config.pool_s0 and k == 0)
        harness.update(rows, loss, epochs=config.epochs, minibatches=config.minibatches)


def sibling_rows(boundaries: Sequence[Boundary], siblings: Sequence[Group], k: int, pool: bool) -> list[TrainRow]:
    """Turn-k rows with A = R - sibling mean; every sibling weighs the same, its tokens equally (eq. per-turn-obj).

    A sibling that could not be graded is left out, and so is a group with fewer than two left.
    """
    groups: defaultdict[str, list[Rollout]] = defaultdict(list)
    for boundary, forked in zip(boundaries, siblings, strict=True):
        name = f"{boundary.task.uid}/{boundary.k}" if pool else boundary.uid
        groups[name] += [sibling for sibling in forked if sibling.is_graded]
    comparable = {name: group for name, group in groups.items() if len(group) > 1}
    weight = 1 / max(1, sum(len(group) for group in comparable.values()))
    return [
        turn_row(sibling.turns[k], sibling, advantage, weight, name)
        for name, group in comparable.items()
        for sibling, advantage in zip(group, sibling_advantages([s.reward for s in group]), strict=True)
    ]


def rollouts_per_task(config: RTPOConfig, max_turns: int) -> int:
    """Worst case: every trunk takes all K turns."""
    return config.trunks * (1 + max_turns * (config.group_size - 1))


def check(config: RTPOConfig) -> list[str]:
    problems = []
    if config.group_size < 3:
        problems.append(
            f"algorithm.group_size is {config.group_size}: G-1 siblings are compared with their own mean, so G = 2 "
            "makes every advantage 0; use 3 or more."
        )
    if config.trunks < 1:
        problems.append(f"algorithm.trunks is {config.trunks}: boundaries come from trunks; use 1 or more.")
    if config.training_context != "recorded":
        problems.append(
            f"algorithm.training_context is {config.training_context}: RTPO trains turn k on the c_k it was sampled "
            "from; use recorded."
        )
    return problems


ALGORITHM = Algorithm(
    config=RTPOConfig,
    step=step,
    rollouts_per_task=rollouts_per_task,
    check=check,
    plan="M trunks; G-1 siblings forked at every realised turn boundary",
    credit="return minus the mean of the siblings of the same boundary, no std",
    schedule="turns in reverse; weights synchronised and siblings sampled anew before each",
    contexts="recorded c_k",
    loss="token clip",
    trained="the siblings' turn-k tokens",
)
