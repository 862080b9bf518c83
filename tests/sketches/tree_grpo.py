"""Tree-GRPO: chains grow into trees from boundaries drawn at random; leaves are compared in their prompt and tree."""

from collections.abc import Sequence
from dataclasses import dataclass

from rtpo.credit import group_advantages
from rtpo.rows import trajectory_rows
from rtpo.types import Boundary, Role, Rollout, Task
from rtpo.verbs import AlgorithmConfig, Harness, TokenClip


@dataclass(frozen=True)
class TreeGRPOConfig(AlgorithmConfig):
    """trees: M for each prompt. expansions: L rounds. branches: N new leaves of each tree in a round."""

    trees: int = 4
    expansions: int = 1
    branches: int = 3
    dual_clip: float | None = 3.0


def step(harness: Harness, tasks: Sequence[Task], config: TreeGRPOConfig) -> None:
    """One data step. A tree is the list of its leaves, each a path from the root."""
    rng = harness.random("nodes")
    trees = [[tree] for group in harness.rollout(tasks, n=config.trees, role=Role.CHAIN) for tree in group]
    for _ in range(config.expansions):
        drawn = []
        for tree in trees:
            nodes = boundaries(tree)
            drawn += [nodes[i] for i in rng.integers(len(nodes), size=config.branches)]
        grown = [leaf for (leaf,) in harness.rollout(drawn, n=1, role=Role.BRANCH)]
        for i, tree in enumerate(trees):
            tree += grown[i * config.branches : (i + 1) * config.branches]
    rows = []
    for i in range(0, len(trees), config.trees):
        graded = [[leaf for leaf in tree if leaf.is_graded] for tree in trees[i : i + config.trees]]
        inter = advantages([leaf for tree in graded for leaf in tree])
        intra = {uid: value for tree in graded for uid, value in advantages(tree).items()}
        for leaf in (leaf for tree in graded for leaf in tree):
            tokens = sum(len(turn.output_ids) for turn in leaf.turns)
            advantage, context = inter[leaf.uid] + intra[leaf.uid], config.training_context
            rows += trajectory_rows(leaf, context, advantage, tokens, leaf.task.uid, first_k=0)
    loss = TokenClip(config.clip_low, config.clip_high, config.dual_clip, kl=config.kl)
    harness.update(rows, loss, epochs=config.epochs, minibatches=config.minibatches)


def boundaries(tree: Sequence[Rollout]) -> list[Boundary]:
    """The root and the end of every node that is not a leaf, each once."""
    own = [leaf.boundary(k) for leaf in tree for k in range(leaf.start_k + 1, len(leaf.turns))]
    return [tree[0].boundary(0), *own]


def advantages(leaves: Sequence[Rollout]) -> dict[str, float]:
    """z-scores of the leaves' returns, by leaf; 0 for a lone leaf."""
    if not leaves:
        return {}
    values = group_advantages([leaf.reward for leaf in leaves], True)
    return {leaf.uid: float(value) for leaf, value in zip(leaves, values, strict=True)}


def rollouts_per_task(config: TreeGRPOConfig, max_turns: int) -> int:
    return config.trees * (1 + config.expansions * config.branches)
