"""The embedded rollout engine's core: batched key-value-cache decoding on a CPU.

Requests are sorted by context length and run in blocks, several at a time, which share torch's threads. Contexts are
prefilled as prefix trees (rtpo.core.trees), in pieces: a prefix that a piece's contexts share is computed once. A
cached prompt of an earlier call is reused. Rows of a line share the keys and values of their context; each row adds
those of its outputs. Finished rows are dropped. A row's tokens depend only on its context, seed, sampling settings and
the weights, up to float rounding.

Shapes: B rows, L lines (`_Rows`), P tokens of the longest context, D head size, V vocabulary.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import starmap
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedConfig

from rtpo.core.names import counted
from rtpo.core.trees import Indices
from rtpo.engines.base import Generation, Request
from rtpo.engines.prefill import Prompt, PromptCache, pieces, prefill
from rtpo.engines.sampling import Sampler
from rtpo.engines.transformer import Transformer
from rtpo.errors import ConfigError, DataError, StaleEngine
from rtpo.types import Ids, StopReason, as_ids

BLOCK_ROWS: Final = 128
"""the most rows of a block. It bounds the logits in memory, and with it a small model's keys and values fit the
processor's cache"""
FEW_ROWS: Final = 32
"""fewer rows are not split among threads: a step with fewer rows costs hardly less"""
BLOCK_BYTES: Final = 1 << 30
"""most bytes of keys and values in blocks that run at the same time, counted as if no rows shared a context. A block of
one row may have more. The prompts of running blocks take memory too"""
KEEP_ROWS: Final = 0.85
"""finished rows are dropped when fewer than this share is running: dropping copies the cache"""


_StarMap = Callable[[Callable[..., Any], Iterable[tuple[Any, ...]]], Iterable[Any]]
"""`itertools.starmap`, or one that runs on several threads"""


