"""SeeUPO on the scripted engine and on a table: the order of turns, the factor M, and what is left out."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import mean, stdev
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from methods import IDS, TASKS, advantage_of, finished, one_step, parts_of, spelled
from scripted import CALL_1, CALL_2, RIGHT, TASK, WRONG, RecordingHarness, in_turn, scripted_harness, solver
from tables import harness_on, lure

from baselines.seeupo import SeeUPOConfig, move, step
from rtpo.algorithms import configured
from rtpo.theory.tabular import tasks
from rtpo.types import Floats, Role, Rollout, TrainRow
from rtpo.verbs import Loss, SequenceClip

CONFIG = configured("seeupo", kl=0.0, chains=6)


def chains_of(harness: RecordingHarness) -> dict[str, Any]:
    return {path.uid: path for paths in finished(harness).values() for path in paths}


@pytest.mark.parametrize(("order", "turns"), [("reverse", [2, 1, 0]), ("forward", [0, 1, 2])])
def test_turns_are_trained_in_order_on_one_rollout_phase(order: Any, turns: list[int]) -> None:
    harness = one_step(replace(CONFIG, order=order))
    assert [update["trained_turns"] for update in harness.step_log.updates] == [[k] for k in turns]
    assert {rollout.role for rollout in harness.rollouts} == {Role.CHAIN}
    assert {turn.policy_version for rollout in harness.rollouts for turn in rollout.turns} == {0}
    assert harness.policy_version == 3
    assert harness.losses == [SequenceClip(0.2, 0.2, "recompute", 0.0)] * 3
    assert harness.ledger.syncs == 1


def test_a_chain_has_no_part_in_turns_it_did_not_take() -> None:
    """There is no placeholder: nothing of it reaches the trainer, neither for the loss nor for a KL."""
    harness = one_step(replace(CONFIG, kl=0.02))
    chains = chains_of(harness).values()
    assert len({len(chain.turns) for chain in chains}) > 1
    for k, rows in zip((2, 1, 0), harness.updated, strict=True):
        assert [row.rollout_uid for row in rows] == [chain.uid for chain in chains if len(chain.turns) > k]
        assert {(row.turns[0].k, len(row.turns)) for row in rows} == {(k, 1)}
    assert [len(s.packed.lengths) for s in harness.backend.steps] == [len(rows) for rows in harness.updated]


def reference(groups: Iterable[Sequence[Rollout]]) -> dict[str, float]:
    """A of each chain from the formula: R minus its prompt's mean, then over the mean and standard deviation of all
    chains, whatever their lengths, clamped."""
    centred = {chain.uid: chain.reward - mean(c.reward for c in group) for group in groups for chain in group}
    centre, spread = mean(centred.values()), stdev(centred.values())
    return {uid: min(max((value - centre) / (spread + 1e-6), -3), 3) for uid, value in centred.items()}


def test_advantages_are_standardised_once_over_all_chains() -> None:
    """Chains of all lengths, and a prompt none of whose chains is right: it has exact zeros at every turn."""

    def one_tied(context: str, rng: np.random.Generator) -> Any:
        if TASKS[0].question not in context:
            return solver(0.4)(context, rng)
        return WRONG if rng.random() < 0.4 else CALL_1

    harness = one_step(replace(CONFIG, chains=12), script=one_tied, learning_rate=0.0)
    groups = finished(harness)
    assert {len(chain.turns) for chain in groups[TASKS[0].uid]} == {1, 2, 3}
    expected = reference(groups.values())
    for rows in harness.updated:
        assert [advantage_of(row) for row in rows] == pytest.approx(
            [expected[row.rollout_uid] for row in rows], abs=1e-5
        )
        tied = [advantage_of(row) for row in rows if row.group == TASKS[0].uid]
        assert tied == [0.0] * len(tied) != []
        assert any(advantage_of(row) for row in rows)


def test_advantages_are_clamped() -> None:
    harness = one_step(replace(CONFIG, advantage_limit=0.5), learning_rate=0.0)
    values = [advantage_of(row) for rows in harness.updated for row in rows]
    assert (min(values), max(values)) == (-0.5, 0.5)


# M


def moved(factor: dict[str, float], ratios: dict[str, float], config: SeeUPOConfig = CONFIG) -> dict[str, float]:
    """M after a turn in which the chains' two tokens moved by these ratios in the geometric mean."""
    chains: Any = [SimpleNamespace(uid=uid) for uid in ratios]
    before: list[Floats] = [np.array([-1.0, -2.0], np.float32) for _ in ratios]
    after = [
        b + np.array([2, 0], np.float32) * np.float32(np.log(r)) for b, r in zip(before, ratios.values(), strict=True)
    ]
    move(factor, chains, before, after, config)
    return factor


