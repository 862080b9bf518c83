"""Log-probs of chosen ids without the logits of all places at once: these are a vocabulary wide, and would take more
memory than the rest of a small model's update. Logits are computed in pieces, and again for their gradient.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

PIECE = 2**24
"""logits of a piece: 96 MiB with those of bf16 beside those of fp32"""


def score_at(model: Any, labels: Tensor, temperature: float, *, with_entropy: bool) -> None:
    """From now on a causal model's output layer gives, in place of logits, [1, n, 2] the log-prob of each label and the
    entropy of its distribution (0 where not asked for), for [1, n, hidden] states.

    labels: [n].
    """
    head = model.get_output_embeddings()
    head.asked = labels, temperature, with_entropy
    if "forward" not in vars(head):
        head.forward = partial(_scored, head)


def _scored(head: Any, hidden: Tensor) -> Tensor:
    labels, temperature, with_entropy = head.asked
    scores: Tensor = TokenScores.apply(hidden[0], head.weight, labels, temperature, with_entropy)
    return scores


class TokenScores(torch.autograd.Function):
    """[1, n, 2] in fp32, or the states' own wider type: the log-prob in nats of each label under
    softmax(hidden @ weight.T / temperature), and the distribution's entropy, which has no gradient.

    hidden: [n, H]; weight: [V, H]; labels: [n]. Logits are rounded to the states' type, as vLLM and transformers do;
    all that follows, and the sum of the weight's gradient over pieces, is in fp32.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, temperature: float, with_entropy: bool
    ) -> Tensor:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        scores = hidden.new_zeros(1, len(hidden), 2, dtype=wide)
        normaliser = hidden.new_empty(len(hidden), dtype=wide)
        logits = _Logits(hidden, weight, temperature)
        for part in logits.parts:
            values = logits.of(part)
            chosen = values.gather(-1, labels[part, None])[:, 0]
            largest = values.amax(-1, keepdim=True)
            odds = values.sub_(largest).exp_()
            total = odds.sum(-1, keepdim=True)
            normaliser[part] = (total.log() + largest)[:, 0]
            scores[0, part, 0] = chosen - normaliser[part]
            if with_entropy:
                probabilities = odds.div_(total)
                scores[0, part, 1] = torch.special.entr(probabilities, out=probabilities).sum(-1)
        ctx.save_for_backward(hidden, weight, labels, normaliser)
        ctx.temperature = temperature
        return scores

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        hidden, weight, labels, normaliser = ctx.saved_tensors
        of_hidden, of_weight = torch.empty_like(hidden), torch.zeros_like(weight, dtype=gradient.dtype)
        shares = gradient[0, :, :1] / ctx.temperature
        logits = _Logits(hidden, weight, ctx.temperature)
        for part in logits.parts:
            odds = logits.of(part).sub_(normaliser[part, None]).exp_()
            odds.mul_(-shares[part]).scatter_add_(-1, labels[part, None], shares[part])
            slopes = logits.rounded(odds)
            of_hidden[part] = slopes @ weight
            of_weight += slopes.T @ hidden[part]
        return of_hidden, of_weight.to(weight.dtype), None, None, None


class _Logits:
    """Logits by piece, in buffers that every piece uses again: fresh memory would take longer than the arithmetic."""

    def __init__(self, hidden: Tensor, weight: Tensor, temperature: float) -> None:
        self._hidden, self._weight, self._temperature = hidden, weight, temperature
        size = min(len(hidden), max(1, PIECE // len(weight)))
        self.parts = [slice(start, start + size) for start in range(0, len(hidden), max(1, size))]
        self._narrow = hidden.new_empty(size, len(weight))
        wide = torch.promote_types(hidden.dtype, torch.float32)
        self._wide = self._narrow if wide == hidden.dtype else torch.empty_like(self._narrow, dtype=wide)

    def of(self, part: slice) -> Tensor:
        """[n, V] of the states of a piece, divided by the temperature. The next piece's take their place."""
        states = self._hidden[part]
        narrow = torch.mm(states, self._weight.T, out=self._narrow[: len(states)])
        wide = self._wide[: len(states)]
        return (wide if wide.dtype == narrow.dtype else wide.copy_(narrow)).div_(self._temperature)

    def rounded(self, values: Tensor) -> Tensor:
        """Values of a piece in the states' type."""
        narrow = self._narrow[: len(values)]
        return values if values.dtype == narrow.dtype else narrow.copy_(values)
