"""The losses against hand computations, formulas and finite differences."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

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
    rows: int | None = None,
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
        rows=max(of_row) + 1 if rows is None else rows,
        reference=None if reference is None else torch.tensor(reference, dtype=torch.float64),
    )


def gradient(batch: TokenBatch, spec: Loss) -> list[float]:
    (found,) = torch.autograd.grad(loss(batch, spec)[0], batch.logprobs)
    return [float(g) for g in found]


def value(batch: TokenBatch, spec: Loss) -> float:
    return float(loss(batch, spec)[0].detach())


def finite_differences(batch: TokenBatch, spec: Loss, step: float = 1e-6) -> list[float]:
    found = []
    for i in range(batch.logprobs.numel()):
        shift = torch.zeros_like(batch.old)
        shift[i] = step
        up, down = (value(replace(batch, logprobs=batch.logprobs.detach() + s), spec) for s in (shift, -shift))
        found.append((up - down) / (2 * step))
    return found


def tensor(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# token clip


@pytest.mark.parametrize(
    ("ratio", "advantage", "dual_clip", "expected", "slope", "clipped"),
    [
        (1.0, 2.0, None, -2.0, -2.0, 0),
        (1.1, 1.0, None, -1.1, -1.1, 0),
        (1.5, 1.0, None, -1.2, 0.0, 1),
        (0.5, 1.0, None, -0.5, -0.5, 0),
        (5.0, -1.0, None, 5.0, 5.0, 0),
        (0.5, -1.0, None, 0.8, 0.0, 1),
        (1.5, 0.0, None, 0.0, 0.0, 0),
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
    batch = batch_of([math.log(1.25), math.log(0.75)], [1, -1], weight=[1, 1])
    assert value(batch, TokenClip(low=0.2, high=0.28)) == pytest.approx(-1.25 + 0.8)
    assert value(batch, TokenClip(low=0.3, high=0.2)) == pytest.approx(-1.2 + 0.75)


def test_log_ratios_are_bounded_before_they_are_exponentiated() -> None:
    batch = batch_of([50.0], [-1.0])
    assert value(batch, TokenClip()) == pytest.approx(math.exp(10))
    assert gradient(batch, TokenClip()) == [0.0]


# sequence clip


def test_sequence_clip_is_gspo() -> None:
    """J = sum_i w_i min(s_i A_i, clip(s_i) A_i), s_i the geometric mean of row i's token ratios."""
    log_ratio = [0.1, 0.3, 0.2, -0.5, -0.7, 0.05]
    rows, row_weight, advantage = [0, 0, 0, 1, 1, 2], [0.5, 0.3, 0.2], [1.0, -2.0, -1.0]
    tokens = [3, 2, 1]
    s = [math.exp(0.2), math.exp(-0.6), math.exp(0.05)]
    batch = batch_of(
        log_ratio, [advantage[r] for r in rows], weight=[row_weight[r] / tokens[r] for r in rows], row=rows
    )
    expected = -sum(
        w * min(ratio * a, min(max(ratio, 0.8), 1.2) * a) for w, ratio, a in zip(row_weight, s, advantage, strict=True)
    )
    total, sums = loss(batch, SequenceClip())
    assert float(total.detach()) == pytest.approx(expected)
    # rows 0 and 1 are clipped, with all their tokens
    assert (sums["clipped"], sums["tokens"]) == (5, 6)
    assert gradient(batch, SequenceClip()) == pytest.approx([0, 0, 0, 0, 0, 0.2 * math.exp(0.05)])


# squared pair


def test_squared_pairs_by_hand() -> None:
    """Pair (0, 1): 0.5 - 0.1 - 1 = -0.6; pair (2, 3): 0.2 + 0.2 - 0 = 0.4; a pair weighs what its rows do together."""
    batch = batch_of(
        [0.2, 0.3, 0.1, 0.2, -0.2], [1, 1, 0, 1, 1], weight=[0.1, 0.1, 0.3, 0.25, 0.25], row=[0, 0, 1, 2, 3]
    )
    total, sums = loss(batch, SquaredPair(eta=1.0))
    assert float(total.detach()) == pytest.approx(0.5 * 0.36 + 0.5 * 0.16)
    assert sums["residual"] == pytest.approx(0.26)
    slope = [2 * 0.5 * -0.6] * 2 + [2 * 0.5 * 0.6] + [2 * 0.5 * 0.4, -2 * 0.5 * 0.4]
    assert gradient(batch, SquaredPair(eta=1.0)) == pytest.approx(slope)


def test_padding_rows_make_no_pair() -> None:
    one = batch_of([0.2, 0.1], [1, 0], weight=[0.5, 0.5])
    padded = replace(one, rows=4)
    assert value(padded, SquaredPair()) == pytest.approx(value(one, SquaredPair()))
    assert gradient(padded, SquaredPair()) == pytest.approx(gradient(one, SquaredPair()))


# KL


def test_k3_by_hand() -> None:
    """d = reference - policy: exp(d) - 1 - d."""
    policy, reference = tensor([-1, -1, -2]), tensor([-1, -1 + LN2, -2 - LN2])
    found = k3(policy, reference).tolist()
    assert found == pytest.approx([0.0, 2 - 1 - LN2, 0.5 - 1 + LN2])


def test_k3_is_clamped() -> None:
    policy = tensor([-30.0, 0.0]).requires_grad_()
    found = k3(policy, tensor([0.0, -30.0]))
    assert found.tolist() == pytest.approx([10.0, 10.0])
    (slope,) = torch.autograd.grad(found.sum(), policy)
    assert slope.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("spec", [TokenClip(kl=0.1), SequenceClip(kl=0.1), SquaredPair(kl=0.1)])
