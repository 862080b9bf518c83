"""RTPO's variants: what each changes of RTPO and what it leaves, and that none moves the gradient."""

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from methods import TASKS, advantage_of, config_of, graded, one_step
from scripted import RecordingHarness, scripted_harness, solver
from test_tabular import harness_on, lure

from baselines.ladder import rtpo_variants
from baselines.ladder.rtpo_variants import drawn, returns_by_prompt, shrunk_rows, spreads
from rtpo import rtpo
from rtpo.algorithms import configured
from rtpo.theory.luck import LuckTask, gradient, sibling_noise
from rtpo.theory.mdp import MDP
from rtpo.theory.tabular import tasks
from rtpo.types import Boundary, Group, Role, Rollout, TrainRow

FEW: dict[str, Any] = {"group_size": 9, "forked": 0.25}
BY_LUCK: dict[str, Any] = FEW | {"by_luck": True}
SHRUNK: dict[str, Any] = {"shrinkage": 1.0}


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
    seconds = {"seconds": above.ledger.as_dict()["seconds"]}
    assert own.ledger.as_dict() | seconds == above.ledger.as_dict()
    assert rtpo_variants.rollouts_per_task(config_of("rtpo_variants"), 8) == rtpo.rollouts_per_task(
        config_of("rtpo"), 8
    )


# fewer, larger groups


def siblings(harness: RecordingHarness) -> dict[tuple[str | None, int], list[Rollout]]:
    """By the boundary that they were forked from."""
    found: dict[tuple[str | None, int], list[Rollout]] = {}
    for path in harness.rollouts:
        if path.role is Role.SIBLING:
            found.setdefault((path.parent_uid, path.start_k), []).append(path)
    return found


@pytest.mark.parametrize("fields", [FEW, BY_LUCK])
def test_larger_groups_at_fewer_boundaries_are_as_many_rollouts(fields: dict[str, Any]) -> None:
    """Up to one group; the same share of each turn's boundaries, up to one, as long as nothing is known of luck."""
    harness = one_step(config_of("rtpo_variants", trunks=8, **fields))
    lengths = [len(path.turns) for path in harness.rollouts if path.role is Role.TRUNK]
    forks = siblings(harness)
    assert len(set(lengths)) > 1
    assert {len(group) for group in forks.values()} == {8}
    assert 0 <= 2 * sum(lengths) - 8 * len(forks) < 8
    by_turn = Counter(k for _, k in forks)
    share = len(forks) / sum(lengths)
    assert all(abs(by_turn[k] - share * sum(length > k for length in lengths)) < 1 for k in range(3))
    trained = Counter((row.rollout_uid, row.turns[0].k) for rows in harness.updated for row in rows)
    assert trained == Counter((path.uid, k) for (_, k), group in forks.items() for path in group)
    assert [[u] for u in (2, 1, 0)] == [update["trained_turns"] for update in harness.step_log.updates]


def test_a_task_can_take_as_many_rollouts_as_rtpos() -> None:
    for trunks in (1, 4):
        few, plain = configured("rtpo_variants", trunks=trunks, **FEW), configured("rtpo", trunks=trunks)
        assert rtpo_variants.rollouts_per_task(few, 8) == rtpo.rollouts_per_task(plain, 8) == 17 * trunks


@pytest.fixture(scope="module")
def realised() -> dict[int, list[Boundary]]:
    harness = harness_on(lure())
    (trunks,) = harness.rollout(tasks(harness.mdp), n=30, role=Role.TRUNK)
    found = {k: [trunk.boundary(k) for trunk in trunks if len(trunk.turns) > k] for k in (2, 1, 0)}
    assert len(found[0]) > len(found[2]) > 1
    return found


@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [2.0, 1.0, 0.5]])
def test_boundaries_of_a_turn_are_drawn_alike(realised: dict[int, list[Boundary]], weights: list[float]) -> None:
    """Each as often as its turn's weight says, whatever path it lies on."""
    draws, total = 2000, int(0.3 * sum(map(len, realised.values())))
    rng = np.random.default_rng(0)
    counts: Counter[str] = Counter()
    for _ in range(draws):
        taken = [boundary.uid for group in drawn(realised, weights, 0.3, rng).values() for boundary in group]
        assert len(taken) == len(set(taken)) == total
        counts.update(taken)
    scale = total / sum(weights[k] * len(group) for k, group in realised.items())
    for k, group in realised.items():
        for boundary in group:
            p = weights[k] * scale
            assert abs(counts[boundary.uid] / draws - p) < 4 * (p * (1 - p) / draws) ** 0.5


