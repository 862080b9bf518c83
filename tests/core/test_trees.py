"""Rows on prefix trees give the log-probs and gradients of rows one by one."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import flex_attention
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config, Qwen3ForCausalLM

from rtpo.core import tree_attention
from rtpo.core.losses import TokenBatch, loss
from rtpo.core.rounding import SHIFT, difference
from rtpo.core.tree_attention import BLOCK, block_mask, choose_attention
from rtpo.core.trees import BLANK, Forest, cut, deal, forest, tree
from rtpo.types import Ids, as_ids
from rtpo.verbs import SequenceClip, SquaredPair, TokenClip

VOCABULARY = 5
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
TEMPERATURE = 0.7
LOSSES = (TokenClip(kl=0.1), TokenClip(dual_clip=3.0), SequenceClip(), SquaredPair(eta=1.0, kl=0.05))


@pytest.fixture(scope="module")
def model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    sizes = SIZES | {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 4}
    # in double precision but for its norms, so that rounding hides little
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=VOCABULARY, **sizes, initializer_range=0.2)).double()


@st.composite
def row_lists(draw: st.DrawFn) -> list[Ids]:
    """An even number of rows: fresh, equal to an earlier one, its beginning, its continuation or a branch of it."""
    rows: list[list[int]] = []
    for _ in range(2 * draw(st.integers(1, 4))):
        ids = st.lists(st.integers(0, VOCABULARY - 1), max_size=6)
        earlier = draw(st.sampled_from(rows)) if rows and draw(st.booleans()) else []
        row = earlier[: draw(st.integers(0, len(earlier)))] + draw(ids)
        rows.append(row if len(row) > 1 else [0, *row, 1])
    return [as_ids(row) for row in rows]


def masks_of(rows: Sequence[Ids], seed: int) -> list[np.ndarray]:
    """Of each row some ids but the first, and at least the last."""
    rng = np.random.default_rng(seed)
    masks = [rng.random(len(row)) < 0.5 for row in rows]
    for mask in masks:
        mask[0], mask[-1] = False, True
    return masks


def on_trees(model: Qwen3ForCausalLM, trees: Forest, piece: int = tree_attention.PIECE) -> torch.Tensor:
    """[trained]"""
    end = None if trees.end is None else torch.from_numpy(trees.end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_attention, "PIECE", piece)
        logits = model(
            input_ids=torch.from_numpy(trees.ids),
            position_ids=torch.from_numpy(trees.depth),
            attention_mask=choose_attention(model.config, end),
        ).logits.flatten(0, 1)
    logprobs = (logits / TEMPERATURE).log_softmax(-1, torch.promote_types(logits.dtype, torch.float32))
    return logprobs[torch.from_numpy(trees.nodes), torch.from_numpy(trees.labels)][torch.from_numpy(trees.read)]


def row_by_row(model: Any, rows: Sequence[Ids], masks: Sequence[np.ndarray], shift: int = 0) -> torch.Tensor:
    """[trained]"""
    choose_attention(model.config, None)
    trained = []
    for row, mask in zip(rows, masks, strict=True):
        ids = torch.from_numpy(row.astype(np.int64))
        positions = shift + torch.arange(len(row))[None]
        logits = model(input_ids=ids[None], position_ids=positions).logits[0, :-1]
        logprobs = (logits / TEMPERATURE).log_softmax(-1, torch.promote_types(logits.dtype, torch.float32))
        trained.append(logprobs.gather(-1, ids[1:, None])[:, 0][torch.from_numpy(mask[1:])])
    return torch.cat(trained)


def gradient(model: Any, total: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    total.backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


@settings(max_examples=25)
@given(rows=row_lists(), seed=st.integers(0, 99), limit=st.integers(2, 40))
@example(rows=[as_ids([1, 2, 3])] * 4, seed=0, limit=40)
@example(rows=[as_ids([0, 1])] * 2, seed=1, limit=2)
@example(rows=[as_ids([1, 2]), as_ids([1, 2, 3]), as_ids([1, 2, 3, 4]), as_ids([1, 2, 0, 4])], seed=1, limit=40)
def test_log_probs_and_gradients_are_those_of_single_rows(model: Any, rows: list[Ids], seed: int, limit: int) -> None:
    masks = masks_of(rows, seed)
    parts = cut(rows, limit, break_even=50, together=2)
    number = {row: part for part, chosen in enumerate(parts) for row in chosen}
    trees = forest(rows, masks, [number[row] for row in range(len(rows))], multiple=1 + seed % 9)
    has_branches = any(
        len(tree([rows[row] for row in part]).ids) > max(len(rows[row]) for row in part) for part in parts
    )
    assert (trees.end is not None) == has_branches
    whole = row_by_row(model, rows, masks)
    piece = 1 + seed % 11
    shared = on_trees(model, trees, piece)
    torch.testing.assert_close(shared, whole, atol=1e-6, rtol=0)
    rng = np.random.default_rng(seed)

    def drawn(low: float, high: float) -> torch.Tensor:
        return torch.from_numpy(rng.uniform(low, high, len(whole)))

    batch = TokenBatch(
        logprobs=whole,
        old=whole.detach() + drawn(-0.5, 0.5),
        advantage=drawn(-1, 1),
        weight=drawn(0, 1),
        row=torch.from_numpy(np.repeat(np.arange(len(rows)), [mask.sum() for mask in masks])),
        rows=len(rows),
    )
    # of what nearly cancels in a pair of alike rows, before it does
    largest = float(gradient(model, row_by_row(model, rows, masks).sum()).norm())
    for spec in LOSSES:
        terms = replace(batch, reference=whole.detach() + drawn(-0.5, 0.5) if spec.kl else None)
        expected, of_trees = (
            gradient(model, loss(replace(terms, logprobs=logprobs), spec)[0])
            for logprobs in (row_by_row(model, rows, masks), on_trees(model, trees, piece))
        )
        largest = max(largest, float(expected.norm()))
        assert float((of_trees - expected).norm()) <= 1e-6 * largest


@given(row_lists())
def test_a_tree_has_every_beginning_once(rows: list[Ids]) -> None:
    whole = tree(rows)
    assert len(whole.ids) == len({tuple(row[: place + 1]) for row in rows for place in range(len(row))})
    paths = np.split(whole.path, np.cumsum([len(row) for row in rows])[:-1])
    for row, path in zip(rows, paths, strict=True):
        np.testing.assert_array_equal(whole.ids[path], row)
        np.testing.assert_array_equal(whole.depth[path], np.arange(len(row)))
        for place, node in enumerate(path):
            seen = [other for other in range(node + 1) if node < whole.end[other]]
            np.testing.assert_array_equal(seen, path[: place + 1])


@given(row_lists(), st.integers(2, 40), st.integers(1, 50), st.sampled_from([1, 2]))
def test_a_cut_is_the_cheapest_within_the_limit(rows: list[Ids], limit: int, even: int, together: int) -> None:
    """Of all divisions of the sorted rows that divide no run, and go over the limit with single runs alone."""
    order = sorted(range(len(rows)), key=lambda row: rows[row].tolist())
    run_of = [row // together for row in order]

    def size(part: Sequence[int]) -> int:
        return len(tree([rows[row] for row in part]).ids)

    places = [place for place in range(len(rows) + 1) if not {*run_of[:place]} & {*run_of[place:]}]
    least = {0: 0.0}
    for last, stop in pairwise(places):
        sizes = {start: size(order[start:stop]) for start in places if start < stop}
        fit = [start for start in sizes if start == last or sizes[start] <= limit]
        least[stop] = min(least[start] + sizes[start] + sizes[start] ** 2 / even for start in fit)
    parts = cut(rows, limit, break_even=even, together=together)
    assert sorted(row for part in parts for row in part) == list(range(len(rows)))
    assert sum(size(part) + size(part) ** 2 / even for part in parts) == pytest.approx(least[len(rows)])


@given(row_lists(), st.integers(1, 3), st.integers(2, 40), st.sampled_from([1, 2]))
def test_trees_are_dealt_to_ranks(rows: list[Ids], ranks: int, limit: int, together: int) -> None:
    even = 50
    dealt = deal(rows, ranks, limit, break_even=even, together=together)
    assert sorted(dealt.source[dealt.source >= 0].tolist()) == list(range(sum(map(len, rows))))
    firsts = np.concatenate([[0], np.cumsum([len(row) for row in rows])[:-1]]).tolist()
    parts = np.split(dealt.source, np.cumsum(dealt.lengths)[:-1])
    row_of = [firsts.index(part[0]) if part[0] >= 0 else None for part in parts]
    assert all(len(part) == (BLANK if row is None else len(rows[row])) for part, row in zip(parts, row_of, strict=True))
    for first in range(0, len(parts), together):  # what belongs together stands together
        group, row = slice(first, first + together), row_of[first]
        assert len(set(zip(dealt.tree[group].tolist(), dealt.batch[group].tolist(), strict=True))) == 1
        assert row is None or row_of[group] == [row // together * together + place for place in range(together)]
    batches, costs, nodes = [], [], 0
    for places in np.split(np.arange(len(parts)), ranks):
        batches.append(sorted(set(dealt.batch[places].tolist())))
        costs.append(0.0)
        for number in batches[-1]:
            chosen = [place for place in places if dealt.batch[place] == number]
            assert chosen == list(range(chosen[0], chosen[0] + len(chosen)))
            sizes = []
            for tree_number in {int(dealt.tree[place]) for place in chosen}:
                held = [row_of[place] for place in chosen if dealt.tree[place] == tree_number]
                real = [rows[row] for row in held if row is not None]
                assert len(real) in (0, len(held))
                sizes.append(len(tree(real).ids) if real else BLANK)
                nodes += sizes[-1] if real else 0
                costs[-1] += sizes[-1] + sizes[-1] ** 2 / even if real else 0
            assert len(sizes) == 1 or len(sizes) * max(sizes) <= limit
    assert batches == [list(range(len(batches[0])))] * ranks
    assert nodes == dealt.nodes
    loads = np.zeros(ranks)
    sizes = np.array(
        [len(tree([rows[row] for row in part]).ids) for part in cut(rows, limit, break_even=even, together=together)]
    )
    for work in sorted(sizes + sizes**2 / even, reverse=True):
        loads[loads.argmin()] += work
    np.testing.assert_allclose(sorted(costs), sorted(loads))


@given(row_lists(), st.integers(1, 3), st.integers(2, 40), st.sampled_from([1, 2]))
def test_rows_apart_are_padded_to_no_more_than_the_limit(
    rows: list[Ids], ranks: int, limit: int, together: int
) -> None:
    """Unless rows that belong together are more by themselves."""
    dealt = deal(rows, ranks, limit, break_even=50, together=together, apart=True)
    is_blank = np.array([part[0] < 0 for part in np.split(dealt.source, np.cumsum(dealt.lengths)[:-1])])
    for places in np.split(np.arange(len(dealt.lengths)), ranks):
        for number in set(dealt.batch[places].tolist()):
            chosen = places[dealt.batch[places] == number]
            real = int((~is_blank[chosen]).sum())
            trees = len(set(dealt.tree[chosen].tolist()))
            assert trees == real + is_blank[chosen].any()
            assert real <= together or trees * dealt.lengths[chosen].max() <= limit


def test_a_mask_of_blocks_is_the_mask_of_nodes() -> None:
    """torch computes FlexAttention on a CPU forward alone."""
    rng = np.random.default_rng(0)
    stem = rng.integers(0, VOCABULARY, 2 * BLOCK)
    grown = [[stem[: rng.integers(len(stem))], rng.integers(0, VOCABULARY, rng.integers(1, BLOCK))] for _ in range(12)]
    rows = [as_ids(np.concatenate(parts)) for parts in grown]
    trees = forest(
        rows, [np.arange(len(row)) > 0 for row in rows], [row % 2 for row in range(len(rows))], multiple=BLOCK
    )
    assert trees.end is not None
    end = torch.from_numpy(trees.end)
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 2, len(end), 16) for _ in range(3))
    node = torch.arange(len(end))
    sees = (node <= node[:, None]) & (node[:, None] < end)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=sees)
    ours = flex_attention(query, key, value, block_mask=block_mask(end))
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)
    assert block_mask(end).sparsity() > 30


@pytest.mark.parametrize(
    ("architecture", "precision"),
    [(Qwen3Config, torch.float32), (Qwen3Config, torch.bfloat16), (LlamaConfig, torch.float32)],
)
def test_faults_are_beyond_rounding_and_trees_are_not(architecture: Any, precision: torch.dtype) -> None:
    torch.manual_seed(2)
    config = architecture(vocab_size=50, **SIZES, num_hidden_layers=3, head_dim=16, initializer_range=0.1)
    model = AutoModelForCausalLM.from_config(config).to(precision)
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, 50, 20)
    rows = [as_ids(np.concatenate([prompt, rng.integers(0, 50, 30)])) for _ in range(8)]
    masks = [np.arange(50) >= 20] * 8
    trees = forest(rows, masks, [0, 0, 0, 0, 1, 1, 1, 1])
    weights = rng.normal(size=8)

    def computed(logprobs: torch.Tensor, by_row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log-probs and the gradient of their sum, each row's with its weight."""
        whole = gradient(model, (logprobs * torch.from_numpy(np.repeat(by_row, 30))).sum())
        return logprobs.detach().numpy(), whole.float().numpy()

    alone = computed(row_by_row(model, rows, masks), weights)
    moved = computed(row_by_row(model, rows, masks, SHIFT), weights)
    floors = [difference(*values) for values in zip(moved, alone, strict=True)]

    def are_beyond(logprobs: torch.Tensor, by_row: np.ndarray) -> list[bool]:
        values = computed(logprobs, by_row)
        return [difference(*pair).is_beyond(floor) for *pair, floor in zip(values, alone, floors, strict=True)]

    assert are_beyond(on_trees(model, trees), weights) == [False, False]
    doubled = weights * np.where(np.arange(8) == 3, 2, 1)
    assert are_beyond(on_trees(model, trees), doubled) == [False, True]
    assert trees.end is not None
    end = trees.end.copy()
    end[20] += 30  # the first row's first id is seen by the next row
    assert are_beyond(on_trees(model, replace(trees, end=end)), weights) == [True, True]
