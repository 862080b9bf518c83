"""The gradients that `maintenance/gradient_noise.py` compares: their credit, and what it records of them."""

import itertools
from dataclasses import asdict
from math import sqrt
from typing import Any

import numpy as np
import pytest
from conftest import compose_config
from local_backend import LocalBackend
from made_paths import rollout, turn

import rtpo.verl_harness.session as session
from experiments.maintenance.gradient_noise import measure_model, rows_of
from rtpo.engines.base import Generation, Request
from rtpo.types import Floats, Task

TASK = Task("q", "?", "!")


@pytest.mark.parametrize("count", [2, 3, 5])
def test_groups_of_any_size_have_the_same_mean_gradient(count: int) -> None:
    """Over all groups of paths that win half of the time, where the score is 1 for a win and -1 for a loss."""
    sums = []
    for rewards in itertools.product([0.0, 1.0], repeat=count):
        turns = [turn(0, [1], [2, 3]), turn(1, [1, 2], [3, 4])]
        group = tuple(rollout(str(i), TASK, turns, reward) for i, reward in enumerate(rewards))
        rows = rows_of(group, 1)
        scores = {str(i): 2 * reward - 1 for i, reward in enumerate(rewards)}
        sums.append(sum(scores[row.rollout_uid] * float((row.advantage * row.weight).sum()) for row in rows))
        assert bool(rows) == (len(set(rewards)) == 2)
        assert rows_of(group, 2) == []
    assert np.mean(sums) == pytest.approx(0.5)  # the covariance of return and score


class Sleeping(LocalBackend):
    """Engine and trainer share the memory: the engine sleeps from a gradient to the next push."""

    def gradient(self, *arguments: Any) -> Floats:
        self.is_serving = False
        return super().gradient(*arguments)

    def push(self, version: int) -> None:
        super().push(version)
        self.is_serving = True

    async def _generate(self, requests: list[Request]) -> list[Generation]:
        assert self.is_serving
        return await super()._generate(requests)


def test_norms_and_inner_products_are_those_of_two_gradients_of_each_game(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "open_backend", Sleeping)
    settings = ("task=toy_keys", "algorithm=grpo_exact", "task.train.count=10", "budget.tasks_per_step=8")
    noise = measure_model(compose_config(*settings))
    assert noise.chains == 1 + 2 * 6
    assert [len(each) for each in (noise.grpo, noise.rtpo, noise.inner, noise.rtpo_turns)] == [10] * 4
    assert min(sum(noise.grpo), sum(noise.rtpo)) > 0
    for whole, forked, turns, inner in zip(noise.grpo, noise.rtpo, noise.rtpo_turns, noise.inner, strict=True):
        assert len(turns) == 6
        assert inner**2 <= whole * forked * 1.001
        assert forked <= sum(map(sqrt, turns)) ** 2 * 1.001
        if sum(each > 0 for each in turns) == 1:
            assert forked == pytest.approx(max(turns), rel=1e-4)
    assert noise.inner_sum**2 <= noise.grpo_sum * noise.rtpo_sum * 1.001
    single = measure_model(compose_config(*settings[:2], "task.train.count=1", "budget.tasks_per_step=1"))
    for name in ("grpo", "rtpo", "inner"):
        assert asdict(single)[f"{name}_sum"] == pytest.approx(asdict(single)[name][0], rel=1e-4)
