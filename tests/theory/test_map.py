"""The map of regimes: exact noise, and committed predictions and measurements that are made again."""

import json
import shutil
from dataclasses import asdict
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments import map as command
from rtpo.run.config import PROJECT
from rtpo.theory import luck, regimes
from rtpo.theory.luck import LUCK, Decisions, LuckTask, gradient
from rtpo.theory.mdp import softmax, value
from rtpo.theory.mdps import uniform
from rtpo.theory.regime_runs import frozen
from rtpo.theory.regimes import Point, exact_noise, points, predicted

RESULTS = PROJECT / "results" / "map"
TRAINED = Point(2, "late", "even", 3, 2, 1)
JOBS: list[command.Job] = [
    ("frozen", Point(2, "late", "even", 3, 1, 2), 0),
    *(("trained", TRAINED, seed) for seed in range(3)),
]


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
    exact = gradient(mdp, softmax(whole))
    for k, action in product(range(3), range(2)):
        moved = logits.copy()
        moved[k, 0, action] += 1e-6
        slope = (value(mdp, softmax(np.broadcast_to(moved, mdp.shape))) - value(mdp, softmax(whole))) / 1e-6
        assert exact[k, action] == pytest.approx(slope, abs=1e-6)


@pytest.mark.parametrize("decisions", ["even", "chain"])
def test_gradients_of_the_algorithms_have_the_exact_mean_and_noise(decisions: Decisions) -> None:
    """Over 300 batches, within 4 standard errors; the noise's is bounded by twice that of a normal estimate."""
    point = Point(2, "even", decisions, 4, 1, 300)
    measured, exact, mdp = frozen(point, 0), exact_noise(point), point.task.mdp()
    true = gradient(mdp, uniform(mdp))[:, 0]
    for method in regimes.METHODS:
        error = np.sqrt(exact[method] / 2 / point.steps)
        assert (np.abs(np.array(measured[method]["mean"]) - true) < 4 * error).all()
        assert np.array(measured[method]["noise"]) == pytest.approx(exact[method], rel=4 * 2 * (2 / point.steps) ** 0.5)
    assert exact["rtpo"][0] > 1.5 * exact["grpo"][0]


def test_committed_predictions_are_those_of_the_closed_form() -> None:
    lines = [json.loads(line) for line in (RESULTS / "predicted.jsonl").read_text().splitlines()]
    for place, (point, line) in enumerate(zip(points(), lines, strict=True)):
        for name, expected in (asdict(point) | (predicted(point) if place % 17 == 0 else {})).items():
            assert line[name] == pytest.approx(expected, abs=1e-5), (point, name)


@pytest.mark.parametrize("kind", ["frozen", "trained"])
@pytest.mark.parametrize("decisions", LUCK)
def test_committed_measurements_are_made_again(kind: str, decisions: Decisions) -> None:
    """The first of the smallest points of each kind, with all its digits."""
    records = command._lines(RESULTS / "map.jsonl")
    jobs = (job for job in command.plan() if (job[0], job[1].decisions) == (kind, decisions))
    job = min(jobs, key=lambda job: (job[1].turns, job[1].steps * job[1].trunks))
    again, record = command.measured(job), records[job]
    place = record["seed"].index(job[2])
    assert [again[method] for method in regimes.METHODS] == [record[method][place] for method in regimes.METHODS]


def test_a_measurement_goes_on_where_it_was_left(tmp_path: Path) -> None:
    whole, left = tmp_path / "whole", tmp_path / "left"
    command.predict(whole, [TRAINED])
    shutil.copytree(whole, left)
    command.run(whole, JOBS)
    made = {"commit": "a", "dirty": False, "cpu_seconds": 77.0}
    first, second, cut = (json.dumps(command.measured(JOBS[n]) | made) for n in (2, 0, 1))
    (left / "map.partial.jsonl").write_text(f"{first}\n{second}\n{cut[:40]}")
    assert command.missing(left, JOBS) == [JOBS[1], *JOBS[3:]]
    command.run(left, JOBS)
    ours, theirs = (pd.read_json(folder / "map.jsonl", lines=True) for folder in (left, whole))
    assert ours.drop(columns="cpu_seconds").equals(theirs.drop(columns="cpu_seconds"))
    assert (left / "map.jsonl").read_text().count("77.0") == 2
    assert ["a", False] in json.loads((left / "map.json").read_bytes())["commits"]
    assert not (left / "map.partial.jsonl").exists()
    assert command.missing(left, JOBS) == command.missing(RESULTS, command.plan()) == []
