"""verl's vLLM server, which also returns why a turn ended and its largest log-probs.

verl requests only the sampled token's log-prob, reports "stop" and "length" alike, and cuts `max_tokens` to the room
that is left. It reports the weights' version at a turn's end, and does not check that the prefix cache was emptied.
`WatchedEngine` stands between verl's server and vLLM.
"""

import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from verl.utils.device import get_device_name
from verl.workers.rollout.llm_server import LLMServerManager
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica
from vllm import SamplingParams
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from rtpo.core.names import counted
from rtpo.errors import ConfigError, DataError, InfrastructureError, StaleEngine
from rtpo.verl_harness.engines import largest_logprobs
from rtpo.verl_harness.settings import unique_job_id

REMEDY = "See the log in Ray's session folder, and start the run again to go on from its last save."


@contextmanager
def _engine_alive() -> Iterator[None]:
    """Turn vLLM's EngineDeadError into an InfrastructureError."""
    try:
        yield
    except EngineDeadError as error:
        raise InfrastructureError(f"vLLM's engine has ended: a process of it was killed or failed. {REMEDY}") from error


@dataclass
class Watched:
    """A request in flight."""

    top_logprobs: int  # how many of the largest log-probs vLLM returns at each position
    answer: RequestOutput | None = None  # the last so far


class WatchedEngine:
    """vLLM's engine. Each call of `generate` needs an open `watch`. All other attributes are the engine's own."""

    def __init__(self, engine: AsyncLLM) -> None:
        self._engine = engine
        self._watched: dict[str, Watched] = {}
        self.may_hold_keys = False
        """whether a request came in since the prefix cache was last emptied"""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @contextmanager
    def watch(self, request_id: str, top_logprobs: int) -> Iterator[Watched]:
        self._watched[request_id] = watched = Watched(top_logprobs)
        try:
            yield watched
        finally:
            del self._watched[request_id]

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncIterator[RequestOutput]:
        self.may_hold_keys = True
        watched = self._watched[request_id]
        if watched.top_logprobs:
            sampling_params.logprobs = watched.top_logprobs
        # we read only the finished output; verl's abort_all_requests reads one per token, but is never called
        sampling_params.output_kind = RequestOutputKind.FINAL_ONLY
        async for answer in self._engine.generate(prompt, sampling_params, request_id, **options):
            watched.answer = answer
            yield answer

    async def reset_prefix_cache(self, *arguments: Any, **options: Any) -> bool:
        """Empty the prefix cache. Raises StaleEngine if vLLM says that it did not."""
        with _engine_alive():
            is_empty = await self._engine.reset_prefix_cache(*arguments, **options)
        if not is_empty:
            raise StaleEngine(
                "vLLM did not empty its prefix cache: requests were still running, and later ones would be answered "
                "from the keys and values of earlier weights."
            )
        self.may_hold_keys = False
        return True


