"""What every step measures, as plain JSON. docs/results/metrics.md defines each key; a test compares the two."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np

from rtpo.core.mismatch import mismatch
from rtpo.engines.backend import StepResult
from rtpo.types import Floats, Role, Rollout, StopReason, Termination, ToolOutcome, TrainRow

EXECUTED = frozenset({*ToolOutcome} - {ToolOutcome.REFUSED, ToolOutcome.MALFORMED, ToolOutcome.INFRASTRUCTURE})
"""outcomes of calls that the tool ran, whatever the result"""
NO_TOOL = "none"
"""the tool's name in records if a call names no existing tool"""


def rollout_metrics(rollouts: Sequence[Rollout], role: Role) -> dict[str, Any]:
    """Metrics of one `rollout` call: paths by first turn, success, rewards, how paths ended, tools, turns, tokens."""
    rewards = [rollout.reward for rollout in rollouts if rollout.is_graded]
    turns = [turn for rollout in rollouts for turn in rollout.own_turns]
    return {
        "role": role.value,
        "start_turns": dict(Counter(str(rollout.start_k) for rollout in rollouts)),
        "rollouts": len(rollouts),
        **outcome(rewards),
        "graded": len(rewards),
        "grades": dict(Counter(rollout.grade.outcome.value for rollout in rollouts)),
        "spoiled": sum(rollout.grade.spoiled for rollout in rollouts),
        "terminations": dict(Counter(rollout.termination.value for rollout in rollouts)),
        "tools": dict(Counter(use.outcome.value for turn in turns for use in turn.calls)),
        "stops": dict(Counter(turn.stop.value for turn in turns)),
        "turns": len(turns),
        "path_turns": sum(len(rollout.turns) for rollout in rollouts if rollout.termination is not Termination.OPEN),
        "generated_tokens": int(sum(len(turn.output_ids) for turn in turns)),
        "context_tokens": int(sum(len(turn.context_ids) for turn in turns)),
    }


def outcome(rewards: Sequence[float]) -> dict[str, float | None]:
    """`success`, always the share of rewards that are 1, and `mean_reward`; both None without rewards."""
    if not rewards:
        return {"success": None, "mean_reward": None}
    return {"success": sum(r == 1 for r in rewards) / len(rewards), "mean_reward": float(np.mean(rewards))}


def path_facts(step: int, rollout: Rollout) -> dict[str, Any]:
    """The fields that paths.jsonl and rollouts.jsonl share: the uid of a path, or of a piece of it, where it was
    forked, how it ended."""
    return {
        "step": step,
        "rollout": rollout.uid,
        "parent": rollout.parent_uid,
        "start_k": rollout.start_k,
        "role": rollout.role.value,
        "task": rollout.task.uid,
        "termination": rollout.termination.value,
        "grade": rollout.grade.outcome.value,
        "reward": rollout.grade.reward,
    }


def path_line(step: int, rollout: Rollout) -> dict[str, Any]:
    """The records' line of an ended path. Tokens, cut turns and calls are those of the path's own turns."""
    return path_facts(step, rollout) | {
        "detail": rollout.grade.detail,
        "turns": len(rollout.turns),
        "cut_turns": cut_turns(rollout),
        "generated_tokens": sum(len(turn.output_ids) for turn in rollout.own_turns),
        "calls": call_counts(rollout),
    }


def cut_turns(rollout: Rollout) -> int:
    """Number of the path's own turns that were cut at their token limit."""
    return sum(turn.stop is StopReason.LENGTH for turn in rollout.own_turns)


class CallCounts(TypedDict):
    """How often a tool was called."""

    attempted: int  # all calls, readable or not
    executed: int  # calls that the tool ran
    ok: int  # executed calls that succeeded
    failed: int  # calls that the tool did not run; a program's own error is not one of them


def call_counts(rollout: Rollout) -> dict[str, CallCounts]:
    """Count the calls in the path's own turns, by tool."""
    counts: dict[str, CallCounts] = defaultdict(lambda: CallCounts(attempted=0, executed=0, ok=0, failed=0))
    for turn in rollout.own_turns:
        for use in turn.calls:
            tool_counts, is_executed = counts[use.tool or NO_TOOL], use.outcome in EXECUTED
            tool_counts["attempted"] += 1
            tool_counts["executed"] += is_executed
            tool_counts["ok"] += use.outcome is ToolOutcome.OK
            tool_counts["failed"] += not is_executed
    return dict(counts)


