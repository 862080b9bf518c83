"""GRPO on the scripted engine: the same tokens, advantages and weights in either training context."""

from collections.abc import Sequence
from dataclasses import replace

import methods
import numpy as np
import pytest
from methods import parts_of, spelled_path
from scripted import CALL_1, CALL_2, RIGHT, TASK, WRONG, RecordingHarness, always, in_turn, scripted_harness, solver

from baselines.grpo import GRPOConfig, chain_rows, step
from rtpo.algorithms import configured
from rtpo.core.packing import normalised_weights
from rtpo.envs.toy.math import problems
from rtpo.rtpo import sibling_rows
from rtpo.types import Grade, GradeOutcome, Role, TrainRow
from rtpo.verbs import TokenClip

TASKS = problems("train", 4, seed=2)
CONFIG = configured("grpo", kl=0.0, chains=6)


def one_step(config: GRPOConfig = CONFIG, *, slips: float = 0.4, seed: int = 0) -> RecordingHarness:
    return methods.one_step(config, TASKS, script=solver(slips), seed=seed)


Token = tuple[str, int, int, float, float]


def trained(rows: Sequence[TrainRow]) -> list[Token]:
    """(path, turn, id, advantage, weight) of every trained token, in order."""
    return [
        (row.rollout_uid, int(k), int(i), float(a), float(w))
        for row in rows
        for k, i, a, w in zip(*(c[row.mask] for c in (row.turn_index, row.ids, row.advantage, row.weight)), strict=True)
    ]


def test_a_step_is_n_chains_and_one_update() -> None:
    harness = one_step()
    assert harness.ledger.rollouts == len(TASKS) * 6
    assert {(r.role, r.start_k, r.parent_uid) for r in harness.rollouts} == {(Role.CHAIN, 0, None)}
    assert len(harness.step_log.updates) == 1
    assert harness.losses == [TokenClip(0.2, 0.2, 3.0, "rollout", 0.0)]


def test_chains_without_a_reward_are_left_out() -> None:
    chains = scripted_harness(always(RIGHT)).rollout([TASK], n=4, role=Role.CHAIN)[0]
    ungradable = Grade(GradeOutcome.UNGRADABLE, None)
    zero = Grade(GradeOutcome.GRADED, 0.0)
    group = (chains[0], replace(chains[1], grade=ungradable), replace(chains[2], grade=zero), chains[3])
    rows = chain_rows([group], replace(CONFIG, normalise_std=False))
    assert [row.rollout_uid for row in rows] == [chains[0].uid, chains[2].uid, chains[3].uid]
    assert [float(row.advantage[row.mask][0]) for row in rows] == pytest.approx([1 / 3, -2 / 3, 1 / 3])
    assert [float(row.weight.sum()) for row in rows] == pytest.approx([1.0] * 3)
    assert chain_rows([(replace(chains[0], grade=ungradable),)], CONFIG) == []


def test_in_one_turn_pooled_rtpo_has_the_rows_of_grpo_without_std() -> None:
    script = in_turn(*[RIGHT, WRONG, CALL_1, WRONG] * 4)
    harness = scripted_harness(script, max_turns=1)
    trunks = harness.rollout([TASK], n=2, role=Role.TRUNK)[0]
    boundaries = [trunk.boundary(0) for trunk in trunks]
    siblings = harness.rollout(boundaries, n=3, role=Role.SIBLING)
    by_rtpo = sibling_rows(boundaries, siblings, 0, pool=True)
    chains = [tuple(sibling for group in siblings for sibling in group)]
    by_grpo = chain_rows(chains, replace(CONFIG, normalise_std=False, training_context="recorded"))
    assert [row.ids.tobytes() for row in by_rtpo] == [row.ids.tobytes() for row in by_grpo]
    assert [token[:4] for token in trained(by_rtpo)] == [token[:4] for token in trained(by_grpo)]
    assert len({token[3] for token in trained(by_rtpo)}) == 2
    for one, other in zip(normalised_weights(by_rtpo), normalised_weights(by_grpo), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_a_flattened_row_token_by_token() -> None:
    """12 + 5 * 3: call, call, answer, against a wrong answer at once (ids as in the test of RTPO's step)."""
    script = in_turn(CALL_1, CALL_2, RIGHT, WRONG)
    harness = scripted_harness(script)
    step(harness, [TASK], replace(CONFIG, chains=2, normalise_std=False))
    assert [parts_of(row) for rows in harness.updated for row in rows] == [
        *spelled_path("flattened", ("call_1", 0.5), ("call_2", 0.5), ("right", 0.5)),
        *spelled_path("flattened", ("wrong", -0.5)),
    ]
    (packed,) = (s.packed for s in harness.backend.steps)
    assert packed.weight[packed.mask] == pytest.approx(np.repeat([1 / 68, 1 / 16], [34, 8]))
    assert packed.lengths.tolist() == [14 + 12 + 12 + 12 + 12 + 10, 14 + 8]


def test_advantages_of_a_prompt_have_mean_zero_and_std_one() -> None:
    harness = one_step()
    (rows,) = harness.updated
    mixed = 0
    for task in TASKS:
        values = np.array([row.advantage[row.mask][0] for row in rows if row.group == task.uid])
        rewards = {r.reward for r in harness.rollouts if r.task is task}
        assert values.mean() == pytest.approx(0, abs=1e-6)
        assert values.std(ddof=1) == pytest.approx(float(len(rewards) > 1), abs=1e-4)
        mixed += len(rewards) > 1
    assert mixed > 1


def test_minibatches_split_prompts() -> None:
    harness = one_step(replace(CONFIG, minibatches=4))
    assert [len(s.packed.lengths) for s in harness.backend.steps] == [
        sum(not row.is_tied for row in harness.updated[0] if row.group == task.uid)
        for task in TASKS
        if any(not row.is_tied for row in harness.updated[0] if row.group == task.uid)
    ]
    assert len(harness.backend.steps) > 1
