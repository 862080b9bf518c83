"""GRPO with a baseline for each state, an extension by this project. A turn's baseline is the mean return of the
prompt's other paths in the same state. It is shrunk towards the path's baseline one turn earlier.

Some of a prompt's paths may be forks: they start in a state that another path reached, so paths share more states.
A fork counts as one rollout. Only turns that it sampled itself are trained and enter baselines.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np

from baselines.grpo import GRPOConfig, chain_rows, rollouts_per_task
from baselines.grpo import check as check_grpo
from rtpo.credit import group_scale
from rtpo.types import Boundary, Group, Role, Rollout, Task
from rtpo.verbs import Algorithm, Harness

ForkTurn = int | Literal["uniform", "estimated"]


@dataclass(frozen=True)
class AnchoredConfig(GRPOConfig):
    """chains: rollouts of each prompt, forks included, 2 or more.
    shrinkage: kappa; the baseline one turn earlier weighs as much as this many returns.
    forks: number of the chains that start at a boundary of another chain.
    fork_turn: turn of that boundary. uniform: each fork draws a turn from 1 to K-1. estimated: uniform until a data
        step has a `best_fork_turn`; from then on this turn.
    """

    shrinkage: float
    forks: int
    fork_turn: ForkTurn


def step(harness: Harness, tasks: Sequence[Task], config: AnchoredConfig) -> None:
    """One data step."""
    groups = harness.rollout(tasks, n=config.chains - config.forks, role=Role.CHAIN)
    if config.forks:
        groups = with_forks(harness, groups, config)
    rows = chain_rows(groups, config, lambda group: anchored_credit(group, config))
    harness.update(rows, config.loss, epochs=config.epochs, minibatches=config.minibatches)


def with_forks(harness: Harness, groups: Sequence[Group], config: AnchoredConfig) -> list[Group]:
    """Each prompt's chains, then their forks.

    The draw of a fork's turn ignores the chains' lengths. The fork's parent is one of the chains that reached this
    turn. Without any, the fork is not sampled. So no fork depends on what its parent did from this turn on.
    """
    turn = harness.state.get("fork_turn", "uniform") if config.fork_turn == "estimated" else config.fork_turn
    uniform = harness.random("forks").integers(1, harness.max_turns, (len(groups), config.forks))
    turns = uniform if turn == "uniform" else np.full_like(uniform, turn)
    boundaries = [fork_boundaries(group, [int(k) for k in row]) for group, row in zip(groups, turns, strict=True)]
    starts = [boundary for row in boundaries for boundary in row]
    forks = iter(harness.rollout(starts, n=1, role=Role.BRANCH) if starts else [])
    forked = [
        (*group, *(fork for (fork,) in islice(forks, len(row)))) for group, row in zip(groups, boundaries, strict=True)
    ]
    if config.fork_turn == "estimated" and turn == "uniform" and (best := best_fork_turn(forked)):
        harness.state["fork_turn"] = best
        harness.log("fork_turn", best)
    return forked


def fork_boundaries(chains: Group, turns: Sequence[int]) -> list[Boundary]:
    """One boundary for each entry of `turns`, from the chains that reached this turn, in rotation. A turn that no chain
    reached is left out."""
    boundaries = []
    for number, k in enumerate(turns):
        if reached := [chain for chain in chains if len(chain.turns) > k]:
            boundaries.append(reached[number % len(reached)].boundary(k))
    return boundaries


def best_fork_turn(groups: Sequence[Group]) -> int | None:
    """The turn where forks remove the most noise from baselines. None if the chains of each prompt have equal returns,
    or if no graded fork has a graded parent.

    Let f_t be the share of a return's variance that arises after S_t (docs/results/theory.md). It is estimated as the
    variance between a fork and its parent over the variance between a prompt's chains. The turn chosen has the largest
    (1 - f_t) x (number of turns that chains take from t on). 1 - f_t alone would favour late turns.
    """
    chains = [[path for path in group if path.parent_uid is None and path.is_graded] for group in groups]
    variances = [np.var([path.reward for path in group], ddof=1) for group in chains if len(group) > 1]
    variance = float(np.mean(variances)) if variances else 0.0
    lengths = [len(path.turns) for group in chains for path in group]
    fork_variances: defaultdict[int, list[float]] = defaultdict(list)
    for group in groups:
        rewards = {path.uid: path.reward for path in group if path.is_graded}
        for path in group:
            if path.uid in rewards and path.parent_uid in rewards:
                fork_variances[path.start_k].append((path.reward - rewards[path.parent_uid]) ** 2 / 2)
    if not variance or not fork_variances:
        return None
    noise_removed = {
        t: (1 - float(np.mean(values)) / variance) * sum(max(0, length - t) for length in lengths)
        for t, values in fork_variances.items()
    }
    return max(sorted(noise_removed), key=noise_removed.__getitem__)


def anchored_credit(group: Sequence[Rollout], config: AnchoredConfig) -> list[list[float]]:
    """A_k = (R - B(S_k)) / `group_scale`, for each turn that a path sampled itself; a list for each path."""
    scale = group_scale([path.reward for path in group], config.normalise_std)
    return [
        [(path.reward - baseline) / scale for baseline in baselines(path, group, config)[path.start_k :]]
        for path in group
    ]


def baselines(path: Rollout, group: Sequence[Rollout], config: AnchoredConfig) -> list[float]:
    """B(S_k) = (sum of the peers' returns + kappa B(S_{k-1})) / (number of peers + kappa), for each turn k of the path.

    Peers are the group's other paths that sampled turn k themselves, in the same state. B(S_0) is their mean return.
    Given S_k, neither their returns nor their number depend on this path's turn k. So E[gradient x B] is 0 (tested).
    Without peers at S_0, all baselines are the path's own return, so its advantages are 0.
    """
    values: list[float] = []
    for k in range(len(path.turns)):
        state = path.turns[k].snapshot.digest
        peers = [
            other.reward
            for other in group
            if other is not path and other.start_k <= k < len(other.turns) and other.turns[k].snapshot.digest == state
        ]
        if k > 0:
            values.append((sum(peers) + config.shrinkage * values[-1]) / (len(peers) + config.shrinkage))
        elif peers:
            values.append(float(np.mean(peers)))
        else:
            return [path.reward] * len(path.turns)
    return values


def check(config: AnchoredConfig) -> list[str]:
    problems = check_grpo(config)
    if config.shrinkage <= 0:
        problems.append(
            f"algorithm.shrinkage is {config.shrinkage}: with 0, a state that only one path reached has "
            "no baseline; use a number above 0."
        )
    if not 0 <= config.forks <= config.chains - 2:
        problems.append(
            f"algorithm.forks is {config.forks} and algorithm.chains {config.chains}: S_0 needs two chains that are "
            "not forks; use forks of 0 or more, and at least 2 fewer than chains."
        )
    if isinstance(config.fork_turn, int) and config.fork_turn < 1:
        problems.append(f"algorithm.fork_turn is {config.fork_turn}: a fork at S_0 is a chain; use 1 or more.")
    return problems


ALGORITHM = Algorithm(
    config=AnchoredConfig,
    step=step,
    rollouts_per_task=rollouts_per_task,
    check=check,
    plan="n chains, of which some may be forks of the others from one turn",
    credit="return minus the other paths' mean in the same state, shrunk towards the baseline one turn earlier, over "
    "the prompt's standard deviation",
    schedule="one update a step",
    contexts="recorded c_k, or flattened history",
    loss="token clip",
    trained="the turns that each path sampled itself",
)
