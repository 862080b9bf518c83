"""The embedded rollout server: `rtpo.engines.decoder.Decoder` behind verl's rollout interface.

verl requires three parts: a server actor that generates, a replica that launches the server, and an adapter in the
trainer's worker that sends weights to the server. This module registers them under the name `embedded`.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
import torch
from transformers import AutoConfig, AutoTokenizer
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, BaseRollout
from verl.workers.rollout.llm_server import LLMServerManager
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

from rtpo.engines.base import BatchingEngine, Generation, Request, Sampling
from rtpo.engines.decoder import Decoder
from rtpo.types import StopReason, as_ids
from rtpo.verl_harness.memory import give_back, share_memory

NAME = "embedded"


@dataclass(frozen=True, slots=True)
class EngineState:
    """The state of an embedded server."""

    version: int  # of its weights
    cached_prompts: int
    prefilled_tokens: int  # context tokens that it computed


class EmbeddedServer:
    """One engine process. `generate_many` takes a list of requests, so that one call carries a whole batch."""

    def __init__(
        self,
        model_path: str,
        seed: int,
        threads: int,
        cache_tokens: int,
        max_tokens: int,
        dtype: str,
        shares_memory: bool = False,
    ) -> None:
        if shares_memory:
            share_memory()
        torch.set_num_threads(threads)
        # only the tokenizer's id; a model's config may name several that end a turn
        stop_id = int(AutoTokenizer.from_pretrained(model_path).eos_token_id)
        config, torch_dtype = AutoConfig.from_pretrained(model_path), PrecisionType.to_dtype(dtype)
        self._decoder = Decoder(config, {stop_id}, cache_tokens, torch_dtype)
        self._seed = seed
        self._max_tokens = max_tokens
        self._batching = BatchingEngine(self.generate_many, delay=0.02)

    async def generate_many(self, requests: Sequence[Request]) -> list[Generation]:
        return self._decoder.generate(requests)

    async def state(self) -> EngineState:
        decoder = self._decoder
        return EngineState(decoder.version, decoder.cached_prompts, decoder.prefilled_tokens)

    async def checksum(self) -> str:
        """A checksum of the weights. It takes a second for a hundred million parameters."""
        return self._decoder.weight_checksum()

    async def prefilled_tokens(self) -> int:
        return self._decoder.prefilled_tokens

    async def load(self, weights: dict[str, torch.Tensor], version: int) -> None:
        self._decoder.load(weights.items(), version)

    # verl's own interface, one request a call: stock verl trainers run on this server too

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **_: Any
    ) -> TokenOutput:
        """Requests that arrive within a moment share a batch."""
        sampling = Sampling(
            temperature=sampling_params.get("temperature", 1.0),
            top_p=sampling_params.get("top_p", 1.0),
            top_k=sampling_params.get("top_k", -1),
            max_tokens=sampling_params.get("max_tokens", self._max_tokens),
        )
        self._seed += 1
        request = Request(as_ids(prompt_ids), sampling, self._seed, request_id, request_id)
        generation = await self._batching.generate(request)
        return TokenOutput(
            token_ids=generation.output_ids.tolist(),
            log_probs=generation.logprobs.tolist(),
            stop_reason="completed" if generation.stop is StopReason.STOP else "length",
            extra_fields={"global_steps": generation.policy_version},
        )

    async def clear_kv_cache(self) -> None:
        self._decoder.reset_cache()

    release_kv_cache = clear_kv_cache

    async def sleep(self, **_: Any) -> None:
        """Give memory back while the trainer works. It needs `load` before the next request."""
        self._decoder.sleep()
        give_back()

    async def wake_up(self, **_: Any) -> None:
        """Do nothing: `load` takes the memory again."""

    resume_kv_cache = abort_all_requests = resume_generation = wake_up


class EmbeddedReplica(RolloutReplica):
    """Launches one server for each training process."""

    async def launch_servers(self) -> None:
        options = self.config.engine_kwargs[NAME]
        actor: Any = (
            ray.remote(EmbeddedServer)
            .options(
                name=_server_name(self.replica_rank),
                num_cpus=1,
                max_concurrency=self.max_concurrency,
                # Ray's default packs actors on one node until half of its CPUs are taken
                scheduling_strategy="SPREAD",
            )
            .remote(
                self.model_config.path,
                seed=self.config.seed,
                threads=options["threads"],
                cache_tokens=options["cache_tokens"],
                max_tokens=self.config.response_length,
                dtype=self.config.dtype,
                shares_memory=self.config.free_cache_engine,
            )
        )
        self.servers = [actor]
        self._server_handle = actor
        self._server_address = _server_name(self.replica_rank)


class EmbeddedServers(LLMServerManager):
    """The replicas without verl's router process: `engines.embedded_engine` routes."""

    async def _init_global_load_balancer(self) -> None:
        self.global_load_balancer = None


class EmbeddedAdapter(BaseRollout):
    """Lives in the trainer's worker; sends its weights to the server of the same rank."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any) -> None:
        super().__init__(config, model_config, device_mesh)
        self._server: Any = None

    async def update_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]],
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        **_: Any,
    ) -> None:
        if self._server is None:
            self._server = ray.get_actor(_server_name(int(os.environ["RANK"])))
        await self._server.load.remote({name: tensor.detach() for name, tensor in weights}, global_steps)

    async def resume(self, tags: list[str]) -> None:
        pass

    async def release(self) -> None:
        pass


def _server_name(rank: int) -> str:
    return f"embedded_server_{rank}"


RolloutReplicaRegistry.register(NAME, lambda: EmbeddedReplica)
_ROLLOUT_REGISTRY[(NAME, "async")] = f"{__name__}.EmbeddedAdapter"
