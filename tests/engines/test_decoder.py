"""The decoder against transformers' own forward pass and `generate`, and its promises on seeds, stops and the cache."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from engine_conformance import kept
from transformers import Gemma2Config, LlamaConfig, Qwen3Config, Qwen3ForCausalLM

from rtpo.core.tree_attention import why_not_trees
from rtpo.engines import decoder as decoder_module
from rtpo.engines import prefill as prefill_module
from rtpo.engines import sampling as sampling_module
from rtpo.engines.base import Generation, Request, Sampling
from rtpo.engines.decoder import Decoder
from rtpo.errors import ConfigError, StaleEngine
from rtpo.types import StopReason, as_ids

VOCABULARY = 61
STOP = 5
BF16_MEAN, BF16_LARGEST = 0.02, 0.3
"""nats; of random weights so large that rounding shows"""
SIZES = {
    **{"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48},
    **{"num_hidden_layers": 2, "num_attention_heads": 2},
}


def small_config(**changes: Any) -> Qwen3Config:
    """With another base of RoPE than the default, so that a decoder that ignores it fails."""
    fields: dict[str, Any] = SIZES | {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8}
    fields |= {"max_position_embeddings": 128, "tie_word_embeddings": True}
    return Qwen3Config(**{**fields, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, **changes})


def random_model(seed: int = 0, **changes: Any) -> Qwen3ForCausalLM:
    """Weights wide enough that log-probs differ between tokens, and norms that are not all 1."""
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(small_config(**changes)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(torch.rand_like(weight) + 0.5 if "norm" in name else 0.25 * torch.randn_like(weight))
    return model


def decoder_of(model: Qwen3ForCausalLM, stop_ids: Sequence[int] = (STOP,), cache_tokens: int = 0) -> Decoder:
    decoder = Decoder(model.config, stop_ids, cache_tokens)
    decoder.load(model.state_dict().items(), version=3)
    return decoder


def random_contexts(lengths: Sequence[int], seed: int = 0) -> list[npt.NDArray[np.int32]]:
    rng = np.random.default_rng(seed)
    return [as_ids(rng.integers(0, VOCABULARY, n)) for n in lengths]


def requests_of(contexts: Sequence[npt.NDArray[np.int32]], **sampling: Any) -> list[Request]:
    return [Request(ids, Sampling(**sampling), seed, str(seed), "") for seed, ids in enumerate(contexts)]


@torch.no_grad()
def assert_full_forward(
    model: Qwen3ForCausalLM, requests: Sequence[Request], generations: Sequence[Generation], temperature: float = 1.0
) -> None:
    for request, generation in zip(requests, generations, strict=True):
        ids = np.concatenate([request.context_ids, generation.output_ids]).astype(np.int64)
        logits = model(torch.from_numpy(ids[None])).logits[0, len(request.context_ids) - 1 : -1]
        expected = (logits / temperature).log_softmax(-1)[np.arange(len(logits)), generation.output_ids.tolist()]
        np.testing.assert_allclose(generation.logprobs, expected, atol=1e-5)


@pytest.fixture(scope="module")
def model() -> Qwen3ForCausalLM:
    return random_model()


MIXED = [1, 30, 7, 7, 18, 44, 2, 30, 12]
"""context lengths; those of the same length hold different ids"""


def test_a_large_vocabulary_is_drawn_from_in_chunks_as_from_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of probability 0, the last chunk's among them, are never drawn."""
    requests = requests_of(random_contexts([5]) * 3000, max_tokens=1)
    scores = torch.randn(3000, VOCABULARY, generator=torch.manual_seed(0)) * 4
    scores[:, [3, 16, 17, 60]] = -1e4
    whole = sampling_module.Sampler(requests).draw(scores, 0, 0)
    for name, value in (("LARGE_VOCABULARY", 1), ("CHUNK", 8)):
        monkeypatch.setattr(sampling_module, name, value)
    chunked = sampling_module.Sampler(requests).draw(scores, 0, 0)
    assert (whole[0] == chunked[0]).float().mean() > 0.999  # others stood at a border, which rounding moves
    assert torch.isfinite(chunked[1]).all()
    assert len(chunked[0].unique()) == VOCABULARY - 4


