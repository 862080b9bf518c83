"""The map of regimes: exact noise, the closed form's limits, records and back."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from baselines import grpo
from experiments import map as command
from rtpo import rtpo
from rtpo.algorithms import configured
from rtpo.harness.budget import Budget, Ledger
from rtpo.run.config import PROJECT
from rtpo.theory import luck, regimes
from rtpo.theory.luck import LUCK, Decisions, LuckTask, When, by_turn, gradient, variance_ahead
from rtpo.theory.mdp import Table, value
from rtpo.theory.mdps import uniform
from rtpo.theory.regimes import Point, exact_noise, frozen, learnt, points, predicted, trained
from rtpo.theory.tabular import TabularHarness, softmax, tasks

RESULTS = PROJECT / "results" / "map"
WHEN: Sequence[When] = ("early", "even", "late")
JOBS: list[command.Job] = [
    ("frozen", Point(2, "late", "even", 3, 1, 2), 0),
    *(("trained", Point(2, "late", decisions, 3, 2, 1), seed) for decisions in LUCK for seed in (0, 1)),
]


def shares(task: LuckTask) -> Table:
    mdp = task.mdp()
    ahead = variance_ahead(mdp, uniform(mdp))
    return ahead / ahead[0]


# tasks


@pytest.mark.parametrize("turns", [2, 5, 8])
def test_variance_arises_where_the_knob_says(turns: int) -> None:
    """Luck's variance is w^2/4, that of decisions a fair coin's beside it."""
    mdp = LuckTask(turns, "early", "late").mdp()
    w = LUCK["late"]
    ahead = variance_ahead(mdp, uniform(mdp))
    assert ahead[0] == pytest.approx((w**2 + (1 - w) ** 2) / 4)
    assert ahead[1] == pytest.approx((1 - w) ** 2 / 4)
    assert shares(LuckTask(turns, "late", "late")) == pytest.approx(np.ones(turns), abs=0.02)
    assert shares(LuckTask(turns, "even", "even")) == pytest.approx(1 - np.arange(turns) / turns)


def test_decisions_are_worth_their_stake() -> None:
    """In the turns that count, and of a chain where the others are right."""
    for decisions, counting in (("even", range(8)), ("late", (6, 7)), ("chain", range(1, 8))):
        task = LuckTask(8, "even", decisions)
        mdp = task.mdp()
        for k in range(8):
            wrong = np.ones(8)
            wrong[k] = 0
            lost = value(mdp, by_turn(mdp, np.ones(8))) - value(mdp, by_turn(mdp, wrong))
            if k in counting:
                assert lost == pytest.approx(task.stake)
            elif decisions == "late":
                assert lost == pytest.approx(0)


# exact noise


@pytest.mark.parametrize("n", [2, 3, 4])
def test_the_noise_of_a_covariance_is_that_of_all_samples(n: int) -> None:
    pairs = [(-1.0, 2.0, 0.2), (0.5, -1.0, 0.5), (0.0, 1.0, 0.1), (2.0, 0.0, 0.2)]
    x, y, chance = (np.array(column) for column in zip(*pairs, strict=True))
    x, y = x - chance @ x, y - chance @ y
    mean = chance @ (x * y)
    error = 0.0
    for drawn in product(range(len(pairs)), repeat=n):
        at = list(drawn)
        error += chance[at].prod() * (np.cov(x[at], y[at], ddof=1)[0, 1] - mean) ** 2
    both = (chance @ x**2) * (chance @ y**2)
    assert luck._covariance_noise(mean**2, chance @ (x * y) ** 2, both, n) == pytest.approx(error)


def test_the_gradient_is_that_of_the_value() -> None:
    mdp = LuckTask(3, "even", "chain").mdp()
    logits = np.random.default_rng(0).normal(size=(3, 1, 2))
    whole = np.broadcast_to(logits, mdp.shape)
    found = gradient(mdp, softmax(whole))
    for k, action in product(range(3), range(2)):
        moved = logits.copy()
        moved[k, 0, action] += 1e-6
        slope = (value(mdp, softmax(np.broadcast_to(moved, mdp.shape))) - value(mdp, softmax(whole))) / 1e-6
        assert found[k, action] == pytest.approx(slope, abs=1e-6)


@pytest.mark.parametrize("decisions", ["even", "chain"])
def test_gradients_of_the_algorithms_have_the_exact_mean_and_noise(decisions: Decisions) -> None:
    """Over 300 batches, within 4 standard errors; the noise's is bounded by twice that of a normal estimate."""
    point = Point(2, "even", decisions, 4, 1, 300)
    found, exact, mdp = frozen(point, 0), exact_noise(point), point.task.mdp()
    true = gradient(mdp, uniform(mdp))[:, 0]
    for method in regimes.METHODS:
        error = np.sqrt(exact[method] / 2 / point.steps)
        assert (np.abs(np.array(found[method]["mean"]) - true) < 4 * error).all()
        assert np.array(found[method]["noise"]) == pytest.approx(exact[method], rel=4 * 2 * (2 / point.steps) ** 0.5)
    assert exact["rtpo"][0] > 1.5 * exact["grpo"][0]


