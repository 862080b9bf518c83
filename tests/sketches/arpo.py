"""ARPO: paths grow turn by turn; where the policy has become less sure than at its first turn, they branch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rtpo.credit import group_advantages
from rtpo.rows import trajectory_rows
from rtpo.types import Boundary, Role, Rollout, Task, TrainRow
from rtpo.verbs import AlgorithmConfig, Harness, TokenClip

LOWEST = -100.0
"""in place of the log-prob of a token that could not be drawn, whose entropy is 0"""


@dataclass(frozen=True)
class ARPOConfig(AlgorithmConfig):
    """paths: finished paths of a prompt. roots: paths begun at once. probability, entropy_weight: of branching, and how
    it grows with the entropy. entropy_tokens: tokens of a turn whose entropy is summed."""

    paths: int = 16
    roots: int = 8
    probability: float = 0.5
    entropy_weight: float = 0.2
    entropy_tokens: int = 20
    dual_clip: float | None = 3.0


def step(harness: Harness, tasks: Sequence[Task], config: ARPOConfig) -> None:
    """One data step. Everything starts at a boundary: an open path's tip, or S_0 for a fresh root."""
    rng = harness.random("branch")
    groups = harness.rollout(tasks, n=config.roots, role=Role.CHAIN, turns=1, top_logprobs=10)
    roots = [group[0].boundary(0) for group in groups]
    paths = [(path, entropy(path, harness, config)) for group in groups for path in group]
    begun, finished = [config.roots] * len(tasks), [list[Rollout]() for _ in tasks]
    while True:
        starts: list[tuple[Boundary, float | None]] = []
        for i, root in enumerate(roots):
            mine = [(path, first) for path, first in paths if path.task is root.task]
            finished[i] += [path for path, _ in mine if path.tip is None]
            going = [(path, path.tip, first) for path, first in mine if path.tip is not None]
            for path, tip, first in going:
                starts.append((tip, first))
                rise = config.entropy_weight * (entropy(path, harness, config) - first)
                if begun[i] < config.paths and rng.random() - rise <= config.probability:
                    starts.append((tip, None))
                    begun[i] += 1
            if not going and begun[i] < config.paths:
                starts.append((root, None))
                begun[i] += 1
        if not starts:
            break
        taken = harness.rollout([start for start, _ in starts], n=1, role=Role.BRANCH, turns=1, top_logprobs=10)
        paths = [
            (path, entropy(path, harness, config) if first is None else first)
            for (path,), (_, first) in zip(taken, starts, strict=True)
        ]
    loss = TokenClip(config.clip_low, config.clip_high, config.dual_clip, kl=config.kl)
    rows = [row for group in finished for row in sequence_rows(group, config)]
    harness.update(rows, loss, epochs=config.epochs, minibatches=config.minibatches)


def sequence_rows(paths: Sequence[Rollout], config: ARPOConfig) -> list[TrainRow]:
    """Whole sequences, each with its own copy of what it shares; all tokens weigh the same."""
    graded = [path for path in paths if path.is_graded]
    rows = []
    for i, path in enumerate(graded):
        advantage = float(group_advantages([other.reward for other in graded], True)[i])
        tokens = sum(len(turn.output_ids) for turn in path.turns)
        rows += trajectory_rows(path, config.training_context, advantage, tokens, path.task.uid, first_k=0)
    return rows


def entropy(path: Rollout, harness: Harness, config: ARPOConfig) -> float:
    """Sum over the last turn's first tokens of the entropy among the largest log-probs, over ln |V|."""
    if not path.own_turns or path.own_turns[-1].top_logprobs is None:
        return 0.0
    top = path.own_turns[-1].top_logprobs[: config.entropy_tokens]
    return -float((np.exp(top) * np.maximum(top, LOWEST)).sum()) / math.log(harness.vocabulary_size)


def rollouts_per_task(config: ARPOConfig, max_turns: int) -> int:
    return config.paths