@pytest.mark.parametrize(("threads", "temperature"), [(1, 1.0), (3, 0.7)])
def test_logprobs_equal_a_full_forward_pass(
    model: Qwen3ForCausalLM, temperature: float, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder_module, "BLOCK_ROWS", 20)
    for name, value in (("PREFILL_TOKENS", 40), ("FEW_TOKENS", 10), ("BATCH_SCORES", 1000)):
        monkeypatch.setattr(prefill_module, name, value)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    requests = requests_of(random_contexts(MIXED) * 5, temperature=temperature, max_tokens=24)
    try:
        generations = decoder_of(model).generate(requests)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert {g.stop for g in generations} == {StopReason.STOP, StopReason.LENGTH}
    assert_full_forward(model, requests, generations, temperature)
    for generation in generations:
        assert generation.output_ids.dtype == np.int32
        assert generation.logprobs.dtype == np.float32
        assert generation.policy_version == 3


@torch.no_grad()
@pytest.mark.parametrize("block_rows", [8, 128])
def test_in_bf16_log_probs_are_near_those_of_float32(
    model: Qwen3ForCausalLM, block_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On shared and on distinct contexts, with a prefix from the cache, in one block and in several threads."""
    monkeypatch.setattr(decoder_module, "BLOCK_ROWS", block_rows)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        decoder = Decoder(model.config, {STOP}, 1000, torch.bfloat16)
        decoder.load(model.state_dict().items(), 3)
        contexts = random_contexts(MIXED)
        for _ in range(2):
            requests = requests_of(contexts * 3, max_tokens=12)
            gaps = []
            for request, generation in zip(requests, decoder.generate(requests), strict=True):
                ids = np.concatenate([request.context_ids, generation.output_ids]).astype(np.int64)
                logits = model(torch.from_numpy(ids[None])).logits[0, len(request.context_ids) - 1 : -1]
                expected = logits.log_softmax(-1)[np.arange(len(logits)), generation.output_ids.tolist()].numpy()
                gaps.append(np.abs(generation.logprobs - expected))
            assert 0 < np.concatenate(gaps).mean() < BF16_MEAN
            assert np.concatenate(gaps).max() < BF16_LARGEST
            contexts = [np.concatenate([ids, ids]) for ids in contexts]
    finally:
        torch.set_num_threads(threads)


def test_a_row_that_ends_at_the_last_position_may_stay_while_others_go_on(model: Qwen3ForCausalLM) -> None:
    most = model.config.max_position_embeddings
    long, *others = random_contexts([most - 2, *[8] * 7])
    requests = [*requests_of([long], max_tokens=2), *requests_of(others, max_tokens=12)]
    decoder = decoder_of(model, stop_ids=())
    together = decoder.generate(requests)
    assert [len(generation.output_ids) for generation in together] == [2, *[12] * 7]
    assert_full_forward(model, requests, together)


def test_frequencies_match_probabilities(model: Qwen3ForCausalLM) -> None:
    count = 20_000
    (context,) = random_contexts([9])
    requests = requests_of([context] * count, max_tokens=1, top_p=0.9)
    *drawn, largest = [
        int(g.output_ids[0])
        for g in decoder_of(model).generate([*requests, *requests_of([context], max_tokens=1, top_p=1e-6)])
    ]
    with torch.no_grad():
        logits = model(torch.tensor(context[None], dtype=torch.int64)).logits[0, -1]
    assert largest == logits.argmax()
    expected = kept(logits, -1, 0.9).exp().numpy()
    observed = np.bincount(drawn, minlength=VOCABULARY) / count
    assert not observed[expected == 0].any()
    assert np.all(np.abs(observed - expected) <= 4 * np.sqrt(expected * (1 - expected) / count) + 1e-12)


def test_what_contexts_begin_with_is_computed_once(model: Qwen3ForCausalLM) -> None:
    """In one call, and where a later call's contexts go on from an earlier one's, ask for a beginning of it, or leave
    it halfway."""
    first, branch, other, more = random_contexts([30, 9, 12, 7])
    decoder = decoder_of(model, cache_tokens=1000)

    def computed(*contexts: npt.NDArray[np.int32]) -> int:
        before = decoder.prefilled_tokens
        requests = requests_of([as_ids(ids) for ids in contexts], max_tokens=3)
        assert_full_forward(model, requests, decoder.generate(requests))
        return decoder.prefilled_tokens - before

    turns = np.concatenate([first, branch]), np.concatenate([first, other])
    assert computed(first[:20], turns[0], first, turns[1]) == 30 + 9 + 12
    assert computed(np.concatenate([turns[0], more]), np.concatenate([turns[1], more]), turns[1]) == 2 * 7
    decoder.reset_cache()
    assert computed(turns[0]) == 39
    assert computed(first, turns[1]) == 30 + 12


def test_cache_holds_the_latest_prompts_within_its_bound(model: Qwen3ForCausalLM) -> None:
    first, second, third, large = requests_of(random_contexts([10, 11, 12, 40]), max_tokens=1)
    decoder = decoder_of(model, cache_tokens=33)
    for request in (first, second, third, first, large):
        decoder.generate([request])
    assert (decoder.cached_prompts, decoder.prefilled_tokens) == (3, 33 + 40)
    decoder.generate(requests_of(random_contexts([5], seed=1), max_tokens=1))  # for which the second goes
    decoder.generate([first, third])
    assert (decoder.cached_prompts, decoder.prefilled_tokens) == (3, 33 + 40 + 5)
    decoder.generate([second])
    assert decoder.prefilled_tokens == 33 + 40 + 5 + 11
    decoder.reset_cache()
    assert decoder.cached_prompts == 0


def test_a_prompt_that_a_longer_one_goes_on_from_is_dropped_before_others(model: Qwen3ForCausalLM) -> None:
    first, other, more = random_contexts([10, 10, 5])
    decoder = decoder_of(model, cache_tokens=30)
    for ids in (first, other, np.concatenate([first, more])):
        decoder.generate(requests_of([as_ids(ids)], max_tokens=1))
    before = decoder.prefilled_tokens
    decoder.generate(requests_of([other], max_tokens=1))
    assert decoder.prefilled_tokens == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sleeping_decoder_holds_nothing_and_goes_on_with_new_weights(
    model: Qwen3ForCausalLM, dtype: torch.dtype
) -> None:
    requests = requests_of(random_contexts(MIXED), max_tokens=4)
    decoder = Decoder(model.config, (STOP,), 1000, dtype)
    decoder.load(model.state_dict().items(), version=3)
    before = decoder.generate(requests)
    is_laid_out = dtype is torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert bool(decoder._model._laid_out) == is_laid_out
    decoder.sleep()
    assert decoder.cached_prompts == 0
    assert not decoder._model._laid_out
    with pytest.raises(StaleEngine):
        decoder.generate(requests)
    decoder.load(model.state_dict().items(), version=4)
    for first, again in zip(before, decoder.generate(requests), strict=True):
        assert first.output_ids.tolist() == again.output_ids.tolist()


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}


LLAMA_3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA_3 |= {"original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("config", "field", "is_for_trees"),
    [
        (small_config(use_sliding_window=True, max_window_layers=0), "use_sliding_window", False),
        (small_config(rope_parameters=DYNAMIC | {"rope_type": "linear"}), "rope_parameters", True),
        (LlamaConfig(**SIZES, rope_parameters=LLAMA_3), "rope_parameters", True),
        (LlamaConfig(**SIZES, rope_parameters=DYNAMIC), "rope_parameters", False),
        (Gemma2Config(**SIZES), "model_type", False),
    ],
)
def test_layers_outside_the_family_are_refused_and_trees_are_for_those_that_attend_to_the_whole_context(
    config: Any, field: str, is_for_trees: bool
) -> None:
    with pytest.raises(ConfigError, match=field):
        Decoder(config, (), 0)
    assert (why_not_trees(config) is None) == is_for_trees
