"""A harness on a finite MDP. Its policy is a table, so values are known exactly (`rtpo.theory.mdp`).

Algorithms run on it unchanged, with the same rows, packing and losses. The policy is a softmax over logits by (stage,
state, action), so an update of one turn's rows changes no other turn. A turn is one sampled id, the action; the
environment answers with the next state:

    c_k = [A + s_0, u_0, A + s_1, u_1, ..., A + s_k],  u_k = [a],  f_k = [A + s_{k+1}]

A context's last id is the state and its length gives the stage, so a context identifies its table row. Nothing is
stripped, so recorded and flattened contexts have the same ids. State ids are above all action ids, and never sampled.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rtpo.core.losses import TokenBatch
from rtpo.core.losses import loss as loss_of
from rtpo.core.packing import Packed, pack, training_batches
from rtpo.core.seeds import generator
from rtpo.errors import ConfigError, DataError, NonFinite, StaleEngine
from rtpo.harness.budget import Ledger, OpenPaths
from rtpo.harness.notes import StepNotes
from rtpo.theory.mdp import MDP, Table, log_softmax, softmax
from rtpo.types import (
    Boundary,
    Floats,
    Grade,
    GradeOutcome,
    Group,
    Ids,
    Role,
    Rollout,
    Snapshot,
    StopReason,
    Task,
    Termination,
    TrainRow,
    Turn,
    as_ids,
)
from rtpo.verbs import Loss, Update

Indices = npt.NDArray[np.int64]
NO_IDS = as_ids([])


def start_task(state: int) -> Task:
    """The task whose episodes begin in this state."""
    return Task(f"state-{state}", f"begin in state {state}", None, {"state": state})


def tasks(mdp: MDP) -> list[Task]:
    """One task for each state that an episode may begin in."""
    return [start_task(int(state)) for state in np.flatnonzero(mdp.start)]


@dataclass(frozen=True, slots=True, eq=False)
class _Paths:
    """P sampled paths as arrays."""

    ids: Ids  # as in a context, [P, 2K + 1]
    logprobs: Floats  # [P, K]
    lengths: Indices  # turns taken, [P]
    states: Indices  # last state, [P]
    is_open: npt.NDArray[np.bool_]  # whether the path can go on, [P]
    rewards: Table  # [P]


class TabularHarness(StepNotes):
    """`rtpo.verbs.Harness` on an MDP.

    It trains by gradient descent without momentum, so an update changes only the stages of its rows. As in
    `rtpo.harness.harness.AgentHarness`, the policy that samples is the one last synchronised.

    logits: of the initial policy, which is also the reference of a KL, [K, S, A]; default: uniform.

    Raises ConfigError for logits of another shape.
    """

    def __init__(
        self, mdp: MDP, ledger: Ledger, *, learning_rate: float, seed: int = 0, logits: Table | None = None
    ) -> None:
        super().__init__()
        if logits is not None and logits.shape != mdp.shape:
            raise ConfigError(f"logits have shape {logits.shape}; the policy of this MDP has {mdp.shape}.")
        self.mdp, self.ledger, self.seed, self.learning_rate = mdp, ledger, seed, learning_rate
        self.max_turns, _, self.vocabulary_size = mdp.shape  # K, and A: the ids that can be sampled
        self.logits: Table = np.zeros(mdp.shape) if logits is None else logits.astype(np.float64)
        self._reference = log_softmax(self.logits)
        self._next_state_cumulative = mdp.transition.cumsum(-1)
        self._is_terminal = mdp.is_terminal
        self._snapshots = [Snapshot(state, str(state)) for state in range(mdp.shape[1])]
        self.policy_version = 0
        self._engine_logprobs = self._reference
        self._engine_version = -1
        self._calls = [0, 0]
        """numbers of charged and of free rollout calls in this step"""
        self._open = OpenPaths()

    @property
    def policy(self) -> Table:
        """pi(a | k, s) of the current weights, [K, S, A]."""
        return softmax(self.logits)

    def begin_step(self, step: int, reservation: int) -> None:
        """Begin a data step and reserve its worst case of rollouts."""
        self.ledger.reserve(reservation)
        self._calls, self._open = [0, 0], OpenPaths()
        self._open_notes(step, self.ledger.share)

    def end_step(self) -> None:
        self.ledger.release()
        self._close_notes()

    def random(self, name: str) -> np.random.Generator:
        return generator(self.seed, "algorithm", self._step, name)

    def rollout(
        self,
        starts: Sequence[Task] | Sequence[Boundary],
        *,
        n: int,
        role: Role,
        turns: int | None = None,
        top_logprobs: int = 0,
    ) -> list[Group]:
        """Sample paths. Raises StaleEngine before the first synchronisation.

        top_logprobs: how many of the largest log-probs to keep at each turn, at most A.
        """
        if self._engine_version < 0:
            raise StaleEngine("the policy that samples has no weights yet: synchronise before a rollout.")
        all_starts: Sequence[Task | Boundary] = starts
        is_free = role is Role.FREE
        prefix = f"{'free.' if is_free else ''}{self._step}.{self._calls[is_free]}"
        rng = generator(self.seed, "free" if is_free else "rollout", self._step, self._calls[is_free])
        self._calls[is_free] += 1
        if not is_free:
            extended = self._open.extend(all_starts)
            self.ledger.charge(n * len(all_starts) - len(extended))
        paths = self._sample(all_starts, n, turns, rng)
        top = -np.sort(-self._engine_logprobs.astype(np.float32))[..., :top_logprobs] if top_logprobs else None
        rollouts = [
            self._rollout(f"{prefix}.{i}.{j}", start, role, paths, i * n + j, top)
            for i, start in enumerate(all_starts)
            for j in range(n)
        ]
        if is_free:
            self.ledger.count_free(rollouts)
        else:
            self._open.add(rollouts, n, extended)
            self.ledger.count_rollouts(rollouts)
        return [tuple(rollouts[i * n : (i + 1) * n]) for i in range(len(all_starts))]

    def score(self, rows: Sequence[TrainRow]) -> list[Floats]:
        return self._logprobs(rows, log_softmax(self.logits))

    def reference(self, rows: Sequence[TrainRow]) -> list[Floats]:
        return self._logprobs(rows, self._reference)

    def update(
        self, rows: Sequence[TrainRow], loss: Loss, *, epochs: int = 1, minibatches: int = 1, scores: bool = False
    ) -> Update:
        if not rows:
            return Update(0, self.policy_version, [])
        scores_before = self.score(rows)
        old = scores_before if loss.old_logprobs == "recompute" else [row.rollout_logprobs[row.mask] for row in rows]
        steps = 0
        for packed in training_batches(rows, old, loss, epochs=epochs, count=minibatches):
            self._descend(packed, loss)
            steps += 1
            self.ledger.count_step(len(packed.ids), len(packed.ids))
        self.policy_version += steps > 0
        self.ledger.count_update(rows)
        return Update(steps, self.policy_version, scores_before if scores else [])

    def sync(self) -> int:
        if self._engine_version != self.policy_version:
            self._engine_logprobs, self._engine_version = log_softmax(self.logits), self.policy_version
            self.ledger.syncs += 1
        return self.policy_version

    # the parts

    def _sample(self, starts: Sequence[Task | Boundary], n: int, turns: int | None, rng: np.random.Generator) -> _Paths:
        """Sample all paths in parallel, turn by turn."""
        horizon, _, actions = self.mdp.shape
        ids = np.zeros((len(starts), 2 * horizon + 1), np.int32)
        for context, start in zip(ids, starts, strict=True):
            if isinstance(start, Boundary):
                context[: len(start.context_ids)] = start.context_ids
            else:
                context[0] = actions + _first_state(start, self.mdp)
        ids = ids.repeat(n, axis=0)
        lengths = np.array([start.k if isinstance(start, Boundary) else 0 for start in starts], np.int64).repeat(n)
        last = np.full(len(ids), horizon) if turns is None else np.minimum(horizon, lengths + turns)
        states = ids[np.arange(len(ids)), 2 * lengths].astype(np.int64) - actions
        logprobs = np.zeros((len(ids), horizon), np.float32)
        cumulative_policy = np.exp(self._engine_logprobs).cumsum(-1)
        live = np.flatnonzero(lengths < last)
        while live.size:
            k, state = lengths[live], states[live]
            action = _draw(cumulative_policy[k, state], rng)
            states[live] = _draw(self._next_state_cumulative[state, action], rng)
            ids[live, 2 * k + 1] = action
            ids[live, 2 * k + 2] = actions + states[live]
            logprobs[live, k] = self._engine_logprobs[k, state, action]
            lengths[live] += 1
            live = live[(lengths[live] < last[live]) & ~self._is_terminal[states[live]]]
        rewards = self.mdp.reward[states]
        if self.mdp.bernoulli:
            rewards = (rng.random(len(ids)) < rewards).astype(np.float64)
        ids.flags.writeable = logprobs.flags.writeable = False
        return _Paths(ids, logprobs, lengths, states, (lengths < horizon) & ~self._is_terminal[states], rewards)

    def _rollout(
        self, uid: str, start: Task | Boundary, role: Role, paths: _Paths, path: int, top: Floats | None
    ) -> Rollout:
        """Make a `Rollout` of path number `path`. An action ends its turn, like a stop token."""
        ids, logprobs, length, state = paths.ids[path], paths.logprobs[path], paths.lengths[path], paths.states[path]
        is_open = bool(paths.is_open[path])
        if isinstance(start, Boundary):
            task, parent, turns = start.task, start.rollout_uid, list(start.history)
        else:
            task, parent, turns = start, None, []
        start_k = len(turns)
        for k in range(start_k, length):
            turn_state = int(ids[2 * k]) - self.vocabulary_size
            is_last = k + 1 == length and not is_open
            turns.append(
                Turn(
                    k,
                    ids[: 2 * k + 1],
                    ids[2 * k + 1 : 2 * k + 2],
                    logprobs[k : k + 1],
                    self._engine_version,
                    StopReason.STOP,
                    self._snapshots[turn_state],
                    NO_IDS if is_last else ids[2 * k + 2 : 2 * k + 3],
                    top_logprobs=None if top is None else top[k, turn_state][None],
                )
            )
        past = tuple(turns)
        if is_open:
            tip = Boundary(task, len(past), ids[: 2 * length + 1], past, self._snapshots[state], uid, is_tip=True)
            pending = Grade(GradeOutcome.PENDING, None)
            return Rollout(uid, task, role, start_k, parent, past, Termination.OPEN, pending, tip)
        termination = Termination.ANSWERED if self._is_terminal[state] else Termination.TURN_LIMIT
        grade = Grade(GradeOutcome.GRADED, float(paths.rewards[path]), f"state {state}")
        return Rollout(uid, task, role, start_k, parent, past, termination, grade)

    def _logprobs(self, rows: Sequence[TrainRow], table: Table) -> list[Floats]:
        if not rows:
            return []
        stage, state, action, row = self._tokens(pack(rows))
        logprobs = table[stage, state, action].astype(np.float32)
        return np.split(logprobs, np.searchsorted(row, np.arange(1, len(rows))))

    def _descend(self, packed: Packed, loss: Loss) -> None:
        """logits <- logits - learning_rate x dL/dlogits; torch gives dL/dlogprob, and
        dlogprob(a)/dlogits = onehot(a) - pi."""
        stage, state, action, row = self._tokens(packed)
        log_policy = log_softmax(self.logits[stage, state])
        token = np.arange(len(action))
        logprobs = torch.tensor(log_policy[token, action], requires_grad=True)
        batch = TokenBatch(
            logprobs=logprobs,
            old=None if packed.old_logprobs is None else _double(packed.old_logprobs[packed.mask]),
            advantage=_double(packed.advantage[packed.mask]),
            weight=_double(packed.weight[packed.mask]),
            row=torch.tensor(row),
            rows=len(packed.lengths),
            reference=_double(self._reference[stage, state, action]) if loss.kl else None,
        )
        total, _ = loss_of(batch, loss)
        (by_logprob,) = torch.autograd.grad(total, logprobs)
        by_logit = -np.exp(log_policy)
        by_logit[token, action] += 1
        gradient = np.zeros_like(self.logits)
        np.add.at(gradient, (stage, state), by_logprob.numpy()[:, None] * by_logit)
        if not (np.isfinite(float(total.detach())) and np.isfinite(gradient).all()):
            raise NonFinite(f"loss {float(total.detach())}: the update was not applied. Lower the learning rate.")
        self.logits = self.logits - self.learning_rate * gradient

    def _tokens(self, packed: Packed) -> tuple[Indices, Indices, Indices, Indices]:
        """Stage, state, action and row of each trained id. The action at position p of a row has stage (p - 1) / 2, and
        the id before it is its state."""
        row_of = np.arange(len(packed.lengths)).repeat(packed.lengths)
        first = np.cumsum(packed.lengths) - packed.lengths
        trained = np.flatnonzero(packed.mask)
        row = row_of[trained]
        stage = (trained - first[row] - 1) // 2
        ids = packed.ids.astype(np.int64)
        return stage, ids[trained - 1] - self.vocabulary_size, ids[trained], row


def train(
    harness: TabularHarness,
    step: Callable[[Any, list[Task], Any], None],
    config: Any,
    rollouts_per_task: Callable[[Any, int], int],
    steps: int,
) -> Iterator[int]:
    """Run data steps of an algorithm, each with its worst case reserved, and yield the number of each finished step."""
    starts = tasks(harness.mdp)
    for number in range(steps):
        harness.begin_step(number, len(starts) * rollouts_per_task(config, harness.max_turns))
        harness.sync()
        step(harness, starts, config)
        harness.end_step()
        yield number


def _first_state(task: Task, mdp: MDP) -> int:
    state = task.meta.get("state", -1)
    if state not in range(mdp.shape[1]) or state in mdp.terminal:
        raise DataError(f"task {task.uid}: no episode can begin in the state of its meta; use start_task.")
    return int(state)


def _draw(cumulative: Table, rng: np.random.Generator) -> Indices:
    """Draw one index per row from [N, M] cumulative weights, which need not end at exactly 1."""
    return (cumulative <= rng.random((len(cumulative), 1)) * cumulative[:, -1:]).sum(-1)


def _double(values: npt.NDArray[np.floating]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)
