"""The rollout budget and a run's other costs, counted alike for every algorithm.

One rollout is one sampled path to termination, wherever it starts: trunk, chain, branch or sibling. A step reserves
its worst case, charges what it dispatches and releases the rest. The last steps take fewer tasks, so that their worst
case fits. So a run never exceeds its budget. Training ends at the latest when no task's worst case fits. Rollouts lost
in a crash are recorded as lost, not charged. The ledger counts tokens, turns, tool calls, optimizer steps and seconds.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from rtpo.core.names import counted
from rtpo.errors import BudgetExceeded, DataError
from rtpo.types import Boundary, Role, Rollout, Task, ToolOutcome, TrainRow

ACTIVITIES = ("generate", "score", "update", "sync", "save", "evaluate")


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may use.

    rollouts: training rollouts in all, evaluation apart (the paper: 80,000 for math, 16,000 for search).
    """

    rollouts: int

    def __post_init__(self) -> None:
        if self.rollouts < 0:
            raise ValueError(f"budget.rollouts must not be negative, got {self.rollouts}")


@dataclass(frozen=True, slots=True)
class Charge:
    """A line of the journal, as JSON."""

    charged: int
    """rollouts of this charge"""
    total: int
    """all rollouts dispatched so far, lost ones included; it never falls, not even after a crash"""
    rollouts: int
    """rollouts charged so far; missing in lines of earlier versions"""


class ChargeJournal:
    """A file with a `Charge` a line. A line is on disk before its rollouts are dispatched. So the rollouts of an
    incomplete last line, which a crash leaves, were never dispatched. Opening the file cuts this line off."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if torn := torn_end(path):
            os.truncate(path, path.stat().st_size - len(torn))

    def append(self, charge: Charge) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(charge)) + "\n")
            file.flush()
            os.fsync(file.fileno())


def torn_end(path: Path) -> bytes:
    """A journal's incomplete last line, or nothing. A missing file is an empty journal."""
    return path.read_bytes().rpartition(b"\n")[2] if path.exists() else b""


