"""SeeUPO, ARPO, Tree-GRPO and REFUEL on the scripted engine: within their worst case, training what they should."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from scripted import CALL_FIRST, RecordingHarness, always, scripted_harness, solver

from baselines import arpo, refuel, seeupo, tree_grpo
from rtpo.credit import standardised
from rtpo.toy.math_problems import problems
from rtpo.types import Role, Rollout, Termination
from rtpo.verbs import AlgorithmConfig, SequenceClip, SquaredPair

TASKS = problems("train", 3, seed=5)
SEEUPO = seeupo.SeeUPOConfig("seeupo", "seeupo", kl=0.0, chains=6)
ARPO = arpo.ARPOConfig("arpo", "arpo", kl=0.0)
TREE_GRPO = tree_grpo.TreeGRPOConfig("tree_grpo", "tree_grpo", kl=0.0, expansions=2)
REFUEL = refuel.REFUELConfig("refuel", "refuel", kl=0.0)
METHODS: dict[str, tuple[Any, AlgorithmConfig]] = {
    "seeupo": (seeupo, SEEUPO),
    "arpo": (arpo, ARPO),
    "tree_grpo": (tree_grpo, TREE_GRPO),
    "refuel": (refuel, REFUEL),
}


def one_step(name: str, **settings: Any) -> RecordingHarness:
    """A step that reserved the method's worst case, which all four use up: anything beyond raises BudgetExceeded."""
    method, config = METHODS[name]
    worst = len(TASKS) * method.rollouts_per_task(config, settings.get("max_turns", 3))
    harness = scripted_harness(settings.pop("script", solver(0.4)), reserve=worst, **settings)
    method.step(harness, TASKS, config)
    assert (harness.ledger.rollouts, harness.ledger.reserved) == (worst, 0)
    return harness


def finished(harness: RecordingHarness) -> dict[str, list[Rollout]]:
    paths: dict[str, list[Rollout]] = {task.uid: [] for task in TASKS}
    for rollout in harness.rollouts:
        if rollout.termination is not Termination.OPEN:
            paths[rollout.task.uid].append(rollout)
    return paths


@pytest.mark.parametrize("name", sorted(METHODS))
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("max_turns", [1, 3, 6])
def test_a_step_stays_in_its_worst_case_and_trains(name: str, seed: int, max_turns: int) -> None:
    harness = one_step(name, seed=seed, max_turns=max_turns, max_context_tokens=1024)
    assert harness.policy_version > 0


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_step_without_any_success_is_harmless(name: str) -> None:
    harness = one_step(name, script=always(CALL_FIRST))
    assert (harness.policy_version, harness.backend.steps) == (0, [])
    assert len(harness.log.updates) == (3 if name == "seeupo" else 1)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_step_goes_on_after_training_has_moved_the_policy_far(name: str) -> None:
    one_step(name, learning_rate=0.3)


# SeeUPO


def test_seeupo_trains_the_turns_in_reverse_on_one_rollout_phase() -> None:
    harness = one_step("seeupo")
    assert [update["trained_turns"] for update in harness.log.updates] == [[2], [1], [0]]
    assert {rollout.role for rollout in harness.rollouts} == {Role.CHAIN}
    assert {turn.policy_version for rollout in harness.rollouts for turn in rollout.turns} == {0}
    assert harness.policy_version == 3
    assert {type(loss) for loss in harness.losses} == {SequenceClip}
    for k, rows in zip((2, 1, 0), harness.updated, strict=True):
        assert len(rows) == sum(len(rollout.turns) > k for rollout in harness.rollouts)


@pytest.mark.parametrize(("learning_rate", "last_factor"), [(0.0, 1.0), (0.1, 0.819), (5.0, 0.8)])
def test_seeupo_weighs_a_turn_by_how_far_the_later_ones_moved_it(learning_rate: float, last_factor: float) -> None:
    """The trainer's weights lower every log-prob by about the learning rate a step."""
    harness = one_step("seeupo", learning_rate=learning_rate)
    centred = seeupo.centred_returns([paths for _, paths in sorted(finished(harness).items())])
    last, _, first = harness.updated
    base = standardised([centred[row.rollout_uid] for row in first])
    later = {row.rollout_uid for row in last}
    factors = [
        float(row.advantage[row.mask][0]) / a
        for row, a in zip(first, base, strict=True)
        if a and row.rollout_uid in later
    ]
    assert factors
    assert factors == pytest.approx([last_factor] * len(factors), abs=0.03)


