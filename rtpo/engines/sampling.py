"""Drawing tokens from logits, each row with its own settings and its own random numbers."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rtpo.engines.base import Request
from rtpo.errors import NonFinite

NO_LIMIT = torch.iinfo(torch.int64).max
LARGE_VOCABULARY = 4096
"""vocabularies of at least this size are summed in chunks, and only one chunk is searched token by token"""
CHUNK = 256


class Sampler:
    """The sampling settings of B rows. `requests` holds one request for each row."""

    def __init__(self, requests: Sequence[Request]) -> None:
        sampling = [request.sampling for request in requests]
        self._temperature = torch.tensor([[s.temperature] for s in sampling], dtype=torch.float32)
        self._greedy = self._temperature[:, 0] == 0
        self._temperature[self._greedy] = 1.0
        self._top_k = torch.tensor([NO_LIMIT if s.top_k == -1 else s.top_k for s in sampling])
        self._top_p = torch.tensor([torch.inf if s.top_p == 1.0 else s.top_p for s in sampling])
        self._uniforms = uniforms([request.seed for request in requests], max(s.max_tokens for s in sampling))
        self._index()

    def _index(self) -> None:
        truncated = (self._top_k < NO_LIMIT) | (self._top_p < 1.0)
        self._truncated = (truncated & ~self._greedy).nonzero()[:, 0]
        self._any_greedy = bool(self._greedy.any())
        self._is_unscaled = bool((self._temperature == 1.0).all())

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows."""
        self._temperature, self._greedy = self._temperature[rows], self._greedy[rows]
        self._top_k, self._top_p, self._uniforms = self._top_k[rows], self._top_p[rows], self._uniforms[rows]
        self._index()

    def draw(self, logits: Tensor, step: int, top: int) -> tuple[Tensor, Tensor, Tensor]:
        """Draw output `step` from logits [B, V]: tokens [B], their log-probs [B], the `top` largest log-probs [B, top].

        Raises NonFinite if a logit is NaN or infinite.
        """
        if not torch.isfinite(logits.sum()):
            raise NonFinite("The rollout engine's logits are not finite: check the weights it was given.")
        scores = logits if self._is_unscaled else logits / self._temperature
        if len(self._truncated):
            scores = scores.clone()
            scores[self._truncated] = truncate(
                scores[self._truncated], self._top_k[self._truncated], self._top_p[self._truncated]
            )
        probabilities = scores.softmax(-1)
        invert = _inverted_in_chunks if logits.shape[1] >= LARGE_VOCABULARY else _inverted
        tokens = invert(probabilities, self._uniforms[:, step, None])[0][:, 0]
        if self._any_greedy:
            tokens = torch.where(self._greedy, logits.argmax(-1), tokens)
        logprobs = probabilities.gather(-1, tokens[:, None])[:, 0].log()
        largest = scores.log_softmax(-1).topk(top).values if top else scores.new_empty(len(scores), 0)
        return tokens, logprobs, largest


def _inverted(weights: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Draw an index from weights [B, n] by inverting their running sum at `uniform` [B, 1], in [0, 1 - 2**-52].

    Returns the index [B, 1], and where within the index's weight the sum was met [B, 1], as a share in [0, 1).
    """
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    target = uniform * cumulative[:, -1:]
    place = torch.searchsorted(cumulative, target, right=True)
    weight = weights.gather(1, place).double()
    return place, ((target - cumulative.gather(1, place) + weight) / weight).clamp_(0.0, 1.0 - 2.0**-52)


def _inverted_in_chunks(weights: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """The same as `_inverted`, first over the sums of chunks, then within one chunk. A running sum in float64 over
    a large vocabulary would take longer than the rest of a draw."""
    count = weights.shape[1]
    whole = count // CHUNK * CHUNK
    sums = weights[:, :whole].unflatten(1, (-1, CHUNK)).sum(-1)
    if whole < count:
        sums = torch.cat([sums, weights[:, whole:].sum(-1, keepdim=True)], 1)
    chunk, share = _inverted(sums, uniform)
    places = chunk * CHUNK + torch.arange(CHUNK)
    within = weights.gather(1, places.clamp(max=count - 1)).masked_fill_(places >= count, 0.0)
    place, share = _inverted(within, share)
    return chunk * CHUNK + place, share


def uniforms(seeds: Sequence[int], count: int) -> Tensor:
    """[len(seeds), count] float64 in [0, 1 - 2**-52]: number t of a seed is a hash (splitmix64) of that seed and t."""

    def mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))

    golden = np.uint64(0x9E3779B97F4A7C15)
    states = mix(np.array([seed % 2**64 for seed in seeds], dtype=np.uint64) + golden)
    steps = np.arange(1, count + 1, dtype=np.uint64) * golden
    return torch.from_numpy((mix(states[:, None] + steps) >> np.uint64(12)).astype(np.float64) * 2.0**-52)


def truncate(scores: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Keep the `top_k` [B] largest scores [B, V], and of these the fewest whose mass reaches `top_p` [B].

    The other scores become -inf. Of equal scores the lower id counts as larger. A `top_p` above 1 keeps all.
    """
    ordered, order = torch.sort(scores, stable=True, dim=-1, descending=True)
    ordered.masked_fill_(torch.arange(scores.shape[1]) >= top_k[:, None], -torch.inf)
    probabilities = ordered.softmax(-1)
    mass_before = probabilities.cumsum(-1) - probabilities
    mass_before[:, 0] = 0.0
    ordered.masked_fill_(mass_before >= top_p[:, None], -torch.inf)
    return torch.empty_like(scores).scatter_(-1, order, ordered)
