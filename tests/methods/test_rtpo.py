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
from scripted import (
    CALL_1,
    CALL_2,
    RIGHT,
    TASK,
    WRONG,
    RecordingHarness,
    always,
    ids,
    in_turn,
    scripted_harness,
    solver,
)

from rtpo.algorithms import configured
from rtpo.envs.toy.math import problems
from rtpo.rtpo import RTPOConfig, rollouts_per_task, sibling_rows, stale_returns, step
from rtpo.types import Grade, GradeOutcome, Group, Role, Rollout, TrainRow
from rtpo.verbs import TokenClip

TASKS = problems("train", 4, seed=2)
CONFIG = configured("rtpo", kl=0.0, trunks=2, group_size=4)
OFF = replace(CONFIG, sync_every=None)


def one_step(config: RTPOConfig = CONFIG, *, slips: float = 0.4, **settings: Any) -> RecordingHarness:
    return methods.one_step(config, TASKS, script=solver(slips), max_context_tokens=1024, **settings)


def trunks(harness: RecordingHarness) -> list[Rollout]:
    return [rollout for rollout in harness.rollouts if rollout.role is Role.TRUNK]


def siblings(harness: RecordingHarness, k: int) -> list[Rollout]:
    return [rollout for rollout in harness.rollouts if rollout.role is Role.SIBLING and rollout.start_k == k]


