"""Turns and rollouts without an episode."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rtpo.types import Grade, GradeOutcome, Role, Rollout, Snapshot, StopReason, Task, Termination, Turn, as_ids


def turn(
    k: int, context: Sequence[int], output: Sequence[int], feedback: Sequence[int] = (), state: Any = "", **fields: Any
) -> Turn:
    """With log-probs of 0 unless `fields` has others."""
    made = {"logprobs": np.zeros(len(output), np.float32), "policy_version": 0, "stop": StopReason.STOP} | fields
    snapshot = Snapshot(state, str(state))
    return Turn(k, as_ids(context), as_ids(output), feedback_ids=as_ids(feedback), snapshot=snapshot, **made)


def rollout(
    uid: str, task: Task, turns: Sequence[Turn], reward: float, start_k: int = 0, role: Role = Role.CHAIN
) -> Rollout:
    grade = Grade(GradeOutcome.GRADED, reward)
    return Rollout(uid, task, role, start_k, None, tuple(turns), Termination.ANSWERED, grade)
