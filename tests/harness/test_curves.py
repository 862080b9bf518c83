"""Curves: the same keys whatever the method and its phases, weighed by what was averaged, bounded in number."""

from typing import Any

import numpy as np
import pytest
from methods import NAMES, config_of, one_step

from rtpo.harness.budget import ACTIVITIES
from rtpo.harness.curves import CURVES, SPANS, step_curves
from rtpo.harness.diagnostics import first_outcome
from rtpo.types import ToolOutcome

UPDATES: list[dict[str, Any]] = [
    {
        **{"trained_turns": [2], "trained_tokens": 10, "optimizer_steps": 1, "loss_tokens": 10, "groups": {"all": 1}},
        **{"mismatch/kl_k1": 0.4, "mismatch/turn_2/kl_k1": 0.4, "turn_tokens": {"turn_2": 10}, "kl_loss": 0.25},
        **{"entropy": 0.5, "loss": 1.0, "grad_norm": 2.0, "clip_fraction": 0.5, "zero_advantage": {"all": 1}},
    },
    {
        **{"trained_turns": [0, 5, 6], "turn_tokens": {"turn_0": 10, "turn_5": 5, "turn_6": 15}, "trained_tokens": 30},
        **{"optimizer_steps": 3, "loss_tokens": 90, "loss": 2.0, "grad_norm": 4.0, "clip_fraction": 0.0, "lr": 0.2},
        **{"mismatch/kl_k1": 0.0, "mismatch/turn_5/kl_k1": 0.4, "mismatch/turn_6/kl_k1": 0.8, "entropy": 1.5},
        **{"groups": {"all": 3, "turn_0": 3}, "zero_advantage": {"all": 0.0, "turn_0": 0.5}},
    },
    {"trained_turns": [], "trained_tokens": 0, "optimizer_steps": 0, "loss_tokens": 0, "loss": None},
]
CALLS = [
    {
        **{"rollouts": 4, "terminations": {"answered": 1, "open": 3}, "turns": 4, "path_turns": 1},
        **{"generated_tokens": 40, "context_tokens": 100, "stops": {"stop": 3, "length": 1}, "tools": {"ok": 3}},
    },
    {
        **{"rollouts": 3, "terminations": {"answered": 3}, "turns": 6, "path_turns": 7},
        **{"generated_tokens": 60, "context_tokens": 300, "stops": {"stop": 6}, "tools": {"malformed": 1}},
    },
]
LINE: dict[str, Any] = {
    **{"step": 3, "success": 0.5, "mean_reward": 0.75, "rollouts": 64, "generated_tokens": 640, "trained_tokens": 320},
    **{"context_tokens": 800, "prefilled_tokens": None, "row_tokens": 2000, "computed_tokens": 960},
    **{"scored_tokens": 500, "optimizer_steps": 12, "wall_seconds": 1.5, "seconds": {"generate": 1.0}},
    **{"rollout_calls": CALLS, "updates": UPDATES, "algorithm": {"baseline/turn_0": -0.5}},
}


def line_of(name: str) -> dict[str, Any]:
    """Of a method's first step."""
    harness = one_step(config_of(name))
    calls, updates = harness.step_log.rollouts, harness.step_log.updates
    own = {"step": 1, "wall_seconds": 0.0, "algorithm": {}, "rollout_calls": calls, "updates": updates}
    return own | first_outcome(calls) | harness.ledger.as_dict()


def test_means_are_weighed_by_what_they_are_over() -> None:
    """Tokens 10 and 30, groups 1 and 3, optimizer steps 1 and 3, tokens with a loss 10 and 90; the last is empty."""
    curves = step_curves(LINE)
    train = {
        **{"rollouts": 64, "steps": 3, "optimizer_steps": 12, "tokens/generated": 640, "tokens/in_rows": 2000},
        **{"wall_seconds": 1.5, "seconds/generate": 1.0, "success": 0.5, "reward": 0.75, "ratio": np.exp(-0.1)},
        **{"kl": 0.1, "kl_initial": 0.25, "loss": 1.75, "grad_norm": 3.5, "entropy": 1.25},
        **{"clip_share": 0.05, "zero_advantage": 0.25, "lr": 0.2, "turns": 2.0, "turn_tokens": 10.0},
        **{"context_tokens": 40.0, "cut_turns": 0.1, "calls/ok": 0.3, "calls/malformed": 0.1, "calls/timeout": 0.0},
    }
    assert {key: curves[f"train/{key}"] for key in train} == pytest.approx(train)
    assert "train/tokens/prefilled" not in curves
    parts = {"turn_02/kl": 0.4, "turn_04_07/kl": 0.7, "turn_00/zero_advantage": 0.5, "phase_01/entropy": 1.5}
    assert {key: curves[f"parts/{key}"] for key in parts} == pytest.approx(parts)
    assert not any(key.startswith("parts/phase_02") for key in curves)
    assert curves["algorithm/baseline/turn_0"] == -0.5


def test_every_method_has_the_same_curves() -> None:
    lines = {name: step_curves(line_of(name)) for name in NAMES}
    names = {name: {key for key in line if key.startswith("train/")} for name, line in lines.items()}
    assert set(names) >= {"rtpo", "grpo"}
    assert all(keys == names["rtpo"] for keys in names.values())
    single = {curve.key for curve in CURVES if curve.key.startswith("train/") and "<" not in curve.key}
    families = {f"train/seconds/{activity}" for activity in ACTIVITIES}
    families |= {f"train/calls/{outcome}" for outcome in ToolOutcome}
    assert names["rtpo"] == single | families
    # however many turns, there are no more curves, since every turn is in one place
    assert all({key.split("/")[0] for key in line.keys() - names["rtpo"]} == {"parts"} for line in lines.values())
    assert sum(curve.key.startswith("parts/") for curve in CURVES) * len(SPANS) == 63
    assert all(sum(k in place for place in SPANS.values()) == 1 for k in range(100))
