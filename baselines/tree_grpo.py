"""Tree-GRPO: chains grow into trees by branches from random nodes. A leaf (finished path) is compared with the leaves
of its prompt and of its tree. Both means include its own return."""

from collections.abc import Sequence
from dataclasses import dataclass

from rtpo.credit import group_advantages
from rtpo.rows import path_weight, trajectory_rows
from rtpo.types import Boundary, Role, Rollout, Task, TrainRow
from rtpo.verbs import Algorithm, Harness, PathConfig

Tree = list[Rollout]
"""a tree is its leaves, each a path from the root"""


@dataclass(frozen=True)
class TreeGRPOConfig(PathConfig):
    """trees: number for each prompt (M). expansions: rounds of growth (L). branches: new leaves of a tree in each round
    (N); their nodes are drawn with replacement."""

    trees: int
    expansions: int
    branches: int


def step(harness: Harness, tasks: Sequence[Task], config: TreeGRPOConfig) -> None:
    """One data step."""
    rng = harness.random("nodes")
    prompts: list[list[Tree]] = [
        [[chain] for chain in group] for group in harness.rollout(tasks, n=config.trees, role=Role.CHAIN)
    ]
    trees = [tree for prompt in prompts for tree in prompt]
    for _ in range(config.expansions):
        drawn: list[Boundary] = []
        for tree in trees:
            choices = nodes(tree)
            drawn += [choices[i] for i in rng.integers(len(choices), size=config.branches)]
        leaves = [leaf for (leaf,) in harness.rollout(drawn, n=1, role=Role.BRANCH)]
        for i, tree in enumerate(trees):
            tree += leaves[i * config.branches : (i + 1) * config.branches]
    rows = [row for prompt in prompts for row in leaf_rows(prompt, config)]
    harness.update(rows, config.loss, epochs=config.epochs, minibatches=config.minibatches)


def nodes(tree: Tree) -> list[Boundary]:
    """The boundaries where branches can start, each once: the root, and the end of every turn except a path's last."""
    inner_nodes = [leaf.boundary(k) for leaf in tree for k in range(leaf.start_k + 1, len(leaf.turns))]
    return [tree[0].boundary(0), *inner_nodes]


def leaf_rows(trees: Sequence[Tree], config: TreeGRPOConfig) -> list[TrainRow]:
    """Rows of the graded leaves, with A = z-score within the prompt + z-score within the tree. A shared turn is in the
    rows of every leaf that shares it."""
    graded = [[leaf for leaf in tree if leaf.is_graded] for tree in trees]
    inter = z_scores([leaf for tree in graded for leaf in tree])
    rows = []
    for tree in graded:
        intra = z_scores(tree)
        for leaf in tree:
            advantage, weight = inter[leaf.uid] + intra[leaf.uid], path_weight(leaf, config.aggregation)
            rows += trajectory_rows(leaf, config.training_context, advantage, weight, leaf.task.uid, first_k=0)
    return rows


def z_scores(leaves: Sequence[Rollout]) -> dict[str, float]:
    """Standardised returns, by leaf; 0 for a lone leaf."""
    if not leaves:
        return {}
    values = group_advantages([leaf.reward for leaf in leaves], True)
    return {leaf.uid: float(value) for leaf, value in zip(leaves, values, strict=True)}


def rollouts_per_task(config: TreeGRPOConfig, max_turns: int) -> int:
    return config.trees * (1 + config.expansions * config.branches)


def check(config: TreeGRPOConfig) -> list[str]:
    problems = []
    for name, value, least in [
        ("trees", config.trees, 1),
        ("expansions", config.expansions, 0),
        ("branches", config.branches, 1),
    ]:
        if value < least:
            problems.append(f"algorithm.{name} is {value}: use {least} or more.")
    if config.trees * (1 + config.expansions * config.branches) < 2:
        problems.append("algorithm.trees is 1 and algorithm.expansions 0: a lone leaf has nothing to compare with.")
    return problems


ALGORITHM = Algorithm(
    config=TreeGRPOConfig,
    step=step,
    rollouts_per_task=rollouts_per_task,
    check=check,
    plan="M chains, each grown into a tree by N branches from random nodes, L times",
    credit="return's z-score within the prompt plus its z-score within the tree",
    schedule="one update a step",
    contexts="flattened history, or recorded c_k",
    loss="token clip",
    trained="all model tokens of every leaf's path; a shared turn once for each leaf",
)
