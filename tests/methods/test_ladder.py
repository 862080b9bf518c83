"""The rungs of the ladder: what each changes of the one below and what it leaves, and what is sampled beside the budget
leaves the rest as it would be."""

import numpy as np
import pytest
from methods import TASKS, advantage_of, config_of, one_step
from scripted import RecordingHarness, scripted_harness, solver
from tables import harness_on, lure, random_logits

from baselines.ladder import grpo_state_values
from rtpo.algorithms import configured
from rtpo.theory.mdp import state_values
from rtpo.theory.tabular import tasks
from rtpo.types import Role, TrainRow


def by_turn(rows: list[TrainRow]) -> dict[tuple[str, int], float]:
    return {(row.rollout_uid, row.turns[0].k): advantage_of(row) for row in rows}


def charged(harness: RecordingHarness) -> list[tuple[str, list[list[int]]]]:
    return [(path.uid, [turn.output_ids.tolist() for turn in path.turns]) for path in harness.rollouts]


def test_rollouts_beside_the_budget_leave_all_else_as_it_was() -> None:
    """Charges, seeds, counters, lines and kept rollouts."""

    def step(*, free: bool) -> RecordingHarness:
        harness = scripted_harness(solver(0.4), reserve=12)
        for _ in range(2):
            (first, *_), *_ = harness.rollout(TASKS, n=2, role=Role.CHAIN)
            if free:
                harness.rollout([first.boundary(0)], n=5, role=Role.FREE)
        harness.backend.tells = not free
        if free:
            harness.rollout(TASKS, n=1, role=Role.FREE)
        return harness

    without, beside = step(free=False), step(free=True)
    assert charged(beside) == charged(without)
    assert (beside.step_log.free_calls, without.step_log.free_calls) == (3, 0)
    assert {request.sampling.top_logprobs for request in beside.engine.requests} == {0}
    changed = {name: beside.ledger.as_dict()[name] for name in ("free_rollouts", "free_tokens", "seconds")}
    assert beside.ledger.as_dict() == without.ledger.as_dict() | changed
    assert (beside.ledger.free_rollouts, beside.ledger.rollouts) == (13, 12)
    outputs = sum(len(turn.output_ids) for path in beside.rollouts for turn in path.own_turns)
    assert (beside.ledger.generated_tokens, beside.ledger.free_tokens > 0) == (outputs, True)
    for log in ("rollouts", "paths"):
        assert getattr(beside.step_log, log) == getattr(without.step_log, log)


def test_a_path_that_is_open_is_extended_by_the_budget_alone() -> None:
    harness = scripted_harness(solver(0.0), reserve=1)
    ((first,),) = harness.rollout([TASKS[0]], n=1, role=Role.CHAIN, turns=1)
    assert first.tip is not None
    for n, role in ((3, Role.FREE), (1, Role.CHAIN)):
        harness.rollout([first.tip], n=n, role=role)
    assert (harness.ledger.rollouts, harness.ledger.free_rollouts) == (1, 3)


def test_values_in_place_of_the_mean_are_the_only_change() -> None:
    """The rows of exact GRPO, in its order with its weights; the first turn's advantages are its own, too."""
    exact = one_step(config_of("grpo", training_context="recorded"))
    values = one_step(config_of("grpo_state_values"))
    assert charged(values) == charged(exact)
    (below,), (rows,) = exact.updated, values.updated
    for row, other in zip(rows, below, strict=True):
        assert (row.rollout_uid, row.group, row.ids.tobytes()) == (other.rollout_uid, other.group, other.ids.tobytes())
        assert np.array_equal(row.weight, other.weight)
        if row.turns[0].k == 0 or other.is_tied:
            np.testing.assert_allclose(row.advantage, other.advantage, rtol=1e-6)
    assert any(advantage_of(row) != advantage_of(other) for row, other in zip(rows, below, strict=True))
    assert values.losses == exact.losses


def test_a_turn_is_compared_with_the_continuations_of_its_own_state() -> None:
    harness = harness_on(lure(), logits=random_logits(lure(), 3))
    config = configured("grpo_state_values", continuations=1000, chains=12, kl=0.0)
    grpo_state_values.step(harness, tasks(harness.mdp), config)
    ((chains,), continued) = harness.all_of("rollout")
    later = [(turn.k, turn.context_ids.tobytes()) for chain in chains for turn in chain.turns[1:]]
    assert len(continued) == len(set(later)) < len(later)
    values = state_values(harness.mdp, np.exp(harness._engine_logprobs))
    rewards = {chain.uid: chain.reward for chain in chains}
    scale = np.std(list(rewards.values()), ddof=1) + 1e-6
    (rows,) = harness.all_of("update")
    for row in rows:
        (turn,) = row.turns
        baseline = values[turn.k, turn.snapshot.state] if turn.k else np.mean(list(rewards.values()))
        assert advantage_of(row) * scale == pytest.approx(rewards[row.rollout_uid] - baseline, abs=0.06)


def test_in_reverse_the_same_rows_are_trained_a_turn_at_a_time() -> None:
    together = one_step(config_of("grpo_state_values"))
    reverse = one_step(config_of("grpo_state_values", order="reverse"))
    assert [sorted({row.turns[0].k for row in rows}) for rows in reverse.updated] == [[2], [1], [0]]
    assert by_turn([row for rows in reverse.updated for row in rows]) == by_turn(together.updated[0])
    assert {loss.old_logprobs for loss in reverse.losses} == {"rollout"}
    assert reverse.backend.pushes == together.backend.pushes == [0]


def test_fresh_continuations_are_of_the_newest_weights() -> None:
    """Each chain's boundary trains one sample, another one where chains stand in the same place."""
    config = configured("grpo_state_values", order="reverse", fresh=True)
    harness = harness_on(lure(), logits=random_logits(lure(), 3))
    grpo_state_values.step(harness, tasks(harness.mdp), config)
    assert [name for name, _ in harness.done] == ["sync", "rollout", *["sync", "rollout", "update"] * 3]
    ((chains,), *continued) = harness.all_of("rollout")
    scale = np.std([chain.reward for chain in chains], ddof=1) + 1e-6
    versions = harness.all_of("sync")[1:]
    assert versions == [0, 1, 2]
    for k, groups, version, rows in zip((2, 1, 0), continued, versions, harness.all_of("update"), strict=True):
        assert {row.turns[0].k for row in rows} == {k}
        assert {turn.policy_version for group in groups for path in group for turn in path.own_turns} == {version}
        assert len({row.rollout_uid for row in rows}) == len(rows) == sum(len(chain.turns) > k for chain in chains)
        assert {row.group for row in rows} == {chains[0].task.uid}
        trained = by_turn(rows)
        for group in groups:
            assert len(group) == config.continuations
            for path in (path for path in group if (path.uid, k) in trained):
                others = [other.reward for other in group if other is not path]
                assert trained[path.uid, k] == pytest.approx((path.reward - np.mean(others)) / scale, abs=1e-5)
    assert harness.ledger.rollouts == config.chains
