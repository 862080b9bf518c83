"""What an algorithm's step does, counted by running it: its own `step` on a harness whose rollouts are drawn, not
sampled.

No model is asked. A path ends after each turn with the same chance, so that whole episodes have the mean number of
turns that is assumed; at each turn the paths that end are spread evenly over those that come. Tokens are counted in
units of a sixteenth of a turn. No two turns and no two prompts are drawn alike, so that prefix trees share contexts
alone: what turns, or the instructions of two prompts, happen to begin with alike is left out. The trainer's log-probs
differ from the engine's by one nat, so that a synchronisation which depends on the drift is counted wherever it may
come. The few steps of a sketch stand for a run's: each knows the share of the budget that is spent in the middle of its
part of them.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rtpo.core.contexts import flattened_context
from rtpo.core.packing import training_batches
from rtpo.core.trees import EVEN, deal
from rtpo.harness.budget import Budget, Ledger, OpenPaths
from rtpo.harness.notes import StepNotes
from rtpo.harness.scoring import scoring
from rtpo.planning.data import Episodes, assumptions, model_shape
from rtpo.planning.memory import most_nodes
from rtpo.run.config import RunConfig
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


@dataclass
class Sketch:
    """What `steps` steps on `tasks` tasks in all did. rows: of updates, once each. Tokens are tokens: trained, that
    carry loss, once each; scored, nodes of trees in forward passes before updates; computed, nodes of trees in
    optimizer steps. in_rows, flattened: what these steps would compute of the same rows one by one, and of the same
    turns one by one in a row a path, with its history flattened. at_once: paths that a task has going on together at
    most. free: generated beside the budget (`Role.FREE`); generated is without them."""

    steps: int = 0
    tasks: int = 0
    rollouts: int = 0
    rows: int = 0
    generated: float = 0.0
    free: float = 0.0
    trained: float = 0.0
    scored: float = 0.0
    computed: float = 0.0
    in_rows: float = 0.0
    flattened: float = 0.0
    optimizer_steps: int = 0
    syncs: int = 0
    at_once: float = 0.0


def sketch(run: RunConfig, drawn: Episodes) -> Sketch:
    """Count the steps of `run`'s algorithm on some tasks. The run must train. What is unknown of `drawn` leaves
    meaningless the tokens that hold it, and no other count. Raises DataError for a model whose shape is not known."""
    algorithm, config, tasks = run.descriptor, run.algorithm_config, min(run.budget.tasks_per_step, TASKS)
    worst = algorithm.rollouts_per_task(config, run.task.max_turns)
    harness = SketchHarness(run, drawn)
    steps = -(-TASKS // tasks)
    for step in range(steps):
        harness.begin_step(step, (step + 0.5) / steps, tasks * worst)
        harness.sync()
        algorithm.step(harness, [Task(f"{step}.{i}", "", None) for i in range(tasks)], config)
        harness.end_step(tasks)
    return harness.counts


class SketchHarness(StepNotes):
    """`rtpo.verbs.Harness` without a model."""

    def __init__(self, run: RunConfig, drawn: Episodes) -> None:
        super().__init__()
        self._context: RolloutContext = run.algorithm_config.rollout_context
        self._max_turns = run.task.max_turns
        self._success = drawn.success
        self._unit = (drawn.tokens_per_turn or drawn.prompt_tokens or UNITS) / UNITS
        prompt = max(1, round((drawn.prompt_tokens or 0) / self._unit))
        self._feedback = round((drawn.feedback_tokens or 0) / self._unit)
        self._kept = UNITS - round(UNITS * assumptions().thinking_share)
        self._limit = round(most_nodes(run) / self._unit)
        self._even = round(EVEN * model_shape(run.model.name, run.model.path).hidden_size / self._unit)
        self._ends = chance_of_ending(drawn.turns, run.task.max_turns)
        self._rng = np.random.default_rng(0)
        self._scored_share, self._drawn = run.profile.scored_share, np.random.default_rng(0)
        self._prompts: dict[str, Ids] = defaultdict(lambda: self._ids(prompt))
        self._version, self._engine_version, self._serves = 0, -1, False
        self._ledger, self._open = Ledger(Budget(0)), OpenPaths()
        self._paths: dict[str, tuple[Turn, ...]] = {}
        self._came = [0] * self._max_turns
        self._at_once = 0
        self.counts = Sketch()

    def begin_step(self, step: int, budget_share: float, reservation: int) -> None:
        self._ledger, self._open, self._at_once = Ledger(Budget(reservation)), OpenPaths(), 0
        self._ledger.reserve(reservation)
        self._open_notes(step, budget_share)

    def end_step(self, tasks: int) -> None:
        self.counts.steps += 1
        self.counts.tasks += tasks
        self.counts.rollouts += self._ledger.rollouts
        self.counts.at_once = max(self.counts.at_once, self._at_once / tasks)
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
        is_charged = role is not Role.FREE
        if is_charged:
            self._ledger.charge(self._open.new_rollouts(starts, n))
        self._at_once = max(self._at_once, len(starts) * n)
        groups = [tuple(self._path(start, role, turns, top_logprobs) for _ in range(n)) for start in starts]
        if is_charged:
            self._open.add(rollout for group in groups for rollout in group)
        return groups

    def score(self, rows: Sequence[TrainRow]) -> list[Floats]:
        self._serves = False
        self._count_scored(rows)
        return _nobody_s(rows)

    def update(
        self, rows: Sequence[TrainRow], loss: Loss, *, epochs: int = 1, minibatches: int = 1, before: bool = False
    ) -> Update:
        if not rows:
            return Update(0, self._version, [])
        plan = scoring(rows, loss, minibatches, share=self._scored_share, all_before=before, rng=self._drawn)
        for scored in ([rows[i] for i in plan.before], plan.recorded):
            if scored:
                self._count_scored(scored)
        self._serves = False
        known = _nobody_s(rows)
        steps = 0
        for packed in training_batches(rows, known, loss, epochs=epochs, count=minibatches):
            steps += 1
            ids = np.split(packed.ids, np.cumsum(packed.lengths)[:-1])
            self.counts.computed += self._nodes(ids, loss.rows_together)
            if loss.kl:  # the reference's forward
                self.counts.scored += self._nodes(ids)
            self.counts.in_rows += len(packed.ids) * self._unit
        kept = [row for row in rows if loss.kl or loss.trains_ties or not row.is_tied]
        self.counts.flattened += epochs * self._flattened(kept)
        self._version += steps > 0
        self.counts.rows += len(rows)
        self.counts.trained += sum(int(row.mask.sum()) for row in rows) * self._unit
        self.counts.optimizer_steps += steps
        return Update(steps, self._version, known if before else [])

    def sync(self) -> int:
        if self._engine_version != self._version or not self._serves:
            self._engine_version, self._serves = self._version, True
            self.counts.syncs += 1
        return self._version

    # the parts

    def _count_scored(self, rows: Sequence[TrainRow]) -> None:
        self.counts.scored += self._nodes([row.ids for row in rows])

    def _nodes(self, rows: Sequence[Ids], together: int = 1) -> float:
        """Tokens of the rows' trees."""
        return deal(rows, 1, self._limit, even=self._even, together=together).nodes * self._unit

    def _flattened(self, rows: Sequence[TrainRow]) -> float:
        """Tokens of a row for each path of a group, with all before its last trained turn, thinking included."""
        last: dict[tuple[str, str], int] = {}
        for row in rows:
            path = row.rollout_uid, row.group
            last[path] = max(last.get(path, 0), row.turns[-1].k)
        paths = [(self._paths[uid], k) for (uid, _), k in last.items()]
        return sum(len(flattened_context(turns, k)) + len(turns[k].output_ids) for turns, k in paths) * self._unit

    def _path(self, start: Task | Boundary, role: Role, limit: int | None, top: int) -> Rollout:
        if isinstance(start, Boundary):
            task, context, turns, parent = start.task, start.context_ids, list(start.history), start.rollout_uid
        else:
            task, context, turns, parent = start, self._prompts[start.uid], [], None
        first, uid = len(turns), f"p{len(self._paths)}"
        is_over = False
        while not is_over and (limit is None or len(turns) < first + limit):
            is_over = self._is_over(len(turns))
            turn = self._turn(len(turns), context, is_over, top)
            turns.append(turn)
            if role is Role.FREE:
                self.counts.free += UNITS * self._unit
            else:
                self.counts.generated += UNITS * self._unit
            if not is_over:
                kept = turn.output_ids[UNITS - self._kept :] if self._context == "strip_think" else turn.output_ids
                context = as_ids(np.concatenate([context, kept, turn.feedback_ids]))
        self._paths[uid] = tuple(turns)
        tip, termination, grade = None, Termination.ANSWERED, Grade(GradeOutcome.PENDING, None)
        if is_over:
            grade = Grade(GradeOutcome.GRADED, float(self._rng.random() < self._success))
        else:
            termination = Termination.OPEN
            tip = Boundary(task, len(turns), context, self._paths[uid], NOWHERE, uid, is_tip=True)
        return Rollout(uid, task, role, first, parent, self._paths[uid], termination, grade, tip)

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


def expected_turns(mean: float, most: int) -> float:
    """The mean that `most` turns allow."""
    ends = chance_of_ending(mean, most)
    return sum((1 - ends) ** j for j in range(most))


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
    """The steps of `rtpo.run.run.Run` when each task takes this many rollouts and generated tokens and each step this
    many optimizer steps. None where a limit of the budget is on what is not known: tokens, or seconds."""
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


def _nobody_s(rows: Sequence[TrainRow]) -> list[Floats]:
    """The trainer's log-probs of trained tokens: one nat from the engine's."""
    return [np.full(int(row.mask.sum()), -1.0, np.float32) for row in rows]
