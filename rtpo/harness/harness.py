"""The harness: the verbs of `rtpo.verbs` over a trainer and an engine, for any algorithm.

It runs episodes and charges rollouts to the budget. It measures rows before an update, and trains them. It tracks which
weights trainer and engine have. It does not know which algorithm is running.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rtpo.core.packing import Packed, pack, training_batches
from rtpo.core.rounding import SHIFT, TIMES, difference
from rtpo.core.seeds import generator
from rtpo.engines.backend import Backend, StepResult, TokenScores
from rtpo.engines.base import Sampling
from rtpo.errors import AlgorithmError, DataError, NonFinite, StaleEngine, TreeMismatch
from rtpo.harness import diagnostics
from rtpo.harness.budget import Ledger, OpenPaths
from rtpo.harness.episodes import EpisodeWorld, Plan, run_episodes
from rtpo.harness.notes import NO_REFERENCE, StepNotes
from rtpo.harness.scoring import choose_rows
from rtpo.harness.step_log import StepLog, Trained  # noqa: F401  earlier saves look for Trained here
from rtpo.types import Boundary, Floats, Group, Role, Rollout, Task, Termination, TrainRow
from rtpo.verbs import Loss, Update

SAVED = ("policy_version", "_calls", "_pieces", "step_log", "_step", "_budget_share", "numbers", "_state_json")
"""attributes of the harness that a save holds"""
CHECKED_ROWS = 64
"""most rows of a group that `check_trees` compares"""


class AgentHarness(StepNotes):
    """`rtpo.verbs.Harness` on a backend.

    engine_kl_limit: bound of `mismatch/engine/kl_clipped`, in nats a token. Above it, an update raises StaleEngine if
        the current weights sampled all rows that diagnostics cover: the engine probably holds other weights.
    samples_per_rollout: each call of `rollout` from tasks keeps this number of rollouts for the records. Rollouts
        forked from kept rollouts are kept too, so trees are complete.
    always_push: push even unchanged weights, so that every synchronisation empties the engine's caches.
    check_trees: before every update, compare the log-probs of one random group's rows on prefix trees and as single
        rows (`rtpo.core.rounding`).
    scored_share: share of an update's rows that diagnostics cover, drawn anew for each update. `rtpo.harness.scoring`
        says when they cover all rows.
    """

    def __init__(
        self,
        backend: Backend,
        world: EpisodeWorld,
        sampling: Sampling,
        ledger: Ledger,
        *,
        engine_kl_limit: float,
        samples_per_rollout: int = 0,
        always_push: bool = False,
        check_trees: bool = False,
        scored_share: float = 1.0,
    ) -> None:
        super().__init__()
        self._backend = backend
        self._world = world
        self.max_turns, self.vocabulary_size = world.limits.max_turns, world.chat.vocabulary_size
        self._sampling = sampling
        self.ledger = ledger
        self._engine_kl_limit = engine_kl_limit
        self._samples = samples_per_rollout
        self._always_push = always_push
        self._checks_trees = check_trees
        self._scored_share = scored_share
        self.policy_version = 0
        self._engine_version = -1
        self._calls = 0
        self._pieces = OpenPaths()
        self.step_log = StepLog()

    # one step

    def begin_step(self, step: int, reservation: int) -> None:
        """Reserve the step's worst case and start its log."""
        self.ledger.reserve(reservation)
        self._calls, self._pieces = 0, OpenPaths()
        self.step_log = StepLog()
        self._open_notes(step, self.ledger.share)

    def end_step(self) -> StepLog:
        self.ledger.release()
        self._close_notes()
        self.step_log.numbers = self.numbers
        return self.step_log

    # the verbs

    def random(self, name: str) -> np.random.Generator:
        return generator(self._world.seed, "algorithm", self._step, name)

    def rollout(
        self,
        starts: Sequence[Task] | Sequence[Boundary],
        *,
        n: int,
        role: Role,
        turns: int | None = None,
        top_logprobs: int = 0,
    ) -> list[Group]:
        is_free = role is Role.FREE
        if is_free:  # free calls have numbers of their own, so charged rollouts keep their seeds
            prefix = f"free.{self._step}.{self.step_log.free_calls}"
            self.step_log.free_calls += 1
        else:
            prefix = f"{self._step}.{self._calls}"
            self._calls += 1
            extended = self._pieces.extend(starts)
            self.ledger.charge(n * len(starts) - len(extended))
        each_start: Sequence[Task | Boundary] = starts  # mypy would infer objects
        plans = [Plan(f"{prefix}.{i}.{j}", start, role, turns) for i, start in enumerate(each_start) for j in range(n)]
        prefilled = self._backend.prefilled_tokens
        rollouts = self._sample(plans, top_logprobs, self._sampling)
        self.step_log.grades += [rollout.grade for rollout in rollouts]
        if is_free:
            self.ledger.count_free(rollouts)
        else:
            self.ledger.count_prefilled(prefilled, self._backend.prefilled_tokens)
            self._note_charged(rollouts, role, self._pieces.add(rollouts, n, extended))
        return [tuple(rollouts[i * n : (i + 1) * n]) for i in range(len(starts))]

    def score(self, rows: Sequence[TrainRow]) -> list[Floats]:
        return _by_row(rows, self._score(rows).logprobs) if rows else []

    def reference(self, rows: Sequence[TrainRow]) -> list[Floats]:
        if not rows:
            return []
        with self._timed("score"):
            return _by_row(rows, self._reference(pack(rows)))

    def update(
        self, rows: Sequence[TrainRow], loss: Loss, *, epochs: int = 1, minibatches: int = 1, scores: bool = False
    ) -> Update:
        if not rows:
            self.step_log.updates.append(diagnostics.empty_update())
            return Update(0, self.policy_version, [])
        if self._checks_trees:
            self._compare_trees_with_rows(rows)
        scored = choose_rows(
            rows, loss, minibatches, share=self._scored_share, all_before=scores, rng=self._draws("scored_share")
        )
        row_of_token = np.repeat(np.arange(len(rows)), [row.mask.sum() for row in rows])
        before_update = np.full((2, len(row_of_token)), np.nan, np.float32)  # log-probs and entropies

        def note(indices: Sequence[int], scores: TokenScores) -> None:
            _check_finite(scores)
            before_update[:, np.isin(row_of_token, indices)] = scores.logprobs, scores.entropy

        if scored.before:
            note(scored.before, self._score([rows[i] for i in scored.before]))
        recorded = self._score(scored.recorded).logprobs if scored.recorded else None
        engine = np.concatenate([row.rollout_logprobs[row.mask] for row in rows])
        # `old` holds views of `before_update`, so later epochs use the scores that the first step adds to it
        old = _by_row(rows, before_update[0] if loss.old_logprobs == "recompute" else engine)
        steps, results = self._train(rows, old, loss, epochs, minibatches, scored=bool(scored.first_step)), []
        if scored.first_step:
            with self._timed("update"):
                results.append(next(steps))
            assert results[0].scores is not None
            note(scored.first_step, results[0].scores)
        measured = [rows[i] for i in scored.measured]
        logprobs, entropy = before_update[:, np.isin(row_of_token, scored.measured)]
        metrics = diagnostics.update_metrics(rows, measured, logprobs, entropy, recorded)
        self._check_engine(measured, metrics)
        with self._timed("update"):
            results += steps
        if results:
            self.policy_version += 1
        metrics |= diagnostics.step_metrics(results)
        self.ledger.count_update(rows)
        self.step_log.note_training(rows)
        self.step_log.updates.append(metrics)
        return Update(len(results), self.policy_version, _by_row(rows, before_update[0]) if scores else [])

    def sync(self) -> int:
        return self._sync("sync")

    def _sync(self, activity: str) -> int:
        if self._always_push or self._engine_version != self.policy_version or not self._backend.is_serving:
            with self._timed(activity):
                self._backend.push(self.policy_version)
            self._engine_version = self.policy_version
            self.ledger.syncs += 1
        return self.policy_version

    # evaluation and state

    def evaluate(self, tasks: Sequence[Task], samples: int, decoding: Sampling, name: str) -> list[Group]:
        """Sample each task `samples` times under the current weights. The budget is not charged. name: of the
        evaluation; it is part of the rollouts' uids, which seed them."""
        self._sync("evaluate")
        plans = [Plan(f"eval.{name}.{task.uid}.{j}", task, Role.EVAL) for task in tasks for j in range(samples)]
        rollouts = self._sample(plans, 0, decoding, activity="evaluate")
        self.ledger.evaluation_rollouts += len(rollouts)
        return [tuple(rollouts[i * samples : (i + 1) * samples]) for i in range(len(tasks))]

    def text(self, rollout: Rollout) -> str:
        """A path as text: its opening, then each reply, thinking included, and the environment's answer to it."""
        opening = [turn.context_ids for turn in rollout.turns[:1]]
        exchanges = [ids for turn in rollout.turns for ids in (turn.output_ids, turn.feedback_ids)]
        return self._world.chat.decode([token for ids in (*opening, *exchanges) for token in ids.tolist()])

    def save(self, folder: Path) -> dict[str, Any]:
        """Save weights and optimizer into `folder`. Returns the rest of the harness's state, for `load`."""
        with self._timed("save"):
            self._backend.save(folder)
        return {name: getattr(self, name) for name in SAVED}

    def load(self, folder: Path, state: dict[str, Any]) -> None:
        """Continue from a save. The engine gets the weights at the next synchronisation. Raises DataError for a save of
        another version."""
        if state.keys() != set(SAVED):
            raise DataError(f"{folder} is a save of another version: continue it with that version.")
        self._backend.load(folder)
        for name, value in state.items():
            setattr(self, name, value)
        self._read_state()
        self._engine_version = -1

    # helpers

    def _note_charged(self, rollouts: Sequence[Rollout], role: Role, paths: Sequence[Rollout]) -> None:
        """paths: the whole path of each rollout."""
        self.ledger.count_rollouts(rollouts)
        self.step_log.rollouts.append(diagnostics.rollout_metrics(rollouts, role))
        self.step_log.keep(rollouts, self._samples)
        self.step_log.paths += [
            diagnostics.path_line(self._step + 1, path) for path in paths if path.termination is not Termination.OPEN
        ]

    def _sample(
        self, plans: Sequence[Plan], top_logprobs: int, sampling: Sampling, activity: str = "generate"
    ) -> list[Rollout]:
        sampling = replace(sampling, top_logprobs=top_logprobs)
        if not self._backend.is_serving:
            raise StaleEngine("the engine sleeps while the trainer works: synchronise before a rollout.")
        with self._timed(activity):
            rollouts = run_episodes(self._world, plans, sampling, self._note_retry)
        for rollout in rollouts:
            for turn in rollout.own_turns:
                if turn.policy_version != self._engine_version:
                    raise StaleEngine(
                        f"rollout {rollout.uid}, turn {turn.k}: the engine sampled with weights of version "
                        f"{turn.policy_version} after it was given version {self._engine_version}."
                    )
                if not np.isfinite(turn.logprobs).all():
                    raise NonFinite(
                        f"rollout {rollout.uid}, turn {turn.k}: the engine returned a log-prob that is not finite."
                    )
        return rollouts

    def _score(self, rows: Sequence[TrainRow], *, apart: bool = False, shift: int = 0) -> TokenScores:
        """apart: compute each row by itself, not as part of a tree. shift: added to all positions."""
        with self._timed("score"):
            packed = pack(rows)
            scores = self._backend.score(packed, apart=apart, shift=shift)
            self.ledger.count_forward(len(packed.ids), scores.computed_tokens)
        _check_finite(scores)
        return scores

    def _reference(self, packed: Packed) -> Floats:
        if not self._backend.has_reference:
            raise AlgorithmError(NO_REFERENCE)
        initial = self._backend.reference(packed)
        self.ledger.count_forward(len(packed.ids), initial.computed_tokens)
        return initial.logprobs

    def _check_engine(self, rows: Sequence[TrainRow], metrics: dict[str, Any]) -> None:
        """Raises StaleEngine if engine and trainer differ too much. Checks nothing if older weights sampled a row."""
        is_current = all(turn.policy_version == self.policy_version for row in rows for turn in row.turns)
        kl = metrics["mismatch/engine/kl_clipped"]
        if is_current and kl > self._engine_kl_limit:
            raise StaleEngine(
                f"On the same contexts the engine and the trainer differ by {kl:.2g} nats a token; "
                f"profile.engine_kl_limit is {self._engine_kl_limit:g}. Either a weight synchronisation was lost, or "
                "the limit is too tight for the engine's precision."
            )

    def _draws(self, name: str) -> np.random.Generator:
        """The harness's own random stream with this name, a new one for each update."""
        return generator(self._world.seed, name, self._step, len(self.step_log.updates))

    def _compare_trees_with_rows(self, rows: Sequence[TrainRow]) -> None:
        size = Counter(row.group for row in rows)
        groups = [group for group in size if size[group] > 1] or list(size)
        group = groups[self._draws("check_trees").integers(len(groups))]
        chosen = [row for row in rows if row.group == group][:CHECKED_ROWS]
        on_trees = self._score(chosen).logprobs
        single, shifted = (self._score(chosen, apart=True, shift=shift).logprobs for shift in (0, SHIFT))
        measured, floor = difference(on_trees, single), difference(shifted, single)
        if measured.is_beyond(floor):
            number, token = _place(chosen, int(np.abs(on_trees - single).argmax()))
            raise TreeMismatch(
                f"Log-probs on prefix trees differ from those of single rows by {measured} nats. Rounding explains "
                f"{floor}; profile.check_trees allows {TIMES} times that. The largest difference is at trained token "
                f"{token} of row {number} of {len(chosen)}, of rollout {chosen[number].rollout_uid}. The trainer "
                "computes trees wrongly on this machine."
            )

    def _train(
        self, rows: Sequence[TrainRow], old: list[Floats], loss: Loss, epochs: int, minibatches: int, *, scored: bool
    ) -> Iterator[StepResult]:
        """The optimizer steps of an update. scored: the first step also returns its rows' scores."""
        is_recomputed = loss.old_logprobs == "recompute"
        batches = training_batches(rows, old, loss, epochs=epochs, count=minibatches, first_uses_own=is_recomputed)
        for number, packed in enumerate(batches):
            reference = self._reference(packed) if loss.kl else None
            result = self._backend.step(packed, reference, loss, scored=scored and number == 0)
            self.ledger.count_step(len(packed.ids), result.computed_tokens)
            if not (np.isfinite(result.loss) and np.isfinite(result.grad_norm)):
                raise NonFinite(
                    f"loss {result.loss}, gradient norm {result.grad_norm}: optimizer step {number + 1} of the update "
                    "was not applied. Lower the learning rate, or resume from the last save."
                )
            yield result

    def _note_retry(self, sentence: str) -> None:
        self.ledger.retries += 1
        self.step_log.retries.append(sentence)

    @contextmanager
    def _timed(self, activity: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.ledger.count_seconds(activity, time.perf_counter() - start)


def _check_finite(scores: TokenScores) -> None:
    if not np.isfinite(scores.logprobs).all():
        raise NonFinite("The trainer's log-probs are not finite: the weights have diverged; lower the learning rate.")


def _place(rows: Sequence[TrainRow], index: int) -> tuple[int, int]:
    """A trained token's row, and its index among the row's trained tokens. index: its index among all rows' trained
    tokens."""
    ends = np.cumsum([int(row.mask.sum()) for row in rows])
    row = int(np.searchsorted(ends, index, side="right"))
    return row, index - int(ends[row] - rows[row].mask.sum())


def _by_row(rows: Sequence[TrainRow], values: Floats) -> list[Floats]:
    ends = np.cumsum([int(row.mask.sum()) for row in rows])
    return np.split(values, ends[:-1])
