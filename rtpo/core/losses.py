"""The losses of `rtpo.verbs`, in torch, over concatenated tokens.

Each returns the sum over tokens of weight x loss. The weights of a mini-batch sum to 1, so the sums of its
micro-batches add up to its loss. A ratio's logarithm is clamped to [-10, 10] before exp (the paper's "log-probability
clipping"); `k3` has its own bounds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rtpo.verbs import Loss, SequenceClip, SquaredPair, TokenClip

LOG_RATIO_LIMIT = 10.0


@dataclass(frozen=True)
class TokenBatch:
    """The trained tokens of a micro-batch. Tensors have one entry for each token."""

    logprobs: Tensor  # with gradient
    old: Tensor | None  # log-probs in the ratio's denominator; None takes the current `logprobs`
    advantage: Tensor
    weight: Tensor
    row: Tensor  # index of the token's row, ascending
    rows: int  # number of rows
    reference: Tensor | None = None  # the reference policy's log-probs, if there is a KL

    @property
    def log_ratio(self) -> Tensor:
        return self.logprobs - (self.logprobs.detach() if self.old is None else self.old)


def loss(batch: TokenBatch, spec: Loss) -> tuple[Tensor, dict[str, float]]:
    """The loss to minimise, and sums for the metrics: `tokens`, `clipped`, `policy_loss`, `kl_loss`, `residual` (the
    squared error of SquaredPair, else 0)."""
    if type(spec) not in LOSSES:
        raise TypeError(f"unknown loss {spec!r}: use one of {', '.join(kind.__name__ for kind in LOSSES)}")
    policy_loss, clipped = LOSSES[type(spec)](batch, spec)
    total, kl_loss = policy_loss, 0.0
    if batch.reference is not None:
        kl = (batch.weight * k3(batch.logprobs, batch.reference)).sum()
        total, kl_loss = policy_loss + spec.kl * kl, float(kl.detach())
    return total, {
        "tokens": float(batch.logprobs.numel()),
        "clipped": float(clipped),
        "policy_loss": float(policy_loss.detach()),
        "kl_loss": kl_loss,
        "residual": float(policy_loss.detach()) if isinstance(spec, SquaredPair) else 0.0,
    }


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Per-token k3 estimate of KL(policy || reference): exp(d) - 1 - d with d = reference - policy. As in verl's
    `low_var_kl`, d is clamped to [-20, 20] and the estimate to [-10, 10]."""
    d = (reference - logprobs).clamp(-2 * LOG_RATIO_LIMIT, 2 * LOG_RATIO_LIMIT)
    return (d.exp() - 1 - d).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def _ratio(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def _clipped(ratio: Tensor, advantage: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    surrogate = -ratio * advantage
    bound = -ratio.clamp(1 - low, 1 + high) * advantage
    return torch.maximum(surrogate, bound), (bound > surrogate).sum()


def _token_clip(batch: TokenBatch, spec: TokenClip) -> tuple[Tensor, Tensor]:
    per_token, clipped = _clipped(_ratio(batch.log_ratio), batch.advantage, spec.low, spec.high)
    if spec.dual_clip is not None:
        bound = torch.minimum(per_token, -batch.advantage * spec.dual_clip)
        per_token = torch.where(batch.advantage < 0, bound, per_token)
    return (batch.weight * per_token).sum(), clipped


def _row_sums(values: Tensor, batch: TokenBatch) -> Tensor:
    return torch.zeros(batch.rows, dtype=values.dtype, device=values.device).index_add(0, batch.row, values)


def _sequence_clip(batch: TokenBatch, spec: SequenceClip) -> tuple[Tensor, Tensor]:
    log_ratio = batch.log_ratio
    tokens = _row_sums(torch.ones_like(log_ratio), batch).clamp(min=1)
    mean = _row_sums(log_ratio, batch) / tokens
    # the sequence's ratio, but with each token's own gradient (GSPO-token), since advantages may differ by token
    ratio = _ratio(mean[batch.row].detach() + batch.logprobs - batch.logprobs.detach())
    per_token, clipped = _clipped(ratio, batch.advantage, spec.low, spec.high)
    return (batch.weight * per_token).sum(), clipped


def _squared_pair(batch: TokenBatch, spec: SquaredPair) -> tuple[Tensor, Tensor]:
    tokens = _row_sums(torch.ones_like(batch.weight), batch).clamp(min=1)
    log_ratio = _row_sums(batch.log_ratio, batch).view(-1, 2)
    value = (_row_sums(batch.advantage, batch) / tokens).view(-1, 2)
    weight = _row_sums(batch.weight, batch).view(-1, 2).sum(1)
    error = (log_ratio[:, 0] - log_ratio[:, 1]) - spec.eta * (value[:, 0] - value[:, 1])
    return (weight * error.square()).sum(), torch.zeros(())


LOSSES: dict[type, Callable[[TokenBatch, Any], tuple[Tensor, Tensor]]] = {
    TokenClip: _token_clip,
    SequenceClip: _sequence_clip,
    SquaredPair: _squared_pair,
}
"""each returns the sum over tokens of weight x loss, and the number of clipped tokens"""
