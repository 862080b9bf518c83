"""The nouns of the project, in the paper's notation (Sec. 3.1 and Algorithm 1).

An episode asks q (a `Task`) and takes turns k = 0..L-1, L <= K. At the boundary of turn k:

    S_k     full history so far                     -> `Boundary.history`
    snap_k  state of the environment                -> `Turn.snapshot`
    c_k     psi(S_k), the engine's ids for S_k      -> `Turn.context_ids`
    u_k     the sampled ids, stop token included    -> `Turn.output_ids`
    f_k     what the environment answers            -> `Turn.feedback_ids`
    R       the terminal reward                     -> `Rollout.reward`

Sampled ids are used as they are, never decoded and encoded again. Everything here is frozen. Ids are int32 arrays and
log-probs float32 arrays, with one entry for each token.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rtpo.core.names import counted

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
RolloutContext = Literal["strip_think", "full"]
TrainingContext = Literal["recorded", "flattened"]
OldLogprobs = Literal["rollout", "recompute"]  # source of the ratio's denominator (`rtpo.verbs.TokenClip`)
Aggregation = Literal["path", "token"]  # what the loss is a mean over (`rtpo.verbs.PathConfig`)


def as_ids(ids: Any) -> Ids:
    """Token ids as a read-only int32 array."""
    array = np.asarray(ids, dtype=np.int32)
    array.flags.writeable = False
    return array


class StopReason(StrEnum):
    """Why the engine stopped a turn."""

    STOP = "stop"
    """the stop token was sampled; it is the last output id"""
    LENGTH = "length"
    """the turn's token limit was reached; the output has no stop token"""


class ToolOutcome(StrEnum):
    """How a tool call ended. The policy sees failures only if it caused them."""

    OK = "ok"
    PROGRAM_ERROR = "program_error"
    """the tool ran the policy's call, which failed"""
    TIMEOUT = "timeout"
    """the policy's program reached its limit of CPU or wall-clock time"""
    MEMORY = "memory"
    """the policy's program reached its memory limit"""
    INTERPRETER_ENDED = "interpreter_ended"
    """the policy's program ended its interpreter at every attempt, but a test program ran: the tool works"""
    REFUSED = "refused"
    """the call was readable, but broke a rule in the policy's prompt and was not run"""
    MALFORMED = "malformed"
    """the call could not be read"""
    INFRASTRUCTURE = "infrastructure"
    """the tool itself failed, after retries"""


class Termination(StrEnum):
    """How an episode ended."""

    ANSWERED = "answered"
    """the policy gave a final reply"""
    TURN_LIMIT = "turn_limit"
    """K turns were taken without a final reply"""
    CONTEXT_LIMIT = "context_limit"
    """the next context would not fit the model"""
    OPEN = "open"
    """not ended: it stopped after the requested number of turns, and can be continued from `Rollout.tip`"""


class GradeOutcome(StrEnum):
    """Whether a reward exists. A rollout that could not be graded has no reward: it is not a 0."""

    GRADED = "graded"
    UNGRADABLE = "ungradable"
    PENDING = "pending"
    """the episode has not ended"""


class Role(StrEnum):
    """What a path is for."""

    TRUNK = "trunk"
    """gives boundaries and is never trained"""
    SIBLING = "sibling"
    """forked from a boundary and compared with the boundary's other siblings"""
    CHAIN = "chain"
    """an independent path from the task"""
    BRANCH = "branch"
    """forked from a boundary, trained as a whole"""
    FREE = "free"
    """counted, but not charged to the budget: for studies of better credit, not for methods"""
    EVAL = "eval"
    """evaluation; not charged to the training budget"""


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message, as the chat template takes it."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


@dataclass(frozen=True, slots=True)
class Task:
    """A problem q. `uid` names it in every record; `answer` and `meta` are for its environment alone."""

    uid: str
    question: str
    answer: Any
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """snap_k: the environment's state, picklable and never changed in place. Digests are equal iff states are."""

    state: Any
    digest: str


@dataclass(frozen=True, slots=True)
class Opening:
    """S_0: the first messages, and the tools that the policy may call. A tool is the JSON text of an entry of a chat
    template's `tools`."""

    messages: tuple[Message, ...]
    tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool call: the tool's name (empty if the call names no existing tool) and how the call ended."""

    tool: str
    outcome: ToolOutcome