class _Rows:
    """The rows of a block that are still running, one entry a row.

    Rows that share a context are multiplied with its keys in one product. For this, rows have places in a grid. Each
    line of the grid has one context's keys and values and up to `width` of its rows; a context of more rows has several
    lines, each with a copy. If every line has one row, lines also hold outputs: one product covers context and outputs.
    """

    def __init__(self, requests: Sequence[Request], context: Indices, prompts: Sequence[Prompt]) -> None:
        """context: [B], sorted, an index of `prompts`."""
        contexts, self._context_columns = len(prompts), max(prompt.tokens for prompt in prompts)
        layers, _, _, kv_heads, size = prompts[0].kv.shape
        dtype = prompts[0].kv.dtype
        self.sampler = Sampler(requests)
        self.index = torch.arange(len(requests))
        self.lengths = torch.tensor([len(request.context_ids) for request in requests])
        self.limits = torch.tensor([request.sampling.max_tokens for request in requests])
        self.running = torch.ones(len(requests), dtype=torch.bool)
        outputs = int(self.limits.max())
        self._is_sliced = dtype == torch.float32
        """whether to multiply only the columns in use: a slice is free in float32, but oneDNN copies other types"""
        self._ahead = torch.full((outputs,), -torch.inf, dtype=dtype)
        """mask of outputs, added to scores: -inf for outputs that are not drawn yet"""
        self._own: tuple[Tensor, Tensor] | None = None
        """keys and values of outputs, [layers, B, kv heads, D, outputs] and [..., outputs, D]; None if in lines"""
        output_columns = outputs
        if len(requests) > contexts:
            output_columns = 0
            self._own = (
                torch.zeros(layers, len(requests), kv_heads, size, outputs, dtype=dtype),
                torch.zeros(layers, len(requests), kv_heads, outputs, size, dtype=dtype),
            )
        self.keys = torch.zeros(layers, contexts, kv_heads, size, self._context_columns + output_columns, dtype=dtype)
        """[layers, L, kv heads, D, P + outputs], transposed so that both products read along the last dimension"""
        self.values = torch.zeros(layers, contexts, kv_heads, self._context_columns + output_columns, size, dtype=dtype)
        """[layers, L, kv heads, P + outputs, D]"""
        for place, prompt in enumerate(prompts):
            keys, values = prompt.kv.unbind(1)
            self.keys[:, place, ..., : prompt.tokens] = keys.permute(0, 2, 3, 1)
            self.values[:, place, :, : prompt.tokens] = values.transpose(1, 2)
        self._context = context
        self._lines = np.arange(contexts)
        """the context of each line"""
        self._arrange()

    def _arrange(self) -> None:
        """Give each row a place in the grid, and each line its keys and values."""
        used, context, counts = np.unique(self._context, return_inverse=True, return_counts=True)
        self.width = -(-len(context) // len(used))
        """places of a line; the grid has at most 2 B + (number of contexts) places"""
        lines = -(-counts // self.width)
        first_place = (np.cumsum(lines) - lines) * self.width
        first_row = np.cumsum(counts) - counts
        place = first_place[context] + np.arange(len(context)) - first_row[context]
        self.place = torch.from_numpy(place) if len(place) < lines.sum() * self.width else None
        """[B] the place of each row, by context; None if rows fill the grid"""
        line_of_context = {int(line): i for i, line in reversed(list(enumerate(self._lines)))}
        source = [line_of_context[int(context)] for context in np.repeat(used, lines)]
        if source != list(range(len(self._lines))):
            self.keys = self.keys.index_select(1, torch.tensor(source))
            self.values = self.values.index_select(1, torch.tensor(source))
        self._lines = np.repeat(used, lines)
        lengths = self.lengths[np.repeat(first_row, lines)]
        is_pad = torch.arange(self._context_columns) >= lengths[:, None]
        self.mask = (
            torch.where(is_pad, -torch.inf, 0.0).to(self.keys.dtype).repeat_interleave(self.keys.shape[2], 0)[:, None]
        )
        """added to scores of a line: -inf beyond its context's end; [L * kv heads, 1, P]"""
        if self.width == 1:
            if self._own:
                self.keys = torch.cat([self.keys, self._own[0]], -1)
                self.values = torch.cat([self.values, self._own[1]], -2)
                self._own = None
            ahead = self._ahead[: self.keys.shape[4] - self._context_columns]
            self.mask = torch.cat([self.mask, ahead.expand(len(self.mask), 1, -1)], -1)

    def attend(self, step: int, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of output `step` to the context and the outputs so far, in one softmax."""
        keys, values, columns = self.keys[layer], self.values[layer], self._context_columns
        queries = q.reshape(len(q) * keys.shape[1], -1, keys.shape[2])
        if not layer:
            self._ahead[step] = 0.0
        if not self._own:
            last = columns + step
            if not layer:
                self.mask[..., last] = 0.0
            keys[..., last], values[:, :, last] = k, v
            seen = last + 1 if self._is_sliced else keys.shape[3]
            scores = torch.bmm(queries, keys[..., :seen].flatten(0, 1)).add_(self.mask[..., :seen])
            return torch.bmm(scores.softmax(-1), values[:, :, :seen].flatten(0, 1)).view(len(q), -1)
        own_keys, own_values = (own[layer] for own in self._own)
        own_keys[..., step], own_values[:, :, step] = k, v
        seen = step + 1 if self._is_sliced else own_keys.shape[3]
        shared = torch.bmm(self._to_grid(queries), keys.flatten(0, 1)).add_(self.mask)
        own = torch.bmm(queries, own_keys[..., :seen].flatten(0, 1)).add_(self._ahead[:seen])
        weights = torch.cat([shared, self._to_grid(own)], -1).softmax(-1)
        shared = torch.bmm(weights[..., :columns], values.flatten(0, 1))
        own = torch.bmm(self._from_grid(weights[..., columns:]), own_values[:, :, :seen].flatten(0, 1))
        return own.add_(self._from_grid(shared)).view(len(q), -1)

    def _to_grid(self, x: Tensor) -> Tensor:
        """[B * kv heads, heads per kv head, n] -> [L * kv heads, width * heads per kv head, n]."""
        kv_heads = self.keys.shape[2]
        x = x.unflatten(0, (-1, kv_heads))
        if self.place is not None:
            x = x.new_zeros(len(self._lines) * self.width, *x.shape[1:]).index_copy_(0, self.place, x)
        return x.view(-1, self.width, *x.shape[1:]).transpose(1, 2).reshape(-1, self.width * x.shape[2], x.shape[3])

    def _from_grid(self, x: Tensor) -> Tensor:
        """The inverse of `_to_grid`."""
        kv_heads, n = self.keys.shape[2], x.shape[2]
        x = x.view(-1, kv_heads, self.width, x.shape[1] // self.width, n).transpose(1, 2).flatten(0, 1)
        return (x if self.place is None else x.index_select(0, self.place)).flatten(0, 1)

    def drop_finished(self, step: int) -> None:
        """Drop the rows that have ended, after output `step`."""
        rows = self.running.nonzero()[:, 0]
        self.sampler.keep(rows)
        self.index, self.lengths, self.limits = self.index[rows], self.lengths[rows], self.limits[rows]
        self.running = self.running[rows]
        if self._own:
            outputs = int(self.limits.max())
            keys, values = self._own[0][..., :outputs], self._own[1][..., :outputs, :]
            self._own = keys.index_select(1, rows), values.index_select(1, rows)
        self._context = self._context[rows.numpy()]
        self._arrange()


class Decoder:
    """Generates turns from a transformer's weights. Not safe for concurrent calls.

    stop_ids:     ids that end a turn.
    dtype:        of weights, keys and values.
    cache_tokens: most context tokens kept prefilled across calls; the least recently used go first. 0 keeps none.
                  Each prompt's logits are kept too, and not counted.

    `prefilled_tokens` counts the context tokens that were computed.
    Raises ConfigError for settings out of range or an unsupported architecture.
    """

    def __init__(
        self,
        config: PreTrainedConfig,
        stop_ids: Collection[int],
        cache_tokens: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._model = Transformer(config, dtype)
        self._vocabulary = config.vocab_size
        self._positions = config.max_position_embeddings
        if any(not 0 <= i < config.vocab_size for i in stop_ids):
            raise ConfigError(
                f"stop_ids {sorted(stop_ids)} do not fit a vocabulary of {counted(config.vocab_size, 'token')}."
            )
        if cache_tokens < 0:
            raise ConfigError(f"cache_tokens is {cache_tokens}: give a number >= 0 (0 keeps no prompt).")
        self._is_stop = torch.zeros(config.vocab_size, dtype=torch.bool)
        self._is_stop[list(stop_ids)] = True
        self._prompts = PromptCache(cache_tokens)
        self._version: int | None = None
        self.prefilled_tokens = 0

    @property
    def version(self) -> int:
        """The weights' version. Raises StaleEngine if there are none, or the last `load` failed."""
        if self._version is None:
            raise StaleEngine("The decoder holds no complete set of weights: call load() first.")
        return self._version

    def load(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take a full set of weights under their Hugging Face names, of any float type, and empty the prompt cache.

        With tied embeddings `lm_head.weight` may be absent. Each tensor is copied as it comes. Raises DataError as
        `Transformer.load` does; the decoder then refuses to generate until a `load` succeeds.
        """
        self._version = None
        self.reset_cache()
        self._model.load(weights)
        self._version = version

    def weight_checksum(self) -> str:
        """sha256 of the weights as float32, whatever their order and type when they were loaded."""
        _ = self.version
        return self._model.checksum()

    @property
    def cached_prompts(self) -> int:
        return len(self._prompts)

    def reset_cache(self) -> None:
        self._prompts.clear()

    def sleep(self) -> None:
        """Give back the memory of the prompt cache and of weights in oneDNN's layout, until the next `load`."""
        self._version = None
        self.reset_cache()
        self._model.forget_layout()

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
        threads = torch.get_num_threads()
        blocks = list(self._blocks(requests, threads))
        workers = max(1, min(threads, len(blocks)))
        generations: dict[int, Generation] = {}
        with _workers(workers) as run_all:
            for first in range(0, len(blocks), workers):
                running_blocks = blocks[first : first + workers]
                contexts = [requests[i].context_ids for block in running_blocks for i in block]
                prompts = self._prefilled({ids.tobytes(): ids for ids in contexts}, workers, run_all)
                jobs = [([requests[i] for i in block], prompts) for block in running_blocks]
                for block, done in zip(running_blocks, run_all(self._run, jobs), strict=True):
                    generations.update(zip(block, done, strict=True))
        return [generations[i] for i in range(len(requests))]

    def _check(self, request: Request) -> None:
        ids, sampling = request.context_ids, request.sampling
        if len(ids) == 0:
            raise DataError(f"The context of session {request.session!r} is empty: give at least one token.")
        if len(ids) + sampling.max_tokens > self._positions:
            raise DataError(
                f"A context of {counted(len(ids), 'token')} and max_tokens {sampling.max_tokens} do not fit "
                f"max_position_embeddings {self._positions}: shorten one of them."
            )
        if ids.min() < 0 or ids.max() >= self._vocabulary:
            raise DataError(
                f"The context of session {request.session!r} has ids outside the model's "
                f"{counted(self._vocabulary, 'token')}: use the model's own tokenizer."
            )
        if sampling.top_logprobs > self._vocabulary:
            raise ConfigError(
                f"top_logprobs is {sampling.top_logprobs}: the model has {counted(self._vocabulary, 'token')}."
            )

    def _blocks(self, requests: Sequence[Request], threads: int) -> Iterator[list[int]]:
        """Indices of the requests of each block, by context length, with equal contexts side by side."""
        most_rows = min(BLOCK_ROWS, max(FEW_ROWS, -(-len(requests) // threads)))
        most_bytes = BLOCK_BYTES // threads
        contexts = [request.context_ids for request in requests]
        # counted as if no context were shared
        column_bytes = (
            2 * self._model.dtype.itemsize * self._model.layers * self._model.kv_heads * self._model.head_size
        )
        block: list[int] = []
        columns = 0
        for i in sorted(range(len(requests)), key=lambda i: (len(contexts[i]), contexts[i].tobytes())):
            needed = len(contexts[i]) + requests[i].sampling.max_tokens
            columns = max(columns, needed)
            if len(block) == most_rows or (block and (len(block) + 1) * columns * column_bytes > most_bytes):
                yield block
                block, columns = [], needed
            block.append(i)
        if block:
            yield block

    @torch.inference_mode()
    def _run(self, requests: Sequence[Request], prompts: Mapping[bytes, Prompt]) -> list[Generation]:
        """Generate for one block."""
        rows, logits = self._start(requests, prompts)
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
            # a finished row that is still computed may have no position left; its values are not used
            positions = (rows.lengths + step).clamp(max=self._positions - 1)
            logits = self._model.logits(drawn, positions, partial(rows.attend, step))
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

    def _start(self, requests: Sequence[Request], cached: Mapping[bytes, Prompt]) -> tuple[_Rows, Tensor]:
        """The rows of a block with their contexts in the cache, and the logits [B, V] of their first tokens."""
        contexts = [request.context_ids.tobytes() for request in requests]
        places = {key: place for place, key in enumerate(dict.fromkeys(contexts))}
        context = np.array([places[key] for key in contexts])
        prompts = [cached[key] for key in places]
        logits = torch.stack([prompt.logits for prompt in prompts])
        return _Rows(requests, context, prompts), logits[torch.from_numpy(context)]

    def _prefilled(self, contexts: Mapping[bytes, Ids], workers: int, run_all: _StarMap) -> dict[bytes, Prompt]:
        """The prompts of contexts, from the cache or computed in pieces."""
        cached = {key: prompt for key in contexts if (prompt := self._prompts.get(key))}
        missing = [key for key in contexts if key not in cached]
        rows = [contexts[key] for key in missing]
        cached_kv = self._prompts.beginnings(rows)
        parts = pieces(rows, [0 if kv is None else kv.shape[2] for kv in cached_kv], workers) if rows else []
        jobs = [([rows[i] for i in piece], [cached_kv[i] for i in piece]) for piece in parts]
        for piece, (prompts, computed) in zip(parts, run_all(partial(prefill, self._model), jobs), strict=True):
            self.prefilled_tokens += computed
            cached.update(zip((missing[i] for i in piece), prompts, strict=True))
        for key in missing:
            self._prompts.put(key, cached[key])
        return cached


@contextmanager
def _workers(workers: int) -> Iterator[_StarMap]:
    """A `starmap` over workers, which share torch's threads evenly."""
    threads = torch.get_num_threads()
    if workers == 1:
        yield starmap
        return
    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads // workers,)) as pool:
            yield lambda run, jobs: pool.map(run, *zip(*jobs, strict=True))
    finally:
        torch.set_num_threads(threads)  # the pool's threads changed it for the whole process