def test_no_boundary_is_forked_twice_and_one_always_is(realised: dict[int, list[Boundary]]) -> None:
    rng = np.random.default_rng(0)
    assert drawn(realised, [1e9, 1.0, 1.0], 0.9, rng)[0] == realised[0]
    assert drawn(realised, [1.0, 1.0, 1.0], 1.0, rng) == realised
    assert sum(map(len, drawn(realised, [1.0, 1.0, 1.0], 1e-6, rng).values())) == 1


# baselines shrunk to the prompt's


@pytest.fixture(scope="module")
def forks() -> tuple[list[Boundary], list[Group]]:
    """Two boundaries of one prompt with two siblings each."""
    harness = scripted_harness(solver(0.0))
    (roots,) = harness.rollout(TASKS[:1], n=2, role=Role.TRUNK)
    boundaries = [root.boundary(0) for root in roots]
    return boundaries, harness.rollout(boundaries, n=2, role=Role.SIBLING)


def shrunk(forks: tuple[list[Boundary], list[Group]], rewards: list[float | None], known: list[float]) -> list[float]:
    boundaries, groups = forks
    given = iter(rewards)
    siblings = [tuple(graded(sibling, next(given)) for sibling in group) for group in groups]
    rows = shrunk_rows(boundaries, siblings, 0, {TASKS[0].uid: known}, 2.0)
    assert [row.group for row in rows] == sorted(row.group for row in rows)
    assert [float(row.weight.sum()) for row in rows] == pytest.approx([1 / len(rows)] * len(rows))
    return [advantage_of(row) for row in rows]


def test_a_tied_pair_is_compared_with_its_prompt(forks: tuple[list[Boundary], list[Group]]) -> None:
    """(1 + 2 x 1/4) / 3 is the baseline of a sibling beside one with a 1."""
    assert shrunk(forks, [1, 1, 0, 1], [0, 0, 0, 1]) == pytest.approx([1 / 2, 1 / 2, -1 / 2, 5 / 6])


def test_equal_returns_of_a_prompt_are_an_exact_tie(forks: tuple[list[Boundary], list[Group]]) -> None:
    assert shrunk(forks, [0.7] * 4, [0.7] * 9) == [0.0] * 4


def test_what_could_not_be_graded_is_in_no_baseline(forks: tuple[list[Boundary], list[Group]]) -> None:
    """A lone sibling has its prompt to be compared with; where that has nothing, others; else it is left out."""
    assert shrunk(forks, [1, None, 0, 1], [0, 1]) == pytest.approx([1 / 2, -2 / 3, 2 / 3])
    assert shrunk(forks, [1, None, 0, 1], []) == [-1.0, 1.0]


def test_baselines_are_of_what_the_step_has_sampled_before() -> None:
    """Trunks, and siblings of the turns that are done."""
    harness = one_step(config_of("rtpo_variants", trunks=2, group_size=4, **SHRUNK))
    forks = siblings(harness)
    for k, rows in zip((2, 1, 0), harness.updated, strict=True):
        known = returns_by_prompt([path for path in harness.rollouts if path.role is Role.TRUNK or path.start_k > k])
        groups = {path.uid: group for (_, turn), group in forks.items() if turn == k for path in group}
        assert {row.rollout_uid for row in rows} == set(groups)
        for row in rows:
            own = next(path for path in groups[row.rollout_uid] if path.uid == row.rollout_uid)
            others = [path.reward for path in groups[row.rollout_uid] if path is not own]
            baseline = (sum(others) + np.mean(known[own.task.uid])) / 3
            assert advantage_of(row) == pytest.approx(own.reward - baseline, abs=1e-6)


# forks by luck


def early_luck() -> MDP:
    return LuckTask(3, "early", "even").mdp()