@pytest.mark.parametrize(
    ("before", "ratio", "after"),
    [
        (1.0, 1.0, 1.0),
        (1.0, 1.1, 1.1),
        (1.1, 1.1, 1.2),
        (1.0, 5.0, 1.2),
        (1.2, 0.5, 0.96),
        (0.8, 0.9, 0.8),
        (0.8, 1e9, 0.96),
    ],
)
def test_the_factor_is_a_product_of_bounded_sequence_ratios(before: float, ratio: float, after: float) -> None:
    assert moved({"a": before, "b": 1.0}, {"a": ratio}) == {"a": pytest.approx(after, abs=1e-6), "b": 1.0}


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


# token by token


@pytest.mark.parametrize("context", ["recorded", "flattened"])
def test_rows_token_by_token(context: Any) -> None:
    """Three chains of 12 + 5 * 3: call, call, right; call, wrong; wrong. Each has one advantage at all its turns."""
    script = in_turn(CALL_1, CALL_2, RIGHT, CALL_1, WRONG, WRONG)
    harness = scripted_harness(script, learning_rate=0.0)
    step(harness, [TASK], replace(CONFIG, chains=3, training_context=context))
    call_first = IDS.call_1_stripped if context == "recorded" else IDS.call_1
    call_second = IDS.call_2_stripped if context == "recorded" else IDS.call_2
    c_1 = IDS.question + call_first + IDS.result_1
    c_2 = c_1 + call_second + IDS.result_2
    right, wrong = 2 / 3**0.5, -1 / 3**0.5
    assert [[parts_of(row) for row in rows] for rows in harness.updated] == [
        [spelled((c_2, None), (IDS.right, right))],
        [spelled((c_1, None), (IDS.call_2, right)), spelled((c_1, None), (IDS.wrong, wrong))],
        [
            spelled((IDS.question, None), (IDS.call_1, right)),
            spelled((IDS.question, None), (IDS.call_1, wrong)),
            spelled((IDS.question, None), (IDS.wrong, wrong)),
        ],
    ]
    weights = [[float(row.weight.sum()) for row in rows] for rows in harness.updated]
    assert weights == [pytest.approx([1 / len(rows)] * len(rows)) for rows in harness.updated]
    assert [len(s.packed.lengths) for s in harness.backend.steps] == [1, 2, 3]


@pytest.mark.parametrize(("learning_rate", "factor"), [(0.0, 1.0), (0.1, 0.819), (5.0, 0.8)])
def test_a_turn_is_weighed_by_how_far_the_later_ones_moved_its_chain(learning_rate: float, factor: float) -> None:
    """The trainer's weights lower every log-prob by about the learning rate a step."""
    harness = one_step(CONFIG, learning_rate=learning_rate)
    expected = reference(finished(harness).values())
    lengths = {uid: len(chain.turns) for uid, chain in chains_of(harness).items()}
    base = [(row, expected[row.rollout_uid]) for row in harness.updated[2]]
    factors = {row.rollout_uid: advantage_of(row) / a for row, a in base if abs(a) > 1e-3}
    taken = {length: [m for uid, m in factors.items() if lengths[uid] == length] for length in (1, 3)}
    assert taken[1] == pytest.approx([1.0] * len(taken[1]), abs=1e-4)
    assert taken[3] == pytest.approx([factor] * len(taken[3]), abs=0.03)
    assert min(len(factors) for factors in taken.values()) > 0


def test_the_factor_follows_its_chain_whatever_the_order_of_rows() -> None:
    ratios = {"a": 1.1, "b": 0.9, "c": 1.0}
    one = moved(moved(dict.fromkeys("abc", 1.0), ratios), {"a": 1.05, "b": 0.95})
    other = moved(moved(dict.fromkeys("abc", 1.0), dict(reversed(ratios.items()))), {"b": 0.95, "a": 1.05})
    assert one == other
    assert one == {"a": pytest.approx(1.155), "b": pytest.approx(0.855), "c": pytest.approx(1.0)}
