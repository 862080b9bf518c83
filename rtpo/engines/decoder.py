"""The embedded rollout engine's core: batched key-value-cache decoding of Qwen3-architecture weights on a CPU.

Requests are sorted by context length and run in blocks. In a block, each distinct context is prefilled once, packed
with the others without padding, and copied to the rows that share it. Rows are right-aligned, so a step writes one
column of the cache. Finished rows are dropped. A row's tokens depend on its seed, context and the weights alone, up to
float rounding. Shapes: B rows, T cache columns, D head size, V vocabulary.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen3Config

from rtpo.engines.base import Generation, Request
from rtpo.engines.qwen3 import Qwen3
from rtpo.engines.sampling import Sampler
from rtpo.errors import ConfigError, DataError, StaleEngine
from rtpo.types import Ids, StopReason, as_ids

BLOCK_ROWS: Final = 128
"""more rows would push a small model's cache out of the processor's"""
BLOCK_BYTES: Final = 2 << 30
"""bound of a block's keys and values; one row may exceed it"""
PREFILL_TOKENS: Final = 2048
"""prompts are prefilled in pieces of at most this many tokens (or one prompt), which bounds activations"""
KEEP_ROWS: Final = 0.85
"""finished rows are dropped when fewer than this share is running: dropping copies the cache"""


class _Prompt(NamedTuple):
    """A prefilled context of n tokens, and the logits [V] after it."""

    kv: Tensor
    """[layers, 2, n, kv heads, D]"""
    logits: Tensor


class _PromptCache:
    """Prompts by their contexts' bytes, at most `capacity` tokens in all; the least recently used goes first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.clear()

    def clear(self) -> None:
        self._prompts: OrderedDict[bytes, _Prompt] = OrderedDict()
        self._tokens = 0

    def __len__(self) -> int:
        return len(self._prompts)

    def get(self, key: bytes) -> _Prompt | None:
        if key in self._prompts:
            self._prompts.move_to_end(key)
        return self._prompts.get(key)

    def put(self, key: bytes, prompt: _Prompt) -> None:
        """Add a prompt that is not there; one larger than the whole cache is left out."""
        tokens = prompt.kv.shape[2]
        if tokens > self._capacity:
            return
        # A view would keep all prompts that were prefilled with this one.
        self._prompts[key] = _Prompt(prompt.kv.clone(), prompt.logits.clone())
        self._tokens += tokens
        while self._tokens > self._capacity:
            self._tokens -= self._prompts.popitem(last=False)[1].kv.shape[2]


class _Rows:
    """The rows of a block that are still in the batch, one entry a row."""

    def __init__(self, requests: Sequence[Request], keys: Tensor, values: Tensor) -> None:
        self.keys = keys
        """[layers, B, kv heads, D, T], transposed: both products then read along T"""
        self.values = values
        """[layers, B, kv heads, T, D]"""
        self.sampler = Sampler(requests)
        self.index = torch.arange(len(requests))
        self.lengths = torch.tensor([len(request.context_ids) for request in requests])
        self.limits = torch.tensor([request.sampling.max_tokens for request in requests])
        self.running = torch.ones(len(requests), dtype=torch.bool)
        self.column = int(self.lengths.max())
        """where the next token's key and value go"""
        self._set_mask()

    def _set_mask(self) -> None:
        """Added to scores: -inf left of a row's context; [B, 1, T], or None where all rows start at column 0."""
        start = self.lengths.max() - self.lengths
        is_pad = torch.arange(self.values.shape[3]) < start[:, None]
        self.mask = torch.where(is_pad, -torch.inf, 0.0)[:, None] if start.any() else None

    def drop_finished(self, step: int) -> None:
        """Keep the running rows and the columns that they use before and after output `step`."""
        rows = self.running.nonzero()[:, 0]
        self.sampler.keep(rows)
        self.index, self.lengths, self.limits = self.index[rows], self.lengths[rows], self.limits[rows]
        self.running = self.running[rows]
        first = self.column - step - int(self.lengths.max())
        last = self.column - step + int(self.limits.max())
        self.keys = self.keys[..., first:last].index_select(1, rows)
        self.values = self.values[..., first:last, :].index_select(1, rows)
        self.column -= first
        self._set_mask()


