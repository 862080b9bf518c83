"""What an algorithm's step does, counted by running it: its own `step` on a harness whose rollouts are drawn, not
sampled.

No model is asked. A path ends after each turn with the same chance, so that whole episodes have the mean number of
turns that is assumed; at each turn the paths that end are spread evenly over those that come. Tokens are counted in
units of a sixteenth of a turn. The trainer's log-probs differ from the engine's by one nat, so that a synchronisation
which depends on the drift is counted wherever it may come. The few steps of a sketch stand for a run's: each knows
the share of the budget that is spent in the middle of its part of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rtpo.budget import Budget, Ledger, OpenPaths
from rtpo.config import RunConfig
from rtpo.notes import StepNotes
from rtpo.packing import training_batches
from rtpo.rows import recorded_rows
from rtpo.types import (
    Boundary,
    Floats,
    Grade,
    GradeOutcome,
    Group,
    Ids,
    Role,
    Rollout,
    RolloutContext,
    Snapshot,
    StopReason,
    Task,
    Termination,
    TrainRow,
    Turn,
    as_ids,
)
from rtpo.verbs import Loss, Update

UNITS = 16
"""ids of a drawn turn"""
TASKS = 16
"""of a sketch, in steps of as many as the run's, or of all of them where the run's have more"""
VOCABULARY = 151_936
GOLDEN = (5**0.5 - 1) / 2
NO_IDS = as_ids([])
NOWHERE = Snapshot(None, "")


@dataclass(frozen=True)
class EpisodeShape:
    """What paths are drawn from. turns: mean of a whole episode. thinking: share of a turn that later contexts leave
    out. success: chance that a path earns 1, else 0."""

    turns: float
    tokens_per_turn: float
    prompt_tokens: float
    feedback_tokens: float
    thinking: float
    success: float


@dataclass
class Pass:
    """Positions that go through the model, and pairs of positions that attend to one another."""

    tokens: float = 0.0
    pairs: float = 0.0

    def add(self, length: float, before: float = 0.0) -> None:
        """`length` positions after `before`."""
        self.tokens += length
        self.pairs += length * (before + length / 2)


@dataclass
class Call:
    """One `rollout` call. longest: turns that its longest path took; cached: positions before a token, summed over the
    tokens it generated."""

    paths: int
    longest: int = 0
    generated: float = 0.0
    cached: float = 0.0


@dataclass
class Sketch:
    """What `steps` steps on `tasks` tasks in all did. Tokens are tokens. recomputed: of contexts of forks that had been
    through the engine before, part of prefill."""

    steps: int = 0
    tasks: int = 0
    rollouts: int = 0
    turns: int = 0
    generated: float = 0.0
    trained: float = 0.0
    recomputed: float = 0.0
    optimizer_steps: int = 0
    syncs: int = 0
    prefill: Pass = field(default_factory=Pass)
    scored: Pass = field(default_factory=Pass)
    reference: Pass = field(default_factory=Pass)
    updated: Pass = field(default_factory=Pass)
    calls: list[Call] = field(default_factory=list)


def sketch(run: RunConfig, shape: EpisodeShape, engines: int) -> Sketch:
    """Count the steps of `run`'s algorithm on some tasks; `engines` serve its rollouts. The run must train."""
    algorithm, config, tasks = run.descriptor, run.algorithm_config, min(run.budget.tasks_per_step, TASKS)
    worst = algorithm.rollouts_per_task(config, run.task.max_turns)
    harness = SketchHarness(run, shape, engines)
    steps = -(-TASKS // tasks)
    for step in range(steps):
        harness.begin_step(step, (step + 0.5) / steps, tasks * worst)
        harness.sync()
        algorithm.step(harness, [Task(f"{step}.{i}", "", None) for i in range(tasks)], config)
        harness.end_step(tasks)
    return harness.counts


class SketchHarness(StepNotes):
    """`rtpo.verbs.Harness` without a model."""

    def __init__(self, run: RunConfig, shape: EpisodeShape, engines: int) -> None:
        super().__init__()
        self._context: RolloutContext = run.algorithm_config.rollout_context
        self._max_turns = run.task.max_turns
        self._engines = engines
        self._success = shape.success
        self._unit = shape.tokens_per_turn / UNITS
        self._prompt = max(1, round(shape.prompt_tokens / self._unit))
        self._feedback = round(shape.feedback_tokens / self._unit)
        self._kept = UNITS - round(UNITS * shape.thinking)
        self._ends = chance_of_ending(shape.turns, run.task.max_turns)
        self._rng = np.random.default_rng(0)
        self._version, self._engine_version, self._serves = 0, -1, False
        self._where: dict[str, int] = {}
        self._ledger, self._open = Ledger(Budget(0)), OpenPaths()
        self._paths = 0
        self._came = [0] * self._max_turns
        self.counts = Sketch()

    def begin_step(self, step: int, budget_share: float, reservation: int) -> None:
        self._ledger, self._open = Ledger(Budget(reservation)), OpenPaths()
        self._ledger.reserve(reservation)
        self._open_notes(step, budget_share)

    def end_step(self, tasks: int) -> None:
        self.counts.steps += 1
        self.counts.tasks += tasks
        self.counts.rollouts += self._ledger.rollouts
        self._close_notes()

    @property
    def max_turns(self) -> int:
        return self._max_turns

    @property
    def vocabulary_size(self) -> int:
        return VOCABULARY

    def random(self, name: str) -> np.random.Generator:
        return self._rng

    def rollout(
        self,
        starts: Sequence[Task] | Sequence[Boundary],
        *,
        n: int,
        role: Role,
        turns: int | None = None,
        top_logprobs: int = 0,
    ) -> list[Group]:
        self._ledger.charge(self._open.new_rollouts(starts, n))
        call = Call(paths=n * len(starts))
        groups = []
        for start in starts:
            self._prefill_start(start, n)
            groups.append(tuple(self._path(start, role, turns, top_logprobs, call) for _ in range(n)))
        self._open.add(rollout for group in groups for rollout in group)
        self.counts.calls.append(call)
        self.counts.generated += call.generated
        return groups

    def score(self, rows: Sequence[TrainRow]) -> list[Floats]:
        self._serves = False
        self._pass(self.counts.scored, rows)
        return [np.full(int(row.mask.sum()), -1.0, np.float32) for row in rows]

    def update(self, rows: Sequence[TrainRow], loss: Loss, *, epochs: int = 1, minibatches: int = 1) -> Update:
        if not rows:
            return Update(0, self._version, [])
        before = self.score(rows)
        recorded = [alone for row in rows for alone in recorded_rows(row)]
        if [row.ids.tobytes() for row in rows] != [row.ids.tobytes() for row in recorded]:
            self._pass(self.counts.scored, recorded)
        steps = 0
        for packed in training_batches(rows, before, loss, epochs=epochs, count=minibatches):
            steps += 1
            for length in packed.lengths:
                self.counts.updated.add(int(length) * self._unit)
                if loss.kl:
                    self.counts.reference.add(int(length) * self._unit)
        self._version += steps > 0
        self.counts.trained += sum(int(row.mask.sum()) for row in rows) * self._unit
        self.counts.optimizer_steps += steps
        return Update(steps, self._version, before)

    def sync(self) -> int:
        if self._engine_version != self._version or not self._serves:
            self._engine_version, self._serves = self._version, True
            self._where.clear()
            self.counts.syncs += 1
        return self._version

    # the parts

    def _pass(self, into: Pass, rows: Sequence[TrainRow]) -> None:
        for row in rows:
            into.add(len(row.ids) * self._unit)

    def _prefill_start(self, start: Task | Boundary, n: int) -> None:
        """The context of n paths that start together: once on each engine that takes some of them, but for one that has
        it already."""
        length = self._prompt if isinstance(start, Task) else len(start.context_ids)
        used = self._engines * (1 - (1 - 1 / self._engines) ** n)
        known = 0
        if isinstance(start, Boundary) and self._where.get(start.rollout_uid) == self._engine_version:
            known = len(start.history[-1].context_ids) if start.is_tip else length
        times = used / self._engines
        anew = times * (length - known) + (used - times) * length
        self.counts.prefill.add(anew * self._unit)
        if isinstance(start, Boundary):
            self.counts.recomputed += anew * self._unit

    def _path(self, start: Task | Boundary, role: Role, limit: int | None, top: int, call: Call) -> Rollout:
        if isinstance(start, Boundary):
            task, context, turns, parent = start.task, start.context_ids, list(start.history), start.rollout_uid
        else:
            task, context, turns, parent = start, self._ids(self._prompt), [], None
        first, uid = len(turns), f"p{self._paths}"
        self._paths += 1
        self._where[uid] = self._engine_version
        is_over = False
        while not is_over and (limit is None or len(turns) < first + limit):
            is_over = self._is_over(len(turns))
            turn = self._turn(len(turns), context, is_over, top)
            turns.append(turn)
            call.generated += UNITS * self._unit
            call.cached += UNITS * (len(context) + UNITS / 2) * self._unit**2
            if not is_over:
                kept = turn.output_ids[UNITS - self._kept :] if self._context == "strip_think" else turn.output_ids
                following = as_ids(np.concatenate([context, kept, turn.feedback_ids]))
                # of the full history only f_k is new to the engine, which has u_k from sampling it
                new = len(turn.feedback_ids) + (len(kept) if self._context == "strip_think" else 0)
                if limit is None or len(turns) < first + limit:
                    self.counts.prefill.add(new * self._unit, (len(following) - new) * self._unit)
                context = following
        call.longest = max(call.longest, len(turns) - first)
        self.counts.turns += len(turns) - first
        tip, termination, grade = None, Termination.ANSWERED, Grade(GradeOutcome.PENDING, None)
        if is_over:
            grade = Grade(GradeOutcome.GRADED, float(self._rng.random() < self._success))
        else:
            termination = Termination.OPEN
            tip = Boundary(task, len(turns), context, tuple(turns), NOWHERE, uid, is_tip=True)
        return Rollout(uid, task, role, first, parent, tuple(turns), termination, grade, tip)

    def _is_over(self, k: int) -> bool:
        """Whether a path ends with turn k: by the golden ratio's sequence, whose mean settles at once."""
        self._came[k] += 1
        return k + 1 == self._max_turns or self._came[k] * GOLDEN % 1 < self._ends

    def _turn(self, k: int, context: Ids, is_last: bool, top: int) -> Turn:
        odds = None
        if top:
            weights = np.exp(-np.arange(top) * self._rng.uniform(0.1, 3.0, (UNITS, 1)))
            odds = np.log(weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
        return Turn(
            k,
            context,
            self._ids(UNITS),
            np.zeros(UNITS, np.float32),
            self._engine_version,
            StopReason.STOP,
            NOWHERE,
            NO_IDS if is_last else self._ids(self._feedback),
            top_logprobs=odds,
        )

    def _ids(self, length: int) -> Ids:
        return as_ids(self._rng.integers(1, VOCABULARY, length, dtype=np.int32))


def chance_of_ending(mean: float, most: int) -> float:
    """After each turn, so that an episode of at most `most` turns has `mean` of them; 0 or 1 where there is no more or
    less to have."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        longer = sum((1 - middle) ** j for j in range(most)) > mean
        low, high = (middle, high) if longer else (low, middle)
    return high if mean < most else 0.0


@dataclass(frozen=True)
class Course:
    """A whole run's steps: how many, the tasks they took, their rollouts."""

    steps: int
    tasks: int
    rollouts: float


def course(run: RunConfig, rollouts_per_task: float, tokens_per_task: float | None, steps_each: float) -> Course | None:
    """The steps of `rtpo.run.Run` when each task takes this many rollouts and generated tokens and each step this many
    optimizer steps. None where a limit of the budget is on what is not known: tokens, or seconds."""
    budget = run.budget
    if budget.seconds is not None or (budget.generated_tokens is not None and tokens_per_task is None):
        return None
    worst = run.descriptor.rollouts_per_task(run.algorithm_config, run.task.max_turns)
    left, steps, tasks = float(budget.rollouts), 0, 0
    while worst and (fit := min(budget.tasks_per_step, int(left // worst))):
        steps, tasks, left = steps + 1, tasks + fit, left - fit * rollouts_per_task
        if budget.generated_tokens is not None and tasks * (tokens_per_task or 0) >= budget.generated_tokens:
            break
        if budget.optimizer_steps is not None and steps * steps_each >= budget.optimizer_steps:
            break
    return Course(steps, tasks, budget.rollouts - left)
