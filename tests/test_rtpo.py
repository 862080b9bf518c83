"""RTPO, from trunks to trained tokens, on the scripted engine."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scripted import (
    ANSWER_RIGHT,
    ANSWER_WRONG,
    CALL_FIRST,
    TASK,
    MemoryBackend,
    RecordingHarness,
    always,
    ids,
    in_turn,
    scripted_harness,
    solver,
)

from rtpo.core.packing import Packed
from rtpo.engines.backend import StepResult
from rtpo.envs.toy.math import ToyMathEnv
from rtpo.envs.toy.math_problems import problems
from rtpo.rtpo import RTPOConfig, check, rollouts_per_task, sibling_rows, step
from rtpo.types import Boundary, Floats, Grade, GradeOutcome, Group, Role, Rollout, TrainRow
from rtpo.verbs import Loss, TokenClip

TASKS = problems("train", 4, seed=2)
CONFIG = RTPOConfig("rtpo", "rtpo", kl=0.0, trunks=2, group_size=4)


def one_step(config: RTPOConfig = CONFIG, *, slips: float = 0.4, seed: int = 0, max_turns: int = 3) -> RecordingHarness:
    harness = scripted_harness(
        solver(slips),
        seed=seed,
        max_turns=max_turns,
        max_context_tokens=1024,
        reserve=len(TASKS) * rollouts_per_task(config, max_turns),
    )
    step(harness, TASKS, config)
    return harness


def trunks(harness: RecordingHarness) -> list[Rollout]:
    return [rollout for rollout in harness.rollouts if rollout.role is Role.TRUNK]


def siblings(harness: RecordingHarness, k: int) -> list[Rollout]:
    return [rollout for rollout in harness.rollouts if rollout.role is Role.SIBLING and rollout.start_k == k]


def by_group(rows: Sequence[TrainRow]) -> dict[str, list[TrainRow]]:
    groups: dict[str, list[TrainRow]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return groups


def advantage_of(row: TrainRow) -> float:
    (value,) = set(row.advantage[row.mask].tolist())
    return float(value)


# phases


@pytest.mark.parametrize("max_turns", [1, 3, 6])
def test_phases_are_in_strictly_decreasing_order_of_turns(max_turns: int) -> None:
    harness = one_step(max_turns=max_turns, slips=0.7)
    assert max(len(trunk.turns) for trunk in trunks(harness)) == max_turns
    phases = [update["trained_turns"] for update in harness.step_log.updates]
    assert phases == [[k] for k in reversed(range(max_turns))]
    assert [call["role"] for call in harness.step_log.rollouts] == ["trunk"] + ["sibling"] * max_turns


@pytest.mark.parametrize("seed", range(3))
def test_siblings_are_sampled_by_the_weights_after_the_phase_before(seed: int) -> None:
    harness = one_step(seed=seed)
    assert {turn.policy_version for trunk in trunks(harness) for turn in trunk.turns} == {0}
    version = 0
    for k, update in zip((2, 1, 0), harness.step_log.updates, strict=True):
        versions = {turn.policy_version for sibling in siblings(harness, k) for turn in sibling.own_turns}
        assert versions == {version}
        version += update["optimizer_steps"] > 0
    assert version == harness.policy_version == 3


def test_a_phase_without_an_optimizer_step_needs_no_new_weights() -> None:
    harness = one_step(slips=0.0)
    assert [update["optimizer_steps"] for update in harness.step_log.updates] == [0, 0, 0]
    assert {row.is_tied for rows in harness.updated for row in rows} == {True}
    assert harness.backend.pushes == [0]
    assert len(siblings(harness, 0)) == len(siblings(harness, 2)) == 4 * 2 * 3


def test_trunks_that_answer_at_once_take_part_in_the_last_phase_only() -> None:
    harness = scripted_harness(always(ANSWER_RIGHT))
    step(harness, [TASK], CONFIG)
    assert {len(trunk.turns) for trunk in trunks(harness)} == {1}
    assert [update["trained_turns"] for update in harness.step_log.updates] == [[0]]
    assert {rollout.start_k for rollout in harness.rollouts} == {0}
    assert harness.ledger.rollouts == 2 * (1 + 3)


def test_a_trunk_takes_part_in_the_phases_of_the_turns_it_took() -> None:
    script = in_turn(ANSWER_WRONG, CALL_FIRST, ANSWER_WRONG, *[ANSWER_RIGHT] * 100)
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


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("group_size", [3, 5])
def test_every_realised_boundary_has_g_minus_one_siblings(seed: int, group_size: int) -> None:
    harness = one_step(replace(CONFIG, group_size=group_size), seed=seed)
    lengths = [len(trunk.turns) for trunk in trunks(harness)]
    assert len(lengths) == 2 * len(TASKS)
    assert len(set(lengths)) > 1
    forked = [rollout for rollout in harness.rollouts if rollout.role is Role.SIBLING]
    assert len(forked) == (group_size - 1) * sum(lengths)
    assert harness.ledger.rollouts == len(lengths) + len(forked)


def test_the_worst_case_is_reached_when_every_trunk_takes_all_turns() -> None:
    harness = one_step(slips=0.0)
    assert harness.ledger.rollouts == len(TASKS) * rollouts_per_task(CONFIG, 3) == 4 * 2 * (1 + 3 * 3)


def test_siblings_of_a_boundary_share_its_context_and_environment() -> None:
    harness = one_step()
    paths = {trunk.uid: trunk for trunk in trunks(harness)}
    for k in range(3):
        for sibling in siblings(harness, k):
            assert sibling.parent_uid is not None
            anchor = paths[sibling.parent_uid].turns[k]
            assert sibling.turns[k].context_ids.tobytes() == anchor.context_ids.tobytes()
            assert sibling.turns[k].snapshot.digest == anchor.snapshot.digest
            assert sibling.turns[:k] == paths[sibling.parent_uid].turns[:k]


# what is trained


@pytest.mark.parametrize("seed", range(3))
def test_siblings_are_trained_once_at_their_first_turn_and_trunks_never(seed: int) -> None:
    harness = one_step(seed=seed)
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


def test_trained_ids_are_what_the_engine_received_and_sampled() -> None:
    harness = one_step()
    received = {(request.session, request.context_ids.tobytes()) for request in harness.engine.requests}
    for rows in harness.updated:
        for row in rows:
            context, output = row.ids[~row.mask], row.ids[row.mask]
            assert (row.rollout_uid, context.tobytes()) in received
            assert output.tobytes() == row.turns[0].output_ids.tobytes()
            assert not row.advantage[~row.mask].any()
            assert not row.weight[~row.mask].any()


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


def test_every_sibling_of_a_phase_weighs_the_same_and_its_tokens_share_it() -> None:
    harness = one_step()
    for rows in harness.updated:
        for row in rows:
            assert row.weight[row.mask] == pytest.approx(1 / len(rows) / int(row.mask.sum()))


def test_the_first_step_of_every_phase_has_ratio_one(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = []

    def compare_and_step(backend: MemoryBackend, packed: Packed, reference: Floats | None, loss: Loss) -> StepResult:
        weights.append(backend.weights)
        assert packed.old_logprobs[packed.mask].tobytes() == backend.score(packed).logprobs.tobytes()
        return take_step(backend, packed, reference, loss)

    take_step = MemoryBackend.step
    monkeypatch.setattr(MemoryBackend, "step", compare_and_step)
    harness = one_step()
    assert len(set(weights)) == len(harness.step_log.updates) == 3
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


def graded(rollout: Rollout, reward: float | None) -> Rollout:
    outcome = GradeOutcome.UNGRADABLE if reward is None else GradeOutcome.GRADED
    return replace(rollout, grade=Grade(outcome, reward))


@pytest.fixture(scope="module")
def forks() -> tuple[list[Boundary], list[Group]]:
    """Two boundaries of turn 0 with three siblings each."""
    harness = scripted_harness(always(ANSWER_RIGHT))
    roots = harness.rollout([TASK], n=2, role=Role.TRUNK)[0]
    boundaries = [root.boundary(0) for root in roots]
    return boundaries, harness.rollout(boundaries, n=3, role=Role.SIBLING)


def test_ungraded_siblings_are_left_out_of_rows_and_means(forks: tuple[list[Boundary], list[Group]]) -> None:
    boundaries, (one, other) = forks
    first = [graded(one[0], 1.0), graded(one[1], None), graded(one[2], 0.0)]
    second = [graded(sibling, reward) for sibling, reward in zip(other, (1.0, 0.0, 0.0), strict=True)]
    rows = sibling_rows(boundaries, [tuple(first), tuple(second)], 0, pool=False)
    assert [row.rollout_uid for row in rows] == [r.uid for r in (first[0], first[2], *second)]
    assert [advantage_of(row) for row in rows] == pytest.approx([0.5, -0.5, 2 / 3, -1 / 3, -1 / 3])
    assert [float(row.weight.sum()) for row in rows] == pytest.approx([0.2] * 5)


def test_a_group_with_one_graded_sibling_is_left_out(forks: tuple[list[Boundary], list[Group]]) -> None:
    boundaries, (one, other) = forks
    first = tuple(graded(sibling, reward) for sibling, reward in zip(one, (1.0, None, None), strict=True))
    second = tuple(graded(sibling, reward) for sibling, reward in zip(other, (1.0, 0.0, 0.0), strict=True))
    rows = sibling_rows(boundaries, [first, second], 0, pool=False)
    assert {row.rollout_uid for row in rows} == {sibling.uid for sibling in second}
    pooled = sibling_rows(boundaries, [first, second], 0, pool=True)
    assert [advantage_of(row) for row in pooled] == [0.5, 0.5, -0.5, -0.5]


class UngradableEnv(ToyMathEnv):
    """A grader that cannot tell."""

    async def grade(self) -> Grade:
        return Grade(GradeOutcome.UNGRADABLE, None)


def test_a_step_whose_siblings_cannot_be_graded_trains_nothing() -> None:
    harness = scripted_harness(solver(0.3), make_env=UngradableEnv)
    step(harness, TASKS, CONFIG)
    assert {update["rows"] for update in harness.step_log.updates} == {0}
    assert (harness.policy_version, harness.backend.steps) == (0, [])


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (replace(CONFIG, group_size=2), r"algorithm\.group_size is 2"),
        (replace(CONFIG, trunks=0), r"algorithm\.trunks is 0"),
        (replace(CONFIG, training_context="flattened"), r"algorithm\.training_context is flattened"),
    ],
)
def test_settings_that_cannot_be_are_refused(config: RTPOConfig, words: str) -> None:
    (problem,) = check(config)
    assert re.match(words, problem)
    assert check(CONFIG) == []


# token by token


def test_a_whole_step_token_by_token() -> None:
    """12 + 5 * 3 in two turns: one trunk, two siblings at each of its two boundaries.

    Ids: 1 start, 2 stop, 4 5 think, 6 7 call, 8 9 response, 10 11 box, 12 newline, 14 user, 15 assistant, 16 compute,
    17 +, 19 *, 26 first, 27 then, 30 so, 31 answer, and 38 + n for the number n.
    """
    question = [1, 14, 12, 16, 50, 17, 43, 19, 41, 2, 12, 1, 15, 12]
    call = [4, 26, 43, 19, 41, 5, 6, 43, 19, 41, 7, 2]
    result = [12, 1, 14, 12, 8, 53, 9, 2, 12, 1, 15, 12]
    right = [4, 30, 31, 65, 5, 31, 10, 65, 11, 2]
    wrong = [4, 30, 5, 31, 10, 53, 11, 2]
    assert (ids(CALL_FIRST + "<|im_end|>"), ids(ANSWER_RIGHT + "<|im_end|>")) == (call, right)
    trunk = (CALL_FIRST, ANSWER_WRONG)
    phase_1 = (ANSWER_RIGHT, ANSWER_WRONG)
    phase_0 = (ANSWER_WRONG, CALL_FIRST, ANSWER_RIGHT)
    harness = scripted_harness(in_turn(*trunk, *phase_1, *phase_0), max_turns=2)
    step(harness, [TASK], RTPOConfig("rtpo", "rtpo", kl=0.0, trunks=1, group_size=3))

    first, second = (backend_step.packed for backend_step in harness.backend.steps)
    stripped_call = [6, 43, 19, 41, 7, 2]
    c_1 = question + stripped_call + result
    assert first.ids.tolist() == [*c_1, *right, *c_1, *wrong]
    assert first.lengths.tolist() == [42, 40]
    assert first.mask.tolist() == [False] * 32 + [True] * 10 + [False] * 32 + [True] * 8
    assert first.advantage.tolist() == [0.0] * 32 + [0.5] * 10 + [0.0] * 32 + [-0.5] * 8
    expected = [0.0] * 32 + [1 / 20] * 10 + [0.0] * 32 + [1 / 16] * 8
    assert first.weight.tolist() == pytest.approx(expected)

    assert second.ids.tolist() == [*question, *wrong, *question, *call]
    assert second.mask.tolist() == [False] * 14 + [True] * 8 + [False] * 14 + [True] * 12
    assert second.advantage.tolist() == [0.0] * 14 + [-0.5] * 8 + [0.0] * 14 + [0.5] * 12
    expected = [0.0] * 14 + [1 / 16] * 8 + [0.0] * 14 + [1 / 24] * 12
    assert second.weight.tolist() == pytest.approx(expected)
    assert [turn.policy_version for rollout in harness.rollouts[3:] for turn in rollout.own_turns] == [1, 1, 1]
    assert harness.ledger.rollouts == 5
