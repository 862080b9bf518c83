"""The RTPO tree: where it forks, what a branch is worth, and what it shares with leave-one-out GRPO."""

from collections import Counter
from dataclasses import replace
from itertools import count
from typing import Any

import methods
import numpy as np
import pytest
from conftest import compose_config
from methods import IDS, parts_of, spelled
from scripted import CALL_1, CALL_2, RIGHT, TASK, WRONG, RecordingHarness, in_turn, scripted_harness

from rtpo.algorithms import configured
from rtpo.credit import group_advantages
from rtpo.envs.toy.math import ToyMathEnv
from rtpo.envs.toy.math_problems import problems
from rtpo.rtpo_tree import RTPOTreeConfig, Tree, most_open, prompt_rewards, spread, step
from rtpo.types import Grade, GradeOutcome, Role, Rollout, Termination
from rtpo.verbs import TokenClip

TASKS = problems("train", 4, seed=2)
CONFIG = configured("rtpo_tree", kl=0.0)


def one_step(config: RTPOTreeConfig = CONFIG, **settings: Any) -> RecordingHarness:
    return methods.one_step(config, TASKS, **settings)


def path(uid: str, reward: float, turns: int = 3, parent: str | None = None, start_k: int = 0) -> Rollout:
    """A path of which only its place in the tree and its reward matter."""
    nothing: Any = (None,) * turns
    grade = Grade(GradeOutcome.GRADED, reward)
    role = Role.TRUNK if parent is None else Role.SIBLING
    return Rollout(uid, TASKS[0], role, start_k, parent, nothing, Termination.ANSWERED, grade)


# values by hand


def test_a_forked_trunk_has_an_advantage_for_each_branch() -> None:
    """Trunk a fails, its fork at turn 2 succeeds; trunk b succeeds. lambda .3, kappa 1."""
    a, b, fork = path("a", 0.0), path("b", 1.0), path("f", 1.0, parent="a", start_k=2)
    tree = Tree([a, b], {("a", 2): [fork]})
    # at S_2 of a: q(a) = 0, q(f) = 1, V = 1/2; so at S_0 q(a) = .3 x 0 + .7 x 1/2 = .35 and q(b) = 1
    spread_of = np.sqrt(0.675 * 0.325)
    at_root = (0.35 - 1) / spread_of
    # baseline of a's branch at S_2: (q(f) + B(a at S_0)) / 2 = (1 + 1) / 2; of f: (q(a) + 1) / 2
    assert tree.advantages(a, CONFIG) == pytest.approx([at_root, at_root, (0 - 1) / spread_of])
    assert tree.advantages(b, CONFIG) == pytest.approx([(1 - 0.35) / spread_of] * 3)
    assert tree.advantages(fork, CONFIG) == pytest.approx([(1 - 0.5) / spread_of])


def test_baselines_of_nested_branches_are_shrunk_to_those_before() -> None:
    """Forks at turns 1 and 2 of one trunk; own returns alone (lambda 1), kappa 2."""
    config = replace(CONFIG, own_return=1.0, shrinkage=2.0)
    a, b = path("a", 1.0), path("b", 0.0)
    f, g = path("f", 1.0, parent="a", start_k=1), path("g", 0.0, parent="a", start_k=2)
    tree = Tree([a, b], {("a", 1): [f], ("a", 2): [g]})
    # B(a, 0) = 0; B(a, 1) = (1 + 2 x 0) / 3; B(a, 2) = (0 + 2 x 1/3) / 3; B(f) = (1 + 2 x 0) / 3;
    # B(g) = (1 + 2 x 1/3) / 3
    assert tree.advantages(a, config) == pytest.approx([2.0, (1 - 1 / 3) / 0.5, (1 - 2 / 9) / 0.5])
    assert tree.advantages(f, config) == pytest.approx([(1 - 1 / 3) / 0.5] * 2)
    assert tree.advantages(g, config) == pytest.approx([(0 - 5 / 9) / 0.5])