def by_group(rows: Sequence[TrainRow]) -> dict[str, list[TrainRow]]:
    groups: dict[str, list[TrainRow]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return groups


# phases


@pytest.mark.parametrize("max_turns", [1, 3, 6])
def test_phases_are_in_strictly_decreasing_order_of_turns(max_turns: int) -> None:
    harness = one_step(max_turns=max_turns, slips=0.7)
    assert max(len(trunk.turns) for trunk in trunks(harness)) == max_turns
    phases = [update["trained_turns"] for update in harness.step_log.updates]
    assert phases == [[k] for k in reversed(range(max_turns))]
    assert [call["role"] for call in harness.step_log.rollouts] == ["trunk"] + ["sibling"] * max_turns


def test_siblings_are_sampled_by_the_weights_after_the_phase_before() -> None:
    harness = one_step()
    assert {turn.policy_version for trunk in trunks(harness) for turn in trunk.turns} == {0}
    version = 0
    for k, update in zip((2, 1, 0), harness.step_log.updates, strict=True):
        versions = {turn.policy_version for sibling in siblings(harness, k) for turn in sibling.own_turns}
        assert versions == {version}
        version += update["optimizer_steps"] > 0
    assert version == harness.policy_version == 3


def test_a_trunk_takes_part_in_the_phases_of_the_turns_it_took() -> None:
    script = in_turn(WRONG, CALL_1, WRONG, *[RIGHT] * 100)
    harness = scripted_harness(script)
    step(harness, [TASK], CONFIG)
    short, long = trunks(harness)
    assert (len(short.turns), len(long.turns)) == (1, 2)
    assert Counter((s.parent_uid, s.start_k) for s in harness.rollouts if s.role is Role.SIBLING) == {
        (long.uid, 1): 3,
        (long.uid, 0): 3,
        (short.uid, 0): 3,
    }


# siblings


@pytest.mark.parametrize("group_size", [3, 5])
def test_every_realised_boundary_has_g_minus_one_siblings(group_size: int) -> None:
    harness = one_step(replace(CONFIG, group_size=group_size))
    lengths = [len(trunk.turns) for trunk in trunks(harness)]
    assert len(lengths) == 2 * len(TASKS)
    assert len(set(lengths)) > 1
    forked = [rollout for rollout in harness.rollouts if rollout.role is Role.SIBLING]
    assert len(forked) == (group_size - 1) * sum(lengths)
    assert harness.ledger.rollouts == len(lengths) + len(forked)


def test_the_worst_case_is_that_every_trunk_takes_all_turns() -> None:
    assert rollouts_per_task(replace(CONFIG, trunks=2, group_size=5), max_turns=3) == 2 + 2 * 3 * 4


# what is trained


def test_siblings_are_trained_once_at_their_first_turn_and_trunks_never() -> None:
    harness = one_step()
    trained: Counter[tuple[str, int, int]] = Counter()
    for rows in harness.updated:
        for row in rows:
            (turn,) = row.turns
            for position in np.flatnonzero(row.mask) - len(turn.context_ids):
                trained[row.rollout_uid, turn.k, int(position)] += 1
    assert set(trained.values()) == {1}
    assert set(trained) == {
        (sibling.uid, k, position)
        for k in range(3)
        for sibling in siblings(harness, k)
        for position in range(len(sibling.turns[k].output_ids))
    }


def test_advantages_are_returns_minus_the_mean_of_the_boundary() -> None:
    harness = one_step()
    reward = {rollout.uid: rollout.reward for rollout in harness.rollouts}
    seen = set()
    for rows in harness.updated:
        for group in by_group(rows).values():
            rewards = [reward[row.rollout_uid] for row in group]
            expected = [r - sum(rewards) / 3 for r in rewards]
            assert [advantage_of(row) for row in group] == pytest.approx(expected, abs=1e-6)
            assert sum(advantage_of(row) for row in group) == pytest.approx(0, abs=1e-6)
            seen.add(sum(rewards))
    assert seen == {0, 1, 2, 3}


def test_the_first_step_of_every_phase_has_ratio_one() -> None:
    harness = one_step()
    assert [taken.packed.old_logprobs for taken in harness.backend.steps] == [None] * 3  # the step's own
    for update in harness.step_log.updates:
        assert update["mismatch/ratio_gm"] == pytest.approx(1, abs=1e-6)
        assert (update["mismatch/kl_k3"], update["clip_fraction"]) == pytest.approx((0, 0), abs=1e-9)
    assert set(harness.losses) == {TokenClip(0.2, 0.2, None, "recompute", 0.0)}


def test_pooling_compares_all_siblings_of_a_prompt_at_its_first_turn_only() -> None:
    for pool_s0 in (False, True):
        harness = one_step(replace(CONFIG, pool_s0=pool_s0))
        *later, first = (by_group(rows) for rows in harness.updated)
        assert {len(group) for groups in later for group in groups.values()} == {3}
        sizes = [len(group) for group in first.values()]
        assert sizes == ([6] * 4 if pool_s0 else [3] * 8)
        assert [sum(map(advantage_of, group)) for group in first.values()] == pytest.approx([0] * len(sizes), abs=1e-5)
    assert set(first) == {f"{task.uid}/0" for task in TASKS}


def test_ungraded_siblings_are_left_out_of_rows_and_means_and_so_is_one_left_alone() -> None:
    harness = scripted_harness(always(RIGHT))
    (roots,) = harness.rollout([TASK], n=2, role=Role.TRUNK)
    boundaries = [root.boundary(0) for root in roots]
    sampled = harness.rollout(boundaries, n=3, role=Role.SIBLING)

    def rows(*rewards: tuple[float | None, ...], pool: bool = False) -> list[tuple[str, float, float]]:
        groups = [
            tuple(graded(sibling, reward) for sibling, reward in zip(group, given, strict=True))
            for group, given in zip(sampled, rewards, strict=True)
        ]
        trained = sibling_rows(boundaries, groups, 0, pool=pool)
        return [(row.rollout_uid, advantage_of(row), float(row.weight.sum())) for row in trained]

    one, other = ([sibling.uid for sibling in group] for group in sampled)
    uids, advantages, weights = zip(*rows((1.0, None, 0.0), (1.0, 0.0, 0.0)), strict=True)
    assert uids == (one[0], one[2], *other)
    assert advantages == pytest.approx([0.5, -0.5, 2 / 3, -1 / 3, -1 / 3])
    assert weights == pytest.approx([0.2] * 5)
    alone = (1.0, None, None), (1.0, 0.0, 0.0)
    assert [uid for uid, _, _ in rows(*alone)] == other
    assert [advantage for _, advantage, _ in rows(*alone, pool=True)] == [0.5, 0.5, -0.5, -0.5]


# token by token


def test_a_whole_step_token_by_token() -> None:
    """12 + 5 * 3 in two turns: one trunk, two siblings at each of its two boundaries."""
    end = "<|im_end|>"
    assert (ids(CALL_1 + end), ids(RIGHT + end)) == ([*IDS.call_1], [*IDS.right])
    trunk = (CALL_1, WRONG)
    phase_1 = (RIGHT, WRONG)
    phase_0 = (WRONG, CALL_1, RIGHT)
    harness = scripted_harness(in_turn(*trunk, *phase_1, *phase_0), max_turns=2)
    step(harness, [TASK], configured("rtpo", kl=0.0, trunks=1, group_size=3))

    assert [[parts_of(row) for row in rows] for rows in harness.updated] == [
        [spelled((IDS.before_turn_1, None), (IDS.right, 0.5)), spelled((IDS.before_turn_1, None), (IDS.wrong, -0.5))],
        [spelled((IDS.question, None), (IDS.wrong, -0.5)), spelled((IDS.question, None), (IDS.call_1, 0.5))],
    ]
    for rows, taken in zip(harness.updated, harness.backend.steps, strict=True):
        packed = taken.packed
        for name in ("ids", "mask", "advantage"):
            assert getattr(packed, name).tolist() == np.concatenate([getattr(row, name) for row in rows]).tolist()
        assert packed.lengths.tolist() == [len(row.ids) for row in rows]
        expected = [row.mask / row.mask.sum() / 2 for row in rows]
        assert packed.weight == pytest.approx(np.concatenate(expected))
    assert [turn.policy_version for rollout in harness.rollouts[3:] for turn in rollout.own_turns] == [1, 1, 1]
    assert harness.ledger.rollouts == 5


# fewer synchronisations: what is sampled when, by whom, and how stale returns count


def siblings_of(harness: RecordingHarness, k: int) -> list[Group]:
    """By boundary, in the order they were sampled."""
    groups: dict[str | None, list[Rollout]] = {}
    for rollout in harness.rollouts:
        if rollout.role is Role.SIBLING and rollout.start_k == k:
            groups.setdefault(rollout.parent_uid, []).append(rollout)
    return [tuple(group) for group in groups.values()]


def told(rows: Sequence[TrainRow]) -> list[tuple[str, bytes, float, float]]:
    return [(row.rollout_uid, row.ids.tobytes(), float(row.advantage.sum()), float(row.weight.sum())) for row in rows]


def test_off_policy_samples_all_siblings_at_once_by_the_policy_of_the_trunks() -> None:
    harness = one_step(OFF)
    assert [call["role"] for call in harness.step_log.rollouts] == ["trunk", "sibling"]
    assert {turn.policy_version for rollout in harness.rollouts for turn in rollout.turns} == {0}
    assert [update["trained_turns"] for update in harness.step_log.updates] == [[2], [1], [0]]
    assert (harness.backend.pushes, harness.policy_version) == ([0], 3)
    assert len(harness.rollouts) == sum(1 + 3 * len(trunk.turns) for trunk in trunks(harness))
    assert [getattr(loss, "old_logprobs", None) for loss in harness.losses] == ["recompute", "rollout", "rollout"]


def test_off_policy_without_a_change_of_weights_is_on_policy_on_the_same_samples() -> None:
    """A learning rate of 0 leaves the weights; the version moves, so the weights of the tails are computed."""
    harness = one_step(OFF, learning_rate=0.0)
    assert harness.policy_version == 3
    for k, rows in zip((2, 1, 0), harness.updated, strict=True):
        groups = siblings_of(harness, k)
        boundaries = [next(r for r in harness.rollouts if r.uid == group[0].parent_uid).boundary(k) for group in groups]
        assert told(rows) == told(sibling_rows(boundaries, groups, k))


@pytest.mark.parametrize(
    ("settings", "pushes", "versions"),
    [
        ({}, [0, 1, 2], [0, 1, 2]),
        ({"sync_every": 2}, [0, 2], [0, 0, 2]),
        ({"sync_every": 3}, [0], [0, 0, 0]),
        ({"sync_kl": 1e-6}, [0, 1, 2], [0, 1, 2]),
        ({"sync_kl": 100.0}, [0], [0, 0, 0]),
    ],
)
def test_synchronisations(settings: dict[str, float], pushes: list[int], versions: list[int]) -> None:
    config = configured("rtpo", kl=0.0, trunks=2, group_size=4, **settings)  # type: ignore[arg-type]
    harness = one_step(config, learning_rate=0.01)
    assert harness.backend.pushes == pushes
    for k, version in zip((2, 1, 0), versions, strict=True):
        own = {t.policy_version for group in siblings_of(harness, k) for s in group for t in s.own_turns}
        assert own == {version}


def test_drift_is_looked_at_on_the_phase_before() -> None:
    """The policy moves by about the learning rate a phase: past 0.015 after two."""
    config = configured("rtpo", kl=0.0, trunks=2, group_size=4, sync_kl=0.015)
    harness = one_step(config, learning_rate=0.01, max_turns=6, slips=0.7)
    assert harness.backend.pushes == [0, 2, 4]


def test_a_stale_sibling_that_could_not_be_graded_has_no_return() -> None:
    harness = one_step(OFF)
    groups = siblings_of(harness, 0)
    tails = [s.uid for group in groups for s in group if len(s.turns) > 1]
    unknown = Grade(GradeOutcome.UNGRADABLE, None)
    without = [tuple(replace(s, grade=unknown) if s.uid == tails[0] else s for s in group) for group in groups]
    assert list(stale_returns(harness, groups, 0, OFF)) == tails
    assert list(stale_returns(harness, without, 0, OFF)) == tails[1:]


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
    for rows in harness.updated:
        assert [list(np.unique(row.weight[row.mask])) for row in rows] == [
            [np.float32(0.5 / row.mask.sum())] for row in rows
        ]
    fresh, stale = (taken.packed for taken in harness.backend.steps)
    assert fresh.old_logprobs is None  # the step's own
    sampled = np.concatenate([row.rollout_logprobs for row in first])
    assert stale.old_logprobs[stale.mask] == pytest.approx(sampled[sampled != 0])


def test_every_sibling_of_a_phase_weighs_the_same_and_its_tokens_share_it() -> None:
    harness = one_step()
    for rows in harness.updated:
        for row in rows:
            assert row.weight[row.mask] == pytest.approx(1 / len(rows) / int(row.mask.sum()))


def test_the_first_phase_is_on_policy_and_later_ones_are_measured_against_the_sampler() -> None:
    harness = one_step(OFF)
    assert [loss.old_logprobs for loss in harness.losses if isinstance(loss, TokenClip)] == [
        "recompute",
        "rollout",
        "rollout",
    ]


@pytest.mark.parametrize(("learning_rate", "weight"), [(1.0, 0.5), (-1.0, 2.0)])
def test_weights_are_clamped(learning_rate: float, weight: float) -> None:
    """Every step moves all log-probs by about the learning rate, down where it is positive."""
    harness = one_step(OFF, learning_rate=learning_rate)
    groups = siblings_of(harness, 0)
    returns = stale_returns(harness, groups, 0, OFF)
    for sibling in (s for group in groups for s in group):
        if len(sibling.turns) > 1:
            assert returns[sibling.uid] == pytest.approx(weight * sibling.reward)
        else:
            assert sibling.uid not in returns


def test_a_weight_is_the_product_of_the_tails_ratios() -> None:
    harness = one_step(OFF, learning_rate=1e-3)
    moved = harness.backend.weights
    assert abs(moved) > 1e-3
    groups = siblings_of(harness, 1)
    returns = stale_returns(harness, groups, 1, OFF)
    tails = [s for group in groups for s in group if len(s.turns) == 3]
    assert tails
    for sibling in tails:
        # the trainer's weights are subtracted from every log-prob
        product = math.prod([math.exp(-moved)] * len(sibling.turns[2].output_ids))
        assert returns[sibling.uid] == pytest.approx(product * sibling.reward, rel=1e-3)


def test_stale_advantages_of_a_boundary_sum_to_zero() -> None:
    harness = one_step(OFF, learning_rate=0.02)
    for rows in harness.updated:
        sums: dict[str, float] = {}
        for row in rows:
            sums[row.group] = sums.get(row.group, 0.0) + float(row.advantage[row.mask][0])
        assert max(map(abs, sums.values())) < 1e-6
