"""The gradient probe: cosines and errors by hand, and the command on real verl."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.probe import main, mean_cosine


def test_equal_gradients_agree_wholly_and_opposite_ones_not() -> None:
    g = np.array([1.0, 2.0, 3.0], np.float32)
    assert mean_cosine([g, 2 * g, 0.1 * g]) == pytest.approx((1.0, 0.0), abs=1e-6)
    right, up = np.array([1.0, 0.0], np.float32), np.array([0.0, 1.0], np.float32)
    mean, _ = mean_cosine([right, -right, up])
    assert mean == pytest.approx(-1 / 3)


def test_the_error_is_the_jackknifes() -> None:
    rng = np.random.default_rng(0)
    gradients = [rng.normal(size=5).astype(np.float32) + 1 for _ in range(6)]

    def mean(of: list[np.ndarray]) -> float:
        pairs = [float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)) for i, a in enumerate(of) for b in of[i + 1 :]]
        return float(np.mean(pairs))

    without = np.array([mean(gradients[:i] + gradients[i + 1 :]) for i in range(6)])
    error = np.sqrt(5 / 6 * ((without - without.mean()) ** 2).sum())
    assert mean_cosine(gradients) == pytest.approx((mean(gradients), error), rel=1e-5)


def test_a_batch_without_a_gradient_agrees_with_none() -> None:
    g = np.array([1.0, 2.0], np.float32)
    assert mean_cosine([g, g, np.zeros(1, np.float32)])[0] == pytest.approx(1 / 3)


def test_fewer_than_three_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="take 3 or more"):
        mean_cosine([np.ones(2, np.float32)] * 2)


def test_too_few_batches_are_refused_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["rtpo", "--batches", "2"])
    assert "--batches: '2' is no whole number from 3" in capsys.readouterr().err


def test_the_command_probes_without_training(backend: Any, tmp_path: Path) -> None:
    backend.push(0)
    before = backend.engine_states()[0].checksum
    settings = ["algorithm.kl=0.02", "budget.tasks_per_step=2"]
    arguments = ["rtpo", "grpo_exact", "--batches", "3", "--output", str(tmp_path)]
    assert main(arguments + [f"--override={setting}" for setting in settings]) == 0
    (file,) = tmp_path.glob("toy_math-*.json")
    record = json.loads(file.read_text())
    assert [line["label"] for line in record["estimators"]] == ["rtpo", "grpo_exact"]
    for line in record["estimators"]:
        assert -1 <= line["mean_cosine"] <= 1
        assert line["jackknife_error"] > 0
        assert line["batches"] == 3
    assert record["estimators"][1]["rollouts"] == 2 * 16
    backend.push(1)
    assert backend.engine_states()[0].checksum == before
