"""Engine clients in the driver: `rtpo.engine.Engine` over the embedded servers and over verl's vLLM servers."""

import asyncio
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from verl.workers.rollout.llm_server import LLMServerClient

from rtpo.engine import Generation, Request
from rtpo.errors import ConfigError, InfrastructureError
from rtpo.types import StopReason, as_ids


class EmbeddedEngine:
    """Gathers the requests made at the same moment into one call for each server."""

    def __init__(self, servers: Sequence[Any]) -> None:
        self._servers = servers
        self._waiting: list[tuple[Request, asyncio.Future[Generation]]] = []
        self._calls: set[asyncio.Task[None]] = set()

    async def generate(self, request: Request) -> Generation:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Generation] = loop.create_future()
        if not self._waiting:
            # every episode that is ready now submits before this runs
            loop.call_soon(self._dispatch)
        self._waiting.append((request, future))
        return await future

    def _dispatch(self) -> None:
        waiting, self._waiting = self._waiting, []
        for rank, server in enumerate(self._servers):
            share = [item for item in waiting if _replica(item[0].session, len(self._servers)) == rank]
            if share:
                call = asyncio.get_running_loop().create_task(_call(server, share))
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)


def _replica(session: str, replicas: int) -> int:
    return zlib.crc32(session.encode()) % replicas


async def _call(server: Any, share: list[tuple[Request, "asyncio.Future[Generation]"]]) -> None:
    try:
        generations = await server.generate_many.remote([request for request, _ in share])
    except Exception as error:
        for _, future in share:
            if not future.done():
                future.set_exception(getattr(error, "cause", None) or error)
        return
    for (_, future), generation in zip(share, generations, strict=True):
        if not future.done():
            future.set_result(generation)


class VllmEngine:
    """One asynchronous request a turn through verl's client; vLLM batches them itself.

    verl reports vLLM's "stop" and "length" alike, so truncation is read off the last id.
    """

    def __init__(self, client: LLMServerClient, stop_id: int) -> None:
        self._client = client
        self._stop_id = stop_id

    async def generate(self, request: Request) -> Generation:
        sampling = request.sampling
        if sampling.top_logprobs:
            raise ConfigError("top_logprobs is set: verl's vLLM server returns the sampled token's log-prob only.")
        output = await self._client.generate(
            request.session,
            prompt_ids=request.context_ids.tolist(),
            sampling_params={
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
                "max_tokens": sampling.max_tokens,
                "seed": request.seed % 2**31,
                "logprobs": True,
            },
        )
        if output.stop_reason == "aborted" or not output.token_ids:
            raise InfrastructureError(f"vLLM aborted the request of {request.session}")
        stopped = output.token_ids[-1] == self._stop_id
        return Generation(
            output_ids=as_ids(output.token_ids),
            logprobs=np.asarray(output.log_probs, dtype=np.float32),
            policy_version=int(output.extra_fields["global_steps"]),
            stop=StopReason.STOP if stopped else StopReason.LENGTH,
            top_logprobs=None,
        )