# the boundary


@pytest.mark.parametrize("decisions", LUCK)
def test_limits_of_noise(decisions: Decisions) -> None:
    task = LuckTask(4, "even", decisions)
    none, much = (learnt(task, 1.0, 32, np.full(4, noise), reverse=True) for noise in (0.0, 1e8))
    assert none > 0.9
    assert abs(much) < 0.1


def test_order_counts_in_a_chain_alone_and_more_in_large_steps() -> None:
    gains = {}
    for decisions, steps in product(LUCK, (1, 32)):
        task = LuckTask(4, "even", decisions)
        reverse, at_once = (learnt(task, 32 / steps, steps, np.zeros(4), reverse=way) for way in (True, False))
        gains[decisions, steps] = reverse - at_once
    assert [gains[decisions, steps] for decisions in ("even", "late") for steps in (1, 32)] == pytest.approx([0] * 4)
    assert gains["chain", 1] > 0.5
    assert gains["chain", 1] > 2 * gains["chain", 32]


def test_the_plan_breaks_even_at_an_excess_of_1_in_little_noise() -> None:
    """One turn counts; RTPO is ahead on one side and GRPO on the other."""
    for point in (Point(4, "early", "late", 3, 400, 16), Point(4, "late", "late", 3, 400, 16)):
        found = predicted(point)
        assert (found["excess"] < 1) == (found["cost"] < 0) == (found["rtpo"] > found["grpo"])
        assert found["gain"] == pytest.approx(0)


# the measurement


def test_states_of_a_stage_share_their_weights() -> None:
    mdp = LuckTask(3, "early", "even").mdp()
    harness = TabularHarness(mdp, Ledger(Budget(100)), learning_rate=1.0, shared=True)
    harness.begin_step(0, 100)
    harness.sync()
    grpo.step(harness, tasks(mdp), configured("grpo", kl=0.0, chains=20, normalise_std=False, minibatches=1))
    assert np.abs(harness.logits).max() > 0.01
    assert (harness.logits == harness.logits[:, :1]).all()


@pytest.mark.parametrize("luck_at", WHEN)
def test_sweeps_learn_what_they_can(luck_at: When) -> None:
    """With many trunks, so that noise is small: a chain in reverse order alone."""
    point = Point(3, luck_at, "chain", 5, 300, 1)
    found = trained(point, 0)
    assert found["rtpo"] > 0.9
    assert found["grpo"] < 0.5
    assert rtpo.rollouts_per_task(regimes.config_of("rtpo", point), 3) == point.chains


# the plan


def test_committed_predictions_are_those_of_the_closed_form() -> None:
    lines = [json.loads(line) for line in (RESULTS / "predicted.jsonl").read_text().splitlines()]
    assert [{name: line[name] for name in asdict(point)} for point, line in zip(points(), lines, strict=True)] == [
        asdict(point) for point in points()
    ]
    for point, line in list(zip(points(), lines, strict=True))[::17]:
        found = predicted(point)
        assert {name: line[name] for name in found} == {
            name: pytest.approx(one, abs=1e-5) for name, one in found.items()
        }


# records and back


def without_times(path: Path) -> list[dict[str, object]]:
    return [{k: v for k, v in json.loads(line).items() if k != "cpu_seconds"} for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small map."""
    folder = tmp_path_factory.mktemp("map")
    command.predict(folder, dict.fromkeys(point for kind, point, _ in JOBS if kind == "trained"))
    command.run(folder, JOBS)
    return folder


def test_a_measurement_goes_on_where_it_was_left(tiny: Path, tmp_path: Path) -> None:
    shutil.copy(tiny / "predicted.jsonl", tmp_path)
    partial = tmp_path / "map.partial.jsonl"
    made = {"commit": "a", "dirty": False, "cpu_seconds": 77.0}
    first, second, cut = (json.dumps(command.measured(JOBS[n]) | made) for n in (2, 0, 1))
    partial.write_text(f"{first}\n{second}\n{cut[:40]}")
    assert command.missing(tmp_path, JOBS) == [JOBS[1], *JOBS[3:]]
    command.run(tmp_path, JOBS)
    assert without_times(tmp_path / "map.jsonl") == without_times(tiny / "map.jsonl")
    assert (tmp_path / "map.jsonl").read_text().count("77.0") == 2
    assert ["a", False] in json.loads((tmp_path / "map.json").read_bytes())["commits"]
    assert not partial.exists()
    assert command.missing(tmp_path, JOBS) == []


def test_nothing_of_the_committed_map_is_missing() -> None:
    assert command.missing(RESULTS, command.plan()) == []