def test_seeupo_advantages_are_standardised_over_the_chains_that_took_the_turn() -> None:
    harness = one_step("seeupo", learning_rate=0.0)
    for rows in harness.updated:
        values = np.array([row.advantage[row.mask][0] for row in rows])
        assert (values.mean(), values.std(ddof=1)) == pytest.approx((0, 1), abs=1e-4)


# ARPO


@pytest.mark.parametrize("slips", [0.0, 0.3, 0.9])
def test_arpo_ends_with_exactly_sixteen_finished_paths_of_each_prompt(slips: float) -> None:
    harness = one_step("arpo", script=solver(slips))
    assert {uid: len(paths) for uid, paths in finished(harness).items()} == {task.uid: 16 for task in TASKS}
    assert harness.ledger.rollouts == 48
    (rows,) = harness.updated
    assert len({row.rollout_uid for row in rows}) == 48


def test_arpo_tops_up_prompts_whose_roots_answer_at_once() -> None:
    def answers(context: str, rng: np.random.Generator) -> str:
        return f"<think> plan {rng.integers(100)}</think> answer\\boxed{{ {rng.integers(2)}}}"

    harness = one_step("arpo", script=answers)
    assert [len(paths) for paths in finished(harness).values()] == [16, 16, 16]
    assert [call["rollouts"] for call in harness.log.rollouts] == [24] + [3] * 8


def test_arpo_branches_share_their_past_and_go_their_own_way() -> None:
    harness = one_step("arpo", script=solver(0.5))
    forked = Counter((r.parent_uid, r.start_k) for r in harness.rollouts if r.start_k)
    branched = [place for place, count in forked.items() if count == 2]
    assert branched
    assert set(forked.values()) == {1, 2}
    for parent_uid, start_k in branched:
        one, other = (r for r in harness.rollouts if (r.parent_uid, r.start_k) == (parent_uid, start_k))
        assert one.turns[:start_k] == other.turns[:start_k]
        assert one.turns[start_k].context_ids.tobytes() == other.turns[start_k].context_ids.tobytes()
        assert one.uid != other.uid


def test_arpo_branches_half_the_time_where_entropy_has_not_changed() -> None:
    """At its first boundary a path's entropy is compared with itself."""
    branches = boundaries = 0
    for seed in range(8):
        harness = one_step("arpo", script=solver(0.0), seed=seed)
        counts = Counter(r.parent_uid for r in harness.rollouts if r.start_k == 1)
        # the first boundaries of a prompt's first four roots: it cannot have run out of branches there
        for i in range(len(TASKS)):
            for j in range(4):
                boundaries += 1
                branches += counts[f"0.0.{i}.{j}"] - 1
    assert boundaries == 96
    assert abs(branches / boundaries - 0.5) < 3 * (0.25 / boundaries) ** 0.5


def test_arpo_trains_every_model_token_of_every_path() -> None:
    harness = one_step("arpo")
    (rows,) = harness.updated
    paths = {path.uid: path for paths in finished(harness).values() for path in paths}
    trained = Counter(dict.fromkeys(paths, 0))
    for row in rows:
        trained[row.rollout_uid] += int(row.mask.sum())
    assert trained == {uid: sum(len(turn.output_ids) for turn in path.turns) for uid, path in paths.items()}
    assert {float(w) for row in rows for w in row.weight[row.mask]} == {1.0}


# Tree-GRPO


def test_tree_grpo_has_m_times_one_plus_l_n_leaves() -> None:
    harness = one_step("tree_grpo")
    assert [len(leaves) for leaves in finished(harness).values()] == [4 * (1 + 2 * 3)] * 3
    assert harness.ledger.rollouts == 84
    (rows,) = harness.updated
    assert len({row.rollout_uid for row in rows}) == 84


