"""Tree-GRPO on the scripted engine: the shape of trees, the two parts of the advantage, and GRPO as a case of it."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from methods import TASKS, advantage_of, config_of, finished, graded, one_step, parts_of, spelled_path
from scripted import CALL_1, CALL_2, RIGHT, TASK, WRONG, RecordingHarness, in_turn, scripted_harness, solver

from baselines.tree_grpo import leaf_rows, nodes, z_scores
from rtpo.algorithms import configured
from rtpo.credit import STD_EPSILON, standardised
from rtpo.types import Role, Rollout, TrainingContext

CONFIG = configured("tree_grpo", kl=0.0, expansions=2)


def trees_of(harness: RecordingHarness) -> dict[str, list[Rollout]]:
    """The leaves of every tree, by the chain it grew from."""
    paths = {path.uid: path for path in harness.rollouts}

    def chain(path: Rollout) -> str:
        return path.uid if path.parent_uid is None else chain(paths[path.parent_uid])

    trees: dict[str, list[Rollout]] = {}
    for path in harness.rollouts:
        trees.setdefault(chain(path), []).append(path)
    return trees


@pytest.mark.parametrize(("trees", "expansions", "branches"), [(4, 1, 3), (4, 2, 3), (1, 3, 2), (2, 1, 5)])
def test_there_are_m_times_one_plus_l_n_leaves(trees: int, expansions: int, branches: int) -> None:
    harness = one_step(replace(CONFIG, trees=trees, expansions=expansions, branches=branches))
    leaves = 1 + expansions * branches
    assert [len(paths) for paths in finished(harness).values()] == [trees * leaves] * len(TASKS)
    assert [len(tree) for tree in trees_of(harness).values()] == [leaves] * trees * len(TASKS)
    assert len(harness.step_log.rollouts) == 1 + expansions
    roles = {path.uid: path.role for path in harness.rollouts}
    parents = {roles[path.parent_uid] for path in harness.rollouts if path.parent_uid}
    assert parents == ({Role.CHAIN} if expansions == 1 else {Role.CHAIN, Role.BRANCH})
    (rows,) = harness.updated
    assert len({row.rollout_uid for row in rows}) == trees * leaves * len(TASKS)
    for tree in trees_of(harness).values():  # the root, and the end of every turn but a path's last, each once
        ends = {id(turn) for leaf in tree for turn in leaf.turns[:-1]}
        assert len(nodes(tree)) == 1 + len(ends)


def test_nodes_are_drawn_alike_and_with_replacement_the_root_included() -> None:
    """All chains take three turns: a third of the branches each from the root and the two turns after it, and a third
    of the trees have both of theirs from one node."""
    config = replace(CONFIG, trees=120, expansions=1, branches=2)
    branches = [r for r in one_step(config, script=solver(0.0)).rollouts if r.role is Role.BRANCH]
    drawn = Counter(branch.start_k for branch in branches)
    assert sum(drawn.values()) == 720
    for k in range(3):
        assert abs(drawn[k] / 720 - 1 / 3) < 3.5 * (2 / 9 / 720) ** 0.5
    places = Counter((branch.parent_uid, branch.start_k) for branch in branches)
    assert abs(list(places.values()).count(2) / 360 - 1 / 3) < 3.5 * (2 / 9 / 360) ** 0.5


def test_an_advantage_is_the_sum_of_two_standardised_parts() -> None:
    """Within the prompt and within the tree, each of returns: standardising twice looks the same, since a z-score does
    not depend on scale, but for the epsilon. It shows as soon as returns lie as close together as that is. Leaves
    without a reward are in neither part, and a lone leaf has no place in its tree."""
    chains = scripted_harness(solver(0.4)).rollout([TASK], n=7, role=Role.CHAIN)[0]
    close = [0.5, 0.5 + 4 * STD_EPSILON]
    rewards = [1.0, 0.0, None, None, 0.0, *close]
    leaves = [graded(chain, reward) for chain, reward in zip(chains, rewards, strict=True)]
    rows = leaf_rows([leaves[:3], leaves[3:4], leaves[4:5], leaves[5:]], CONFIG)
    inter = standardised([1.0, 0.0, 0.0, *close])
    intra = [*standardised([1.0, 0.0]), 0.0, *standardised(close)]
    assert (abs(standardised(standardised(close)) - intra[3:]) > 0.1).all()
    assert [row.rollout_uid for row in rows] == [chains[i].uid for i in (0, 1, 4, 5, 6)]
    assert [advantage_of(row) for row in rows] == pytest.approx([a + b for a, b in zip(inter, intra, strict=True)])
    assert z_scores([]) == {}


@pytest.mark.parametrize("context", ["recorded", "flattened"])
def test_without_expansions_it_is_grpo_with_the_mean_over_tokens(context: TrainingContext) -> None:
    tree = one_step(replace(CONFIG, trees=8, expansions=0, training_context=context))
    chains = one_step(config_of("grpo", chains=8, aggregation="token", training_context=context))
    (rows,), (others,) = tree.updated, chains.updated
    assert tree.losses == chains.losses
    assert [parts_of(row) for row in rows] == [parts_of(row) for row in others]
    for row, other in zip(rows, others, strict=True):
        assert (row.group, row.rollout_uid) == (other.group, other.rollout_uid)
        assert row.weight.tolist() == other.weight.tolist()
        assert row.rollout_logprobs.tolist() == other.rollout_logprobs.tolist()
    assert any(row.advantage.any() for row in rows)


@pytest.mark.parametrize("context", ["recorded", "flattened"])
def test_rows_token_by_token(context: TrainingContext) -> None:
    """12 + 5 * 3: a chain of call, call, right, from whose first turn a branch goes wrong; and a tree of one leaf."""
    harness = scripted_harness(in_turn(CALL_1, CALL_2, RIGHT, WRONG, WRONG))
    ((chain, lone),) = harness.rollout([TASK], n=2, role=Role.CHAIN)
    ((branch,),) = harness.rollout([chain.boundary(1)], n=1, role=Role.BRANCH)
    rows = leaf_rows([[chain, branch], [lone]], replace(CONFIG, training_context=context))
    right, wrong, alone = 2 / 3**0.5 + 1 / 2**0.5, -1 / 3**0.5 - 1 / 2**0.5, -1 / 3**0.5
    expected = spelled_path(context, ("call_1", right), ("call_2", right), ("right", right))
    expected += spelled_path(context, ("call_1", wrong), ("wrong", wrong)) + spelled_path(context, ("wrong", alone))
    assert [parts_of(row) for row in rows] == expected
    assert {float(w) for row in rows for w in np.unique(row.weight[row.mask])} == {1.0}
