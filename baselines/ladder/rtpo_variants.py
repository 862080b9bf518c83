"""RTPO with fewer, larger groups, with baselines shrunk to the prompt's, or with forks where luck is still ahead: what
may keep its groups from being ties. An extension of this project; with `forked` 1 and `shrinkage` 0 it is RTPO.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rtpo.rows import turn_row
from rtpo.rtpo import fork, sibling_rows
from rtpo.types import Boundary, Group, Role, Rollout, Task, TrainRow
from rtpo.verbs import Algorithm, AlgorithmConfig, Harness, TokenClip


@dataclass(frozen=True)
class RTPOVariantsConfig(AlgorithmConfig):
    """trunks: M, anchors for each prompt.
    group_size: G, 3 or more; G-1 siblings are forked from each boundary that is forked.
    forked: share of a data step's boundaries that are forked, drawn anew in each; 1 for all.
    by_luck: fork a larger share of the boundaries of those turns whose siblings' returns differed more in earlier
        steps, in place of the same share of every turn's.
    memory: what an earlier step's sums weigh a step later, where forks go by luck.
    shrinkage: kappa, how many returns the mean of the prompt's earlier paths counts for in a baseline; 0 for RTPO's own
        baseline, which holds the sibling's return.
    """

    trunks: int
    group_size: int
    forked: float
    by_luck: bool
    memory: float
    shrinkage: float

    @property
    def loss(self) -> TokenClip:
        return TokenClip(self.clip_low, self.clip_high, kl=self.kl)


def step(harness: Harness, tasks: Sequence[Task], config: RTPOVariantsConfig) -> None:
    """One data step."""
    trunks = [trunk for group in harness.rollout(tasks, n=config.trunks, role=Role.TRUNK) for trunk in group]
    realised = {
        k: boundaries
        for k in reversed(range(harness.max_turns))
        if (boundaries := [trunk.boundary(k) for trunk in trunks if len(trunk.turns) > k])
    }
    weights = spreads(harness) if config.by_luck else [1.0] * harness.max_turns
    known = returns_by_prompt(trunks)
    sampled: dict[int, list[Group]] = {}
    for k, boundaries in drawn(realised, weights, config.forked, harness.random("forks")).items():
        harness.sync()
        sampled[k] = siblings = fork(harness, {k: boundaries}, config.group_size - 1)[k]
        rows = (
            shrunk_rows(boundaries, siblings, k, known, config.shrinkage)
            if config.shrinkage
            else sibling_rows(boundaries, siblings, k)
        )
        harness.update(rows, config.loss, epochs=config.epochs, minibatches=config.minibatches)
        for uid, returns in returns_by_prompt([sibling for group in siblings for sibling in group]).items():
            known[uid] += returns
    if config.by_luck:
        remember(harness, sampled, config.memory)


def returns_by_prompt(paths: Sequence[Rollout]) -> defaultdict[str, list[float]]:
    found: defaultdict[str, list[float]] = defaultdict(list)
    for path in paths:
        if path.is_graded:
            found[path.task.uid].append(path.reward)
    return found


def drawn(
    realised: Mapping[int, Sequence[Boundary]], weights: Sequence[float], share: float, rng: np.random.Generator
) -> dict[int, list[Boundary]]:
    """That share of the boundaries, by turn: of each turn's a share in proportion to its weight, all at most. Which of
    them is even, so that an update has the same mean whatever the share is. A turn whose share is less than one
    boundary is in some steps not forked, and then not trained."""
    total = max(1, int(share * sum(len(boundaries) for boundaries in realised.values())))
    ends = np.cumsum([weights[k] * len(boundaries) for k, boundaries in realised.items()])
    counts = np.diff(np.floor(ends * total / ends[-1] + rng.random()).astype(int), prepend=0)
    return {
        k: [boundaries[i] for i in sorted(rng.permutation(len(boundaries))[:count])]
        for (k, boundaries), count in zip(realised.items(), counts, strict=True)
        if count
    }


def shrunk_rows(
    boundaries: Sequence[Boundary],
    siblings: Sequence[Group],
    k: int,
    known: Mapping[str, Sequence[float]],
    shrinkage: float,
) -> list[TrainRow]:
    """Turn-k rows with A = R - (sum of the m others' returns + kappa P) / (m + kappa), P the mean of the prompt's
    returns that are `known`; as differences, so that equal returns give exact zeros. A sibling with which nothing can
    be compared is left out.

    What was sampled before the siblings owes nothing to their turn k, given S_k: no baseline moves the gradient.
    """
    found = []
    for boundary, group in zip(boundaries, siblings, strict=True):
        graded = [sibling for sibling in group if sibling.is_graded]
        prompt = np.array(known[boundary.task.uid])
        kappa = shrinkage if len(prompt) else 0.0
        for sibling in graded:
            others = [sibling.reward - other.reward for other in graded if other is not sibling]
            if weight := len(others) + kappa:
                shrunk = kappa * float(np.mean(sibling.reward - prompt)) if kappa else 0.0
                found.append((sibling, (sum(others) + shrunk) / weight, boundary.uid))
    return [turn_row(sibling.turns[k], sibling, a, 1 / len(found), group) for sibling, a, group in found]


def spreads(harness: Harness) -> list[float]:
    """Of each turn, the root of the mean variance of its siblings' returns in earlier steps and of one more group with
    that of all turns, so that a turn without forks comes back; all equal before there is any."""
    sums, groups = remembered(harness)
    everywhere = sum(sums) / (sum(groups) or 1.0)
    found = [((total + everywhere) / (count + 1)) ** 0.5 for total, count in zip(sums, groups, strict=True)]
    return found if everywhere else [1.0] * len(found)


def remember(harness: Harness, sampled: Mapping[int, Sequence[Group]], memory: float) -> None:
    """Add this step's variances and the number of groups that they are of."""
    sums, groups = ([memory * value for value in values] for values in remembered(harness))
    for k, siblings in sampled.items():
        for group in siblings:
            returns = [sibling.reward for sibling in group if sibling.is_graded]
            if len(returns) > 1:
                sums[k] += float(np.var(returns, ddof=1))
                groups[k] += 1.0
    harness.state["variances"], harness.state["groups"] = sums, groups


def remembered(harness: Harness) -> tuple[list[float], list[float]]:
    """By turn, the sums of earlier steps; 0 before the first."""
    nothing = [0.0] * harness.max_turns
    return harness.state.get("variances", nothing), harness.state.get("groups", nothing)


def rollouts_per_task(config: RTPOVariantsConfig, max_turns: int) -> int:
    """Worst case: every trunk takes all K turns. Of a step's tasks together: forks are drawn over all of them, so that
    one may have more where others have fewer."""
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
    if config.by_luck and config.forked == 1:
        problems.append("algorithm.by_luck is true and algorithm.forked 1: all are forked; use forked below 1.")
    if not 0 <= config.memory <= 1:
        problems.append(f"algorithm.memory is {config.memory}: it is a weight; use 0 to 1.")
    if not 0 <= config.shrinkage < np.inf:
        problems.append(f"algorithm.shrinkage is {config.shrinkage}: use a finite number of 0 or more.")
    return problems


ALGORITHM = Algorithm(
    config=RTPOVariantsConfig,
    step=step,
    rollouts_per_task=rollouts_per_task,
    check=check,
    plan="M trunks; G-1 siblings forked at a share of the realised turn boundaries, even or by luck",
    credit="return minus the mean of the siblings of the same boundary; or minus that of the others, shrunk to the "
    "mean of the prompt's earlier paths; no std",
    schedule="turns in reverse; weights synchronised and siblings sampled anew before each",
    contexts="recorded c_k",
    loss="token clip",
    trained="the siblings' turn-k tokens",
    is_rung=True,
)
