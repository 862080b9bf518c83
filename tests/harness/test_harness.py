"""The harness: what it charges, what it trains, and what it refuses."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scripted import CALL_1, RIGHT, TASK, WRONG, always, in_turn, rows_of, scripted_harness, solver

from rtpo.engines.base import Sampling
from rtpo.envs.toy.math import problems
from rtpo.errors import AlgorithmError, BudgetExceeded, InfrastructureError, NonFinite, StaleEngine, TreeMismatch
from rtpo.harness.diagnostics import rollout_metrics
from rtpo.rows import turn_row
from rtpo.types import Role
from rtpo.verbs import TokenClip

TASKS = problems("train", 8, seed=1)


def test_the_first_continuation_of_an_open_path_is_free_and_the_second_costs_one() -> None:
    harness = scripted_harness(always(CALL_1), max_turns=4)
    ((first, second),) = harness.rollout([TASK], n=2, role=Role.CHAIN, turns=1)
    ((inner,),) = harness.rollout([TASK], n=1, role=Role.CHAIN, turns=2)
    assert harness.ledger.rollouts == 3
    assert first.tip is not None
    assert second.tip is not None
    for start, n, charged in ((first.tip, 1, 0), (first.tip, 1, 1), (second.tip, 3, 2), (inner.boundary(1), 1, 1)):
        before = harness.ledger.rollouts
        harness.rollout([start], n=n, role=Role.BRANCH, turns=1)
        assert harness.ledger.rollouts - before == charged


def test_nothing_is_dispatched_past_the_reservation_and_what_is_left_of_it_is_given_back() -> None:
    harness = scripted_harness(always(RIGHT), reserve=5, budget=8)
    harness.rollout([TASK], n=4, role=Role.CHAIN)
    sent = len(harness.engine.requests)
    with pytest.raises(BudgetExceeded, match="2 rollouts"):
        harness.rollout([TASK], n=2, role=Role.CHAIN)
    assert (harness.ledger.rollouts, len(harness.engine.requests), harness.ledger.remaining) == (4, sent, 3)
    harness.end_step()
    assert harness.ledger.remaining == 4
    with pytest.raises(BudgetExceeded):
        harness.rollout([TASK], n=1, role=Role.CHAIN)


def test_retries_are_noted_and_cost_nothing() -> None:
    harness = scripted_harness(always(RIGHT))
    harness.engine.failures = 2
    harness.rollout([TASK], n=1, role=Role.CHAIN)
    assert (harness.ledger.rollouts, harness.ledger.retries) == (1, 2)
    assert harness.step_log.retries == ["0.0.0.0: the engine does not answer"] * 2
    harness.engine.failures = 3
    with pytest.raises(InfrastructureError):
        harness.rollout([TASK], n=1, role=Role.CHAIN)


def test_a_step_draws_the_same_again_and_another_step_does_not() -> None:
    def drawn(step: int, seed: int) -> list[object]:
        harness = scripted_harness(solver(0.5), seed=seed)
        harness.end_step()
        harness.begin_step(step, 100)
        groups = harness.rollout(TASKS, n=2, role=Role.CHAIN)
        outputs = [turn.output_ids.tobytes() for group in groups for rollout in group for turn in rollout.turns]
        return [outputs, *(int(harness.random(name).integers(1 << 30)) for name in "aab")]

    _, first, again, second = drawn(3, 0)
    assert first == again != second
    assert drawn(3, 0) == drawn(3, 0)
    for different in (drawn(4, 0), drawn(3, 1)):
        assert all(draw != usual for draw, usual in zip(different, drawn(3, 0), strict=True))


def test_evaluation_is_not_charged() -> None:
    harness = scripted_harness(solver(0.3), reserve=1)
    groups = harness.evaluate(TASKS, 3, Sampling(temperature=0.0), "held_out")
    assert [len(group) for group in groups] == [3] * 8
    assert {rollout.role for group in groups for rollout in group} == {Role.EVAL}
    ledger = harness.ledger
    assert (ledger.rollouts, ledger.reserved, ledger.evaluation_rollouts) == (0, 1, 24)
    assert (ledger.generated_tokens, ledger.turn_generations) == (0, 0)
    assert harness.step_log.rollouts == []
    assert {request.sampling.temperature for request in harness.engine.requests} == {0.0}


def test_the_engine_is_given_weights_where_a_step_was_taken_or_it_slept() -> None:
    """Rows that are all tied take no step and are recorded."""
    harness = scripted_harness(solver(0.3))
    groups = harness.rollout(TASKS, n=2, role=Role.CHAIN)
    rows = rows_of(groups, [0.0] * 16)
    assert harness.update(rows, TokenClip()).optimizer_steps == 0
    (logged,) = harness.step_log.updates
    assert (logged["rows"], logged["tied_rows"], logged["optimizer_steps"]) == (len(rows), len(rows), 0)
    assert logged["zero_advantage"]["all"] == 1.0
    assert logged["loss"] is logged["grad_norm"] is logged["clip_fraction"] is None
    assert harness.ledger.trained_tokens == sum(int(row.mask.sum()) for row in rows)
    assert (harness.backend.steps, harness.policy_version, harness.sync(), harness.backend.pushes) == ([], 0, 0, [0])
    harness.backend.is_serving = False
    assert (harness.sync(), harness.sync(), harness.backend.pushes) == (0, 0, [0, 0])
    update = harness.update(rows_of(groups), TokenClip(), epochs=2, minibatches=2)
    assert (update.optimizer_steps, update.policy_version) == (4, 1)
    assert (harness.sync(), harness.sync(), harness.backend.pushes) == (1, 1, [0, 0, 1])
    assert (harness.ledger.optimizer_steps, harness.ledger.syncs) == (4, 3)


def test_an_evaluation_plays_the_weights_of_the_last_update() -> None:
    harness = scripted_harness(solver(0.3))
    groups = harness.rollout(TASKS, n=2, role=Role.CHAIN)
    harness.update(rows_of(groups), TokenClip())
    evaluated = harness.evaluate(TASKS[:1], 1, Sampling(), "held_out")
    assert {turn.policy_version for group in evaluated for path in group for turn in path.turns} == {1}


def test_scores_are_the_present_policys_and_the_reference_the_initial_ones() -> None:
    harness = scripted_harness(solver(0.3), learning_rate=0.2)
    rows = rows_of(harness.rollout(TASKS, n=2, role=Role.CHAIN))
    for values, row in zip(harness.score(rows), rows, strict=True):
        np.testing.assert_array_equal(values, row.rollout_logprobs[row.mask])
    harness.update(rows, TokenClip())
    scored = harness.ledger.scored_tokens
    reference = harness.reference(rows)
    assert harness.ledger.scored_tokens - scored == sum(len(row.ids) for row in rows)
    for values, row, now in zip(reference, rows, harness.score(rows), strict=True):
        np.testing.assert_array_equal(values, row.rollout_logprobs[row.mask])
        assert np.abs(values - now).max() > 1e-3
    steps = len(harness.backend.steps)
    harness.backend.has_reference = False
    for act in (lambda: harness.reference(rows), lambda: harness.update(rows, TokenClip(kl=0.02))):
        with pytest.raises(AlgorithmError, match="needs_reference"):
            act()
    assert len(harness.backend.steps) == steps


def test_trained_turns_are_noted_of_the_paths_that_are_kept() -> None:
    harness = scripted_harness(solver(0.3))
    rows = rows_of(harness.rollout(TASKS, n=2, role=Role.CHAIN))
    del harness.step_log.samples[2:]
    kept = harness.step_log.samples
    harness.update(rows, TokenClip())
    noted = {(trained.rollout_uid, trained.k) for trained in harness.step_log.trained}
    assert noted == {(path.uid, turn.k) for path in kept for turn in path.turns}


def test_epochs_pass_over_the_same_minibatches_again_with_the_first_log_probs() -> None:
    harness = scripted_harness(solver(0.3), learning_rate=0.01)
    rows = rows_of(harness.rollout(TASKS, n=2, role=Role.CHAIN))
    expected = np.concatenate(harness.score(rows))
    harness.update(rows, TokenClip(), epochs=2, minibatches=2)
    first, second, *again = (step.packed for step in harness.backend.steps)
    for before, after in zip((first, second), again, strict=True):
        np.testing.assert_array_equal(before.ids, after.ids)
    assert first.old_logprobs is None  # they are its own
    for packs in ((again[0], second), again):
        np.testing.assert_array_equal(np.concatenate([p.old_logprobs[p.mask] for p in packs]), expected)


def test_zero_advantage_rates_by_turn() -> None:
    """Groups a and b at turn 0, c at turns 0 and 1, d at turn 1; a and d are tied."""
    harness = scripted_harness(in_turn(*[CALL_1, RIGHT] * 4))
    chains = [chain for (chain,) in harness.rollout([TASK] * 4, n=1, role=Role.CHAIN)]
    table = {"a": ([0], 0.0), "b": ([0], 0.5), "c": ([0, 1], -0.5), "d": ([1], 0.0)}
    rows = [
        turn_row(chain.turns[k], chain, advantage, 1.0, group)
        for chain, (group, (turns, advantage)) in zip(chains, table.items(), strict=True)
        for k in turns
    ]
    harness.update(rows, TokenClip())
    rates = {"all": 0.5, "turn_0": pytest.approx(1 / 3), "turn_1": 0.5}
    assert harness.step_log.updates[0]["zero_advantage"] == rates
    assert harness.step_log.updates[0]["tied_rows"] == 2


def test_a_synchronisation_that_was_lost_is_caught() -> None:
    harness = scripted_harness(solver(0.3))
    harness.update(rows_of(harness.rollout(TASKS, n=2, role=Role.CHAIN)), TokenClip())
    harness.backend.push = lambda version: None  # type: ignore[method-assign]
    harness.sync()
    with pytest.raises(StaleEngine, match="sampled with weights of version 0 after it was given version 1"):
        harness.rollout(TASKS, n=1, role=Role.CHAIN)
    harness.backend.is_serving = False
    with pytest.raises(StaleEngine, match="sleeps"):
        harness.rollout(TASKS, n=1, role=Role.CHAIN)


def test_one_token_that_is_far_off_does_not_end_a_run_and_all_that_are_do() -> None:
    harness = scripted_harness(solver(0.3), engine_kl_limit=0.05)
    rows = rows_of(harness.rollout(TASKS, n=8, role=Role.CHAIN))
    engine = rows[0].rollout_logprobs.copy()
    engine[np.flatnonzero(rows[0].mask)[0]] -= 7
    harness.update([replace(rows[0], rollout_logprobs=engine), *rows[1:]], TokenClip())
    logged = harness.step_log.updates[0]
    assert logged["mismatch/engine/kl_k3"] > 0.05 > logged["mismatch/engine/kl_clipped"]
    assert logged["mismatch/engine/largest"] == pytest.approx(7)
    harness.sync()
    rows = rows_of(harness.rollout(TASKS, n=2, role=Role.CHAIN))
    with pytest.raises(StaleEngine, match="engine_kl_limit"):
        harness.update([replace(row, rollout_logprobs=row.rollout_logprobs - 1) for row in rows], TokenClip())


def test_numbers_that_are_not_finite_are_refused() -> None:
    harness = scripted_harness(always(RIGHT))
    rows = rows_of(harness.rollout(TASKS[:2], n=2, role=Role.CHAIN))
    for broken in (float("nan"), float("-inf")):
        harness.engine.broken = broken
        with pytest.raises(NonFinite, match=r"0\.\d\.0\.0, turn 0"):
            harness.rollout([TASK], n=1, role=Role.CHAIN)
    harness.backend.broken = {"logprob": float("nan")}
    for act in (lambda: harness.update(rows, TokenClip(), minibatches=2), lambda: harness.score(rows)):
        with pytest.raises(NonFinite, match="trainer"):
            act()
    assert harness.backend.steps == []
    with pytest.raises(NonFinite, match="trainer"):
        harness.update(rows, TokenClip())  # said by the first step's own forward
    for broken_step in ({"loss": float("nan")}, {"grad_norm": float("inf")}):
        harness.backend.broken = broken_step
        with pytest.raises(NonFinite, match="not applied"):
            harness.update(rows, TokenClip())
    assert harness.policy_version == 0


def test_after_a_load_the_engine_is_given_the_weights_at_the_next_synchronisation(tmp_path: Path) -> None:
    """Another history may have led to the same version number."""
    harness = scripted_harness(solver(0.3))
    groups = harness.rollout(TASKS, n=2, role=Role.CHAIN)
    state = harness.save(tmp_path)
    harness.update(rows_of(groups), TokenClip())
    harness.sync()
    harness.load(tmp_path, state)
    assert (harness.policy_version, harness.backend.weights) == (0, 0.0)
    harness.update(rows_of(groups, [1.0] * 16), TokenClip())
    harness.sync()
    assert harness.engine.weights == harness.backend.weights


def test_ungraded_rollouts_are_counted_apart_and_spoiled_answers_are_zeros() -> None:
    harness = scripted_harness(in_turn(RIGHT, CALL_1, WRONG))
    (right,), _, (wrong,) = harness.rollout([TASK] * 3, n=1, role=Role.CHAIN, turns=1)
    (logged,) = harness.step_log.rollouts
    assert (logged["rollouts"], logged["graded"], logged["success"]) == (3, 2, 0.5)
    assert logged["terminations"] == {"answered": 2, "open": 1}
    assert logged["grades"] == {"graded": 2, "pending": 1}
    spoiled = replace(wrong, grade=replace(wrong.grade, spoiled=True))
    logged = rollout_metrics([right, spoiled], Role.CHAIN)
    assert (logged["graded"], logged["grades"], logged["spoiled"]) == (2, {"graded": 2}, 1)


def test_log_probs_on_trees_are_compared_with_those_of_a_group_s_rows_each_update() -> None:
    harness = scripted_harness(solver(0.3), check_trees=True)
    rows = rows_of(harness.rollout(TASKS, n=2, role=Role.CHAIN))
    harness.backend.tree_error, harness.backend.rounding = 2e-3, 1e-3
    for _ in range(8):
        harness.update(rows, TokenClip())
    looked_at = [packed for packed in harness.backend.scored if len(packed.lengths) < len(rows)]
    groups = {packed.ids[:20].tobytes() for packed in looked_at}
    assert (len(looked_at), len(groups) > 2) == (24, True)
    harness.backend.tree_error, steps = 0.25, len(harness.backend.steps)
    with pytest.raises(TreeMismatch, match=r"profile\.check_trees") as error:
        harness.update(rows, TokenClip())
    last = harness.backend.scored[-1]
    count = len(last.lengths)
    token = int(last.mask[-last.lengths[-1] :].sum()) - 1
    assert f"trained token {token} of row {count - 1} of {count}," in str(error.value)
    assert len(harness.backend.steps) == steps