def first_outcome(calls: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Success and mean reward, as in `outcome`, of the step's first paths: those of `first_calls`."""
    first = [call for call in first_calls(calls) if call["graded"]]
    graded = sum(call["graded"] for call in first)
    return {key: sum(call["graded"] * call[key] for call in first) / graded if graded else None for key in outcome([])}


def first_calls(calls: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """The rollout calls that begin and continue a step's first paths: up to the first call that leaves no path open."""
    last = next((i for i, call in enumerate(calls) if Termination.OPEN.value not in call["terminations"]), len(calls))
    return calls[: last + 1]


def update_metrics(
    rows: Sequence[TrainRow],
    measured: Sequence[TrainRow],
    logprobs: Floats,
    entropy: Floats,
    recorded: Floats | None,
) -> dict[str, Any]:
    """Metrics of one `update` call, before its first optimizer step. logprobs, entropy: of the `measured` rows.
    recorded: log-probs of the same tokens in recorded contexts; None if the rows already have recorded contexts."""
    ties_by_turn, engine = ties(rows), np.concatenate([row.rollout_logprobs[row.mask] for row in measured])
    turn_index, measured_turns = (
        np.concatenate([row.turn_index[row.mask] for row in part]) for part in (rows, measured)
    )
    return {
        "rows": len(rows),
        "trained_turns": np.unique(turn_index).tolist(),
        "trained_tokens": len(turn_index),
        "turn_tokens": {f"turn_{k}": n for k, n in sorted(Counter(turn_index.tolist()).items())},
        "tied_rows": sum(row.is_tied for row in rows),
        "groups": {name: len(tied) for name, tied in ties_by_turn.items()},
        "zero_advantage": {name: float(np.mean(tied)) for name, tied in ties_by_turn.items()},
        "measured_rows": len(measured),
        "measured_tokens": len(measured_turns),
        "entropy": float(entropy.mean()),
        **mismatch(logprobs, logprobs if recorded is None else recorded, engine, measured_turns),
    }


def ties(rows: Sequence[TrainRow]) -> dict[str, list[bool]]:
    """Whether all advantages of a group are 0, for each group. `all` has all groups, `turn_<k>` those that train turn
    k."""
    tied: dict[str, bool] = {}
    turns: dict[str, set[int]] = defaultdict(set)
    for row in rows:
        tied[row.group] = tied.get(row.group, True) and row.is_tied
        turns[row.group] |= {turn.k for turn in row.turns}
    by_turn = {"all": list(tied.values())}
    for k in sorted(set().union(*turns.values())):
        by_turn[f"turn_{k}"] = [tied[group] for group in tied if k in turns[group]]
    return by_turn


def step_metrics(results: Sequence[StepResult]) -> dict[str, Any]:
    """Metrics of the optimizer steps of one `update` call. Without a step, all but the counts are None."""
    if not results:
        return {"optimizer_steps": 0, "computed_tokens": 0, "loss_tokens": 0} | dict.fromkeys(
            ("loss", "grad_norm", "clip_fraction", "kl_loss", "residual", "lr")
        )
    tokens = sum(result.sums["tokens"] for result in results)
    return {
        "optimizer_steps": len(results),
        "computed_tokens": sum(result.computed_tokens for result in results),
        "loss_tokens": int(tokens),
        "loss": float(np.mean([result.loss for result in results])),
        "grad_norm": float(np.mean([result.grad_norm for result in results])),
        "clip_fraction": sum(result.sums["clipped"] for result in results) / tokens,
        "kl_loss": float(np.mean([result.sums["kl_loss"] for result in results])),
        "residual": float(np.mean([result.sums["residual"] for result in results])),
        "lr": results[-1].lr,
    }


def empty_update() -> dict[str, Any]:
    """Metrics of an `update` call without rows, as when no group of the phase has two graded rollouts."""
    return {"rows": 0, "trained_turns": [], "trained_tokens": 0, "tied_rows": 0, **step_metrics([])}