def test_tree_grpo_draws_from_its_own_tree_the_root_included() -> None:
    harness = one_step("tree_grpo")
    paths = {rollout.uid: rollout for rollout in harness.rollouts}
    branches = [rollout for rollout in harness.rollouts if rollout.role is Role.BRANCH]
    assert {branch.start_k for branch in branches} == {0, 1, 2}

    def root(path: Rollout) -> str:
        return path.uid if path.parent_uid is None else root(paths[path.parent_uid])

    assert Counter(root(path) for path in harness.rollouts) == {
        path.uid: 7 for path in harness.rollouts if path.role is Role.CHAIN
    }


def test_tree_grpo_lists_the_root_once_and_no_leaf() -> None:
    harness = one_step("tree_grpo")
    chain = next(r for r in harness.rollouts if r.role is Role.CHAIN and len(r.turns) == 3)
    ((branch,),) = scripted_harness(solver(0.0)).rollout([chain.boundary(1)], n=1, role=Role.BRANCH)
    nodes = tree_grpo.nodes([chain, branch])
    assert [(node.k, node.rollout_uid) for node in nodes] == [
        (0, chain.uid),
        (1, chain.uid),
        (2, chain.uid),
        (2, branch.uid),
    ]


def test_tree_grpo_advantages_are_zero_in_the_mean_of_a_prompt() -> None:
    harness = one_step("tree_grpo")
    (rows,) = harness.updated
    advantage = {(row.group, row.rollout_uid): float(row.advantage[row.mask][0]) for row in rows}
    for task in TASKS:
        values = [value for (group, _), value in advantage.items() if group == task.uid]
        assert len(values) == 28
        assert sum(values) == pytest.approx(0, abs=1e-4)


def test_tree_grpo_gives_a_lone_leaf_no_place_in_its_tree() -> None:
    harness = one_step("tree_grpo")
    assert list(tree_grpo.z_scores(harness.rollouts[:1]).values()) == [0.0]


# REFUEL


def test_refuel_pairs_are_neighbours_that_share_a_boundary() -> None:
    harness = one_step("refuel")
    (rows,) = harness.updated
    assert len(rows) % 2 == 0
    paths = {rollout.uid: rollout for rollout in harness.rollouts}
    for first, second in zip(rows[::2], rows[1::2], strict=True):
        (one,), (other,) = first.turns, second.turns
        assert first.group == second.group == f"{first.rollout_uid}/{one.k}"
        assert paths[second.rollout_uid].parent_uid == first.rollout_uid
        assert one.k == other.k == paths[second.rollout_uid].start_k
        assert one.context_ids.tobytes() == other.context_ids.tobytes()
        assert one.snapshot.digest == other.snapshot.digest
        assert one.output_ids.tobytes() != other.output_ids.tobytes()
        difference = first.advantage[first.mask][0] - second.advantage[second.mask][0]
        assert difference == paths[first.rollout_uid].reward - paths[second.rollout_uid].reward
    assert {row.turns[0].k for row in rows} == {0, 1, 2}


def test_refuel_pairs_stay_together_in_every_step() -> None:
    harness = scripted_harness(solver(0.4), ranks=2)
    refuel.step(harness, TASKS, refuel.REFUELConfig("refuel", "refuel", epochs=2, minibatches=4))
    assert len(harness.backend.steps) == 8
    (rows,) = harness.updated
    place: dict[bytes, list[int]] = {}
    for i, row in enumerate(rows):
        place.setdefault(row.ids.tobytes(), []).append(i // 2)
    for step in harness.backend.steps:
        assert isinstance(step.loss, SquaredPair)
        split = np.split(step.packed.ids, np.cumsum(step.packed.lengths)[:-1])
        real = [ids.tobytes() for ids in split if len(ids) > 2]
        assert len(real) % 2 == 0
        for one, other in zip(real[::2], real[1::2], strict=True):
            assert set(place[one]) & set(place[other])


def test_refuel_drops_pairs_with_the_same_reply() -> None:
    harness = one_step("refuel", script=always(CALL_FIRST))
    assert harness.updated == [[]]
    assert harness.log.updates[0]["rows"] == 0
