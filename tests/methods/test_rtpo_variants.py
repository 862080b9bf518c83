"""RTPO's variants: what each changes of RTPO and what it leaves, and that none moves the gradient."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from methods import IDS, advantage_of, config_of, one_step, parts_of, spelled
from scripted import CALL_1, RIGHT, TASK, WRONG, in_turn, scripted_harness
from tables import harness_on

from baselines.ladder import rtpo_variants
from rtpo import rtpo
from rtpo.algorithms import configured
from rtpo.theory.mdp import advantages
from rtpo.theory.mdps import layered, visits
from rtpo.theory.tabular import tasks
from rtpo.types import Role, TrainRow

FEW: dict[str, Any] = {"group_size": 9, "forked": 0.25}


def written(row: TrainRow) -> tuple[Any, ...]:
    arrays = (row.ids, row.mask, row.advantage, row.weight, row.rollout_logprobs, row.turn_index)
    return (row.rollout_uid, row.group, *(array.tobytes() for array in arrays))


@pytest.mark.parametrize("settings", [{}, {"epochs": 2, "minibatches": 2, "trunks": 3, "group_size": 4}])
def test_with_neutral_fields_it_is_rtpo_bit_for_bit(settings: dict[str, Any]) -> None:
    own, above = (one_step(config_of(name, **settings)) for name in ("rtpo_variants", "rtpo"))
    assert [[written(row) for row in rows] for rows in own.updated] == [
        [written(row) for row in rows] for rows in above.updated
    ]
    assert (own.losses, own.backend.pushes, own.state) == (above.losses, above.backend.pushes, {})
    assert own.ledger.as_dict() | {"seconds": 0} == above.ledger.as_dict() | {"seconds": 0}
    assert rtpo_variants.rollouts_per_task(config_of("rtpo_variants"), 8) == rtpo.rollouts_per_task(
        config_of("rtpo"), 8
    )


@pytest.mark.parametrize(("order", "turns", "versions"), [("forward", [[0], [1]], [0, 1]), ("together", [[0, 1]], [0])])
def test_another_order_of_the_turns_token_by_token(order: str, turns: list[list[int]], versions: list[int]) -> None:
    """One trunk of two turns, two siblings at each of its boundaries. Forward, the later turn has the newer weights;
    together, all siblings have the same, and one update trains their rows as the two of RTPO would."""
    of_turn = {0: (WRONG, CALL_1, RIGHT), 1: (RIGHT, WRONG)}
    sampled = [*of_turn[0], *of_turn[1]] if order == "forward" else [*of_turn[1], *of_turn[0]]
    harness = scripted_harness(in_turn(CALL_1, WRONG, *sampled), max_turns=2)
    rtpo_variants.step(harness, [TASK], config_of("rtpo_variants", kl=0.0, trunks=1, order=order))

    assert [update["trained_turns"] for update in harness.step_log.updates] == turns
    siblings = [path for path in harness.rollouts if path.role is Role.SIBLING]
    assert [path.start_k for path in siblings] == ([0, 0, 1, 1] if order == "forward" else [1, 1, 0, 0])
    by_turn = {path.start_k: path.own_turns[0].policy_version for path in siblings}
    assert [by_turn[phase[-1]] for phase in turns] == versions
    rows = {
        0: [spelled((IDS.question, None), (IDS.wrong, -0.5)), spelled((IDS.question, None), (IDS.call_1, 0.5))],
        1: [
            spelled((IDS.before_turn_1, None), (IDS.right, 0.5)),
            spelled((IDS.before_turn_1, None), (IDS.wrong, -0.5)),
        ],
    }
    expected = [rows[0], rows[1]] if order == "forward" else [[*rows[1], *rows[0]]]
    assert [[parts_of(row) for row in updated] for updated in harness.updated] == expected
    for updated, taken in zip(harness.updated, harness.backend.steps, strict=True):
        shares = [row.mask / row.mask.sum() / len(updated) for row in updated]
        assert taken.packed.weight == pytest.approx(np.concatenate(shares))
    assert harness.ledger.rollouts == 5


def test_larger_groups_at_fewer_boundaries_are_as_many_rollouts() -> None:
    """Up to one group; the same share of each turn's boundaries, up to one."""
    harness = one_step(config_of("rtpo_variants", trunks=8, **FEW))
    lengths = [len(path.turns) for path in harness.rollouts if path.role is Role.TRUNK]
    siblings = [path for path in harness.rollouts if path.role is Role.SIBLING]
    forks = Counter((path.parent_uid, path.start_k) for path in siblings)
    assert len(set(lengths)) > 1
    assert set(forks.values()) == {8}
    assert 0 <= 2 * sum(lengths) - 8 * len(forks) < 8
    by_turn = Counter(k for _, k in forks)
    share = len(forks) / sum(lengths)
    assert all(abs(by_turn[k] - share * sum(length > k for length in lengths)) < 1 for k in range(3))
    trained = Counter((row.rollout_uid, row.turns[0].k) for rows in harness.updated for row in rows)
    assert trained == Counter((path.uid, path.start_k) for path in siblings)
    assert [[u] for u in (2, 1, 0)] == [update["trained_turns"] for update in harness.step_log.updates]


def test_the_gradient_of_every_state_is_left() -> None:
    """7/8 of the exact gradient, as each sibling's return is part of the mean that it is compared with."""
    mdp, count = layered(0), 60
    harness = harness_on(mdp, learning_rate=0.0)
    config = configured("rtpo_variants", kl=0.0, trunks=16, **FEW)
    policy, estimates = harness.policy, np.zeros((count, *mdp.shape))
    for number in range(count):
        harness.end_step()
        harness.begin_step(number, 10_000)
        harness.sync()
        harness.done.clear()
        rtpo_variants.step(harness, tasks(harness.mdp), config)
        for rows in harness.all_of("update"):
            for row in rows:
                (turn,) = row.turns
                score = np.eye(mdp.shape[2])[turn.output_ids[0]] - policy[turn.k, turn.snapshot.state]
                estimates[number, turn.k, turn.snapshot.state] += advantage_of(row) * score / (7 / 8) / len(rows)
    error = estimates.std(0, ddof=1) / count**0.5
    exact = visits(mdp, policy)[..., None] * policy * advantages(mdp, policy)
    assert (np.abs(estimates.mean(0) - exact) <= 4 * error).all()
    assert np.count_nonzero(error) > 20
