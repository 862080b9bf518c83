"""RTPO, from trunks to trained tokens, on the scripted engine."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import methods
import numpy as np
import pytest
from methods import IDS, advantage_of, graded, parts_of, spelled
from scripted import CALL_1, CALL_2, RIGHT, TASK, WRONG, RecordingHarness, always, in_turn, scripted_harness, solver

from rtpo.algorithms import configured
from rtpo.envs.toy.math import problems
from rtpo.rtpo import RTPOConfig, rollouts_per_task, sibling_rows, stale_returns, step
from rtpo.types import Role, TrainRow
from rtpo.verbs import TokenClip

TASKS = problems("train", 4, seed=2)
CONFIG = configured("rtpo", kl=0.0, trunks=2, group_size=4)
OFF = replace(CONFIG, sync_every=None)


def one_step(config: RTPOConfig = CONFIG, *, slips: float = 0.4, **settings: Any) -> RecordingHarness:
    return methods.one_step(config, TASKS, script=solver(slips), max_context_tokens=1024, **settings)


def by_group(rows: Sequence[TrainRow]) -> dict[str, list[TrainRow]]:
    groups: dict[str, list[TrainRow]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return groups


def test_a_step_forks_every_boundary_anew_and_trains_each_sibling_once() -> None:
    """Turns in reverse, each by siblings of the weights after the turn before; of a sibling its first turn is trained,
    of trunks nothing."""
    harness = one_step(max_turns=6, slips=0.7)
    turns = list(reversed(range(6)))
    assert [call["role"] for call in harness.step_log.rollouts] == ["trunk"] + ["sibling"] * 6
    assert [update["trained_turns"] for update in harness.step_log.updates] == [[k] for k in turns]
    lengths = {trunk.uid: len(trunk.turns) for trunk in harness.rollouts if trunk.role is Role.TRUNK}
    assert (len(lengths), max(lengths.values())) == (2 * len(TASKS), 6)
    forked = [rollout for rollout in harness.rollouts if rollout.role is Role.SIBLING]
    boundaries = [(uid, k) for uid, length in lengths.items() for k in range(length)]
    assert Counter((s.parent_uid, s.start_k) for s in forked) == dict.fromkeys(boundaries, 3)
    assert harness.ledger.rollouts == len(lengths) + len(forked)
    assert {turn.policy_version for trunk in harness.rollouts[: len(lengths)] for turn in trunk.turns} == {0}
    version = 0
    for k, rows, update in zip(turns, harness.updated, harness.step_log.updates, strict=True):
        siblings = [sibling for sibling in forked if sibling.start_k == k]
        assert {turn.policy_version for sibling in siblings for turn in sibling.own_turns} == {version}
        version += update["optimizer_steps"] > 0
        assert sorted(row.rollout_uid for row in rows) == sorted(sibling.uid for sibling in siblings)
        for row in rows:
            assert row.weight[row.mask] == pytest.approx(1 / len(rows) / int(row.mask.sum()))
    assert version == harness.policy_version > 2
    assert rollouts_per_task(CONFIG, max_turns=6) == 2 + 2 * 6 * 3


@pytest.mark.parametrize("pool_s0", [False, True])
def test_an_advantage_is_the_return_minus_the_mean_of_the_boundary_or_of_the_prompt(pool_s0: bool) -> None:
    """Of the prompt at its first turn only, where its trunks share their boundary."""
    harness = one_step(replace(CONFIG, pool_s0=pool_s0))
    reward = {rollout.uid: rollout.reward for rollout in harness.rollouts}
    *later, first = (by_group(rows) for rows in harness.updated)
    assert {len(group) for groups in later for group in groups.values()} == {3}
    assert [len(group) for group in first.values()] == ([6] * 4 if pool_s0 else [3] * 8)
    for group in (group for groups in (*later, first) for group in groups.values()):
        mean = np.mean([reward[row.rollout_uid] for row in group])
        assert [advantage_of(row) for row in group] == pytest.approx([reward[row.rollout_uid] - mean for row in group])
    assert not pool_s0 or set(first) == {f"{task.uid}/0" for task in TASKS}


def test_ungraded_siblings_are_left_out_of_rows_and_means_and_so_is_one_left_alone() -> None:
    harness = scripted_harness(always(RIGHT))
    (roots,) = harness.rollout([TASK], n=2, role=Role.TRUNK)
    boundaries = [root.boundary(0) for root in roots]
    sampled = harness.rollout(boundaries, n=3, role=Role.SIBLING)

    def rows(*rewards: tuple[float | None, ...], pool: bool = False) -> list[tuple[str, float, float]]:
        groups = [
            tuple(graded(sibling, reward) for sibling, reward in zip(group, returns, strict=True))
            for group, returns in zip(sampled, rewards, strict=True)
        ]
        trained = sibling_rows(boundaries, groups, 0, pool=pool)
        return [(row.rollout_uid, advantage_of(row), float(row.weight.sum())) for row in trained]

    first, second = ([sibling.uid for sibling in group] for group in sampled)
    uids, advantages, weights = zip(*rows((1.0, None, 0.0), (1.0, 0.0, 0.0)), strict=True)
    assert uids == (first[0], first[2], *second)
    assert advantages == pytest.approx([0.5, -0.5, 2 / 3, -1 / 3, -1 / 3])
    assert weights == pytest.approx([0.2] * 5)
    alone = (1.0, None, None), (1.0, 0.0, 0.0)
    assert [uid for uid, _, _ in rows(*alone)] == second
    assert [advantage for _, advantage, _ in rows(*alone, pool=True)] == [0.5, 0.5, -0.5, -0.5]


def test_a_whole_step_token_by_token() -> None:
    """12 + 5 * 3 in two turns: one trunk, two siblings at each of its two boundaries."""
    trunk, phase_1, phase_0 = (CALL_1, WRONG), (RIGHT, WRONG), (WRONG, CALL_1, RIGHT)
    harness = scripted_harness(in_turn(*trunk, *phase_1, *phase_0), max_turns=2)
    step(harness, [TASK], configured("rtpo", kl=0.0, trunks=1, group_size=3))

    assert [[parts_of(row) for row in rows] for rows in harness.updated] == [
        [spelled((IDS.before_turn_1, None), (IDS.right, 0.5)), spelled((IDS.before_turn_1, None), (IDS.wrong, -0.5))],
        [spelled((IDS.question, None), (IDS.wrong, -0.5)), spelled((IDS.question, None), (IDS.call_1, 0.5))],
    ]
    for rows, taken in zip(harness.updated, harness.backend.steps, strict=True):
        expected = [row.mask / row.mask.sum() / 2 for row in rows]
        assert taken.packed.weight == pytest.approx(np.concatenate(expected))
        assert taken.packed.ids.tolist() == np.concatenate([row.ids for row in rows]).tolist()
    assert [turn.policy_version for rollout in harness.rollouts[3:] for turn in rollout.own_turns] == [1, 1, 1]
    assert harness.ledger.rollouts == 5


@pytest.mark.parametrize(
    ("settings", "pushes", "versions", "calls"),
    [
        ({}, [0, 1, 2], [0, 1, 2], 3),
        ({"sync_every": 2}, [0, 2], [0, 0, 2], 2),
        ({"sync_every": None}, [0], [0, 0, 0], 1),
        ({"sync_kl": 1e-6}, [0, 1, 2], [0, 1, 2], 3),
        ({"sync_kl": 100.0}, [0], [0, 0, 0], 3),
    ],
)
def test_synchronisations(settings: dict[str, Any], pushes: list[int], versions: list[int], calls: int) -> None:
    """Whoever an older policy sampled is measured against it."""
    harness = one_step(replace(CONFIG, **settings), learning_rate=0.01)
    assert (harness.backend.pushes, harness.policy_version) == (pushes, 3)
    assert [call["role"] for call in harness.step_log.rollouts] == ["trunk"] + ["sibling"] * calls
    for k, version in zip((2, 1, 0), versions, strict=True):
        siblings = [s for s in harness.rollouts if s.role is Role.SIBLING and s.start_k == k]
        assert {turn.policy_version for sibling in siblings for turn in sibling.own_turns} == {version}
    ages = [trained - sampled for trained, sampled in enumerate(versions)]
    assert harness.losses == [TokenClip(0.2, 0.2, None, "rollout" if age else "recompute", 0.0) for age in ages]


def test_drift_is_looked_at_on_the_phase_before() -> None:
    """The policy moves by about the learning rate a phase: past 0.015 after two."""
    harness = one_step(replace(CONFIG, sync_kl=0.015), learning_rate=0.01, max_turns=6, slips=0.7)
    assert harness.backend.pushes == [0, 2, 4]
    assert one_step(replace(CONFIG, sync_kl=0.015), make_env=methods.UngradableEnv).updated == [[], [], []]


def test_a_stale_sibling_that_could_not_be_graded_has_no_return() -> None:
    harness = one_step(OFF)
    siblings = tuple(s for s in harness.rollouts if s.role is Role.SIBLING and s.start_k == 0)
    tails = [s.uid for s in siblings if len(s.turns) > 1]
    without = tuple(graded(s, None) if s.uid == tails[0] else s for s in siblings)
    assert list(stale_returns(harness, [siblings], 0, OFF)) == tails
    assert list(stale_returns(harness, [without], 0, OFF)) == tails[1:]


@pytest.mark.parametrize(("learning_rate", "weight"), [(1.0, 0.5), (-1.0, 2.0), (0.01, math.exp(-0.1))])
def test_an_off_policy_step_token_by_token(learning_rate: float, weight: float) -> None:
    """12 + 5 * 3: a trunk calls and is wrong. At S_1 one sibling calls again and is right, one is wrong; at S_0 both
    are right, one of them after a call: its answer, of ten tokens, counts by how likely it still is. The first phase
    lowers all log-probs by the learning rate."""
    harness = scripted_harness(
        in_turn(*(CALL_1, WRONG), *(CALL_2, RIGHT, WRONG), *(CALL_1, RIGHT, RIGHT)), learning_rate=learning_rate
    )
    step(harness, [TASK], replace(OFF, trunks=1, group_size=3))
    last, first = harness.updated
    assert [parts_of(row) for row in last] == [
        spelled((IDS.before_turn_1, None), (IDS.call_2, 0.5)),
        spelled((IDS.before_turn_1, None), (IDS.wrong, -0.5)),
    ]
    assert [parts_of(row) for row in first] == [
        spelled((IDS.question, None), (IDS.call_1, (weight - 1) / 2)),
        spelled((IDS.question, None), (IDS.right, (1 - weight) / 2)),
    ]
    fresh, stale = (taken.packed for taken in harness.backend.steps)
    assert fresh.old_logprobs is None  # the step's own
    sampled = np.concatenate([row.rollout_logprobs for row in first])
    assert stale.old_logprobs[stale.mask] == pytest.approx(sampled[sampled != 0])