def test_values_of_nested_branches_go_through_every_state_between() -> None:
    """Trunk a fails, its forks at turns 1 and 2 succeed; lambda 1/2."""
    a, f, g = path("a", 0.0), path("f", 1.0, parent="a", start_k=1), path("g", 1.0, parent="a", start_k=2)
    tree = Tree([a], {("a", 1): [f], ("a", 2): [g]})
    # V(S_2) = 1/2, so q(a, 1) = 1/4; V(S_1) = 5/8, so q(a, 0) = 5/16
    assert [tree.value(a, k, 0.5) for k in range(3)] == [0.3125, 0.25, 0.0]
    assert (tree.value(f, 1, 0.5), tree.value(g, 2, 0.5)) == (1.0, 1.0)


def test_all_successes_or_failures_teach_nothing() -> None:
    for reward in (0.0, 1.0):
        a, fork = path("a", reward), path("f", reward, parent="a", start_k=1)
        tree = Tree([a, path("b", reward)], {("a", 1): [fork]})
        assert [tree.advantages(p, CONFIG) for p in (a, fork)] == [[0.0] * 3, [0.0] * 2]


def test_a_lone_path_teaches_nothing() -> None:
    assert Tree([path("a", 1.0)]).advantages(path("a", 1.0), CONFIG) == [0.0] * 3


def test_a_lone_trunk_is_compared_with_its_fork() -> None:
    a, fork = path("a", 0.0), path("f", 1.0, parent="a", start_k=1)
    tree = Tree([a], {("a", 1): [fork]})
    # q(a, 0) = .7 x 1/2 = B(a, 0) = v; B(a, 1) = (1 + .35) / 2; B(f) = (0 + .35) / 2
    spread_of = np.sqrt(0.35 * 0.65)
    assert tree.advantages(a, CONFIG) == pytest.approx([0.0, -0.675 / spread_of, -0.675 / spread_of])
    assert tree.advantages(fork, CONFIG) == pytest.approx([0.825 / spread_of] * 2)


# placing


def test_success_of_a_prompt_is_its_trunks_and_one_of_the_batchs_mean() -> None:
    rewards = [[1.0, 1.0, 1.0], [0.0], []]
    trees = [Tree([path(f"{i}.{j}", r) for j, r in enumerate(own)]) for i, own in enumerate(rewards)]
    assert prompt_rewards(trees) == pytest.approx([3.75 / 4, 0.75 / 2, 0.75])
    assert prompt_rewards([Tree([])]) == [0.5]


def test_forks_go_where_the_outcome_is_most_open() -> None:
    rng = np.random.default_rng(0)
    assert sorted(most_open([0.9, 0.5, 0.1, 0.6], 2, rng)) == [1, 3]
    assert most_open([], 3, rng) == []
    drawn = {tuple(most_open([0.5] * 4, 1, rng)) for _ in range(100)}
    assert drawn == {(0,), (1,), (2,), (3,)}


def test_root_siblings_are_spread_by_openness_and_all_given_out() -> None:
    assert spread([0.5, 0.5, 0.0], 8) == [4, 4, 0]
    assert spread([0.0, 1.0], 8) == [4, 4]
    assert spread([0.5, 0.5, 0.5], 8) == [3, 3, 2]
    assert spread([0.5], 0) == [0]


# a step


def trunks_of(harness: RecordingHarness) -> list[list[Rollout]]:
    """By task."""
    return [[r for r in harness.rollouts if r.role is Role.TRUNK and r.task is task] for task in TASKS]


def success_of(harness: RecordingHarness) -> list[float]:
    rewards = [[trunk.reward for trunk in group] for group in trunks_of(harness)]
    mean = np.mean([reward for own in rewards for reward in own])
    return [float((sum(own) + mean) / (len(own) + 1)) for own in rewards]


