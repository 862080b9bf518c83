"""Log-probs in pieces against those of all logits at once."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rtpo.core import output_layer
from rtpo.core.output_layer import LabelScores, score_at

STATES, HIDDEN, TOKENS, TEMPERATURE = 23, 16, 301, 0.7


def drawn(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """States, weight, labels, and what the loss asks of each label's log-prob."""
    draw = torch.Generator().manual_seed(0)
    states, weight = (torch.randn(n, HIDDEN, generator=draw, dtype=torch.double) for n in (STATES, TOKENS))
    labels = torch.randint(TOKENS, (STATES,), generator=draw)
    slopes = torch.randn(STATES, generator=draw, dtype=torch.double)
    return states.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), labels, slopes


def in_pieces(dtype: torch.dtype) -> tuple[Tensor, ...]:
    states, weight, labels, slopes = drawn(dtype)
    (scores,) = LabelScores.apply(states, weight, labels, TEMPERATURE, True)  # type: ignore[no-untyped-call]
    (scores[:, 0] * slopes).sum().backward()
    assert states.grad is not None
    assert weight.grad is not None
    return scores[:, 0].detach(), scores[:, 1].detach(), states.grad, weight.grad


def at_once(dtype: torch.dtype) -> tuple[Tensor, ...]:
    """In double precision, of numbers that were rounded to `dtype`."""
    states, weight, labels, slopes = drawn(dtype)
    states, weight = (x.detach().double().requires_grad_() for x in (states, weight))
    logprobs = (states @ weight.T / TEMPERATURE).log_softmax(-1)
    chosen = logprobs.gather(-1, labels[:, None])[:, 0]
    (chosen * slopes).sum().backward()
    assert states.grad is not None
    assert weight.grad is not None
    return chosen.detach(), -(logprobs.exp() * logprobs).sum(-1).detach(), states.grad, weight.grad


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.double, 1e-13), (torch.float32, 1e-6), (torch.bfloat16, 2**-6)])
@pytest.mark.parametrize("states_in_piece", [0.5, 1, 7, STATES])
def test_pieces_of_any_size_give_the_plain_values_and_gradient(
    dtype: torch.dtype, rounding: float, states_in_piece: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_layer, "PIECE", int(states_in_piece * TOKENS))
    for ours, plain in zip(in_pieces(dtype), at_once(dtype), strict=True):
        assert (ours.double() - plain).norm() < rounding * plain.norm()


def test_no_tensor_is_larger_than_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    class Listening(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, _: Any, arguments: Any = (), named: Any = None) -> Any:
            output = function(*arguments, **(named or {}))
            sizes.extend(x.numel() for x in torch.utils._pytree.tree_leaves(output) if isinstance(x, Tensor))
            return output

    monkeypatch.setattr(output_layer, "PIECE", TOKENS * HIDDEN)  # of the weight's own size
    with Listening():
        in_pieces(torch.float32)
    assert STATES * TOKENS > max(sizes) == TOKENS * HIDDEN


def test_a_models_output_layer_gives_the_scores_of_its_last_labels() -> None:
    states, weight, labels, _ = drawn(torch.float32)
    head = torch.nn.Linear(HIDDEN, TOKENS, bias=False)
    head.weight = torch.nn.Parameter(weight.detach())
    model = SimpleNamespace(get_output_embeddings=lambda: head)
    for chosen, temperature, with_entropy in ((labels, TEMPERATURE, True), (labels.flip(0), 1.0, False)):
        score_at(model, chosen, temperature, with_entropy=with_entropy)
        arguments = (states, head.weight, chosen, temperature, with_entropy)
        scores = LabelScores.apply(*arguments)  # type: ignore[no-untyped-call]
        assert torch.equal(head(states[None]), scores)
        assert bool(scores[..., 1].any()) is with_entropy
