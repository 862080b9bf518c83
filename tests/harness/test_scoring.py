"""What the harness scores before an update, and what it counts of it."""

from collections.abc import Callable

import numpy as np
import pytest
from scripted import RecordingHarness, rows_of, scripted_harness, solver
from test_harness import TASKS

from rtpo.engines.base import Sampling
from rtpo.types import OldLogprobs, Role, TrainingContext
from rtpo.verbs import TokenClip


def scored_ids(harness: RecordingHarness, act: Callable[[], object]) -> list[bytes]:
    """The ids of each row that `act` has scored."""
    before = len(harness.backend.scored)
    act()
    packs = harness.backend.scored[before:]
    return [ids.tobytes() for packed in packs for ids in np.split(packed.ids, np.cumsum(packed.lengths)[:-1])]


def measured(logged: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in logged.items() if key == "entropy" or key.startswith(("mismatch", "measured"))}


@pytest.mark.parametrize("source", ["rollout", "recompute"])
@pytest.mark.parametrize("context", ["recorded", "flattened"])
def test_the_first_mini_batch_is_scored_by_its_own_step(
    context: TrainingContext, source: OldLogprobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the numbers of scoring it beforehand; what is tied is in no step."""
    harness = scripted_harness(solver(0.3), learning_rate=0.01)
    chains = harness.rollout(TASKS, n=2, role=Role.CHAIN)
    advantages = [(-1.0) ** i if i > 1 else 0.0 for i in range(2 * len(TASKS))]
    rows = rows_of(chains, advantages, context)
    uids = {rollout.uid for group in chains[1:4] for rollout in group}
    loss = TokenClip(old_logprobs=source)
    scored = scored_ids(harness, lambda: harness.update(rows, loss, minibatches=2))
    alone = [row for row in rows if row.rollout_uid not in uids]
    recorded = rows_of(chains, advantages) if context == "flattened" else []
    assert scored == [row.ids.tobytes() for row in (*alone, *recorded)]
    again = scripted_harness(solver(0.3), learning_rate=0.01)
    again.rollout(TASKS, n=2, role=Role.CHAIN)
    everything = [row.ids.tobytes() for row in (*rows, *recorded)]
    monkeypatch.setattr("rtpo.harness.scoring.first_batch", lambda *arguments: [])
    assert scored_ids(again, lambda: again.update(rows, loss, minibatches=2)) == everything
    served, before = harness.step_log.updates[0], again.step_log.updates[0]
    assert served["measured_rows"] == len(rows)
    assert measured(served) == measured(before)
    assert (served["mismatch/context/kl_k3"] > 1e-3) == (context == "flattened")
    assert served["mismatch/engine/kl_k3"] == pytest.approx(0, abs=1e-12)
    np.testing.assert_array_equal(harness.backend.steps[0].packed.ids, again.backend.steps[0].packed.ids)


def test_diagnostics_are_of_a_share_of_the_rows_drawn_anew_each_update() -> None:
    """Whole groups, on flattened rows in their recorded contexts, too."""

    def run(seed: int) -> tuple[list[set[str]], RecordingHarness]:
        harness = scripted_harness(solver(0.3), learning_rate=0.0, scored_share=0.25, seed=seed)
        chains = harness.rollout(TASKS, n=2, role=Role.CHAIN)
        rows = rows_of(chains, context="flattened")
        of_ids = {row.ids.tobytes(): row.group for row in (*rows, *rows_of(chains))}
        loss = TokenClip(old_logprobs="rollout")
        drawn = []
        for _ in range(6):
            scored = scored_ids(harness, lambda: harness.update(rows, loss, minibatches=8))
            drawn.append({of_ids[ids] for ids in scored})
            logged = harness.step_log.updates[-1]
            of_drawn = [row for row in rows if row.group in drawn[-1]]
            assert logged["measured_rows"] == len(of_drawn) == 4
        return drawn, harness

    drawn, harness = run(0)
    assert len({frozenset(groups) for groups in drawn}) > 2
    assert (run(0)[0] == drawn, run(1)[0] == drawn) == (True, False)
    rows = rows_of(harness.rollout(TASKS, n=2, role=Role.CHAIN))
    harness.update(rows, TokenClip())
    assert harness.step_log.updates[-1]["measured_rows"] == len(rows)  # all are known


def test_log_probs_before_an_update_are_told_where_they_are_asked_for() -> None:
    harness = scripted_harness(solver(0.3), scored_share=0.1)
    rows = rows_of(harness.rollout(TASKS, n=2, role=Role.CHAIN))
    expected, loss = harness.score(rows), TokenClip(old_logprobs="rollout")
    before = harness.update(rows, loss, scores=True).scores
    np.testing.assert_array_equal(np.concatenate(before), np.concatenate(expected))
    assert harness.update(rows, loss).scores == []


def test_what_trainer_and_engine_compute_is_counted_each_time() -> None:
    """In memory nothing is shared: tokens computed are those of the rows."""
    harness, ledger = (made := scripted_harness(solver(0.3))), made.ledger
    rows = rows_of(harness.rollout(TASKS, n=2, role=Role.CHAIN))
    in_rows = sum(len(row.ids) for row in rows)
    contexts = sum(len(turn.context_ids) for rollout in harness.rollouts for turn in rollout.own_turns)
    assert ledger.context_tokens == ledger.prefilled_tokens == contexts
    harness.evaluate(TASKS, 1, Sampling(temperature=0.0), "after")
    assert ledger.prefilled_tokens == contexts
    later = {task.uid for task in TASKS[len(TASKS) // 2 :]}
    in_later = sum(len(row.ids) for row in rows if row.group in later)
    assert 0 < in_later < in_rows
    harness.update(rows, TokenClip(kl=0.1), epochs=2, minibatches=2)  # each time with the reference
    scored = in_later + 2 * in_rows
    assert (ledger.computed_tokens, ledger.scored_tokens) == (2 * in_rows, scored)
    assert ledger.row_tokens == 2 * in_rows + scored
    harness.score(rows)
    assert (ledger.computed_tokens, ledger.scored_tokens) == (2 * in_rows, scored + in_rows)