@dataclass(frozen=True, slots=True)
class Feedback:
    """The answer f_k to a reply: messages to add, whether the episode is over, and the reply's tool calls in order."""

    messages: tuple[Message, ...]
    done: bool
    calls: tuple[ToolUse, ...] = ()


@dataclass(frozen=True, slots=True)
class Grade:
    """The outcome of grading an ended episode. `reward` is None exactly when `outcome` is not GRADED.

    spoiled: the answer alone made the grader fail, for example by taking too long, so the reward is 0.
    """

    outcome: GradeOutcome
    reward: float | None
    detail: str = ""  # text for the records, such as why there is no reward
    spoiled: bool = False

    def __post_init__(self) -> None:
        if (self.reward is not None) != (self.outcome is GradeOutcome.GRADED):
            raise ValueError(f"reward {self.reward!r} does not go with grade outcome {self.outcome.value!r}")


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One generated turn.

    context_ids: c_k, exactly as the engine received them.
    output_ids:  u_k, exactly as sampled.
    logprobs:    [len(u_k)] log-probs of u_k under the engine, at the sampling temperature, in nats.
    feedback_ids: the ids put between u_k and u_{k+1} in the next context; empty after an answer and after turn K-1.
    top_logprobs: [len(u_k), n] largest log-probs at each position, if the rollout asked for them.
    """

    k: int
    context_ids: Ids
    output_ids: Ids
    logprobs: Floats
    policy_version: int
    stop: StopReason
    snapshot: Snapshot
    feedback_ids: Ids
    calls: tuple[ToolUse, ...] = ()
    top_logprobs: Floats | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Boundary:
    """S_k: a place an episode can be continued from, any number of times. It lies on the path `rollout_uid`.

    is_tip: it is the end of an open path. The first continuation of a tip extends that path and is not a new rollout
        (`rtpo.harness.budget`).
    """

    task: Task
    k: int
    context_ids: Ids
    history: tuple[Turn, ...]
    snapshot: Snapshot
    rollout_uid: str
    is_tip: bool = False

    @property
    def uid(self) -> str:
        return f"{self.rollout_uid}/{self.k}"


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """One sampled path. `turns` runs from turn 0; those before `start_k` are inherited from the path `parent_uid`.
    `tip` is the end of an open path."""

    uid: str
    task: Task
    role: Role
    start_k: int
    parent_uid: str | None
    turns: tuple[Turn, ...]
    termination: Termination
    grade: Grade
    tip: Boundary | None = None

    @property
    def reward(self) -> float:
        """R. Raises ValueError without a reward: check `is_graded` first."""
        if self.grade.reward is None:
            raise ValueError(f"rollout {self.uid} has no reward (grade {self.grade.outcome.value})")
        return self.grade.reward

    @property
    def is_graded(self) -> bool:
        return self.grade.outcome is GradeOutcome.GRADED

    @property
    def own_turns(self) -> tuple[Turn, ...]:
        """The turns this path sampled itself."""
        return self.turns[self.start_k :]

    def boundary(self, k: int) -> Boundary:
        """S_k of a turn that this path took, or its tip. Raises IndexError for any other k."""
        if self.tip is not None and k == self.tip.k:
            return self.tip
        if not 0 <= k < len(self.turns):
            raise IndexError(f"rollout {self.uid} took {counted(len(self.turns), 'turn')}: it has no boundary {k}")
        turn = self.turns[k]
        return Boundary(self.task, k, turn.context_ids, self.turns[:k], turn.snapshot, self.uid)


Group = tuple[Rollout, ...]
"""The rollouts of one `rollout` call that share a start."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainRow:
    """One sequence to train on. Arrays have one entry for each id; where `mask` is False, all but `ids` are 0.

    mask:      True on the ids that carry loss (sampled ids only).
    advantage: A of each trained token.
    weight:    each trained token's share of the loss; normalised to sum to 1 in a mini-batch (docs/extend/harness.md).
    rollout_logprobs: log-probs under the engine that sampled the tokens.
    turn_index: k of each trained token.
    group:     name of the row's prompt or boundary; mini-batches never split a group.
    turns:     the turns of the trained tokens.
    """

    ids: Ids
    mask: npt.NDArray[np.bool_]
    advantage: Floats
    weight: Floats
    rollout_logprobs: Floats
    turn_index: npt.NDArray[np.int16]
    group: str
    rollout_uid: str
    turns: tuple[Turn, ...]

    @property
    def is_tied(self) -> bool:
        """Whether every advantage is 0."""
        return not self.advantage.any()
