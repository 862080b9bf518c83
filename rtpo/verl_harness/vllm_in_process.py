"""vLLM's engine in this process: a stand-in for CUDA in tests, on a CPU build of vLLM.

What is tested is what runs on CUDA: `engines.VllmEngine`, `vllm_server.VllmServer`, verl's server with its arguments
for vLLM, vLLM's scheduler, prefix cache and sampler. What is not: vLLM's own process, its workers' CUDA kernels, verl's
worker extension and its sender of weights (`load` takes their place), and memory given back in sleep.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.outputs import RequestOutput
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.executor import UniProcExecutor

from rtpo.errors import DataError
from rtpo.verl_harness.vllm_server import VllmServer, WatchedEngine

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class InProcessEngine:
    """vLLM's synchronous engine with what verl's server asks of the asynchronous one. Each waiting request takes steps
    for all."""

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine
        self._running: set[str] = set()
        self._finished: dict[str, RequestOutput] = {}

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._engine, name)
        if not callable(value):
            return value

        async def call(*arguments: Any, **options: Any) -> Any:
            return value(*arguments, **options)

        return call

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **_: Any
    ) -> AsyncIterator[RequestOutput]:
        self._engine.add_request(request_id, prompt, sampling_params)
        self._running.add(request_id)
        while request_id in self._running:
            await asyncio.sleep(0)  # requests made together share a batch
            if request_id in self._running:
                self._end([output for output in self._engine.step() if output.finished])
        yield self._finished.pop(request_id)

    async def sleep(self, level: int) -> None:
        """Running requests are given up without output."""
        given_up = sorted(self._running)
        self._engine.abort_request(given_up)
        self._engine.sleep(level)
        self._end([RequestOutput(request_id, None, None, None, [], True) for request_id in given_up])

    def _end(self, outputs: list[Any]) -> None:
        for output in outputs:
            self._running.discard(output.request_id)
            self._finished[output.request_id] = output


class InProcessServer(VllmServer):
    """`VllmServer` on an `InProcessEngine`; its configuration is the rollout's and the model's, as verl's server has
    them."""

    def _get_worker_extension_cls(self) -> str:
        return ""  # verl's ends the worker's process with its parent, and this process is the worker's

    async def run_server(self, args: Any) -> None:
        config = EngineArgs.from_cli_args(args).create_engine_config()
        # what a CPU build chooses is a process for the worker, whatever the configuration says
        engine = LLMEngine(config, UniProcExecutor, log_stats=False, multiprocess_mode=False)
        self.engine = WatchedEngine(InProcessEngine(engine))

    async def load(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Take a full set of weights under their Hugging Face names, in the order of verl's synchronisation: sleep,
        weights, cache, version, wake.

        With tied embeddings `lm_head.weight` may be absent. Raises DataError for a missing, unknown or misshapen
        weight; the server then has no version, and a turn raises StaleEngine, until a `load` succeeds.
        """
        self.global_steps = None
        whole = self._whole(dict(weights))
        await self.sleep()
        await self.wake_up(["weights"])
        await self.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(whole.items())})
        await self.clear_kv_cache()
        await self.set_global_steps(version)
        await self.wake_up(["kv_cache"])

    def _whole(self, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The weights, the head among them: without it vLLM would keep the head of the weights before, and without any
        other it would warn and go on."""
        config = self.model_config.hf_config
        if config.tie_word_embeddings and EMBEDDING in weights:
            weights.setdefault(HEAD, weights[EMBEDDING])
        with torch.device("meta"):
            expected = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").state_dict()
        for what, names in (("missing", expected.keys() - weights), ("unknown", weights.keys() - expected)):
            if names:
                raise DataError(f"weights {sorted(names)} are {what}: give the full set of the model's config.")
        for name, tensor in weights.items():
            if tensor.shape != expected[name].shape:
                raise DataError(
                    f"weight {name!r} has shape {tuple(tensor.shape)} where the config asks for "
                    f"{tuple(expected[name].shape)}: load a model of the same config."
                )
        return weights
