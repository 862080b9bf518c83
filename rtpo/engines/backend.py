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
    """Log-probs and entropies, in nats, of the trained tokens of a packed batch, concatenated in row order; the
    reference's have no entropies. computed_tokens: those that a forward pass computed for them, 0 where an optimizer
    step's own gave them: a trainer that computes a prefix once for several rows says so here, and in `StepResult`."""

    logprobs: Floats
    entropy: Floats
    computed_tokens: int


@dataclass(frozen=True, slots=True)
class StepResult:
    """One optimizer step: the gradient's norm before clipping, the loss, the sums `rtpo.core.losses` reports, the
    learning rate that the optimizer had, and the tokens that it computed. scores: where they were asked for, those of
    the step's own forward, under the weights before it."""

    grad_norm: float
    loss: float
    sums: Mapping[str, float]
    lr: float
    computed_tokens: int
    scores: TokenScores | None = None


class Backend(Protocol):
    """A policy that can be trained and a rollout engine that serves a copy of it."""

    @property
    def engine(self) -> Engine: ...

    @property
    def is_serving(self) -> bool:
        """Whether the engine can generate. Where trainer and engine share a GPU, training puts the engine to sleep
        until the next push."""
        ...

    @property
    def has_reference(self) -> bool:
        """Whether it keeps the initial policy."""
        ...

    @property
    def prefilled_tokens(self) -> int | None:
        """Context tokens that the engine computed so far; None where it does not tell."""
        ...

    def score(self, packed: Packed, *, apart: bool = False, shift: int = 0) -> TokenScores:
        """For comparisons: with `apart` every row is computed whole, whatever it shares with others; `shift` is added
        to all positions, which changes rounding alone. Raises ConfigError where a model's positions are not rotary."""
        ...

    def reference(self, packed: Packed) -> TokenScores:
        """Log-probs of the trained tokens under the initial policy; asked of a backend that has it alone."""
        ...

    def step(self, packed: Packed, reference: Floats | None, loss: Loss, *, scored: bool = False) -> StepResult:
        """scored: its own forward's log-probs and entropies are wanted. Where `packed` has no old log-probs, they are
        these."""
        ...

    def push(self, version: int) -> None:
        """Give the engine the trainer's weights under this version and empty its caches.

        Raises StaleEngine when the engine then reports another version or a cache that is not empty.
        """
        ...

    def save(self, folder: Path) -> None:
        """Weights, optimizer and the trainer's random state. Raises MachineError when they cannot be written."""
        ...

    def load(self, folder: Path) -> None:
        """Go back to what `save` wrote. Raises DataError when it cannot be read."""
        ...
