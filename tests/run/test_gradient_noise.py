"""The gradients that `maintenance/gradient_noise.py` compares: their credit, and what it records of them."""

import itertools
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from conftest import compose_config, harness_on
from local_backend import LocalBackend
from made_paths import rollout, turn

import rtpo.verl_harness.session as session
from experiments.maintenance.gradient_noise import measure, measure_model, rows_of
from rtpo.engines.base import Generation, Request
from rtpo.run.tasks import load_tasks
from rtpo.types import Floats, Task, TrainRow

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
    measured = noise.measured
    assert [len(each) for each in (measured.grpo, measured.rtpo, measured.inner)] == [10] * 3
    assert min(sum(measured.grpo), sum(measured.rtpo)) > 0
    assert measured.inner_sum**2 <= measured.grpo_sum * measured.rtpo_sum * 1.001
    single = measure_model(compose_config(*settings[:2], "task.train.count=1", "budget.tasks_per_step=1")).measured
    for name in ("grpo", "rtpo", "inner"):
        assert asdict(single)[f"{name}_sum"] == pytest.approx(asdict(single)[name][0], rel=1e-4)


def test_all_turns_of_chains_and_each_turn_of_siblings_are_taken() -> None:
    """With the weight of the rows of each turn in the place of a gradient, so that turns are at right angles."""
    config = compose_config("task=toy_keys", "algorithm=grpo_exact")

    taken: list[Floats] = []

    def weights_of(rows: Sequence[TrainRow]) -> Floats:
        weights = np.zeros(6, np.float32)
        for row in rows:
            weights[row.turn_index[row.mask][0]] += abs(row.advantage * row.weight).sum()
        taken.append(weights)
        return weights

    games = load_tasks(config.task, config.task.train)[:10]
    measured = measure(harness_on(LocalBackend(config), config), weights_of, games)
    turns = np.array(measured.rtpo_turns)
    assert (turns > 0).sum(axis=0).all()
    np.testing.assert_allclose(measured.rtpo, turns.sum(axis=1), rtol=1e-5)
    single = np.array([(vector > 0).sum() == 1 for vector in taken])
    assert single.sum() == (turns > 0).sum()
    wholes = np.array(taken)[~single]
    np.testing.assert_allclose((wholes**2).sum(axis=1), [norm for norm in measured.grpo if norm], rtol=1e-5)
    assert (wholes > 0).all(axis=1).any()
    assert (np.diff(wholes) < 1e-6).all()  # paths that have ended have no later turns
