"""GRPO on the scripted engine: the same tokens, advantages and weights in either training context."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from methods import advantage_of, graded, parts_of, spelled_path
from scripted import CALL_1, CALL_2, RIGHT, TASK, WRONG, always, in_turn, scripted_harness

from baselines.grpo import chain_rows, step
from rtpo.algorithms import configured
from rtpo.core.packing import normalised_weights
from rtpo.envs.toy.math import problems
from rtpo.rtpo import sibling_rows
from rtpo.types import Aggregation, Role, TrainingContext
from rtpo.verbs import TokenClip

TASKS = problems("train", 4, seed=2)
CONFIG = configured("grpo", kl=0.0, chains=6)


def test_chains_without_a_reward_are_left_out() -> None:
    chains = scripted_harness(always(RIGHT)).rollout([TASK], n=4, role=Role.CHAIN)[0]
    group = (chains[0], graded(chains[1], None), graded(chains[2], 0.0), chains[3])
    rows = chain_rows([group], replace(CONFIG, normalise_std=False))
    assert [row.rollout_uid for row in rows] == [chains[0].uid, chains[2].uid, chains[3].uid]
    assert [advantage_of(row) for row in rows] == pytest.approx([1 / 3, -2 / 3, 1 / 3])
    assert [float(row.weight.sum()) for row in rows] == pytest.approx([1.0] * 3)
    assert chain_rows([(group[1],)], CONFIG) == []


@pytest.mark.parametrize("aggregation", ["path", "token"])
@pytest.mark.parametrize("training_context", ["recorded", "flattened"])
def test_a_fork_weighs_as_a_path_or_by_the_tokens_that_it_sampled(
    training_context: TrainingContext, aggregation: Aggregation
) -> None:
    harness = scripted_harness(in_turn(CALL_1, CALL_2, RIGHT, WRONG))
    (chain,) = harness.rollout([TASK], n=1, role=Role.CHAIN)[0]
    (fork,) = harness.rollout([chain.boundary(1)], n=1, role=Role.BRANCH)[0]
    config = replace(CONFIG, training_context=training_context, aggregation=aggregation)
    weights, tokens = Counter[str](), Counter[str]()
    for row in chain_rows([(chain, fork)], config):
        weights[row.rollout_uid] += float(row.weight.sum())
        tokens[row.rollout_uid] += int(row.mask.sum())
    assert tokens == {chain.uid: 34, fork.uid: 8}
    assert weights == pytest.approx(tokens if aggregation == "token" else dict.fromkeys(tokens, 1.0))


def test_in_one_turn_pooled_rtpo_has_the_rows_of_grpo_without_std() -> None:
    script = in_turn(*[RIGHT, WRONG, CALL_1, WRONG] * 4)
    harness = scripted_harness(script, max_turns=1)
    trunks = harness.rollout([TASK], n=2, role=Role.TRUNK)[0]
    boundaries = [trunk.boundary(0) for trunk in trunks]
    siblings = harness.rollout(boundaries, n=3, role=Role.SIBLING)
    by_rtpo = sibling_rows(boundaries, siblings, 0, pool=True)
    chains = [tuple(sibling for group in siblings for sibling in group)]
    by_grpo = chain_rows(chains, replace(CONFIG, normalise_std=False, training_context="recorded"))
    assert [(row.rollout_uid, *parts_of(row)) for row in by_rtpo] == [
        (row.rollout_uid, *parts_of(row)) for row in by_grpo
    ]
    assert len({advantage_of(row) for row in by_rtpo}) == 2
    for of_rtpo, of_grpo in zip(normalised_weights(by_rtpo), normalised_weights(by_grpo), strict=True):
        np.testing.assert_allclose(of_rtpo, of_grpo, rtol=1e-6)


def test_a_flattened_row_token_by_token() -> None:
    """12 + 5 * 3: call, call, answer, against a wrong answer at once (ids as in the test of RTPO's step)."""
    script = in_turn(CALL_1, CALL_2, RIGHT, WRONG)
    harness = scripted_harness(script)
    step(harness, [TASK], replace(CONFIG, chains=2, normalise_std=False))
    assert [parts_of(row) for rows in harness.updated for row in rows] == [
        *spelled_path("flattened", ("call_1", 0.5), ("call_2", 0.5), ("right", 0.5)),
        *spelled_path("flattened", ("wrong", -0.5)),
    ]
    assert harness.losses == [TokenClip(0.2, 0.2, 3.0, "rollout", 0.0)]
    (packed,) = (s.packed for s in harness.backend.steps)
    assert packed.weight[packed.mask] == pytest.approx(np.repeat([1 / 68, 1 / 16], [34, 8]))
    assert packed.lengths.tolist() == [14 + 12 + 12 + 12 + 12 + 10, 14 + 8]
