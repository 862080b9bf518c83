"""GRPO with baselines by state: an extension of this project. A chain's turn is compared with the others that took one
in the same state, shrunk towards the baseline of the state before.

Some of a prompt's paths may be forked from others, so that states recur where they would not by themselves. A fork is a
rollout like any other, trained on the turns that it sampled itself, and counts nowhere before its fork: there its past
is another's.
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
    """chains: rollouts for each prompt, forks included, 2 or more.
    shrinkage: kappa, how many returns the baseline of the state before counts for.
    forks: of the chains, those that begin at a boundary of another.
    fork_turn: the turn of that boundary. uniform: each fork draws one of the turns 1 to K-1. estimated: uniform in the
        first step, then the turn that the first step's returns name (`most_saved`).
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
    """Each prompt's chains and their forks.

    A fork's turn is fixed before it is known how long the chains are, and its parent is one of those that reached it;
    without one there is no fork. So no fork depends on what its parent did from there on.
    """
    turn = harness.state.get("fork_turn", "uniform") if config.fork_turn == "estimated" else config.fork_turn
    uniform = harness.random("forks").integers(1, harness.max_turns, (len(groups), config.forks))
    turns = uniform if turn == "uniform" else np.full_like(uniform, turn)
    places = [fork_places(group, [int(k) for k in row]) for group, row in zip(groups, turns, strict=True)]
    starts = [place for row in places for place in row]
    forks = iter(harness.rollout(starts, n=1, role=Role.BRANCH) if starts else [])
    forked = [
        (*group, *(fork for (fork,) in islice(forks, len(row)))) for group, row in zip(groups, places, strict=True)
    ]
    if config.fork_turn == "estimated" and turn == "uniform" and (best := most_saved(forked)):
        harness.state["fork_turn"] = best
        harness.log("fork_turn", best)
    return forked


def fork_places(chains: Group, turns: Sequence[int]) -> list[Boundary]:
    """A boundary of each of these turns, of the chains that reached it one after another."""
    places = []
    for number, k in enumerate(turns):
        if reached := [chain for chain in chains if len(chain.turns) > k]:
            places.append(reached[number % len(reached)].boundary(k))
    return places


def most_saved(groups: Sequence[Group]) -> int | None:
    """The turn t at which forks take most noise from the baselines: (1 - f_t) times how many turns a chain takes from t
    on. None where returns do not differ.

    f_t is the share of a return's variance that is still to come at S_t (docs/results/theory.md): the variance between
    a fork and its parent, by that between the chains of a prompt. It falls with t, so it is not taken by itself.
    """
    chains = [[path for path in group if path.parent_uid is None and path.is_graded] for group in groups]
    between = [np.var([path.reward for path in group], ddof=1) for group in chains if len(group) > 1]
    variance = float(np.mean(between)) if between else 0.0
    lengths = [len(path.turns) for group in chains for path in group]
    halves: defaultdict[int, list[float]] = defaultdict(list)
    for group in groups:
        rewards = {path.uid: path.reward for path in group if path.is_graded}
        for path in group:
            if path.uid in rewards and path.parent_uid in rewards:
                halves[path.start_k].append((path.reward - rewards[path.parent_uid]) ** 2 / 2)
    if not variance or not halves:
        return None
    saved = {
        t: (1 - float(np.mean(ahead)) / variance) * sum(max(0, length - t) for length in lengths)
        for t, ahead in halves.items()
    }
    return max(sorted(saved), key=saved.__getitem__)


def anchored_credit(group: Sequence[Rollout], config: AnchoredConfig) -> list[list[float]]:
    """A_k = (R - B(S_k)) over the group's scale, of the turns that each path sampled itself."""
    scale = group_scale([path.reward for path in group], config.normalise_std)
    return [
        [(path.reward - baseline) / scale for baseline in baselines(path, group, config)[path.start_k :]]
        for path in group
    ]


def baselines(path: Rollout, group: Sequence[Rollout], config: AnchoredConfig) -> list[float]:
    """B(S_k) = (sum of the others' returns at S_k + kappa B(S_{k-1})) / (their number + kappa), and at S_0 the others'
    mean. The others are the paths that sampled a turn of their own there. Given S_k, neither they nor their number
    depend on this path's turn k, so that E[gradient x B] is 0 (tested).
    Where there are none at S_0 all baselines are the path's own return, so that it has no advantage."""
    found: list[float] = []
    for k in range(len(path.turns)):
        here = path.turns[k].snapshot.digest
        others = [
            other.reward
            for other in group
            if other is not path and other.start_k <= k < len(other.turns) and other.turns[k].snapshot.digest == here
        ]
        if k > 0:
            found.append((sum(others) + config.shrinkage * found[-1]) / (len(others) + config.shrinkage))
        elif others:
            found.append(float(np.mean(others)))
        else:
            return [path.reward] * len(path.turns)
    return found


def check(config: AnchoredConfig) -> list[str]:
    problems = check_grpo(config)
    if config.shrinkage <= 0:
        problems.append(
            f"algorithm.shrinkage is {config.shrinkage}: a state that one path alone came to has the baseline of the "
            "one before; use a number above 0."
        )
    if not 0 <= config.forks <= config.chains - 2:
        problems.append(
            f"algorithm.forks is {config.forks} and algorithm.chains {config.chains}: forks are some of the chains, "
            "and two others are compared at S_0; use 0 or more, and at least 2 fewer than chains."
        )
    if isinstance(config.fork_turn, int) and config.fork_turn < 1:
        problems.append(f"algorithm.fork_turn is {config.fork_turn}: a fork at S_0 is a chain; use 1 or more.")
    return problems


ALGORITHM = Algorithm(
    config=AnchoredConfig,
    step=step,
    rollouts_per_task=rollouts_per_task,
    check=check,
    plan="n independent chains, of which some may be forked from others at one turn",
    credit="return minus the others' mean in the same state, shrunk to the state before, over the prompt's standard "
    "deviation",
    schedule="one update a step",
    contexts="recorded c_k, or flattened history",
    loss="token clip",
    trained="the turns that each path sampled itself",
)
