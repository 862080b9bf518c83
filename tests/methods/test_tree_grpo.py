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


# the trees


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


def test_a_tree_lists_its_root_once_and_every_turn_that_is_no_leaf() -> None:
    harness = one_step(CONFIG)
    chain = next(r for r in harness.rollouts if r.role is Role.CHAIN and len(r.turns) == 3)
    ((branch,),) = scripted_harness(solver(0.0)).rollout([chain.boundary(1)], n=1, role=Role.BRANCH)
    assert len(branch.turns) == 3
    assert [(node.k, node.rollout_uid) for node in nodes([chain, branch])] == [
        (0, chain.uid),
        (1, chain.uid),
        (2, chain.uid),
        (2, branch.uid),
    ]


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


# advantages


def test_an_advantage_is_the_sum_of_two_standardised_parts() -> None:
    harness = one_step(CONFIG, script=solver(0.25))
    (rows,) = harness.updated
    advantage = {row.rollout_uid: advantage_of(row) for row in rows}
    mixed = 0
    for task in TASKS:
        prompt = [path for path in harness.rollouts if path.task is task]
        inter = z_scores(prompt)
        intra = {}
        for tree in trees_of(harness).values():
            if tree[0].task is task:
                intra |= z_scores(tree)
                assert sum(z_scores(tree).values()) == pytest.approx(0, abs=1e-5)
        assert sum(inter.values()) == pytest.approx(0, abs=1e-5)
        assert {uid: advantage[uid] for uid in inter} == {uid: pytest.approx(inter[uid] + intra[uid]) for uid in inter}
        mixed += len(set(intra.values())) > 3
    assert mixed


def test_the_part_within_a_tree_is_of_returns_not_of_standardised_ones() -> None:
    """Standardising twice looks the same, since a z-score does not depend on scale, but for the epsilon: it differs as
    soon as returns lie as close together as that is."""
    coins, close = [0.0, 1.0, 1.0, 0.0, 1.0], [0.5, 0.5 + 4 * STD_EPSILON]
    assert standardised(standardised(coins)) == pytest.approx(standardised(coins), abs=1e-5)
    assert (standardised(standardised(coins)) != standardised(coins)).any()
    assert standardised(standardised(close)) / standardised(close) == pytest.approx([1.3536] * 2, abs=1e-3)
    chains = scripted_harness(solver(0.4)).rollout([TASK], n=2, role=Role.CHAIN)[0]
    rows = leaf_rows([[graded(chain, reward) for chain, reward in zip(chains, close, strict=True)]], CONFIG)
    assert [advantage_of(row) for row in rows] == pytest.approx(2 * standardised(close))


def test_leaves_without_a_reward_are_left_out_of_both_parts() -> None:
    chains = scripted_harness(solver(0.4)).rollout([TASK], n=5, role=Role.CHAIN)[0]
    rewards = [1.0, 0.0, None, None, 0.0]
    leaves = [graded(chain, reward) for chain, reward in zip(chains, rewards, strict=True)]
    rows = leaf_rows([leaves[:3], leaves[3:4], leaves[4:]], CONFIG)
    inter, intra = standardised([1.0, 0.0, 0.0]), standardised([1.0, 0.0])
    assert [row.rollout_uid for row in rows] == [chains[i].uid for i in (0, 1, 4)]
    assert [advantage_of(row) for row in rows] == pytest.approx([inter[0] + intra[0], inter[1] + intra[1], inter[2]])


# GRPO


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


# token by token


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


def test_a_lone_leaf_has_no_place_in_its_tree() -> None:
    harness = one_step(replace(CONFIG, expansions=0, trees=6))
    assert list(z_scores(harness.rollouts[:1]).values()) == [0.0]
    assert z_scores([]) == {}
    (rows,) = harness.updated
    by_prompt = [[r.reward for r in harness.rollouts if r.task is task] for task in TASKS]
    expected = [a for rewards in by_prompt for a in standardised(rewards)]
    assert [advantage_of(row) for row in rows] == pytest.approx(expected)
