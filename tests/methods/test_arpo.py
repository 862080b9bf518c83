"""ARPO on the scripted engine: where paths branch, how many there are, and what shared turns get."""

from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from methods import TASKS, advantage_of, config_of, finished, graded, one_step, parts_of, spelled_path
from scripted import CALL_1, CALL_2, RIGHT, TASK, WRONG, RecordingHarness, Script, in_turn, scripted_harness, solver

from baselines.arpo import ARPOConfig, Prompt, entropy, next_starts, path_rows, step
from rtpo.algorithms import configured
from rtpo.core.packing import normalised_weights
from rtpo.credit import standardised
from rtpo.types import Role, Rollout, Termination, TrainingContext

CONFIG = configured("arpo", kl=0.0)
THRESHOLD = replace(CONFIG, rule="threshold", tau=0.5)
GROWING = {"alpha": 1.0, "beta": 0.0}
"""branches at every chance"""


@pytest.mark.parametrize(
    "config", [CONFIG, THRESHOLD, replace(CONFIG, **GROWING), replace(CONFIG, alpha=0.0, beta=0.0)]
)
@pytest.mark.parametrize("slips", [0.0, 0.9])
def test_a_prompt_ends_with_exactly_sixteen_paths(slips: float, config: ARPOConfig) -> None:
    harness = one_step(config, script=solver(slips))
    assert [len(paths) for paths in finished(harness).values()] == [16] * len(TASKS)
    assert harness.ledger.rollouts == 48
    (rows,) = harness.updated
    assert len({row.rollout_uid for row in rows}) == len(rows) == 48


@pytest.mark.parametrize("config", [CONFIG, THRESHOLD])
def test_a_path_without_room_for_a_turn_ends_there_and_is_not_copied(config: ARPOConfig) -> None:
    """Contexts end in most second turns or right before them."""
    harness = one_step(config, script=solver(0.3), max_context_tokens=34)
    paths = finished(harness)
    assert all(rollout.own_turns for rollout in harness.rollouts)
    assert any(rollout.parent_uid for rollout in harness.rollouts)
    assert Termination.CONTEXT_LIMIT in {path.termination for group in paths.values() for path in group}
    by_uid = {rollout.uid: rollout for rollout in harness.rollouts}
    inner = [r for r in harness.rollouts if r.start_k and len(by_uid[str(r.parent_uid)].turns) > r.start_k]
    assert bool(inner) == (config.rule == "threshold")
    for group in paths.values():
        assert len({tuple(id(turn) for turn in path.turns) for path in group}) == len(group) == 16
        assert all(path.is_graded for path in group)
    assert harness.ledger.rollouts == 48


def test_a_hard_turn_has_the_mean_of_the_paths_that_share_it() -> None:
    harness = scripted_harness(solver(0.0))
    ((shared, alone),) = harness.rollout([TASK], n=2, role=Role.CHAIN)
    ((branch, other),) = harness.rollout([shared.boundary(1)], n=2, role=Role.BRANCH)
    rewards = {shared: 1.0, branch: 0.0, other: 0.0, alone: 0.0}
    rows = path_rows([graded(path, reward) for path, reward in rewards.items()], replace(CONFIG, advantage="hard"))
    first = [float(row.advantage[row.mask][0]) for row in rows if row.turns[0].k == 0]
    z = standardised([*rewards.values()])
    assert first == pytest.approx([float(np.mean(z[:3]))] * 3 + [float(z[3])], abs=1e-6)


def open_paths(n: int, turns: int = 1) -> tuple[Prompt, list[Rollout]]:
    """Roots of a prompt that have taken that many turns and go on."""
    harness = scripted_harness(solver(0.0))
    (paths,) = harness.rollout([TASK], n=n, role=Role.CHAIN, turns=turns, top_logprobs=4)
    return Prompt(paths[0].boundary(0), n), list(paths)


def with_entropy(path: Rollout, tokens: int, choices: int) -> Rollout:
    """Its last turn drawn from that many alike choices, `tokens` long."""
    top = np.full((tokens, 4), -np.inf, np.float32)
    top[:, :choices] = -np.log(choices)
    return replace(path, turns=(*path.turns[:-1], replace(path.turns[-1], top_logprobs=top)))


@pytest.mark.parametrize(("tokens", "counted"), [(3, 3), (20, 20), (50, 20)])
def test_entropy_is_of_the_first_tokens_in_units_of_the_vocabulary(tokens: int, counted: int) -> None:
    _, (path,) = open_paths(1)
    scale = np.log(1000)
    for choices in (1, 2, 4):
        drawn = with_entropy(path, tokens, choices)
        share = np.log(choices) / scale
        assert entropy(drawn, scale, CONFIG) == pytest.approx(counted * share, abs=1e-6)
        assert entropy(drawn, scale, THRESHOLD) == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize(
    ("alpha", "rise", "probability"),
    [(0.5, None, 0.5), (0.5, 1.0, 0.7), (0.5, 9.0, 1.0), (1.0, -1.0, 1.0), (0.0, 1.0, 0.2)],
)
def test_paths_branch_by_alpha_plus_beta_times_the_rise(alpha: float, rise: float | None, probability: float) -> None:
    """At its first boundary a path's entropy is compared with itself. The published draw is clipped to [0, 1] before
    it is compared with alpha, so that none is above 1."""
    config = replace(CONFIG, alpha=alpha)
    _, (path,) = open_paths(1)
    drawn, rng, draws = with_entropy(path, 20, 2), np.random.default_rng(0), 4000
    first = None if rise is None else entropy(drawn, 1.0, CONFIG) - rise
    branched = 0
    for _ in range(draws):
        starts = next_starts(Prompt(path.boundary(0), 1), [(drawn, first)], 1.0, rng, config)
        assert starts[0] == (path.tip, pytest.approx(entropy(drawn, 1.0, CONFIG) - (rise or 0.0)))
        assert starts[1:] in ([], [(path.tip, None)])
        branched += len(starts) == 2
    assert abs(branched / draws - probability) <= 3 * (probability * (1 - probability) / draws) ** 0.5


