"""What a rollout engine takes and gives: token ids in, token ids and log-probs out.

Log-probs are always those of the distribution that the token was drawn from: softmax(logits / temperature) after the
top-k and top-p cuts, renormalised (vLLM calls it `processed_logprobs`). A greedy token (temperature 0) is not drawn;
its log-probs are those of softmax(logits), uncut.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from rtpo.errors import ConfigError
from rtpo.types import Floats, Ids, StopReason


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn.

    temperature:  divides the logits; 0 takes the most likely token and ignores `top_k` and `top_p`.
    top_p:        keeps the smallest set of most likely tokens whose mass reaches it, in (0, 1]; 1 keeps all.
    top_k:        keeps that many most likely tokens, before `top_p`; -1 keeps all.
    max_tokens:   most output tokens, stop token included.
    top_logprobs: how many of the largest log-probs to return at each position; 0 for none.

    Raises ConfigError for a value outside its range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int = 32
    top_logprobs: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise ConfigError(f"temperature is {self.temperature}: give a finite number >= 0 (0 is greedy).")
        if not 0.0 < self.top_p <= 1.0:
            raise ConfigError(f"top_p is {self.top_p}: give a number in (0, 1] (1 keeps all tokens).")
        if self.top_k != -1 and self.top_k < 1:
            raise ConfigError(f"top_k is {self.top_k}: give a number >= 1, or -1 to keep all tokens.")
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens is {self.max_tokens}: give a number >= 1.")
        if self.top_logprobs < 0:
            raise ConfigError(f"top_logprobs is {self.top_logprobs}: give a number >= 0 (0 for none).")


PAPER_DECODING = Sampling(temperature=0.6, top_p=0.95)
"""of the paper's evaluations (Experimental Setup)"""


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One turn to generate.

    context_ids: [n] the context c_k, n >= 1; used unchanged.
    seed:        of this request alone; with context, sampling settings and weights it decides the output.
    session:     the rollout's uid.
    route:       uid of the rollout that this rollout was forked from, or its own uid. An engine with several replicas
                 sends equal routes to one replica, which holds the shared prefix's keys and values.
    """

    context_ids: Ids
    sampling: Sampling
    seed: int
    session: str
    route: str


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """One generated turn.

    output_ids:     [n] as sampled, n >= 1; the stop token is the last one exactly when `stop` is STOP.
    logprobs:       [n] of the sampled tokens, in nats (see the module's docstring for the distribution).
    policy_version: version of the weights that sampled them.
    top_logprobs:   [n, Sampling.top_logprobs] the largest log-probs of the same distribution, descending, -inf where
                    fewer tokens were kept; None if not asked for.
    """

    output_ids: Ids
    logprobs: Floats
    policy_version: int
    stop: StopReason
    top_logprobs: Floats | None


class Engine(Protocol):
    """Anything that generates turns. Concurrent calls share a batch."""

    async def generate(self, request: Request) -> Generation:
        """Raises DataError for a context that is empty or too long, NonFinite for broken weights,
        InfrastructureError if the engine itself fails."""
        ...


class BatchingEngine:
    """An engine that answers lists of requests, one list at a time.

    A call takes all requests made since the previous call began. It starts when no request has come for `delay`
    seconds; with delay 0, when all episodes that can run now have made their requests.
    """

    def __init__(self, call: Callable[[list[Request]], Awaitable[list[Generation]]], delay: float = 0.0) -> None:
        self._call = call
        self._delay = delay
        self._waiting: list[tuple[Request, asyncio.Future[Generation]]] = []
        self._calls: asyncio.Task[None] | None = None

    async def generate(self, request: Request) -> Generation:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Generation] = loop.create_future()
        self._waiting.append((request, future))
        if self._calls is None or self._calls.done():
            self._calls = loop.create_task(self._run())
        return await future

    async def _run(self) -> None:
        try:
            while self._waiting:
                count = 0
                while count < len(self._waiting):
                    count = len(self._waiting)
                    await asyncio.sleep(self._delay)
                waiting, self._waiting = self._waiting, []
                await self._answer(waiting)
        finally:
            self._waiting = []  # requests of cancelled episodes

    async def _answer(self, waiting: list[tuple[Request, asyncio.Future[Generation]]]) -> None:
        try:
            generations = await self._call([request for request, _ in waiting])
        except Exception as error:
            for _, future in waiting:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), generation in zip(waiting, generations, strict=True):
            if not future.done():
                future.set_result(generation)
