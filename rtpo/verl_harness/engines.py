"""Engine clients in the driver: `rtpo.engine.Engine` over the embedded servers and over verl's vLLM servers."""

import asyncio
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from ray.exceptions import RayError
from verl.workers.rollout.llm_server import LLMServerClient

from rtpo.engine import BatchingEngine, Generation, Request
from rtpo.errors import ConfigError, InfrastructureError, RTPOError
from rtpo.types import StopReason, as_ids


def embedded_engine(servers: Sequence[Any]) -> BatchingEngine:
    """The embedded servers as one engine; a session stays on one server."""

    async def call(requests: list[Request]) -> list[Generation]:
        shares: dict[int, list[int]] = {}
        for index, request in enumerate(requests):
            shares.setdefault(zlib.crc32(request.session.encode()) % len(servers), []).append(index)
        try:
            answers = await asyncio.gather(
                *[servers[rank].generate_many.remote([requests[i] for i in share]) for rank, share in shares.items()]
            )
        except RayError as error:
            cause = getattr(error, "cause", error)
            if isinstance(cause, RTPOError):
                raise cause from None
            raise InfrastructureError(f"the rollout engine failed: {str(cause).splitlines()[0]}") from error
        generations = {
            i: g
            for share, answer in zip(shares.values(), answers, strict=True)
            for i, g in zip(share, answer, strict=True)
        }
        return [generations[i] for i in range(len(requests))]

    return BatchingEngine(call)


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
        try:
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
        except RayError as error:
            raise InfrastructureError(f"vLLM failed: {str(error).splitlines()[0]}") from error
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
