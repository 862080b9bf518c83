"""What the closed form says of toy walk with luck: variances against the environment's own returns, and limits."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from rtpo.envs.toy.luck import Luck
from rtpo.envs.toy.walk import LENGTH, PEOPLE, PLACES, ToyWalkEnv, WalkSettings, problems
from rtpo.theory.regimes import break_even
from rtpo.theory.walk import Plans, Walk, noise, rollouts, told, uniform
from rtpo.types import StopReason, Task

LATE = tuple(weight / 14 for weight in WalkSettings(decided="late").weights)
WALK = Walk(LATE, 1.0, PLACES, ((0.3, 0.55), (0.92, 0.08)), (2 / 7, 5 / 7), 0.6)
EVEN = replace(WALK, weights=(1 / LENGTH,) * LENGTH)
PLANS = uniform(WALK, Plans())


async def played(task: Task, path_seed: int, right: list[bool]) -> float:
    env = ToyWalkEnv(WalkSettings(luck=Luck((0,), 1.0), decided="late"), LENGTH)
    env.path_seed = path_seed
    await env.reset(task)
    for person, is_right in zip(task.answer.split(), right, strict=True):
        asked = person if is_right else next(other for other in PEOPLE if other != person)
        await env.step(f"<tool_call> {asked}</tool_call>", StopReason.STOP)
    grade = await env.grade()
    assert grade.reward is not None
    return grade.reward


def test_the_variance_of_a_return_is_that_of_the_environment() -> None:
    """Over paths whose turns are right by the chances alone; a reward has the answer's and the coin's share halved."""
    rng, (task,) = np.random.default_rng(0), problems("train", 1, 0)
    chances = [p for p, _ in WALK.chances]
    rewards = []
    for path in range(4000):
        places = rng.choice(len(chances), size=LENGTH, p=WALK.shares)
        right = rng.random(LENGTH) < np.take(chances, places)
        rewards.append(asyncio.run(played(task, path, right.tolist())))
    # a place's kind is known to the policy: what it adds is between prompts, and no noise of a prompt's group
    between = np.square(WALK.weights).sum() * np.average(np.square(chances), weights=WALK.shares)
    between -= np.square(WALK.weights).sum() * np.average(chances, weights=WALK.shares) ** 2
    assert 4 * np.var(rewards) == pytest.approx(WALK.ahead[0] + between, rel=0.05)


def test_rtpo_and_grpo_break_even_where_the_map_says() -> None:
    """Noise for a rollout, at equal rollouts, up to GRPO's one chain less."""
    f = EVEN.ahead / EVEN.ahead[0]
    by_rollout = {name: noise(name, EVEN, PLANS) * rollouts(name, EVEN, PLANS) for name in ("rtpo", "grpo_exact")}
    expected = f / break_even(LENGTH, PLANS.group_size) * (PLANS.chains - 1) / PLANS.chains
    np.testing.assert_allclose(by_rollout["rtpo"] / by_rollout["grpo_exact"], expected)


def test_forks_alone_know_a_state_that_does_not_come_again() -> None:
    """The less it is shrunk the nearer to what is ahead, but for the noise of one other path; and fewer first turns."""
    never = replace(EVEN, faces=10**6)
    exact = noise("grpo_exact", never, PLANS)
    np.testing.assert_allclose(noise("gigpo", never, PLANS), exact, rtol=1e-3)
    forks = told(never, PLANS, 1)
    some, least = (noise("anchored_forks", never, replace(forks, shrinkage=kappa)) for kappa in (1.0, 1e-9))
    assert some[0] == least[0] == pytest.approx(exact[0] * 15 / 7)
    assert (least[1:] < some[1:]).all()
    assert (some[1:] < exact[1:] / 2).all()
    np.testing.assert_allclose(least[1:], 2 * never.ahead[1] / 16)
