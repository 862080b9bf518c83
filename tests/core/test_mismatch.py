"""Mismatch metrics against numbers worked out by hand and against a known KL divergence."""

import numpy as np
import pytest

from rtpo.core.mismatch import mismatch
from rtpo.errors import NonFinite

TURNS = np.array([0, 0, 1])
TRAIN, RECORDED, ENGINE = np.array([-1.0, -2.0, -4.0]), np.array([-1.0, -1.5, -3.0]), np.array([-1.5, -1.0, -3.0])


def k3(log_ratio: list[float]) -> float:
    return float(np.mean([np.exp(d) - 1 - d for d in log_ratio]))


def test_golden() -> None:
    metrics = mismatch(TRAIN, RECORDED, ENGINE, TURNS)
    expected = {
        "mismatch/kl_k1": 0.5,
        "mismatch/kl_k3": k3([0.5, -1.0, -1.0]),
        "mismatch/context/kl_k3": k3([0.0, -0.5, -1.0]),
        "mismatch/engine/ratio_gm": 1.0,
        "mismatch/engine/kl_k3": k3([0.5, -0.5, 0.0]),
        "mismatch/turn_0/kl_k1": 0.25,
        "mismatch/turn_1/ratio_gm": np.exp(-1.0),
        "mismatch/turn_1/context/kl_k1": 1.0,
    }
    for key, value in expected.items():
        assert metrics[key] == pytest.approx(value), key
    assert len(metrics) == 3 * 3 * 3 + 4


def test_tails_are_of_the_engines_part_alone() -> None:
    engine = np.linspace(-3, -1, 1001)
    recorded = engine + np.append(np.full(1000, 0.01), 5.0)  # one token far off
    metrics = mismatch(recorded - 2.0, recorded, engine, np.zeros(1001, int))
    assert metrics["mismatch/engine/largest"] == pytest.approx(5.0)
    assert metrics["mismatch/engine/quantile_999"] == pytest.approx(0.01)
    assert metrics["mismatch/engine/beyond_half"] == pytest.approx(1 / 1001)
    assert metrics["mismatch/engine/kl_k3"] > 0.1
    assert metrics["mismatch/engine/kl_clipped"] == pytest.approx((k3([1.0]) + 1000 * k3([0.01])) / 1001)


def test_k3_clamps_the_log_ratio() -> None:
    metrics = mismatch([-1.0], [-1.0], [-41.0], [0])
    assert metrics["mismatch/kl_k3"] == pytest.approx(np.exp(10) - 11)
    assert metrics["mismatch/kl_k1"] == -40.0


def test_what_is_not_finite_or_of_another_shape_is_refused() -> None:
    for place, name in enumerate(("logp_train", "logp_recorded", "logp_engine")):
        logprobs = np.full((3, 3), -1.0)
        logprobs[place, 2] = np.nan if place else -np.inf
        with pytest.raises(NonFinite, match=name):
            mismatch(*logprobs, TURNS)
    with pytest.raises(ValueError, match="logp_engine"):
        mismatch(TRAIN, RECORDED, ENGINE[:2], TURNS)
