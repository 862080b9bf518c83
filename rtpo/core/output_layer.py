"""Log-probs of chosen ids without all logits in memory at once. A position has a logit for each token of the
vocabulary, so all logits would take more memory than the rest of a small model's update. They are computed in pieces,
and computed again for their gradient."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

PIECE = 2**24
"""logits in a piece; its copies in bf16 and fp32 take 96 MiB"""


def score_at(model: Any, labels: Tensor, temperature: float, *, with_entropy: bool) -> None:
    """Make a causal model's output layer return scores in place of logits: [1, n, 2] for [1, n, hidden] states.

    labels: [n]. The two scores are the label's log-prob and the distribution's entropy, or 0 without `with_entropy`.
    """
    head = model.get_output_embeddings()
    head.score_arguments = labels, temperature, with_entropy
    if "forward" not in vars(head):
        head.forward = partial(_scored, head)


def _scored(head: Any, hidden: Tensor) -> Tensor:
    labels, temperature, with_entropy = head.score_arguments
    scores: Tensor = LabelScores.apply(hidden[0], head.weight, labels, temperature, with_entropy)
    return scores


class LabelScores(torch.autograd.Function):
    """Scores [1, n, 2]: each label's log-prob in nats under softmax(hidden @ weight.T / temperature), and the
    distribution's entropy, which has no gradient.

    hidden: [n, H]; weight: [V, H]; labels: [n]. Logits and their gradient are rounded to the type of hidden,
    as in vLLM and transformers. Softmax and scores are computed in fp32, or in the type of hidden if that is wider.
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
            values = logits.piece(part)
            chosen = values.gather(-1, labels[part, None])[:, 0]
            largest = values.amax(-1, keepdim=True)
            unnormalised = values.sub_(largest).exp_()
            total = unnormalised.sum(-1, keepdim=True)
            normaliser[part] = (total.log() + largest)[:, 0]
            scores[0, part, 0] = chosen - normaliser[part]
            if with_entropy:
                probabilities = unnormalised.div_(total)
                scores[0, part, 1] = torch.special.entr(probabilities, out=probabilities).sum(-1)
        ctx.save_for_backward(hidden, weight, labels, normaliser)
        ctx.temperature = temperature
        return scores

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        hidden, weight, labels, normaliser = ctx.saved_tensors
        hidden_gradient, weight_gradient = torch.empty_like(hidden), torch.zeros_like(weight, dtype=gradient.dtype)
        scaled_gradient = gradient[0, :, :1] / ctx.temperature
        logits = _Logits(hidden, weight, ctx.temperature)
        for part in logits.parts:
            probabilities = logits.piece(part).sub_(normaliser[part, None]).exp_()
            scale = scaled_gradient[part]
            logit_gradient = logits.rounded(probabilities.mul_(-scale).scatter_add_(-1, labels[part, None], scale))
            hidden_gradient[part] = logit_gradient @ weight
            weight_gradient += logit_gradient.T @ hidden[part]
        return hidden_gradient, weight_gradient.to(weight.dtype), None, None, None


class _Logits:
    """Logits by piece. All pieces share buffers, since allocating memory would take longer than the arithmetic."""

    def __init__(self, hidden: Tensor, weight: Tensor, temperature: float) -> None:
        self._hidden, self._weight, self._temperature = hidden, weight, temperature
        size = min(len(hidden), max(1, PIECE // len(weight)))
        self.parts = [slice(start, start + size) for start in range(0, len(hidden), max(1, size))]
        self._narrow = hidden.new_empty(size, len(weight))
        wide = torch.promote_types(hidden.dtype, torch.float32)
        self._wide = self._narrow if wide == hidden.dtype else torch.empty_like(self._narrow, dtype=wide)

    def piece(self, part: slice) -> Tensor:
        """A piece's logits [n, V], divided by the temperature. The next call overwrites them."""
        states = self._hidden[part]
        narrow = torch.mm(states, self._weight.T, out=self._narrow[: len(states)])
        wide = self._wide[: len(states)]
        return (wide if wide.dtype == narrow.dtype else wide.copy_(narrow)).div_(self._temperature)

    def rounded(self, values: Tensor) -> Tensor:
        """A piece's values, rounded to the type of hidden."""
        narrow = self._narrow[: len(values)]
        return values if values.dtype == narrow.dtype else narrow.copy_(values)