class Decoder:
    """Generates turns from Qwen3 weights. Not safe for concurrent calls.

    stop_ids:     ids that end a turn.
    cache_tokens: most context tokens kept prefilled across calls, least recently used first out; 0 keeps none.

    `requested_tokens` counts context tokens asked for, `prefilled_tokens` those computed, `generated_tokens` outputs.
    Raises ConfigError for settings out of range or an unsupported architecture.
    """

    def __init__(self, config: Qwen3Config, stop_ids: Collection[int], cache_tokens: int) -> None:
        self._model = Qwen3(config)
        self._vocabulary = config.vocab_size
        self._positions = config.max_position_embeddings
        if any(not 0 <= i < config.vocab_size for i in stop_ids):
            raise ConfigError(f"stop_ids {sorted(stop_ids)} do not fit a vocabulary of {config.vocab_size} tokens.")
        if cache_tokens < 0:
            raise ConfigError(f"cache_tokens is {cache_tokens}: give a number >= 0 (0 keeps no prompt).")
        self._is_stop = torch.zeros(config.vocab_size, dtype=torch.bool)
        self._is_stop[list(stop_ids)] = True
        self._prompts = _PromptCache(cache_tokens)
        self._version: int | None = None
        self.prefilled_tokens = 0
        self.requested_tokens = 0
        self.generated_tokens = 0

    @property
    def version(self) -> int:
        """Of the weights. Raises StaleEngine if there are none, or the last `load` failed."""
        if self._version is None:
            raise StaleEngine("The decoder holds no complete set of weights: call load() first.")
        return self._version

    def load(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take a full set of weights under their Hugging Face names, of any float type, and empty the prompt cache.

        With tied embeddings `lm_head.weight` may be absent. Each tensor is copied as it comes. Raises DataError for a
        missing, unknown or misshapen one; the decoder then refuses to generate until a `load` succeeds.
        """
        self._version = None
        self.reset_cache()
        self._model.load(weights)
        self._version = version

    def weight_checksum(self) -> str:
        """sha256 of the weights as float32, whatever their order and type were on the way in."""
        _ = self.version
        return self._model.checksum()

    @property
    def cached_prompts(self) -> int:
        return len(self._prompts)

    def reset_cache(self) -> None:
        self._prompts.clear()

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        """One generation a request, in the requests' order.

        Raises DataError for a context that is empty, holds ids outside the vocabulary or leaves no room for
        `max_tokens`, ConfigError for `top_logprobs` beyond the vocabulary, StaleEngine without weights, NonFinite for
        logits that are NaN or infinite.
        """
        _ = self.version
        for request in requests:
            self._check(request)
        generations: dict[int, Generation] = {}
        for block in self._blocks(requests):
            generations.update(zip(block, self._run([requests[i] for i in block]), strict=True))
        return [generations[i] for i in range(len(requests))]

    def _check(self, request: Request) -> None:
        ids, sampling = request.context_ids, request.sampling
        if len(ids) == 0:
            raise DataError(f"The context of session {request.session!r} is empty: give at least one token.")
        if len(ids) + sampling.max_tokens > self._positions:
            raise DataError(
                f"A context of {len(ids)} tokens and max_tokens {sampling.max_tokens} do not fit "
                f"max_position_embeddings {self._positions}: shorten one of them."
            )
        if ids.min() < 0 or ids.max() >= self._vocabulary:
            raise DataError(
                f"The context of session {request.session!r} has ids outside the model's {self._vocabulary} tokens: "
                "use the model's own tokenizer."
            )
        if sampling.top_logprobs > self._vocabulary:
            raise ConfigError(f"top_logprobs is {sampling.top_logprobs}: the model has {self._vocabulary} tokens.")

    def _blocks(self, requests: Sequence[Request]) -> Iterator[list[int]]:
        """Indices of the requests of each block, by context length, with equal contexts side by side."""
        contexts = [request.context_ids for request in requests]
        column_bytes = 8 * self._model.layers * self._model.kv_heads * self._model.head_size
        block: list[int] = []
        columns = 0
        for i in sorted(range(len(requests)), key=lambda i: (len(contexts[i]), contexts[i].tobytes())):
            needed = len(contexts[i]) + requests[i].sampling.max_tokens
            columns = max(columns, needed)
            if len(block) == BLOCK_ROWS or (block and (len(block) + 1) * columns * column_bytes > BLOCK_BYTES):
                yield block
                block, columns = [], needed
            block.append(i)
        if block:
            yield block

    def _run(self, requests: Sequence[Request]) -> list[Generation]:
        """Generate for one block."""
        rows, logits = self._start(requests)
        count, limit = len(requests), int(rows.limits.max())
        top = max(request.sampling.top_logprobs for request in requests)
        tokens = np.empty((count, limit), dtype=np.int32)
        logprobs = np.empty((count, limit), dtype=np.float32)
        largest = np.empty((count, limit, top), dtype=np.float32)
        lengths = np.empty(count, dtype=np.int64)
        stopped = np.empty(count, dtype=np.bool_)
        for step in range(limit):
            drawn, drawn_logprobs, drawn_largest = rows.sampler.draw(logits, step, top)
            index = rows.index.numpy()
            tokens[index, step], logprobs[index, step] = drawn.numpy(), drawn_logprobs.numpy()
            largest[index, step] = drawn_largest.numpy()
            is_stop = self._is_stop[drawn]
            ended = (is_stop | (rows.limits == step + 1)) & rows.running
            lengths[index[ended.numpy()]] = step + 1
            stopped[index[ended.numpy()]] = is_stop[ended].numpy()
            rows.running &= ~ended
            running = int(rows.running.sum())
            if running == 0:
                break
            if running < KEEP_ROWS * len(drawn):
                drawn = drawn[rows.running]
                rows.drop_finished(step)
            logits = self._step(rows, drawn, step)
        self.generated_tokens += int(lengths.sum())
        return [
            Generation(
                as_ids(tokens[row, :n].copy()),
                logprobs[row, :n].copy(),
                self.version,
                StopReason.STOP if stopped[row] else StopReason.LENGTH,
                largest[row, :n, : request.sampling.top_logprobs].copy() if request.sampling.top_logprobs else None,
            )
            for row, (request, n) in enumerate(zip(requests, lengths.tolist(), strict=True))
        ]

    def _start(self, requests: Sequence[Request]) -> tuple[_Rows, Tensor]:
        """The rows of a block with their contexts in the cache, and the logits [B, V] of their first tokens."""
        model = self._model
        contexts = {request.context_ids.tobytes(): request.context_ids for request in requests}
        places = {key: place for place, key in enumerate(contexts)}
        shared = torch.tensor([places[request.context_ids.tobytes()] for request in requests])
        prompts = self._prefilled(contexts)
        self.requested_tokens += sum(len(request.context_ids) for request in requests)
        lengths = [len(ids) for ids in contexts.values()]
        longest, pad = max(lengths), max(lengths) - min(lengths)
        columns = longest + max(request.sampling.max_tokens for request in requests)
        keys = torch.empty(model.layers, len(requests), model.kv_heads, model.head_size, columns)
        values = torch.empty(model.layers, len(requests), model.kv_heads, columns, model.head_size)
        # What the mask hides must still be finite.
        keys[..., :pad] = 0.0
        values[..., :pad, :] = 0.0
        first = 0
        for prompt, n, count in zip(prompts, lengths, torch.bincount(shared).tolist(), strict=True):
            rows, start = slice(first, first + count), longest - n
            keys[:, rows, ..., start:longest] = prompt.kv[:, 0].permute(0, 2, 3, 1)[:, None]
            values[:, rows, :, start:longest] = prompt.kv[:, 1].transpose(1, 2)[:, None]
            first += count
        return _Rows(requests, keys, values), torch.stack([prompt.logits for prompt in prompts])[shared]

    def _prefilled(self, contexts: Mapping[bytes, Ids]) -> list[_Prompt]:
        """The prompts of contexts that come by length; those the cache lacks are computed, in pieces."""
        found = {key: prompt for key in contexts if (prompt := self._prompts.get(key))}
        missing = [key for key in contexts if key not in found]
        ends = accumulate(len(contexts[key]) for key in missing)
        for _, piece in groupby(zip(missing, ends, strict=True), key=lambda item: item[1] // PREFILL_TOKENS):
            keys = [key for key, _ in piece]
            found.update(zip(keys, self._prefill([contexts[key] for key in keys]), strict=True))
        for key in missing:
            self._prompts.put(key, found[key])
        return [found[key] for key in contexts]

    def _prefill(self, contexts: Sequence[Ids]) -> list[_Prompt]:
        """Prompts of contexts that come by length: packed, with one attention product for each length."""
        model = self._model
        lengths = [len(ids) for ids in contexts]
        ends = list(accumulate(lengths))
        runs = [(n, len(list(same))) for n, same in groupby(lengths)]
        kv = torch.empty(model.layers, 2, ends[-1], model.kv_heads, model.head_size)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            kv[layer, 0], kv[layer, 1] = k, v
            is_last = layer == model.layers - 1  # only the logits after a context are needed: one query
            mixed, start = [], 0
            for n, count in runs:
                heads = [x[start : start + n * count].view(count, n, -1, model.head_size) for x in (q, k, v)]
                query, key, value = (x.transpose(1, 2) for x in heads)
                query = query[:, :, -1:] if is_last else query
                out = F.scaled_dot_product_attention(
                    query, key, value, is_causal=not is_last, scale=1.0, enable_gqa=True
                )
                mixed.append(out.transpose(1, 2).flatten(0, 1).flatten(1))
                start += n * count
            return torch.cat(mixed)

        ids = torch.from_numpy(np.concatenate(contexts)).long()
        positions = torch.cat([torch.arange(n) for n in lengths])
        logits = model.logits(ids, positions, attend, keep=torch.tensor(ends) - 1)
        self.prefilled_tokens += ends[-1]
        return [
            _Prompt(kv[:, :, end - n : end], logits[i]) for i, (end, n) in enumerate(zip(ends, lengths, strict=True))
        ]

    def _step(self, rows: _Rows, tokens: Tensor, step: int) -> Tensor:
        """Logits [B, V] after tokens [B], the rows' outputs at `step`."""
        count, column = len(tokens), rows.column

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = rows.keys[layer], rows.values[layer]
            keys[..., column], values[:, :, column] = k, v
            # The queries that share a key head are the rows of one product.
            queries = q.reshape(count * self._model.kv_heads, -1, self._model.head_size)
            scores = torch.bmm(queries, keys[..., : column + 1].flatten(0, 1))
            if rows.mask is not None:
                scores.view(count, -1, column + 1).add_(rows.mask[..., : column + 1])
            return torch.bmm(scores.softmax(-1), values[:, :, : column + 1].flatten(0, 1)).view(count, -1)

        rows.column += 1
        return self._model.logits(tokens, rows.lengths + step, attend)
