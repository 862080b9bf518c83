"""RTPO with fewer synchronisations: what is sampled when, by whom, and how stale returns count."""

import math
from collections.abc import Sequence
from dataclasses import replace

import methods
import numpy as np
import pytest
from methods import IDS, parts_of, spelled
from scripted import CALL_1, CALL_2, RIGHT, TASK, WRONG, RecordingHarness, in_turn, scripted_harness, solver

from rtpo.algorithms import configured
from rtpo.envs.toy.math_problems import problems
from rtpo.rtpo import RTPOConfig, sibling_rows, stale_returns, step
from rtpo.types import Grade, GradeOutcome, Group, Role, Rollout, TrainRow
from rtpo.verbs import TokenClip

TASKS = problems("train", 4, seed=2)
OFF = configured("rtpo", kl=0.0, trunks=2, group_size=4, sync_every=None)


def one_step(
    config: RTPOConfig, *, learning_rate: float = 1e-3, max_turns: int = 3, slips: float = 0.4
) -> RecordingHarness:
    settings = {"learning_rate": learning_rate, "max_turns": max_turns, "max_context_tokens": 1024}
    return methods.one_step(config, TASKS, script=solver(slips), **settings)


def siblings_of(harness: RecordingHarness, k: int) -> list[Group]:
    """By boundary, in the order they were sampled."""
    groups: dict[str | None, list[Rollout]] = {}
    for rollout in harness.rollouts:
        if rollout.role is Role.SIBLING and rollout.start_k == k:
            groups.setdefault(rollout.parent_uid, []).append(rollout)
    return [tuple(group) for group in groups.values()]


def trained(rows: Sequence[TrainRow]) -> list[tuple[str, bytes, float, float]]:
    return [(row.rollout_uid, row.ids.tobytes(), float(row.advantage.sum()), float(row.weight.sum())) for row in rows]


def test_off_policy_samples_all_siblings_at_once_by_the_policy_of_the_trunks() -> None:
    harness = one_step(OFF)
    assert [call["role"] for call in harness.step_log.rollouts] == ["trunk", "sibling"]
    assert {turn.policy_version for rollout in harness.rollouts for turn in rollout.turns} == {0}
    assert [update["trained_turns"] for update in harness.step_log.updates] == [[2], [1], [0]]
    assert harness.backend.pushes == [0]
    assert harness.policy_version == 3
    trunks = [rollout for rollout in harness.rollouts if rollout.role is Role.TRUNK]
    assert len(harness.rollouts) == sum(1 + 3 * len(trunk.turns) for trunk in trunks)


def test_the_first_phase_is_on_policy_and_later_ones_are_measured_against_the_sampler() -> None:
    harness = one_step(OFF)
    assert [loss.old_logprobs for loss in harness.losses if isinstance(loss, TokenClip)] == [
        "recompute",
        "rollout",
        "rollout",
    ]


def test_off_policy_without_a_change_of_weights_is_on_policy_on_the_same_samples() -> None:
    """A learning rate of 0 leaves the weights; the version moves, so the weights of the tails are computed."""
    harness = one_step(OFF, learning_rate=0.0)
    assert harness.policy_version == 3
    for k, rows in zip((2, 1, 0), harness.updated, strict=True):
        groups = siblings_of(harness, k)
        boundaries = [next(r for r in harness.rollouts if r.uid == group[0].parent_uid).boundary(k) for group in groups]
        assert trained(rows) == trained(sibling_rows(boundaries, groups, k))


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


# token by token


@pytest.mark.parametrize(("learning_rate", "weight"), [(1.0, 0.5), (-1.0, 2.0), (0.01, math.exp(-0.1))])
def test_an_off_policy_step_token_by_token(learning_rate: float, weight: float) -> None:
    """12 + 5 * 3: a trunk calls and is wrong. At S_1 one sibling calls again and is right, one is wrong; at S_0 both
    are right, one of them after a call: its answer, of ten tokens, counts by how likely it still is. The first phase
    lowers all log-probs by the learning rate."""
    harness = scripted_harness(
        in_turn(
            *(CALL_1, WRONG),
            *(CALL_2, RIGHT, WRONG),
            *(CALL_1, RIGHT, RIGHT),
        ),
        learning_rate=learning_rate,
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
    for rows, taken in zip(harness.updated, harness.backend.steps, strict=True):
        packed = taken.packed
        assert [list(np.unique(row.weight[row.mask])) for row in rows] == [
            [np.float32(0.5 / row.mask.sum())] for row in rows
        ]
        sampled = np.concatenate([row.rollout_logprobs for row in rows])
        assert packed.old_logprobs[packed.mask] == pytest.approx(sampled[sampled != 0])
