"""Engine clients in the driver: `rtpo.engines.base.Engine` over the embedded servers and over verl's vLLM servers."""

import asyncio
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError, RayTaskError
from verl.workers.rollout.llm_server import LLMServerClient

from rtpo.engines.base import BatchingEngine, Generation, Request
from rtpo.errors import InfrastructureError, NonFinite, RTPOError
from rtpo.types import Floats, StopReason, as_ids

STOP_REASONS = {"stop": StopReason.STOP, "length": StopReason.LENGTH}
"""by vLLM's finish_reason"""


def embedded_engine(servers: Sequence[Any], delay: float) -> BatchingEngine:
    """The embedded servers as one engine. Requests of one `route` go to one server. delay: as in BatchingEngine."""

    async def call(requests: list[Request]) -> list[Generation]:
        shares: dict[int, list[int]] = {}
        for index, request in enumerate(requests):
            shares.setdefault(zlib.crc32(request.route.encode()) % len(servers), []).append(index)
        with ray_failures("the rollout engine"):
            answers = await asyncio.gather(
                *[servers[rank].generate_many.remote([requests[i] for i in share]) for rank, share in shares.items()]
            )
        generations = {
            i: g
            for share, answer in zip(shares.values(), answers, strict=True)
            for i, g in zip(share, answer, strict=True)
        }
        return [generations[i] for i in range(len(requests))]

    return BatchingEngine(call, delay)


class VllmEngine:
    """One asynchronous request a turn through verl's client, to `vllm_server.VllmServer`; vLLM batches them itself.

    Only `stop_id` ends a turn, whatever the model's generation config names. vLLM checks the id before the limit. So
    a stop id in the last position that `max_tokens` allows is STOP, as in `rtpo.engines.decoder`.
    """

    def __init__(self, client: LLMServerClient, stop_id: int) -> None:
        self._client = client
        self._stop_id = stop_id

    async def generate(self, request: Request) -> Generation:
        sampling = request.sampling
        with ray_failures("vLLM"):
            output = await self._client.generate(
                request.route,
                prompt_ids=request.context_ids.tolist(),
                sampling_params={
                    "temperature": sampling.temperature,
                    "top_p": sampling.top_p,
                    "top_k": sampling.top_k,
                    "max_tokens": sampling.max_tokens,
                    "seed": request.seed % 2**31,
                    "logprobs": True,
                    "top_logprobs": sampling.top_logprobs,
                    "ignore_eos": True,
                    "stop_token_ids": [self._stop_id],
                },
            )
        reason = output.extra_fields.get("finish_reason")
        if reason not in STOP_REASONS or not output.token_ids:
            raise InfrastructureError(f"vLLM did not finish the request of {request.session}: {reason or 'refused'}")
        logprobs = np.asarray(output.log_probs, dtype=np.float32)
        if not np.isfinite(logprobs).all():
            raise NonFinite("vLLM's log-probs are not finite: check the weights it was given.")
        return Generation(
            output_ids=as_ids(output.token_ids),
            logprobs=logprobs,
            policy_version=int(output.extra_fields["global_steps"]),
            stop=STOP_REASONS[reason],
            top_logprobs=output.extra_fields["top_logprobs"] if sampling.top_logprobs else None,
        )


def largest_logprobs(positions: Sequence[Mapping[int, Any]], count: int) -> Floats:
    """The largest log-probs: [len(positions), count], descending, -inf where a position has fewer.

    positions: vLLM's `Logprob`s of each position, by token id. They are the `count` largest and the sampled token's.
    """
    values = np.full((len(positions), count), -np.inf, np.float32)
    for row, position in zip(values, positions, strict=True):
        largest = sorted((entry.logprob for entry in position.values()), reverse=True)[:count]
        row[: len(largest)] = largest
    return values


def wait_for_weights(calls: Sequence[Any], servers: Sequence[Any], every: float = 5.0) -> None:
    """Wait until the trainer's workers have sent their weights to the `VllmServer`s.

    calls: Ray's references to the workers' calls. servers: checked for failures at intervals of `every` seconds. verl's
    sender itself waits for ever for a vLLM that failed to take weights. Raises a failed server's InfrastructureError,
    or a worker's own error.
    """
    waiting = list(calls)
    while waiting:
        done, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=every)
        ray.get(done)  # raises a worker's error now: the remaining workers would wait for that worker
        if waiting:
            ray.get([server.check_workers.remote() for server in servers])


@contextmanager
def first_error() -> Iterator[None]:
    """In place of a BufferError, raise the error that caused it. When a transfer of weights fails, verl closes shared
    memory that is still in use. Python then raises a BufferError."""
    try:
        yield
    except BufferError as error:
        raise error.__context__ or error from None


def _cause(error: BaseException) -> BaseException:
    while isinstance(error, RayTaskError):
        error = error.cause
    return error


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise an actor's RTPOError as it was, without Ray's wrapping."""
    try:
        yield
    except RayError as error:
        cause = _cause(error)
        if isinstance(cause, RTPOError):
            raise cause from None
        raise


@contextmanager
def trainer_errors() -> Iterator[None]:
    """`own_errors`, and an InfrastructureError for a process that ended. An error of its code stays as it is."""
    try:
        with own_errors():
            yield
    except RayTaskError:
        raise
    except RayError as error:
        ended = str(error).partition(chr(10))[0]
        raise InfrastructureError(f"a training process ended, perhaps for want of memory: {ended}") from error


@contextmanager
def ray_failures(what: str) -> Iterator[None]:
    """Raise an actor's RTPOError as it was, and any other error as an InfrastructureError that names `what`."""
    try:
        with own_errors():
            yield
    except RayError as error:
        cause = _cause(error)
        raise InfrastructureError(f"{what} failed: {str(cause).partition(chr(10))[0]}") from error
