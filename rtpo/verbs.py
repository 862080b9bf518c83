"""The verbs that algorithms call, and the descriptor at the end of each algorithm's file.

An algorithm sees rollouts and gives rows with advantages to `update`. It never sees tensors, workers or files.
The harness never sees which algorithm is running.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from rtpo.types import (
    Aggregation,
    Boundary,
    Floats,
    Group,
    OldLogprobs,
    Role,
    RolloutContext,
    Task,
    TrainingContext,
    TrainRow,
)


def _clip_problems(low: float, high: float) -> list[str]:
    if 0 < low < 1 and high > 0:
        return []
    return [
        f"algorithm.clip_low is {low} and algorithm.clip_high {high}: the ratio is clipped to [1 - clip_low, 1 + "
        "clip_high]; use 0 < clip_low < 1 and clip_high > 0."
    ]


class Loss(Protocol):
    """The loss of an update, with its coefficients. `rtpo.core.losses` computes it.

    rows_together: number of consecutive rows in one term of the loss. trains_ties: whether rows whose advantages are
    all 0 have a gradient. old_logprobs, kl: as in `TokenClip`.
    """

    rows_together: ClassVar[int]
    trains_ties: ClassVar[bool]

    @property
    def old_logprobs(self) -> OldLogprobs: ...

    @property
    def kl(self) -> float: ...

    def problems(self) -> list[str]:
        """A sentence for each invalid number, naming the algorithm's field."""
        ...


@dataclass(frozen=True, slots=True)
class TokenClip:
    """PPO's clipped token objective (eq. per-turn-obj): min(rho A, clip(rho, 1-low, 1+high) A) for each token.

    dual_clip: c; the loss of a token with A < 0 is at most c |A| (verl's `clip_ratio_c`). None: the paper's formula.
    old_logprobs: source of the ratio's denominator. `rollout`: the engine that sampled (eq. is-mismatch-short).
        `recompute`: the trainer before the first update, in the training context.
    kl: coefficient of the k3 estimate of KL(policy || reference), in nats, added to the loss.
    """

    rows_together: ClassVar[int] = 1
    trains_ties: ClassVar[bool] = False

    low: float = 0.2
    high: float = 0.2
    dual_clip: float | None = None
    old_logprobs: OldLogprobs = "recompute"
    kl: float = 0.0

    def problems(self) -> list[str]:
        problems = _clip_problems(self.low, self.high)
        if self.dual_clip is not None and self.dual_clip <= 1:
            problems.append(f"algorithm.dual_clip is {self.dual_clip}: it bounds a ratio; use more than 1, or null.")
        return problems


@dataclass(frozen=True, slots=True)
class SequenceClip:
    """GSPO's objective: one ratio a row, exp(mean log-ratio over its trained tokens), clipped like a token's."""

    rows_together: ClassVar[int] = 1
    trains_ties: ClassVar[bool] = False

    low: float = 0.2
    high: float = 0.2
    old_logprobs: OldLogprobs = "recompute"
    kl: float = 0.0

    def problems(self) -> list[str]:
        return _clip_problems(self.low, self.high)


@dataclass(frozen=True, slots=True)
class SquaredPair:
    """REFUEL's objective on pairs of rows: (l_1 - l_2 - eta (A_1 - A_2))^2; l sums a row's log-ratios over its tokens.

    Rows 2i and 2i+1 are a pair and stay in one micro-batch. Only the difference of their advantages counts.
    """

    rows_together: ClassVar[int] = 2
    trains_ties: ClassVar[bool] = True

    eta: float = 1.0
    old_logprobs: OldLogprobs = "recompute"
    kl: float = 0.0

    def problems(self) -> list[str]:
        if self.eta > 0:
            return []
        return [f"algorithm.eta is {self.eta}: it scales the return difference; use a number above 0."]


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """What an `update` did. optimizer_steps: 0 if no row had a gradient. policy_version: after the update. scores: what
    `score` would have given for the rows before the update; empty unless requested."""

    optimizer_steps: int
    policy_version: int
    scores: list[Floats]


