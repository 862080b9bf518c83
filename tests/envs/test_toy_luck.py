"""Luck of the toy tasks: who inherits it, and what it does to rewards."""

from collections import Counter
from functools import partial

import numpy as np
import pytest
from scripted import CALL_1, CALL_2, RIGHT, TASK, WRONG, Reply, Script, episodes

from rtpo.envs.toy.luck import Luck, Lucky, ToySettings
from rtpo.envs.toy.math import ToyMathEnv
from rtpo.errors import ConfigError
from rtpo.harness.episodes import Plan
from rtpo.types import Boundary, Role, Rollout, Task

FIRST = ToySettings(Luck((0,), 3.0))
TWICE = ToySettings(Luck((0, 2), 3.0))
SOLVED = {" user\n compute": CALL_1, "15</tool_response>": CALL_2, "27</tool_response>": RIGHT}


def solved(context: str, rng: np.random.Generator) -> Reply:
    return next(reply for end, reply in reversed(SOLVED.items()) if end in context)


def paths(
    settings: ToySettings, start: Task | Boundary, count: int, role: Role, script: Script = solved
) -> list[Rollout]:
    plans = [Plan(f"{role}.{i}", start, role) for i in range(count)]
    return episodes(script, plans, make_env=partial(ToyMathEnv, settings))


def coins(rollout: Rollout, k: int) -> tuple[int, ...]:
    """The faces of those tossed before turn k."""
    state = rollout.turns[k].snapshot.state
    assert isinstance(state, Lucky)
    return state.coins


def test_right_answers_are_worth_what_they_are_and_coins_so_many_times_as_much() -> None:
    rewards = Counter(path.reward for path in paths(FIRST, TASK, 100, Role.CHAIN))
    assert set(rewards) == {0.25, 1.0}
    assert 30 < rewards[1.0] < 70
    wrong = paths(FIRST, TASK, 20, Role.CHAIN, lambda context, rng: CALL_1 if "response" not in context else WRONG)
    heads = {(coins(path, 1), path.reward, path.grade.detail) for path in wrong}
    assert heads == {((False,), 0.0, "wrong answer; heads 0 of 1"), ((True,), 0.75, "wrong answer; heads 1 of 1")}


def test_siblings_inherit_what_was_tossed_and_toss_the_rest_themselves() -> None:
    trunk = paths(TWICE, TASK, 1, Role.TRUNK)[0]
    for k, rewards in ((1, 2), (2, 2), (0, 3)):
        siblings = paths(TWICE, trunk.boundary(k), 40, Role.SIBLING)
        assert len({sibling.reward for sibling in siblings}) == rewards
        assert {coins(sibling, 2) for sibling in siblings} == ({coins(trunk, 2)} if k else {(True,), (False,)})


def test_an_evaluation_has_no_luck_and_the_policy_sees_none() -> None:
    assert {path.reward for path in paths(TWICE, TASK, 20, Role.EVAL)} == {1.0}
    (plain,), (evaluated,) = paths(ToySettings(), TASK, 1, Role.CHAIN), paths(TWICE, TASK, 1, Role.EVAL)
    assert plain.turns[1].snapshot == evaluated.turns[1].snapshot
    lucky, again, plain = (paths(settings, TASK, 20, Role.CHAIN) for settings in (TWICE, TWICE, ToySettings()))
    assert [path.reward for path in lucky] == [path.reward for path in again]
    seen = [[[turn.context_ids.tolist() for turn in path.turns] for path in each] for each in (lucky, plain)]
    assert seen[0] == seen[1]


def test_a_coin_after_a_turn_that_no_episode_has_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"luck\.turns"):
        ToyMathEnv(TWICE, max_turns=2)