def test_the_kl_is_added_with_its_coefficient_and_the_weights(spec: Loss) -> None:
    """The policy is at the old log-probs, -1 and -1.5; the reference is ln 2 above the first."""
    batch = batch_of([0.0, 0.0], [0, 0], weight=[0.25, 0.75], reference=[-1 + LN2, -1.5])
    total, sums = loss(batch, spec)
    expected = 0.25 * (1 - LN2)
    assert sums["kl_loss"] == pytest.approx(expected)
    assert float(total.detach()) == pytest.approx(0.1 * expected)
    assert gradient(batch, spec) == pytest.approx([0.1 * 0.25 * (1 - 2), 0])


# micro-batches


def part(batch: TokenBatch, tokens: slice, first_row: int, rows: int) -> TokenBatch:
    """A micro-batch of whole rows."""
    return TokenBatch(
        logprobs=batch.logprobs.detach()[tokens].requires_grad_(),
        old=batch.old[tokens],
        advantage=batch.advantage[tokens],
        weight=batch.weight[tokens],
        row=batch.row[tokens] - first_row,
        rows=rows,
        reference=None if batch.reference is None else batch.reference[tokens],
    )


@pytest.mark.parametrize("spec", [TokenClip(dual_clip=3.0, kl=0.1), SequenceClip(kl=0.1), SquaredPair(kl=0.1)])
def test_micro_batches_add_up_to_the_mini_batch(spec: Loss) -> None:
    log_ratio = [0.3, -0.2, 0.1, 0.9, 0.4, -0.1, -0.05]
    weight = [0.1, 0.05, 0.15, 0.2, 0.2, 0.1, 0.2]
    reference = [-1.2, -1.4, -2.5, -2.0, -3.3, -3.4, -4.1]
    batch = batch_of(log_ratio, [1, 1, 0, 0, 0, -1, 0.5], weight=weight, row=[0, 0, 1, 1, 1, 2, 3], reference=reference)
    parts = [part(batch, slice(0, 5), 0, 2), part(batch, slice(5, 7), 2, 2)]
    assert sum(value(p, spec) for p in parts) == pytest.approx(value(batch, spec))
    assert [g for p in parts for g in gradient(p, spec)] == pytest.approx(gradient(batch, spec))
    sums = [loss(p, spec)[1] for p in parts]
    assert {name: sum(s[name] for s in sums) for name in sums[0]} == pytest.approx(loss(batch, spec)[1])


def test_an_unknown_loss_is_refused() -> None:
    with pytest.raises(TypeError, match="TokenClip"):
        loss(batch_of([0.0], [1.0]), "ppo")  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", [TokenClip(), SequenceClip(), SquaredPair(eta=0.5)])
def test_without_old_log_probs_they_are_the_present_ones(spec: Loss) -> None:
    given = batch_of([0.0, 0.0, 0.0, 0.0], [1.0, -2.0, 0.5, 1.5], row=[0, 0, 1, 1])
    found = {}
    for old in (given.logprobs.detach(), None):
        value, sums = loss(replace(given, old=old), spec)
        found[old is None] = (value.item(), sums, torch.autograd.grad(value, given.logprobs)[0].tolist())
    assert found[True] == found[False]
    assert any(found[True][2])


def test_without_a_reference_there_is_no_kl() -> None:
    assert loss(batch_of([0.3], [1.0]), TokenClip(kl=0.1))[1]["kl_loss"] == 0


def test_a_row_of_one_token_is_clipped_alike_by_token_and_by_sequence() -> None:
    batch = batch_of([0.1, -0.4, 0.6], [1, -1, -1])
    assert value(batch, SequenceClip()) == pytest.approx(value(batch, TokenClip()))
    assert gradient(batch, SequenceClip()) == pytest.approx(gradient(batch, TokenClip()))


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "slope"),
    [(2.0, -1.0, 2.0, 2.0), (5.0, -1.0, 3.0, 0.0), (5.0, 1.0, -1.2, 0.0), (0.5, -2.0, 1.6, 0.0)],
)
def test_dual_clip_bounds_tokens_with_negative_advantage(
    ratio: float, advantage: float, expected: float, slope: float
) -> None:
    batch = batch_of([math.log(ratio)], [advantage])
    assert value(batch, TokenClip(dual_clip=3.0)) == pytest.approx(expected)
    assert gradient(batch, TokenClip(dual_clip=3.0)) == pytest.approx([slope])


@pytest.mark.parametrize("length", [1, 3])
def test_an_unmoved_pair_has_a_multiple_of_the_clipped_gradient(length: int) -> None:
    """8 eta T times, for turns of T tokens whose row weight is spread over them."""
    batch = batch_of(
        [0] * 2 * length,
        [0.5] * length + [-0.5] * length,
        weight=[0.5 / length] * 2 * length,
        row=[0] * length + [1] * length,
    )
    clipped = gradient(batch, TokenClip())
    assert gradient(batch, SquaredPair(eta=0.5)) == pytest.approx([8 * 0.5 * length * slope for slope in clipped])
    assert clipped[0] == pytest.approx(-0.25 / length)


@pytest.mark.parametrize(
    "spec", [TokenClip(), TokenClip(dual_clip=3.0), TokenClip(0.05, 0.5), SequenceClip(), SequenceClip(0.01, 0.9)]
)
def test_gradients_are_finite_differences(spec: Loss) -> None:
    rows = [0, 0, 0, 1, 1, 2, 2]
    weight = [1 / 3 / rows.count(row) for row in rows]
    batch = batch_of([0.3, -0.2, 0.1, 0.9, 1.3, -0.1, -0.05], [1, 1, 1, -1, -1, -1, -1], weight=weight, row=rows)
    assert gradient(batch, spec) == pytest.approx(finite_differences(batch, spec), abs=1e-7)
    assert any(gradient(batch, spec))