@pytest.mark.parametrize("seed", range(4))
def test_a_step_forks_where_the_trunks_return_and_its_prompts_success_are_most_open(seed: int) -> None:
    harness = one_step(replace(CONFIG, forks=1), seed=seed)
    openness = {
        (trunk.uid, k): round(((trunk.reward + p) / 2) * (1 - (trunk.reward + p) / 2), 9)
        for group, p in zip(trunks_of(harness), success_of(harness), strict=True)
        for trunk in group
        for k in range(1, len(trunk.turns))
    }
    forked = [(str(r.parent_uid), r.start_k) for r in harness.rollouts if r.start_k]
    assert len(set(forked)) == len(forked) == len(TASKS)
    assert sorted(openness[place] for place in forked) == sorted(openness.values())[-len(TASKS) :]


@pytest.mark.parametrize("seed", range(4))
def test_a_step_spreads_root_siblings_over_prompts_by_their_openness(seed: int) -> None:
    harness = one_step(seed=seed)
    siblings = Counter(r.task.uid for r in harness.rollouts if r.role is Role.SIBLING and not r.start_k)
    shares = [siblings[task.uid] for task in TASKS]
    assert shares == spread(success_of(harness), 8 * len(TASKS))
    assert len(set(shares)) > 1


def test_ratios_are_against_the_policy_that_sampled() -> None:
    """The root phase trains trunks of version 0 after the fork phases have moved the policy."""
    harness = one_step(learning_rate=0.01)
    assert harness.losses == [TokenClip(0.2, 0.2, old_logprobs="rollout")] * 3
    last = harness.backend.steps[-1].packed
    sampled = np.concatenate([row.rollout_logprobs for row in harness.updated[-1]])
    assert sorted(last.old_logprobs[last.mask]) == pytest.approx(sorted(sampled[sampled != 0]))
    assert len({turn.policy_version for row in harness.updated[-1] for turn in row.turns}) == 2