class VllmServer(vLLMHttpServer):
    """One vLLM engine. `generate` takes one more sampling parameter, `top_logprobs`."""

    failure: InfrastructureError | None = None
    """the error of the last call of vLLM's workers"""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # vLLM's workers name the socket for weights after this variable
        os.environ["VERL_RAY_JOB_ID"] = unique_job_id(os.environ["VERL_RAY_JOB_ID"])

    def _get_worker_extension_cls(self) -> str:
        name = "ReloadingWorker" if get_device_name() == "cpu" else "CheckedWorker"
        return f"rtpo.verl_harness.vllm_worker.{name}"

    async def run_server(self, args: Any) -> None:
        await super().run_server(args)
        self.engine = WatchedEngine(self.engine)

    async def collective_rpc(self, method: Any, *arguments: Any, **options: Any) -> None:
        """Call vLLM's workers. The version is None while weights arrive. Raises InfrastructureError with the error of a
        worker."""
        self.failure = None
        if method == "update_weights_from_ipc":
            self.global_steps = None
        try:
            with _engine_alive():
                await super().collective_rpc(method, *arguments, **options)
        except InfrastructureError as error:
            self.failure = error
            raise
        except Exception as error:
            wrapped = re.search(r"Worker failed with error '(.*)', please check", str(error), re.DOTALL)
            words = " ".join((wrapped[1] if wrapped else f"{type(error).__name__}: {error}").partition("\n")[0].split())
            self.failure = InfrastructureError(f"vLLM's workers failed ({words.rstrip('.')}). {REMEDY}")
            raise self.failure from error

    async def check_workers(self) -> None:
        """Raise the error of the last call of vLLM's workers, if it failed. verl's sender of weights would wait for
        their answer for ever."""
        if self.failure is not None:
            raise self.failure

    async def set_global_steps(self, global_steps: int) -> None:
        """Name the version of new weights. Raises StaleEngine if the prefix cache may hold keys of earlier ones."""
        if self.engine.may_hold_keys:
            raise StaleEngine(
                f"vLLM was given version {global_steps} and its prefix cache was not emptied: requests would be "
                "answered from the keys and values of earlier weights."
            )
        await super().set_global_steps(global_steps)

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, *arguments: Any, **options: Any
    ) -> TokenOutput:
        """verl's answer. Its `extra_fields` also have vLLM's `finish_reason` and the `top_logprobs` that were
        requested: [n, top_logprobs], as in `rtpo.engines.base.Generation`. Both are missing for a request that vLLM
        never saw.

        Raises DataError for a context that is empty, holds ids outside the vocabulary or leaves no room for
        `max_tokens`. Raises ConfigError for more `top_logprobs` than vLLM gives, StaleEngine if there are no weights or
        they change during the turn, and InfrastructureError if vLLM's engine has ended.
        """
        top_logprobs = sampling_params.pop("top_logprobs", 0)
        self._check(prompt_ids, sampling_params["max_tokens"], top_logprobs)
        version = self.global_steps
        if version is None:
            raise StaleEngine("vLLM was given no weights yet: synchronise before the first rollout.")
        with _engine_alive(), self.engine.watch(request_id, top_logprobs) as watched:
            output = await super().generate(prompt_ids, sampling_params, request_id, *arguments, **options)
        if self.global_steps != version:
            raise StaleEngine(
                f"vLLM took other weights while a turn of version {version} was running: synchronise between rollouts."
            )
        if watched.answer is not None and watched.answer.outputs:
            (completion,) = watched.answer.outputs
            output.extra_fields["finish_reason"] = completion.finish_reason
            if top_logprobs:
                output.extra_fields["top_logprobs"] = largest_logprobs(completion.logprobs, top_logprobs)
        return output

    def _check(self, prompt_ids: list[int], max_tokens: int, top_logprobs: int) -> None:
        limit, vocabulary = self.config.max_model_len, self.model_config.hf_config.vocab_size
        most = self.engine.model_config.max_logprobs
        if not prompt_ids:
            raise DataError("the context is empty: give at least one token.")
        if len(prompt_ids) + max_tokens > limit:
            raise DataError(
                f"a context of {counted(len(prompt_ids), 'token')} and max_tokens {max_tokens} do not fit "
                f"max_model_len {limit}: shorten one of them."
            )
        if min(prompt_ids) < 0 or max(prompt_ids) >= vocabulary:
            raise DataError(
                f"the context has ids outside the model's {counted(vocabulary, 'token')}: use the model's own "
                "tokenizer."
            )
        if 0 <= most < top_logprobs:
            raise ConfigError(
                f"top_logprobs is {top_logprobs} and vLLM gives {most} at most: ask for fewer, or raise max_logprobs "
                "in the rollout's engine_kwargs.vllm."
            )


class VllmReplica(vLLMReplica):
    """Launches `VllmServer` where verl launches its own server."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.server_class = ray.remote(VllmServer)


class VllmServers(LLMServerManager):
    """verl's replicas and router, with `VllmReplica`."""

    rollout_replica_class = VllmReplica
