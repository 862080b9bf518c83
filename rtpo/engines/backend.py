"""What the harness needs of a trainer and its rollout engine; `rtpo.verl_harness` provides it with verl."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rtpo.core.packing import Packed
from rtpo.engines.base import Engine
from rtpo.types import Floats
from rtpo.verbs import Loss


@dataclass(frozen=True, slots=True, eq=False)
class TokenScores:
    """Log-probs and entropies, in nats, of the trained tokens of a packed batch, concatenated in row order."""

    logprobs: Floats
    entropy: Floats  # empty for the reference policy
    computed_tokens: int  # computed by the forward pass, each shared prefix once; 0 for scores of a step


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one optimizer step."""

    grad_norm: float  # before clipping
    loss: float
    sums: Mapping[str, float]  # sums for the metrics, such as `clipped` (`rtpo.core.losses.loss`)
    lr: float  # that the step used
    computed_tokens: int  # as in `TokenScores`
    scores: TokenScores | None = None  # of the step's forward pass, before the weights change; None if not requested


class Backend(Protocol):
    """A policy that can be trained and a rollout engine that serves a copy of it."""

    @property
    def engine(self) -> Engine: ...

    @property
    def is_serving(self) -> bool:
        """Whether the engine can generate. Where it shares the trainer's memory, it sleeps from training on until the
        next push."""
        ...

    @property
    def has_reference(self) -> bool:
        """Whether it keeps the initial policy."""
        ...

    @property
    def prefilled_tokens(self) -> int | None:
        """Context tokens that the engine computed so far; None if it does not report them."""
        ...

    def score(self, packed: Packed, *, apart: bool = False, shift: int = 0) -> TokenScores:
        """Score a packed batch's trained tokens. The options are for checks of the scores.

        apart: compute each row by itself, not as part of a tree.
        shift: add it to all positions; changes rounding only. Raises ConfigError if positions are not rotary.
        """
        ...

    def reference(self, packed: Packed) -> TokenScores:
        """Log-probs of the trained tokens under the initial policy; needs `has_reference`."""
        ...

    def step(self, packed: Packed, reference: Floats | None, loss: Loss, *, scored: bool = False) -> StepResult:
        """Take one optimizer step. Where `packed` has no old log-probs, those of the step's forward pass are used.

        reference: the initial policy's log-probs, if the loss has a KL. scored: return this pass's scores too.
        """
        ...

    def push(self, version: int) -> None:
        """Give the engine the trainer's weights under this version and empty its caches.

        Raises StaleEngine when the engine then reports another version or a cache that is not empty.
        """
        ...

    def save(self, folder: Path) -> None:
        """Write weights, optimizer and the trainer's random state. Raises MachineError when they cannot be written."""
        ...

    def load(self, folder: Path) -> None:
        """Go back to what `save` wrote. Raises DataError when it cannot be read."""
        ...
