"""What every step measures, as flat dictionaries. docs/metrics.md defines each key; a test keeps the two in step."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from rtpo.backend import StepResult, TokenScores
from rtpo.mismatch import mismatch
from rtpo.types import Floats, Role, Rollout, Termination, TrainRow


def rollout_metrics(rollouts: Sequence[Rollout], role: Role) -> dict[str, Any]:
    """One `rollout` call: how many paths from which turn, success, how they ended, tools, tokens."""
    graded = [rollout.reward for rollout in rollouts if rollout.is_graded]
    turns = [turn for rollout in rollouts for turn in rollout.own_turns]
    return {
        "role": role.value,
        "start_turns": dict(Counter(str(rollout.start_k) for rollout in rollouts)),
        "rollouts": len(rollouts),
        "success": float(np.mean(graded)) if graded else None,
        "graded": len(graded),
        "grades": dict(Counter(rollout.grade.outcome.value for rollout in rollouts)),
        "terminations": dict(Counter(rollout.termination.value for rollout in rollouts)),
        "tools": dict(Counter(use.outcome.value for turn in turns for use in turn.calls)),
        "stops": dict(Counter(turn.stop.value for turn in turns)),
        "turns": len(turns),
        "generated_tokens": int(sum(len(turn.output_ids) for turn in turns)),
        "context_tokens": int(sum(len(turn.context_ids) for turn in turns)),
    }


def first_success(calls: Sequence[dict[str, Any]]) -> float | None:
    """Success of the step's first paths: over its first rollout calls, up to the one that leaves none open."""
    total = graded = 0.0
    for call in calls:
        graded += call["graded"]
        total += call["graded"] * (call["success"] or 0.0)
        if Termination.OPEN.value not in call["terminations"]:
            break
    return total / graded if graded else None


def update_metrics(rows: Sequence[TrainRow], scores: TokenScores, recorded: Floats) -> dict[str, Any]:
    """One `update` call, before its first optimizer step."""
    engine = np.concatenate([row.rollout_logprobs[row.mask] for row in rows])
    turn_index = np.concatenate([row.turn_index[row.mask] for row in rows])
    return {
        "rows": len(rows),
        "trained_turns": np.unique(turn_index).tolist(),
        "trained_tokens": len(turn_index),
        "tied_rows": sum(row.is_tied for row in rows),
        "zero_advantage": zero_advantage(rows),
        "entropy": float(scores.entropy.mean()),
        **mismatch(scores.logprobs, recorded, engine, turn_index),
    }


def zero_advantage(rows: Sequence[TrainRow]) -> dict[str, float]:
    """Share of groups all of whose advantages are 0: `all`, and by turn over the groups that train that turn."""
    tied: dict[str, bool] = {}
    turns: dict[str, set[int]] = defaultdict(set)
    for row in rows:
        tied[row.group] = tied.get(row.group, True) and row.is_tied
        turns[row.group] |= {turn.k for turn in row.turns}
    rates = {"all": float(np.mean(list(tied.values())))}
    for k in sorted(set().union(*turns.values())):
        rates[f"turn_{k}"] = float(np.mean([tied[group] for group in tied if k in turns[group]]))
    return rates


def step_metrics(results: Sequence[StepResult]) -> dict[str, Any]:
    """The optimizer steps of one `update` call; what has no value without a step is None."""
    if not results:
        return {"optimizer_steps": 0} | dict.fromkeys(("loss", "grad_norm", "clip_fraction", "kl_loss", "residual"))
    tokens = sum(result.sums["tokens"] for result in results)
    return {
        "optimizer_steps": len(results),
        "loss": float(np.mean([result.loss for result in results])),
        "grad_norm": float(np.mean([result.grad_norm for result in results])),
        "clip_fraction": sum(result.sums["clipped"] for result in results) / tokens,
        "kl_loss": float(np.mean([result.sums["kl_loss"] for result in results])),
        "residual": float(np.mean([result.sums["residual"] for result in results])),
    }


def empty_update() -> dict[str, Any]:
    """An `update` call without rows: every group of a phase fell short of two graded rollouts."""
    return {"rows": 0, "trained_turns": [], "trained_tokens": 0, "tied_rows": 0, **step_metrics([])}