def steps(harness: Any, config: Any, numbers: range) -> list[list[tuple[str, int]]]:
    """By step, the boundaries that were forked."""
    found = []
    for number in numbers:
        harness.end_step()
        harness.begin_step(number, 10_000)
        harness.sync()
        harness.done.clear()
        rtpo_variants.step(harness, tasks(harness.mdp), config)
        _, *groups = harness.all_of("rollout")
        found.append([(group[0].parent_uid, group[0].start_k) for phase in groups for group in phase])
    return found


def test_forks_go_where_luck_is_ahead_and_the_saved_state_is_all_that_they_go_by() -> None:
    config = configured("rtpo_variants", kl=0.0, trunks=16, **BY_LUCK)
    harness = harness_on(early_luck(), learning_rate=0.0)
    assert spreads(harness) == [1.0] * 3
    forked = steps(harness, config, range(8))
    by_turn = [Counter(k for _, k in places) for places in forked]
    assert by_turn[0] == {0: 4, 1: 4, 2: 4}
    assert all(count[0] >= 6 and count.total() == 12 for count in by_turn[1:])

    again = harness_on(early_luck(), learning_rate=0.0)
    again.end_step()
    steps(again, config, range(5))
    saved = json.dumps(again.state)
    resumed = harness_on(early_luck(), learning_rate=0.0)
    resumed.state.update(json.loads(saved))
    assert steps(resumed, config, range(5, 8)) == forked[5:]


def test_a_spread_is_of_earlier_steps_and_fades_to_that_of_all_turns() -> None:
    harness = harness_on(early_luck())
    harness.state.update(variances=[3.0, 0.0, 1.0], groups=[4.0, 3.0, 1.0])
    assert spreads(harness) == pytest.approx([(3.5 / 5) ** 0.5, (0.5 / 4) ** 0.5, (1.5 / 2) ** 0.5])
    rtpo_variants.remember(harness, {}, 0.0)
    assert spreads(harness) == [1.0] * 3
    (trunk,), *_ = harness.rollout(tasks(harness.mdp), n=1, role=Role.TRUNK)
    (group,) = harness.rollout([trunk.boundary(1)], n=3, role=Role.SIBLING)
    returns = [(1.0, 0.0, 0.0), (1.0, 1.0, None), (None, 0.0, None)]
    groups = [tuple(graded(s, r) for s, r in zip(group, own, strict=True)) for own in returns]
    rtpo_variants.remember(harness, {1: groups}, 0.5)
    assert harness.state == {"variances": [0.0, pytest.approx(1 / 3), 0.0], "groups": [0.0, 2.0, 0.0]}


# the gradient


@pytest.mark.parametrize(
    ("fields", "left", "noise"),
    [(FEW, 7 / 8, 8), (BY_LUCK, 7 / 8, None), (SHRUNK, 1.0, None)],
    ids=["few", "by luck", "shrunk"],
)
def test_the_gradient_is_left_and_noise_is_taken(fields: dict[str, Any], left: float, noise: int | None) -> None:
    """Of each turn the exact gradient, but for what RTPO's own mean leaves of it; noise that is less than RTPO's at as
    many rollouts, and that of few large groups in its closed form."""
    mdp, trunks, count = LuckTask(3, "late", "even").mdp(), 16, 60
    harness = harness_on(mdp, learning_rate=0.0)
    config = configured("rtpo_variants", kl=0.0, trunks=trunks, **fields)
    policy, found = harness.policy, np.zeros((count, 3, 2))
    for number in range(count):
        steps(harness, config, range(number, number + 1))
        for rows in harness.all_of("update"):
            for row in rows:
                (turn,) = row.turns
                score = -policy[turn.k, turn.snapshot.state]
                score[turn.output_ids[0]] += 1
                found[number, turn.k] += advantage_of(row) * score / left / len(rows)
    error = found.std(0, ddof=1) / count**0.5
    assert (np.abs(found.mean(0) - gradient(mdp, policy)) < 4 * error).all()
    measured = found.var(0, ddof=1).sum(-1)
    assert measured.sum() < 0.8 * sibling_noise(mdp, policy, trunks, 2).sum()
    if noise is not None:
        exact = sibling_noise(mdp, policy, trunks // 4, noise)
        assert (np.abs(measured / exact - 1) < 4 * (2 / count) ** 0.5).all()