@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize(("rise", "branches"), [(None, False), (0.0, False), (0.01, True), (-0.01, False)])
def test_the_threshold_rule_branches_where_entropy_rose(rise: float | None, branches: bool, turns: int) -> None:
    _, (path,) = open_paths(1, turns)
    drawn = with_entropy(path, 20, 2)
    first = None if rise is None else entropy(drawn, 1.0, THRESHOLD) - rise
    rng = np.random.default_rng(0)
    starts = next_starts(Prompt(path.boundary(0), 1), [(drawn, first)], 1.0, rng, THRESHOLD)
    assert [(place.k, place.rollout_uid, place.is_tip) for place, _ in starts] == [
        (turns, path.uid, True),
        *([(turns - 1, path.uid, False)] if branches else []),
    ]


def test_paths_go_on_in_their_order_and_then_branch_in_it_while_there_is_room() -> None:
    prompt, paths = open_paths(3)
    config = replace(CONFIG, paths=5, roots=3, **GROWING)
    going = [(path.uid, 1, False) for path in paths]
    for begun in ([(path.uid, 1, True) for path in paths[:2]], []):
        starts = next_starts(prompt, [(path, None) for path in paths], 1.0, np.random.default_rng(0), config)
        assert [(place.rollout_uid, place.k, first is None) for place, first in starts] == going + begun
        assert prompt.path_count == 5


def test_a_fresh_root_is_begun_only_when_no_path_is_open() -> None:
    harness = scripted_harness(in_turn(RIGHT, WRONG))
    (paths,) = harness.rollout([TASK], n=2, role=Role.CHAIN, turns=1, top_logprobs=4)
    prompt, rng = Prompt(paths[0].boundary(0), 2), np.random.default_rng(0)
    starts = next_starts(prompt, [(path, None) for path in paths], 1.0, rng, replace(CONFIG, paths=4))
    assert starts == [(prompt.root, None)]
    assert (prompt.ended_paths, prompt.path_count) == (list(paths), 3)
    assert next_starts(prompt, [], 1.0, rng, replace(CONFIG, paths=3)) == []


def test_paths_without_a_reward_are_left_out_of_every_mean() -> None:
    (chains,) = scripted_harness(solver(0.4)).rollout([TASK], n=3, role=Role.CHAIN)
    paths = [graded(chain, reward) for chain, reward in zip(chains, (1.0, None, 0.0), strict=True)]
    rows = path_rows(paths, CONFIG)
    assert [(row.rollout_uid, round(advantage_of(row), 4)) for row in rows] == [
        (chains[0].uid, 0.7071),
        (chains[2].uid, -0.7071),
    ]
    assert path_rows(paths[1:2], CONFIG) == []


def planned() -> Script:
    """A policy whose first turns are numbered, and whose other turns follow from them."""
    begun = count()

    def reply(context: str, rng: np.random.Generator) -> str:
        if "<tool_response>" in context:
            return RIGHT if "<tool_response> 15" in context else WRONG
        return (CALL_1, "<think> plan</think><tool_call> 12 + 5</tool_call>", WRONG)[next(begun) % 3]

    return reply


def described(harness: RecordingHarness) -> list[Any]:
    """What reaches the trainer of the rows, without names and order."""
    (rows,) = harness.updated
    return sorted(
        (row.group, *parts_of(row), row.rollout_logprobs.tolist(), weight.tolist())
        for row, weight in zip(rows, normalised_weights(rows), strict=True)
    )


@pytest.mark.parametrize("context", ["recorded", "flattened"])
def test_without_branches_it_is_grpo_with_the_mean_over_tokens(context: TrainingContext) -> None:
    config = replace(CONFIG, roots=16, alpha=0.0, beta=0.0, training_context=context)
    grown = one_step(config, [TASK], script=planned())
    chains = one_step(config_of("grpo", aggregation="token", training_context=context), [TASK], script=planned())
    assert grown.losses == chains.losses
    assert grown.ledger.rollouts == chains.ledger.rollouts == 16
    assert described(grown) == described(chains)
    assert len({len(path.turns) for path in chains.rollouts}) == 2


@pytest.mark.parametrize("advantage", ["soft", "hard"])
@pytest.mark.parametrize("context", ["recorded", "flattened"])
def test_a_step_token_by_token(context: TrainingContext, advantage: Any) -> None:
    """12 + 5 * 3: one root calls and branches after the result: it calls again and is right; the branch is wrong."""
    harness = scripted_harness(in_turn(CALL_1, CALL_2, WRONG, RIGHT))
    config = replace(CONFIG, paths=2, roots=1, training_context=context, advantage=advantage, **GROWING)
    step(harness, [TASK], config)
    (rows,), z = harness.updated, 1 / 2**0.5
    shared_right, shared_wrong = (z, -z) if advantage == "soft" else (0.0, 0.0)
    expected = spelled_path(context, ("call_1", shared_wrong), ("wrong", -z))
    expected += spelled_path(context, ("call_1", shared_right), ("call_2", z), ("right", z))
    assert [parts_of(row) for row in rows] == expected
    (packed,) = (taken.packed for taken in harness.backend.steps)
    assert {float(w) for w in packed.weight[packed.mask]} == {float(np.float32(1 / 54))}
    assert harness.ledger.rollouts == 2
