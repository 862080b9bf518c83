"""Counts what a step of an algorithm does, by running its own `step` on a tabular problem (`rtpo.theory.tabular`).

An action stands for a turn. After each turn a path ends with a fixed probability, which gives the assumed mean number
of turns. Nothing is learned. The trainer's log-probs differ from the engine's by one nat, as if the policy had drifted:
synchronisations that an algorithm makes only after drift are counted too.
"""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from scipy.optimize import brentq

from rtpo.core.packing import training_batches
from rtpo.harness.budget import Budget, Ledger
from rtpo.planning.hardware import TypicalEpisode
from rtpo.run.config import RunConfig
from rtpo.theory.mdp import MDP
from rtpo.theory.tabular import TabularHarness, start_task
from rtpo.types import Boundary, Floats, Group, Role, Task, TrainRow
from rtpo.verbs import Loss, Update

TASKS = 16
"""most tasks of a sketched step, and fewest of all its steps; also the number of states where an episode may begin"""
ACTIONS = 4096


class Sketch(TabularHarness):
    """A harness (`rtpo.verbs.Harness`) that counts. Its ledger counts turns in place of tokens.

    steps, tasks: taken so far.
    calls: calls of `rollout` that the budget counts.
    phases: synchronisations that the algorithm requested.
    trained: turns in optimizer steps. scored: turns in forward passes without an optimizer step.
    path_turns: for each call of `rollout`, the number of turns of each path.
    """

    def __init__(self, run: RunConfig, episode: TypicalEpisode) -> None:
        chance, end_state = chance_of_ending(episode.turns, run.task.max_turns), TASKS
        transition = np.full((TASKS + 1, ACTIONS, TASKS + 1), (1 - chance) / TASKS)
        transition[:, :, end_state] = chance
        transition[end_state] = np.eye(TASKS + 1)[end_state]
        start, rewards = np.append(np.full(TASKS, 1 / TASKS), 0.0), np.full(TASKS + 1, episode.success)
        mdp = MDP(transition, rewards, start, run.task.max_turns, frozenset({end_state}), bernoulli=True)
        logits = np.random.default_rng(0).normal(size=mdp.shape)
        super().__init__(mdp, Ledger(Budget(10**9)), learning_rate=0.0, seed=run.seed, logits=logits)
        self._run, self._is_asleep = run, False
        self.steps = self.tasks = self.calls = self.phases = 0
        self.trained = self.scored = 0.0
        self.path_turns: list[list[int]] = []

    def take_steps(self) -> Self:
        """Take the fewest steps with at least TASKS tasks in all. Their `budget_share` is spread over the whole run."""
        algorithm, config, tasks = self._run.descriptor, self._run.algorithm_config, self._run.budget.tasks_per_step
        tasks = min(tasks, TASKS)
        steps = -(-TASKS // tasks)
        for step in range(steps):
            self.begin_step(step, tasks * algorithm.rollouts_per_task(config, self.max_turns))
            self._budget_share = (step + 0.5) / steps
            self.sync()
            algorithm.step(self, [start_task(i) for i in range(tasks)], config)
            self.end_step()
            # the harness' own sync before the step is no phase
            self.steps, self.tasks, self.phases = self.steps + 1, self.tasks + tasks, self.phases - 1
        return self

    def rollout(
        self, starts: Sequence[Task] | Sequence[Boundary], *, n: int, role: Role, **settings: Any
    ) -> list[Group]:
        groups = super().rollout(starts, n=n, role=role, **settings)
        self.calls += role is not Role.FREE
        self.path_turns.append([len(rollout.own_turns) for group in groups for rollout in group])
        return groups

    def score(self, rows: Sequence[TrainRow]) -> list[Floats]:
        self._is_asleep = True
        self.scored += sum(int(row.mask.sum()) for row in rows)
        return [row.rollout_logprobs[row.mask] - 1 for row in rows]

    reference = score

    def update(
        self, rows: Sequence[TrainRow], loss: Loss, *, epochs: int = 1, minibatches: int = 1, scores: bool = False
    ) -> Update:
        if not rows:
            return Update(0, self.policy_version, [])
        logprobs, steps = self.score(rows), 0
        if not (scores or loss.old_logprobs == "recompute"):  # only some rows are scored, for diagnostics
            self.scored -= (1 - self._run.profile.scored_share) * sum(map(len, logprobs))
        for packed in training_batches(rows, logprobs, loss, epochs=epochs, count=minibatches):
            self.trained += int(packed.mask.sum())
            self.scored += int(packed.mask.sum()) if loss.kl else 0  # the reference's forward
            steps += 1
        self.policy_version += steps > 0
        self.ledger.optimizer_steps += steps
        self.ledger.count_update(rows)
        return Update(steps, self.policy_version, logprobs if scores else [])

    def sync(self) -> int:
        self.phases += 1
        if self._is_asleep and self._engine_version == self.policy_version:
            self.ledger.syncs += 1
        self._is_asleep = False
        return super().sync()


def chance_of_ending(mean: float, limit: int) -> float:
    """Find the probability that an episode ends after a turn. With it, episodes have `mean` turns on average, and at
    most `limit` turns."""
    if mean >= limit:
        return 0.0
    return float(brentq(lambda chance: sum((1 - chance) ** k for k in range(limit)) - mean, 0.0, 1.0))


def longest_path(turns: Sequence[int], mean: float, limit: int) -> float:
    """Draw paths and return the tokens of the longest one. A turn's length is exponential, cut at `limit`.

    turns: number of turns of each path.
    mean: tokens of a turn.
    """
    lengths = np.random.default_rng(len(turns)).exponential(mean, (len(turns), max(turns, default=0))).clip(max=limit)
    return float((lengths * (np.arange(lengths.shape[1]) < np.array(turns)[:, None])).sum(axis=1).max(initial=0))
