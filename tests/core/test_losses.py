"""The losses against hand computations and formulas."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from rtpo.core.losses import TokenBatch, k3, loss
from rtpo.verbs import Loss, SequenceClip, SquaredPair, TokenClip

LN2 = math.log(2)


def batch_of(
    log_ratio: Sequence[float],
    advantage: Sequence[float],
    *,
    weight: Sequence[float] | None = None,
    row: Sequence[int] | None = None,
    reference: Sequence[float] | None = None,
) -> TokenBatch:
    """Tokens whose old log-probs are -1, -1.5, -2, ...; one row each and equal weights by default."""
    n = len(log_ratio)
    old = -1 - 0.5 * torch.arange(n, dtype=torch.float64)
    of_row = list(range(n)) if row is None else list(row)
    return TokenBatch(
        logprobs=(old + torch.tensor(log_ratio, dtype=torch.float64)).requires_grad_(),
        old=old,
        advantage=torch.tensor(advantage, dtype=torch.float64),
        weight=torch.tensor([1 / n] * n if weight is None else weight, dtype=torch.float64),
        row=torch.tensor(of_row),
        rows=max(of_row) + 1,
        reference=None if reference is None else torch.tensor(reference, dtype=torch.float64),
    )


def gradient(batch: TokenBatch, spec: Loss) -> list[float]:
    (slopes,) = torch.autograd.grad(loss(batch, spec)[0], batch.logprobs)
    return [float(g) for g in slopes]


@pytest.mark.parametrize(
    ("ratio", "advantage", "dual_clip", "expected", "slope", "clipped"),
    [
        (1.1, 1.0, None, -1.1, -1.1, 0),
        (5.0, -1.0, None, 5.0, 5.0, 0),
        (1.5, 0.0, None, 0.0, 0.0, 0),
        # log-ratios are bounded by 10 before they are exponentiated
        (math.exp(50.0), -1.0, None, math.exp(10.0), 0.0, 0),
        (2.0, -1.0, 3.0, 2.0, 2.0, 0),
        (5.0, -1.0, 3.0, 3.0, 0.0, None),
        (5.0, 1.0, 3.0, -1.2, 0.0, 1),
        (0.5, -2.0, 3.0, 1.6, 0.0, 1),
    ],
)
def test_token_clip_on_one_token(
    ratio: float, advantage: float, dual_clip: float | None, expected: float, slope: float, clipped: int | None
) -> None:
    """Loss and slope in the log-prob, clip range [0.8, 1.2]."""
    batch, spec = batch_of([math.log(ratio)], [advantage]), TokenClip(dual_clip=dual_clip)
    total, sums = loss(batch, spec)
    assert float(total.detach()) == pytest.approx(expected)
    assert gradient(batch, spec) == pytest.approx([slope])
    assert clipped is None or (sums["clipped"], sums["tokens"]) == (clipped, 1)


def test_token_clip_is_the_weighted_sum_over_tokens() -> None:
    """0.1 x -1.2, 0.2 x -0.5, 0.3 x 0.8 and 0.4 x 1.5; two of four tokens are clipped."""
    ratios = [1.5, 0.5, 0.5, 1.5]
    batch = batch_of([math.log(r) for r in ratios], [1, 1, -1, -1], weight=[0.1, 0.2, 0.3, 0.4], row=[0, 0, 1, 1])
    total, sums = loss(batch, TokenClip())
    assert float(total.detach()) == pytest.approx(-0.12 - 0.10 + 0.24 + 0.60)
    assert sums["policy_loss"] == pytest.approx(0.62)
    assert (sums["clipped"], sums["tokens"], sums["kl_loss"], sums["residual"]) == (2, 4, 0, 0)
    assert gradient(batch, TokenClip()) == pytest.approx([0, -0.1, 0, 0.6])


def test_the_clip_range_need_not_be_symmetric() -> None:
    batch = batch_of([math.log(1.25), math.log(0.75)], [1, -1], weight=[1, 2])
    for low, high, expected in ((0.2, 0.28, -1.25 + 2 * 0.8), (0.3, 0.2, -1.2 + 2 * 0.75)):
        assert float(loss(batch, TokenClip(low=low, high=high))[0].detach()) == pytest.approx(expected)


def test_sequence_clip_is_gspo() -> None:
    """J = sum_i w_i min(s_i A_i, clip(s_i) A_i), s_i the geometric mean of row i's token ratios."""
    log_ratio = [0.1, 0.3, 0.2, -0.5, -0.7, 0.05, 0.15]
    rows, row_weight, advantage = [0, 0, 0, 1, 1, 2, 2], [0.5, 0.3, 0.2], [1.0, -2.0, -1.0]
    tokens = [3, 2, 2]
    s = [math.exp(0.2), math.exp(-0.6), math.exp(0.1)]
    batch = batch_of(
        log_ratio, [advantage[r] for r in rows], weight=[row_weight[r] / tokens[r] for r in rows], row=rows
    )
    expected = -sum(
        w * min(ratio * a, min(max(ratio, 0.8), 1.2) * a) for w, ratio, a in zip(row_weight, s, advantage, strict=True)
    )
    total, sums = loss(batch, SequenceClip())
    assert float(total.detach()) == pytest.approx(expected)
    # rows 0 and 1 are clipped, with all their tokens
    assert (sums["clipped"], sums["tokens"]) == (5, 7)
    assert gradient(batch, SequenceClip()) == pytest.approx([0] * 5 + [0.1 * math.exp(0.1)] * 2)


