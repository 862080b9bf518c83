"""In lock-step, how long tools take decides nothing about what the engine is asked."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from scripted import ScriptedEngine, make_world, solver

from rtpo.engines.base import BatchingEngine, Generation, Request, Sampling
from rtpo.envs.toy.math import ToyMathEnv, problems
from rtpo.errors import InfrastructureError
from rtpo.harness.episodes import Plan, run_episodes
from rtpo.types import Feedback, Role, Rollout, StopReason

TASKS = problems("train", 6, seed=2)
PLANS = [Plan(f"0.{i}", task, Role.CHAIN) for i, task in enumerate(TASKS)]


def slow_env(rng: np.random.Generator, failures: list[int]) -> ToyMathEnv:
    """A calculator that takes its time, and does not answer in its first `failures[0]` calls."""

    class SlowEnv(ToyMathEnv):
        async def step(self, reply: str, stop: StopReason) -> Feedback:
            await asyncio.sleep(float(rng.uniform(0, 0.01)))
            if failures[0]:
                failures[0] -= 1
                raise InfrastructureError("the calculator does not answer")
            return await super().step(reply, stop)

    return SlowEnv()


def calls_of(delays: int, *, lock_step: bool, failures: int = 0) -> tuple[list[list[str]], list[Rollout]]:
    """The sessions of each call of the engine, and the rollouts."""
    engine, calls = ScriptedEngine(solver(0.3)), []

    async def call(requests: list[Request]) -> list[Generation]:
        calls.append([request.session for request in requests])
        return [await engine.generate(request) for request in requests]

    rng, left = np.random.default_rng(delays), [failures]
    world = replace(make_world(engine, make_env=lambda: slow_env(rng, left)), engine=BatchingEngine(call))
    rollouts = run_episodes(replace(world, lock_step=lock_step), PLANS, Sampling(), lambda what: None)
    return calls, rollouts


def test_calls_do_not_depend_on_how_long_tools_take() -> None:
    first, rollouts = calls_of(0, lock_step=True)
    assert [len(call) for call in first] == [
        sum(len(rollout.turns) > k for rollout in rollouts) for k in range(len(first))
    ]
    assert all(call == sorted(call) for call in first)
    for delays in (1, 2, 3):
        assert calls_of(delays, lock_step=True)[0] == first
    assert calls_of(1, lock_step=False)[0] != first


def test_an_episode_begun_again_holds_up_the_others_and_ends() -> None:
    calls, rollouts = calls_of(0, lock_step=True, failures=1)
    assert len(rollouts) == len(PLANS)
    assert sum(map(len, calls)) == 1 + sum(len(rollout.turns) for rollout in rollouts)
    assert all(call == sorted(call) for call in calls)


def test_an_episode_that_cannot_go_on_ends_them_all() -> None:
    with pytest.raises(InfrastructureError, match="does not answer"):
        calls_of(0, lock_step=True, failures=1000)
