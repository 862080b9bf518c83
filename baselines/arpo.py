"""ARPO: paths grow turn by turn, and branch more often where the policy is less certain than at the path's first turn.

dH is a turn's entropy minus that of the path's first turn. There are two rules. `probabilistic` (published code): after
each turn except its last, a path branches with probability alpha + beta dH. With alpha = 1 it always branches.
`threshold` (paper): a path branches before a turn if alpha + beta dH > tau. A branch is a new path, so its "first turn"
is the first that it samples itself. The prompt's mean return includes the path's own.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from rtpo.credit import group_advantages
from rtpo.rows import path_weight, trajectory_rows
from rtpo.types import Boundary, Role, Rollout, Task, TrainRow
from rtpo.verbs import Algorithm, Harness, PathConfig


@dataclass(frozen=True)
class ARPOConfig(PathConfig):
    """paths: finished paths of a prompt, 2 or more. roots: paths that start together at S_0.
    rule: when a path branches (see the module). alpha: the rule's constant. beta: weight of dH.
    tau: threshold of the `threshold` rule; null for `probabilistic`.
    entropy_tokens, top_logprobs: a turn's entropy takes the `top_logprobs` largest log-probs of each of its first
        `entropy_tokens` tokens, in units of ln |V|. `probabilistic` sums over tokens, `threshold` averages.
    advantage: `soft` gives all tokens of a path its own z-score; `hard` gives a turn the mean z-score of the paths that
        share it.
    """

    paths: int
    roots: int
    rule: Literal["probabilistic", "threshold"]
    alpha: float
    beta: float
    tau: float | None
    entropy_tokens: int
    top_logprobs: int
    advantage: Literal["soft", "hard"]


@dataclass
class Prompt:
    """A prompt's root, the number of its paths so far, and the paths that ended."""

    root: Boundary
    path_count: int
    ended_paths: list[Rollout] = field(default_factory=list)


Sampled = tuple[Rollout, float | None]
"""a path whose last turn was just sampled, and the entropy of its first own turn; None if that is the same turn"""
Start = tuple[Boundary, float | None]
"""a boundary, and the entropy of the first turn of the path that goes on from it; None for a new path"""


def step(harness: Harness, tasks: Sequence[Task], config: ARPOConfig) -> None:
    """One data step."""
    rng, log_vocabulary = harness.random("branch"), math.log(harness.vocabulary_size)
    groups = harness.rollout(tasks, n=config.roots, role=Role.CHAIN, turns=1, top_logprobs=config.top_logprobs)
    prompts = [Prompt(group[0].boundary(0), config.roots) for group in groups]
    sampled: list[list[Sampled]] = [[(path, None) for path in group] for group in groups]
    while any(
        starts := [next_starts(*pair, log_vocabulary, rng, config) for pair in zip(prompts, sampled, strict=True)]
    ):
        boundaries = [boundary for prompt_starts in starts for boundary, _ in prompt_starts]
        groups = harness.rollout(boundaries, n=1, role=Role.BRANCH, turns=1, top_logprobs=config.top_logprobs)
        paths = iter(path for (path,) in groups)
        sampled = [[(next(paths), first_entropy) for _, first_entropy in prompt_starts] for prompt_starts in starts]
    rows = [row for prompt in prompts for row in path_rows(prompt.ended_paths, config)]
    harness.update(rows, config.loss, epochs=config.epochs, minibatches=config.minibatches)


def next_starts(
    prompt: Prompt, sampled: Sequence[Sampled], log_vocabulary: float, rng: np.random.Generator, config: ARPOConfig
) -> list[Start]:
    """The starts of a prompt's next turns: the tips of open paths, then new branches. Without any, a new path starts at
    the root, unless the prompt has all its paths. Updates `prompt`."""
    extended: list[Start] = []
    branches: list[Start] = []
    for path, first_entropy in sampled:
        last_entropy = entropy(path, log_vocabulary, config)
        first_entropy = last_entropy if first_entropy is None else first_entropy
        if path.tip is None:
            prompt.ended_paths.append(path)
        else:
            extended.append((path.tip, first_entropy))
        boundary = path.tip if config.rule == "probabilistic" else path.boundary(len(path.turns) - 1)
        rise = config.beta * (last_entropy - first_entropy)
        if config.tau is None:
            # clipped as in the published code
            is_due = bool(np.clip(rng.random() - rise, 0.0, 1.0) <= config.alpha)
        else:
            is_due = config.alpha + rise > config.tau
        if boundary is not None and is_due and prompt.path_count + len(branches) < config.paths:
            branches.append((boundary, None))
    if not extended and not branches and prompt.path_count < config.paths:
        branches.append((prompt.root, None))
    prompt.path_count += len(branches)
    return extended + branches


def entropy(path: Rollout, log_vocabulary: float, config: ARPOConfig) -> float:
    """The entropy of the path's last turn (see `ARPOConfig`). A token of log-prob -inf adds 0."""
    top = path.turns[-1].top_logprobs
    assert top is not None
    first = top[: config.entropy_tokens].clip(-100.0)
    total = -float((np.exp(first) * first).sum()) / log_vocabulary
    return total if config.rule == "probabilistic" else total / len(first)


def path_rows(paths: Sequence[Rollout], config: ARPOConfig) -> list[TrainRow]:
    """Rows of whole paths. A shared turn is in the rows of every path that shares it. Paths that could not be graded
    are left out."""
    graded = [path for path in paths if path.is_graded]
    scores = group_advantages([path.reward for path in graded], True).tolist() if graded else []
    scores_of_turn: defaultdict[int, list[float]] = defaultdict(list)
    for path, score in zip(graded, scores, strict=True):
        for turn in path.turns:
            scores_of_turn[id(turn)].append(score)
    rows = []
    for path, score in zip(graded, scores, strict=True):
        mean = [float(np.mean(scores_of_turn[id(turn)])) for turn in path.turns]
        advantage, weight = score if config.advantage == "soft" else mean, path_weight(path, config.aggregation)
        rows += trajectory_rows(path, config.training_context, advantage, weight, path.task.uid, first_k=0)
    return rows


def rollouts_per_task(config: ARPOConfig, max_turns: int) -> int:
    return config.paths


def check(config: ARPOConfig) -> list[str]:
    problems = []
    if config.paths < 2 or not 1 <= config.roots <= config.paths:
        problems.append(
            f"algorithm.paths is {config.paths} and algorithm.roots {config.roots}: use paths of 2 or more, and "
            "roots from 1 to paths."
        )
    if (config.rule == "threshold") == (config.tau is None):
        problems.append(
            f"algorithm.rule is {config.rule} and algorithm.tau {config.tau}: use the threshold rule with a tau (0.5 "
            "in the paper), or the probabilistic rule with algorithm.tau=null."
        )
    for name, value in [("entropy_tokens", config.entropy_tokens), ("top_logprobs", config.top_logprobs)]:
        if value < 1:
            problems.append(f"algorithm.{name} is {value}: use 1 or more.")
    return problems


ALGORITHM = Algorithm(
    config=ARPOConfig,
    step=step,
    rollouts_per_task=rollouts_per_task,
    check=check,
    plan="roots grown turn by turn, branching where entropy rose, topped up with fresh roots",
    credit="return's z-score within the prompt; a shared turn gets each path's own (soft) or their mean (hard)",
    schedule="one update a step",
    contexts="flattened history, or recorded c_k",
    loss="token clip",
    trained="all model tokens of every path; a shared turn once for each path",
)
