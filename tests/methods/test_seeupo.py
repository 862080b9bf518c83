"""SeeUPO on the scripted engine and on a table: the order of turns, the factor M, and what is left out."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import mean, stdev
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from methods import IDS, TASKS, advantage_of, finished, one_step, parts_of, spelled
from scripted import CALL_1, CALL_2, RIGHT, TASK, WRONG, in_turn, scripted_harness, solver
from tables import harness_on, lure

from baselines.seeupo import step, update_factors
from rtpo.algorithms import configured
from rtpo.theory.tabular import tasks
from rtpo.types import Role, Rollout, TrainRow
from rtpo.verbs import Loss, SequenceClip

CONFIG = configured("seeupo", kl=0.0, chains=6)


@pytest.mark.parametrize(("order", "turns"), [("reverse", [2, 1, 0]), ("forward", [0, 1, 2])])
def test_turns_are_trained_in_order_on_one_rollout_phase(order: Any, turns: list[int]) -> None:
    harness = one_step(replace(CONFIG, order=order))
    assert [update["trained_turns"] for update in harness.step_log.updates] == [[k] for k in turns]
    assert {rollout.role for rollout in harness.rollouts} == {Role.CHAIN}
    assert {turn.policy_version for rollout in harness.rollouts for turn in rollout.turns} == {0}
    assert harness.policy_version == 3
    assert harness.losses == [SequenceClip(0.2, 0.2, "recompute", 0.0)] * 3
    assert harness.ledger.syncs == 1


def reference(groups: Iterable[Sequence[Rollout]], limit: float = 3.0) -> dict[str, float]:
    """A of each chain from the formula: R minus its prompt's mean, then over the mean and standard deviation of all
    chains, whatever their lengths, clamped."""
    centred = {chain.uid: chain.reward - mean(c.reward for c in group) for group in groups for chain in group}
    centre, spread = mean(centred.values()), stdev(centred.values())
    return {uid: min(max((value - centre) / (spread + 1e-6), -limit), limit) for uid, value in centred.items()}


@pytest.mark.parametrize("limit", [3.0, 0.5])
def test_advantages_are_standardised_once_over_all_chains_and_clamped(limit: float) -> None:
    """Chains of all lengths, and a prompt none of whose chains is right: it has exact zeros at every turn."""

    def one_tied(context: str, rng: np.random.Generator) -> Any:
        if TASKS[0].question not in context:
            return solver(0.4)(context, rng)
        return WRONG if rng.random() < 0.4 else CALL_1

    harness = one_step(replace(CONFIG, chains=12, advantage_limit=limit), script=one_tied, learning_rate=0.0)
    groups = finished(harness)
    assert {len(chain.turns) for chain in groups[TASKS[0].uid]} == {1, 2, 3}
    expected = reference(groups.values(), limit)
    for rows in harness.updated:
        assert [advantage_of(row) for row in rows] == pytest.approx(
            [expected[row.rollout_uid] for row in rows], abs=1e-5
        )
        tied = [advantage_of(row) for row in rows if row.group == TASKS[0].uid]
        assert tied == [0.0] * len(tied) != []
        assert any(advantage_of(row) for row in rows)


@pytest.mark.parametrize(
    ("before", "ratio", "after"),
    [(1.0, 1.1, 1.1), (1.1, 1.1, 1.2), (1.2, 0.5, 0.96), (0.8, 0.9, 0.8), (0.8, 1e9, 0.96)],
)
def test_the_factor_is_a_product_of_bounded_sequence_ratios(before: float, ratio: float, after: float) -> None:
    """A chain of two tokens moves by this ratio in the geometric mean; another has no part in the turn."""
    chains: Any = [SimpleNamespace(uid="a")]
    old, factor = np.array([-1.0, -2.0], np.float32), {"a": before, "b": 1.0}
    update_factors(factor, chains, [old], [old + np.array([2 * np.log(ratio), 0], np.float32)], CONFIG)
    assert factor == {"a": pytest.approx(after, abs=1e-6), "b": 1.0}


def test_the_factor_on_a_table_is_that_of_the_updates_measured() -> None:
    """M of each chain, multiplied up here from the log-probs before and after every update, whose rows come in an
    order of their own."""
    harness = harness_on(lure(), learning_rate=0.5, seed=3)
    factor: dict[str, float] = {}
    seen: list[tuple[dict[str, float], list[TrainRow]]] = []
    update = harness.update

    def measured(rows: Sequence[TrainRow], loss: Loss, **settings: Any) -> Any:
        seen.append((dict(factor), list(rows)))
        before = harness.score(rows)
        done = update(rows, loss, **settings)
        for row, old, new in zip(rows, before, harness.score(rows), strict=True):
            s = float(np.exp(np.mean(new - old)).clip(0.8, 1.2))
            factor[row.rollout_uid] = float(np.clip(factor.get(row.rollout_uid, 1.0) * s, 0.8, 1.2))
        return done

    harness.update = measured  # type: ignore[method-assign]
    step(harness, tasks(harness.mdp), replace(CONFIG, chains=40))
    (groups,) = harness.all_of("rollout")
    base = reference(groups)
    assert [{row.turns[0].k for row in rows} for _, rows in seen] == [{2}, {1}, {0}]
    for factors, rows in seen:
        expected = [base[row.rollout_uid] * factors.get(row.rollout_uid, 1.0) for row in rows]
        assert [advantage_of(row) for row in rows] == pytest.approx(expected, abs=1e-5)
    assert len({round(m, 4) for m in seen[2][0].values()}) > 2
    assert all(0.8 <= m <= 1.2 for m in factor.values())


@pytest.mark.parametrize("context", ["recorded", "flattened"])
def test_rows_token_by_token(context: Any) -> None:
    """Three chains of 12 + 5 * 3: call, call, right; call, wrong; wrong. Each has one advantage at all its turns."""
    harness = scripted_harness(in_turn(CALL_1, CALL_2, RIGHT, CALL_1, WRONG, WRONG), learning_rate=0.0)
    step(harness, [TASK], replace(CONFIG, chains=3, training_context=context))
    c_1, c_2 = IDS.before_turn_1, IDS.before_turn_2
    if context == "flattened":
        c_1 = IDS.question + IDS.call_1 + IDS.result_1
        c_2 = c_1 + IDS.call_2 + IDS.result_2
    right, wrong = 2 / 3**0.5, -1 / 3**0.5
    taken = [
        [(c_2, IDS.right, right)],
        [(c_1, IDS.call_2, right), (c_1, IDS.wrong, wrong)],
        [(IDS.question, IDS.call_1, right), (IDS.question, IDS.call_1, wrong), (IDS.question, IDS.wrong, wrong)],
    ]
    assert [[parts_of(row) for row in rows] for rows in harness.updated] == [
        [spelled((before, None), (reply, advantage)) for before, reply, advantage in rows] for rows in taken
    ]
    weights = [[float(row.weight.sum()) for row in rows] for rows in harness.updated]
    assert weights == [pytest.approx([1 / len(rows)] * len(rows)) for rows in harness.updated]
    assert [len(s.packed.lengths) for s in harness.backend.steps] == [1, 2, 3]