class ForgetfulEnv(ToyMathEnv):
    """Every third cannot be graded."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._is_lost = number % 3 == 2

    async def grade(self) -> Grade:
        return Grade(GradeOutcome.UNGRADABLE, None) if self._is_lost else await super().grade()


def test_paths_without_a_reward_are_neither_forked_nor_trained_nor_compared_with() -> None:
    numbers = count()
    harness = one_step(make_env=lambda: ForgetfulEnv(next(numbers)))
    lost = {r.uid for r in harness.rollouts if not r.is_graded}
    assert {(r.role, r.start_k > 0) for r in harness.rollouts if r.uid in lost} == {
        (Role.TRUNK, False),
        (Role.SIBLING, True),
        (Role.SIBLING, False),
    }
    assert not lost & {r.parent_uid for r in harness.rollouts if r.start_k}
    assert {row.rollout_uid for rows in harness.updated for row in rows} == {r.uid for r in harness.rollouts} - lost


def test_a_step_takes_its_worst_case_in_reverse_and_the_root_last() -> None:
    harness = one_step()
    assert harness.ledger.rollouts == len(TASKS) * 16
    calls = [(call["role"], list(call["start_turns"])) for call in harness.step_log.rollouts]
    assert calls == [("trunk", ["0"]), ("sibling", ["2"]), ("sibling", ["1"]), ("sibling", ["0"])]
    assert [min(update["trained_turns"]) for update in harness.step_log.updates] == [2, 1, 0]
    version = 0
    for call, update in zip((2, 1, 0), harness.step_log.updates, strict=True):
        own = {
            t.policy_version
            for r in harness.rollouts
            if r.role is Role.SIBLING and r.start_k == call
            for t in r.own_turns
        }
        assert own == {version}
        version += update["optimizer_steps"] > 0


def test_a_forks_later_turns_are_trained_and_its_past_is_not() -> None:
    harness = one_step()
    by_uid = {rollout.uid: rollout for rollout in harness.rollouts}
    for rows in harness.updated:
        turns: dict[str, set[int]] = {}
        for row in rows:
            turns.setdefault(row.rollout_uid, set()).update(turn.k for turn in row.turns)
        for uid, trained in turns.items():
            assert trained == set(range(by_uid[uid].start_k, len(by_uid[uid].turns)))
    assert {row.rollout_uid for rows in harness.updated for row in rows} == set(by_uid)


def test_every_path_weighs_the_same() -> None:
    for rows in one_step().updated:
        totals: dict[str, float] = {}
        for row in rows:
            totals[row.rollout_uid] = totals.get(row.rollout_uid, 0.0) + float(row.weight.sum())
        assert list(totals.values()) == pytest.approx([1.0] * len(totals), rel=1e-5)


def test_without_forks_and_root_siblings_a_step_is_grpo_with_leave_one_out_baselines() -> None:
    config = replace(CONFIG, trunks=8, forks=0, roots=0, own_return=1.0)
    harness = one_step(config)
    (rows,) = harness.updated
    for task in TASKS:
        group = [rollout for rollout in harness.rollouts if rollout.task is task]
        v = np.clip(np.mean([rollout.reward for rollout in group]), 0.1, 0.9)
        expected = group_advantages([r.reward for r in group], False) * 8 / 7 / np.sqrt(v * (1 - v))
        for rollout, advantage in zip(group, expected, strict=True):
            own = [row for row in rows if row.rollout_uid == rollout.uid]
            assert [row.ids.tobytes() for row in own] == [
                np.concatenate([turn.context_ids, turn.output_ids]).tobytes() for turn in rollout.turns
            ]
            values = np.concatenate([row.advantage[row.mask] for row in own])
            np.testing.assert_allclose(values, advantage, rtol=1e-5)


@pytest.mark.parametrize("override", ["forks=1 algorithm.roots=0", "forks=0 algorithm.roots=1"])
def test_one_trunk_needs_one_other_path(override: str) -> None:
    config = compose_config("algorithm=rtpo_tree", "algorithm.trunks=1", *f"algorithm.{override}".split())
    assert config.algorithm["trunks"] == 1


# token by token


def test_a_step_token_by_token() -> None:
    """12 + 5 * 3: trunk a is wrong at once, trunk b calls and is right. Its fork calls again and is wrong; a sibling of
    S_0 is right at once. lambda .3, kappa 1."""
    harness = scripted_harness(in_turn(WRONG, *(CALL_1, RIGHT), *(CALL_2, WRONG), RIGHT))
    step(harness, [TASK], replace(CONFIG, trunks=2, forks=1, roots=1))
    forks, roots = harness.updated
    # q(b, 0) = .3 + .7 x 1/2 = .65, so v = .65 / 2; B(b, 0) = q(a) = 0, so B(fork) = (1 + 0) / 2
    fork = -0.5 / (0.325 * 0.675) ** 0.5
    assert [parts_of(row) for row in forks] == [
        spelled((IDS.before_turn_1, None), (IDS.call_2, fork)),
        spelled((IDS.before_turn_2, None), (IDS.wrong, fork)),
    ]
    # with the sibling s: v = 1.65 / 3; B(a) = 1.65 / 2, B(b, 0) = 1 / 2, B(b, 1) = (0 + 1/2) / 2, B(s) = .65 / 2
    spread_of = (0.55 * 0.45) ** 0.5
    assert [parts_of(row) for row in roots] == [
        spelled((IDS.question, None), (IDS.wrong, -0.825 / spread_of)),
        spelled((IDS.question, None), (IDS.call_1, 0.15 / spread_of)),
        spelled((IDS.before_turn_1, None), (IDS.right, 0.75 / spread_of)),
        spelled((IDS.question, None), (IDS.right, 0.675 / spread_of)),
    ]
    # each of the three paths a third, shared by its tokens
    (packed,) = (taken.packed for taken in harness.backend.steps[1:])
    assert packed.weight[packed.mask] == pytest.approx(
        np.repeat([1 / 3 / 8, 1 / 3 / 22, 1 / 3 / 10], [8, 22, 10]), rel=1e-5
    )