class Harness(Protocol):
    """What an algorithm can do. K is `max_turns`."""

    @property
    def max_turns(self) -> int: ...

    @property
    def vocabulary_size(self) -> int: ...

    @property
    def step(self) -> int:
        """Number of data steps before this one."""
        ...

    @property
    def budget_share(self) -> float:
        """The share of the rollout budget charged before this step, in [0, 1); constant within a step."""
        ...

    @property
    def state(self) -> dict[str, Any]:
        """What this algorithm keeps across steps; empty in the first step. Saves include it.

        Small plain data: dict with str keys, list, str, int, finite float, bool, None. Other data raise AlgorithmError
        at the step's end.
        """
        ...

    def log(self, name: str, value: float) -> None:
        """Record a finite number for this step, under `algorithm` in its line of steps.jsonl and in tracking.
        Raises AlgorithmError for an invalid name or value, and for a repeated name."""
        ...

    def random(self, name: str) -> np.random.Generator:
        """A generator of this step's own stream `name`: the same seed, step and name give the same draws."""
        ...

    def rollout(
        self,
        starts: Sequence[Task] | Sequence[Boundary],
        *,
        n: int,
        role: Role,
        turns: int | None = None,
        top_logprobs: int = 0,
    ) -> list[Group]:
        """Sample n paths from each start, to the end or for `turns` turns. Group i belongs to starts[i].

        top_logprobs: number of the largest log-probs to return at each position.
        Charges the budget, except for `Role.FREE`. Raises BudgetExceeded past the step's reservation, StaleEngine if
        the engine does not hold the weights of the last synchronisation.
        """
        ...

    def score(self, rows: Sequence[TrainRow]) -> list[Floats]:
        """Log-probs of each row's trained tokens under the current weights, in row order: [mask.sum()] each."""
        ...

    def reference(self, rows: Sequence[TrainRow]) -> list[Floats]:
        """As `score`, under the initial policy. Raises AlgorithmError if the run does not keep that policy
        (`Algorithm.has_reference`)."""
        ...

    def update(
        self, rows: Sequence[TrainRow], loss: Loss, *, epochs: int = 1, minibatches: int = 1, scores: bool = False
    ) -> Update:
        """Train on rows, with one optimizer step per mini-batch. Each holds whole groups, equally many or one more.

        A mini-batch without any gradient (all advantages 0, no KL, not `Loss.trains_ties`) takes no step. scores: also
        return the rows' log-probs before the update.
        """
        ...

    def sync(self) -> int:
        """Give the engine the current weights, reset its caches, and return the weights' version. Does nothing if the
        engine already holds them, unless it sleeps or the run is deterministic."""
        ...


@dataclass(frozen=True)
class AlgorithmConfig:
    """The fields that all algorithms have. Their values stand in configs/algorithm/; a task's file may replace `kl`.

    name: name of the algorithm's file in rtpo/ or baselines/.
    label: this configuration's name in records and tables.
    rollout_context: what the policy sees of earlier turns, without their thinking (`strip_think`) or with it (`full`).
    training_context: what the update conditions on, the recorded c_k or the whole flattened history.
    clip_low, clip_high: the ratio's clip range (Algorithm 1's epsilon), if the loss clips.
    epochs: passes over the rows of an update.
    minibatches: optimizer steps in each pass.
    kl: coefficient of the k3 loss against the initial policy.
    """

    name: str
    label: str
    rollout_context: RolloutContext
    training_context: TrainingContext
    clip_low: float
    clip_high: float
    epochs: int
    minibatches: int
    kl: float

    @property
    def loss(self) -> Loss | None:
        """What updates minimise; None without updates. Its numbers are checked before anything starts."""
        return None


@dataclass(frozen=True)
class PathConfig(AlgorithmConfig):
    """Further fields of algorithms that train whole paths. The loss is the token clip.

    aggregation: the loss is a mean over paths of the mean over their tokens (`path`, verl's `seq-mean-token-mean`), or
        over all tokens (`token`, verl's `token-mean`).
    old_logprobs, dual_clip: as in `TokenClip`.
    """

    aggregation: Aggregation
    old_logprobs: OldLogprobs
    dual_clip: float | None

    @property
    def loss(self) -> Loss:
        return TokenClip(self.clip_low, self.clip_high, self.dual_clip, self.old_logprobs, self.kl)


@dataclass(frozen=True)
class Algorithm:
    """An algorithm's descriptor: the last thing in its file, read by composition checks and the comparison table."""

    config: type[AlgorithmConfig]
    step: Callable[[Harness, Sequence[Task], Any], None]
    """one data step: (harness, the step's tasks, config)"""
    rollouts_per_task: Callable[[Any, int], int]
    """worst case of rollouts for one task: (config, K); 0 without training"""
    check: Callable[[Any], list[str]]
    """a sentence for each invalid field or combination of fields: (config)"""
    plan: str
    """which paths a step samples; this and the next five are cells of the comparison table"""
    credit: str
    """how advantages are computed"""
    schedule: str
    """number and order of a step's updates"""
    contexts: str
    """what trained turns are conditioned on"""
    loss: str
    """the loss's class in words, such as `token clip`; `none` without training"""
    trained: str
    """which tokens carry loss"""
    needs_reference: bool = False
    """its step calls `Harness.reference`"""
    is_rung: bool = False
    """it is a rung of the ladder (docs/method/methods.md), so it has no page and no line in the table of methods"""

    def has_reference(self, config: AlgorithmConfig) -> bool:
        """Whether a run keeps the initial policy: its step calls for it, or its loss has a KL."""
        return self.needs_reference or (config.loss is not None and config.loss.kl > 0)