def lost_since(path: Path, total_at_save: int) -> int:
    """Count the rollouts in the journal at `path` that were dispatched after a save.

    total_at_save: `Ledger.dispatched` of the save. An incomplete last line is ignored, and a missing file is an empty
    journal. Raises DataError for a malformed line, and for a journal that ends before the save.
    """
    remedy = f"restore it, or delete {path.parent} and run the same command to start afresh."
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    total = 0
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            charged, after = int(entry["charged"]), int(entry["total"])
            if charged < 1 or after != total + charged:
                raise ValueError(f"it charges {charged} and goes from {total} to {after}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            last = "cut off this last line if the machine lost power, or " if number == len(lines) else ""
            raise DataError(
                f"{path} line {number} is damaged ({type(error).__name__}: {error}): {last}{remedy}"
            ) from error
        total = after
    if total < total_at_save:
        raise DataError(
            f"{path} ends at {counted(total, 'rollout')}, before the save's {total_at_save}: it is not "
            f"this run's journal, or lines were lost: {remedy}"
        )
    return total - total_at_save


@dataclass(slots=True)
class Ledger:
    """A run's counters. Methods change some of them; callers add to the other counters directly.

    With a `journal`, each charge is on disk before `charge` returns, so a crash loses no count. Training rollouts
    outside the budget (`Role.FREE`) have counters of their own. Of the other counters retries, seconds
    and those of the trainer include them.
    """

    budget: Budget
    rollouts: int = 0  # charged
    lost: int = 0  # dispatched after a save from which the run later resumed; not charged
    reserved: int = 0  # what is left of the current step's reservation
    evaluation_rollouts: int = 0  # not charged; no counter includes their turns and tokens
    free_rollouts: int = 0  # outside the budget
    free_tokens: int = 0  # sampled in free rollouts
    retries: int = 0  # episodes restarted after a failure that was not the policy's
    generated_tokens: int = 0  # sampled ids
    context_tokens: int = 0  # ids in the contexts of sampled turns
    prefilled_tokens: int | None = 0  # context tokens that the engine computed; None if it did not report them
    trained_tokens: int = 0  # trainable ids of rows given to updates, tied rows included; counted once for all epochs
    row_tokens: int = 0  # ids of the rows given to the trainer, contexts included, counted each time
    computed_tokens: int = 0  # the part of row_tokens that was computed in optimizer steps
    scored_tokens: int = 0  # the part of row_tokens that was computed in other forward passes (scoring, reference)
    turn_generations: int = 0  # sampled turns
    optimizer_steps: int = 0
    syncs: int = 0
    tasks_seen: int = 0  # tasks given to steps, repeats included
    epochs: int = 0  # complete passes over the data
    tool_calls: dict[str, int] = field(default_factory=lambda: {outcome.value: 0 for outcome in ToolOutcome})
    """number by outcome"""
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(ACTIVITIES, 0.0))  # wall-clock
    journal: ChargeJournal | None = field(default=None, repr=False, compare=False)

    @property
    def dispatched(self) -> int:
        """All training rollouts sent out under the budget: charged and lost."""
        return self.rollouts + self.lost

    @property
    def remaining(self) -> int:
        """Rollouts neither charged nor reserved."""
        return self.budget.rollouts - self.rollouts - self.reserved

    @property
    def share(self) -> float:
        """The share of the budget that is charged."""
        return self.rollouts / max(1, self.budget.rollouts)

    def tasks_that_fit(self, batch: int, worst_case: int) -> int:
        """How many tasks the next step may take: at most `batch`, and as many as fit if each takes `worst_case`
        rollouts.

        0 means that the run has finished. Raises ValueError unless both are positive.
        """
        if batch < 1 or worst_case < 1:
            raise ValueError(f"batch and worst_case must be at least 1, got {batch} and {worst_case}")
        return min(batch, self.remaining // worst_case)

    @property
    def training_seconds(self) -> float:
        """Seconds of generation, scoring, updates and synchronisations, without saves and evaluation."""
        return sum(self.seconds[activity] for activity in ("generate", "score", "update", "sync"))

    def reserve(self, n: int) -> None:
        """Set aside a step's worst case. Raises BudgetExceeded beyond what remains, ValueError while another
        reservation is open."""
        if self.reserved:
            raise ValueError(f"{counted(self.reserved, 'rollout')} still reserved: release them at the end of the step")
        _not_negative("reserve", n)
        if n > self.remaining:
            raise BudgetExceeded(
                f"A step wants to reserve {counted(n, 'rollout')} and {self.remaining} of "
                f"budget.rollouts={self.budget.rollouts} remain: take as many tasks as tasks_that_fit says."
            )
        self.reserved = n

    def charge(self, n: int) -> None:
        """Charge n rollouts about to be dispatched, the journal first. Raises BudgetExceeded past the reservation."""
        _not_negative("charge", n)
        if n > self.reserved:
            raise BudgetExceeded(
                f"The algorithm asks for {counted(n, 'rollout')} and {self.reserved} are left of what its step "
                "reserved: its rollouts_per_task must be the true worst case."
            )
        if n and self.journal is not None:
            self.journal.append(Charge(n, self.dispatched + n, self.rollouts + n))
        self.reserved -= n
        self.rollouts += n

    def release(self) -> None:
        """Give back what the step reserved and did not use."""
        self.reserved = 0

    def count_rollouts(self, rollouts: Iterable[Rollout]) -> None:
        """Add the turns that training rollouts sampled themselves, with their tokens and tool calls."""
        for turn in (turn for rollout in rollouts for turn in rollout.own_turns):
            self.turn_generations += 1
            self.generated_tokens += len(turn.output_ids)
            self.context_tokens += len(turn.context_ids)
            for use in turn.calls:
                self.tool_calls[use.outcome.value] += 1

    def count_free(self, rollouts: Sequence[Rollout]) -> None:
        """Add rollouts outside the budget."""
        self.free_rollouts += len(rollouts)
        self.free_tokens += sum(len(turn.output_ids) for rollout in rollouts for turn in rollout.own_turns)

    def count_prefilled(self, before: int | None, after: int | None) -> None:
        """Add the context tokens that the engine computed between two readings. Without a reading the total is unknown
        from then on."""
        if before is None or after is None or self.prefilled_tokens is None:
            self.prefilled_tokens = None
        else:
            self.prefilled_tokens += after - before

    def count_update(self, rows: Iterable[TrainRow]) -> None:
        self.trained_tokens += sum(int(row.mask.sum()) for row in rows)

    def count_step(self, row_tokens: int, computed_tokens: int) -> None:
        """Add an optimizer step."""
        self.row_tokens += row_tokens
        self.computed_tokens += computed_tokens
        self.optimizer_steps += 1

    def count_forward(self, row_tokens: int, computed_tokens: int) -> None:
        """Add a forward pass without an optimizer step."""
        self.row_tokens += row_tokens
        self.scored_tokens += computed_tokens

    def count_seconds(self, activity: str, seconds: float) -> None:
        """Add wall-clock seconds to an activity. Raises ValueError for an unknown one."""
        if activity not in self.seconds:
            raise ValueError(f"unknown activity {activity!r}: use one of {', '.join(ACTIVITIES)}")
        self.seconds[activity] += seconds

    def check_journal(self) -> None:
        """Raises DataError for a journal that is damaged or has other charges than this run's."""
        if self.journal is not None and (unknown := lost_since(self.journal.path, self.dispatched)):
            raise DataError(
                f"{self.journal.path} has {counted(unknown, 'rollout')} that this run did not send: another process "
                f"wrote to it. Delete {self.journal.path.parent} to start afresh."
            )

    def as_dict(self) -> dict[str, Any]:
        """All totals as plain JSON; `from_dict` restores them exactly. The journal is not part of it."""
        values = asdict(self)
        del values["journal"]
        return values

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The ledger with these totals. Raises DataError unless fields, outcomes and activities are this version's."""
        names = {f.name for f in fields(cls)} - {"journal"}
        expected = {"": names, "tool_calls": {outcome.value for outcome in ToolOutcome}, "seconds": set(ACTIVITIES)}
        for name, keys in expected.items():
            differing = keys ^ set(data[name] if name else data)
            if differing:
                raise DataError(
                    f"The ledger's {name or 'fields'} differ from this version's in: {', '.join(sorted(differing))}."
                )
        copied = {name: dict(data[name]) for name in ("tool_calls", "seconds")}
        return cls(**{**data, **copied, "budget": Budget(**data["budget"])})

    @classmethod
    def resume(cls, data: Mapping[str, Any], path: Path) -> Self:
        """The ledger of a save; it continues the journal at `path`. Rollouts dispatched after the save become lost. If
        a step was saved between two phases, its reservation stays open for the rest of the step. Raises DataError (see
        `from_dict`, `lost_since`)."""
        ledger = cls.from_dict(data)
        ledger.lost += lost_since(path, ledger.dispatched)
        ledger.journal = ChargeJournal(path)
        return ledger


class Began(NamedTuple):
    """How a path that was sampled in pieces began: fields of its first piece."""

    uid: str
    role: Role
    start_k: int
    parent_uid: str | None


class OpenPaths:
    """A step's paths that are sampled in pieces. The first continuation of an unfinished path extends it; any other
    path is a new rollout."""

    def __init__(self) -> None:
        self._began: dict[str, Began] = {}  # by the uid of each piece
        self._unfinished: set[str] = set()

    def extend(self, starts: Sequence[Task | Boundary]) -> dict[int, str]:
        """The uids of the unfinished paths that the first path from a start extends, by the start's place. They are
        then no longer unfinished."""
        extended = {}
        for place, start in enumerate(starts):
            if isinstance(start, Boundary) and start.is_tip and start.rollout_uid in self._unfinished:
                self._unfinished.remove(start.rollout_uid)
                extended[place] = start.rollout_uid
        return extended

    def add(self, rollouts: Sequence[Rollout], n: int, extended: Mapping[int, str]) -> list[Rollout]:
        """Note n rollouts from each start. extended: what `extend` returned. Returns the whole path of each rollout,
        with all its own turns, under the uid of its first piece."""
        paths = []
        for number, piece in enumerate(rollouts):
            place, sample = divmod(number, n)
            before = extended.get(place) if sample == 0 else None
            parent = self._began.get(piece.parent_uid or "")
            own = Began(piece.uid, piece.role, piece.start_k, parent.uid if parent else piece.parent_uid)
            began = own if before is None else self._began[before]
            if piece.tip is not None:
                self._unfinished.add(piece.uid)
            if piece.tip is not None or before is not None:
                self._began[piece.uid] = began
            paths.append(replace(piece, **began._asdict()))
        return paths


def _not_negative(verb: str, n: int) -> None:
    if n < 0:
        raise ValueError(f"cannot {verb} a negative number of rollouts: {n}")