def test_squared_pairs_by_hand() -> None:
    """Pair (0, 1): 0.5 - 0.1 - 1 = -0.6; pair (2, 3): 0.2 + 0.2 - 0 = 0.4; a pair weighs what its rows do together.
    Rows that only fill up make no pair."""
    batch = batch_of(
        [0.2, 0.3, 0.1, 0.2, -0.2], [1, 1, 0, 1, 1], weight=[0.1, 0.1, 0.3, 0.25, 0.25], row=[0, 0, 1, 2, 3]
    )
    slope = [2 * 0.5 * -0.6] * 2 + [2 * 0.5 * 0.6] + [2 * 0.5 * 0.4, -2 * 0.5 * 0.4]
    for rows in (4, 8):
        total, sums = loss(replace(batch, rows=rows), SquaredPair(eta=1.0))
        assert float(total.detach()) == pytest.approx(0.5 * 0.36 + 0.5 * 0.16) == sums["residual"]
        assert gradient(replace(batch, rows=rows), SquaredPair(eta=1.0)) == pytest.approx(slope)
    assert loss(batch, SquaredPair(eta=0.5))[1]["residual"] == pytest.approx(0.5 * 0.1**2 + 0.5 * 0.4**2)


def test_k3_by_hand_and_clamped() -> None:
    """d = reference - policy: exp(d) - 1 - d."""
    policy = torch.tensor([-1.0, -1.0, -2.0, -30.0, 0.0], dtype=torch.float64, requires_grad=True)
    penalty = k3(policy, torch.tensor([-1, -1 + LN2, -2 - LN2, 0.0, -30.0], dtype=torch.float64))
    assert penalty.tolist() == pytest.approx([0.0, 2 - 1 - LN2, 0.5 - 1 + LN2, 10.0, 10.0])
    (slope,) = torch.autograd.grad(penalty.sum(), policy)
    assert slope.tolist() == pytest.approx([0.0, 1 - 2, 1 - 0.5, 0.0, 0.0])


@pytest.mark.parametrize("spec", [TokenClip(kl=0.1), SequenceClip(kl=0.1), SquaredPair(kl=0.1)])
def test_the_kl_is_added_with_its_coefficient_and_the_weights(spec: Loss) -> None:
    """The policy is at the old log-probs, -1 and -1.5; the reference is ln 2 above the first."""
    batch = batch_of([0.0, 0.0], [0, 0], weight=[0.25, 0.75], reference=[-1 + LN2, -1.5])
    total, sums = loss(batch, spec)
    expected = 0.25 * (1 - LN2)
    assert sums["kl_loss"] == pytest.approx(expected)
    assert float(total.detach()) == pytest.approx(0.1 * expected)
    assert gradient(batch, spec) == pytest.approx([0.1 * 0.25 * (1 - 2), 0])


@pytest.mark.parametrize("spec", [TokenClip(), SequenceClip(), SquaredPair(eta=0.5)])
def test_without_old_log_probs_they_are_the_present_ones(spec: Loss) -> None:
    terms = batch_of([0.0, 0.0, 0.0, 0.0], [1.0, -2.0, 0.5, 1.5], row=[0, 0, 1, 1])
    own = replace(terms, old=None)
    assert loss(own, spec)[1] == loss(terms, spec)[1]
    assert gradient(own, spec) == gradient(terms, spec)
    assert any(gradient(terms, spec))
