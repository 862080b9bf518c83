"""The engines that tests/engines/test_engine_conformance.py is run on, each behind one small seam."""

import asyncio
import os
import shutil
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np
import pytest
import torch
from conftest import compose_config
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, Qwen3ForCausalLM

from rtpo.core.packing import Packed
from rtpo.engines.base import BatchingEngine, Generation, Request, Sampling
from rtpo.engines.decoder import Decoder
from rtpo.run.config import PROJECT, RunConfig
from rtpo.types import Ids
from rtpo.verbs import TokenClip

T = TypeVar("T")
Weights = dict[str, Tensor]
TOY = PROJECT / "rtpo" / "toy" / "warm_start_math"
STOP = 2
ONE = Sampling(max_tokens=1)
PATIENCE = 600
"""seconds that an engine on a busy machine may take for anything here"""
EXACT = 3e-5
"""nats; what an engine in fp32 may differ by from transformers' log-probs"""
EXACT_LARGE = 2e-4
"""nats; the same for SmolLM2, whose 30 layers round more often: 6e-5 was measured"""
BF16 = 0.1
"""nats; the same for bf16 on a GPU: chosen, not measured"""


class Bench:
    """A subject and the event loop that it lives in.

    A subject is an engine with what is around it, which can hold one of two sets of weights of one architecture:
    `engine`; `networks`, transformers' models with the two sets in fp32; `context_limit`; `tolerance` in nats; and
    `push` (give it a set of weights in its own way), `rest` (what is between rollouts: a sleeping engine sleeps until a
    push), `reset` (empty the prefix cache) and `cached_tokens` (of a context, those that a request for it does not
    compute).
    """

    def __init__(self, subject: Any, runner: asyncio.Runner) -> None:
        self.subject = subject
        self._runner = runner

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        async def within_patience() -> T:
            try:
                async with asyncio.timeout(PATIENCE):
                    return await coroutine
            except TimeoutError:
                raise AssertionError(f"after {PATIENCE} s the engine has not answered: its scheduler waits") from None

        return self._runner.run(within_patience())

    def generate(self, *requests: Request) -> list[Generation]:
        """Of requests made together."""

        async def together() -> list[Generation]:
            return await asyncio.gather(*[self.subject.engine.generate(request) for request in requests])

        return self.run(together())

    def push(self, which: int, version: int) -> None:
        self.run(self.subject.push(which, version))


@contextmanager
def bench_of(subject: Any) -> Iterator[Bench]:
    with asyncio.Runner() as runner:
        yield Bench(subject, runner)


def small_model(seed: int, head_dim: int, member: str = "qwen3", **changes: Any) -> Any:
    """Random tied weights of a member of the family, wide enough that log-probs differ between tokens; the toy tasks'
    vocabulary. vLLM's CPU kernels take no heads of 16."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": 204, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": head_dim, "max_position_embeddings": 256}
    ends = {"tie_word_embeddings": True, "initializer_range": 0.2, "eos_token_id": STOP, "pad_token_id": 0}
    network = AutoModelForCausalLM.from_config(AutoConfig.for_model(member, **sizes | heads | ends | changes)).eval()
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if name.endswith("bias"):  # 0 otherwise
                weight.normal_(std=0.2)
    return network


def kept(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """One position's log-probs after the cuts."""
    largest = logits.argsort(descending=True)[: top_k if top_k > 0 else None]
    if top_p < 1:
        mass = logits[largest].double().softmax(-1).cumsum(-1)
        largest = largest[: 1 + int((mass[:-1] < top_p).sum())]
    cut = torch.full_like(logits, -torch.inf)
    cut[largest] = logits[largest]
    return cut.log_softmax(-1)


def weights_of(network: PreTrainedModel) -> Weights:
    return {name: weight.detach().clone() for name, weight in network.state_dict().items()}


def folder_of(network: PreTrainedModel, folder: Path) -> Path:
    """The model with the toy task's tokenizer."""
    network.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(TOY / name, folder)
    return folder


class EmbeddedDecoder:
    """The embedded server's decoder in this process."""

    def __init__(self, networks: tuple[Any, Any], tolerance: float = EXACT) -> None:
        self.networks = networks
        self.tolerance = tolerance
        config = self.networks[0].config
        self.context_limit = config.max_position_embeddings
        self._decoder = Decoder(config, {STOP}, cache_tokens=4096)
        self.engine = BatchingEngine(self._call)

    async def _call(self, requests: list[Request]) -> list[Generation]:
        return self._decoder.generate(requests)

    async def push(self, which: int, version: int) -> None:
        await self.load(weights_of(self.networks[which]), version)

    async def load(self, weights: Weights, version: int) -> None:
        self._decoder.load(weights.items(), version)

    async def reset(self) -> None:
        self._decoder.reset_cache()

    rest = reset

    async def cached_tokens(self, context: Ids) -> int:
        before = self._decoder.prefilled_tokens
        await self.engine.generate(Request(context, ONE, 0, "cache", "cache"))
        return len(context) - (self._decoder.prefilled_tokens - before)


MEMBERS: dict[str, dict[str, Any]] = {
    "embedded": {},
    "embedded qwen2": {"member": "qwen2"},
    "embedded llama": {"member": "llama"},
    "embedded, all biases": {"member": "llama", "attention_bias": True, "mlp_bias": True},
    "embedded, untied": {"attention_bias": True, "tie_word_embeddings": False},
}
"""what the embedded engine is run on: random models, by what they are made of"""


MODEL = Path(os.environ.get("RTPO_MODELS", PROJECT / "data" / "models")) / "smollm2-135m-instruct"
"""SmolLM2, in the folder that RTPO_MODELS names, or data/models"""


def prepared_model() -> Path:
    """MODEL. Where it was not prepared the test is skipped, and fails in CI."""
    if MODEL.is_dir():
        return MODEL
    why = "SmolLM2 is not prepared: python experiments/prepare_model.py"
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


def embedded(name: str) -> EmbeddedDecoder:
    """By its name in MEMBERS, or `embedded smollm2`."""
    if name in MEMBERS:
        return EmbeddedDecoder((small_model(0, 16, **MEMBERS[name]), small_model(1, 16, **MEMBERS[name])))
    folder = prepared_model()
    networks = [AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for _ in range(2)]
    (comma,) = AutoTokenizer.from_pretrained(folder).encode(",")
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in networks[1].parameters():
            weight.mul_(1 + 0.1 * torch.randn(()))
    for network in networks:
        embedding = network.get_input_embeddings().weight
        embedding.data[STOP] = embedding.data[comma]  # a stop is as likely as a comma
        network.config.max_position_embeddings = 256  # more would take transformers long
    return EmbeddedDecoder((networks[0], networks[1]), EXACT_LARGE)


class OnVerl:
    """A `VerlBackend`: its engine and its way of giving weights. The second set is one large optimizer step away."""

    def __init__(self, backend: Any, config: RunConfig, folder: Path, tolerance: float) -> None:
        self._backend = backend
        self.engine = backend.engine
        self.tolerance = tolerance
        first = Qwen3ForCausalLM.from_pretrained(config.model.path, dtype=torch.float32).eval()
        self.context_limit = int(config.verl["actor_rollout_ref"]["rollout"].get("max_model_len", 0))
        self.context_limit = self.context_limit or first.config.max_position_embeddings
        self.is_embedded = config.is_embedded
        self._folders = [folder / "first", folder / "second"]
        backend.save(self._folders[0])
        for _ in range(4):
            backend.step(self._rows(), None, TokenClip())
        backend.save(self._folders[1])
        second = Qwen3ForCausalLM(first.config).eval()
        second.load_state_dict(_saved(self._folders[1]))
        self.networks = first, second

    def _rows(self) -> Packed:
        ids = np.random.default_rng(0).integers(3, 200, 40).astype(np.int32)
        mask = np.arange(40) >= 20
        on = mask.astype(np.float32)
        return Packed(ids, np.array([40], np.int32), mask, on, on / 20, -5 * on)

    async def push(self, which: int, version: int) -> None:
        await asyncio.to_thread(self._backend.load, self._folders[which])
        await asyncio.to_thread(self._backend.push, version)

    async def rest(self) -> None:
        await asyncio.to_thread(self._backend.score, self._rows())

    async def reset(self) -> None:
        for replica in self._backend._replicas:
            await replica.clear_kv_cache()

    async def cached_tokens(self, context: Ids) -> int:
        server = self._backend._replicas[0].server_handle
        if not self.is_embedded:
            answer = await server.generate.remote(context.tolist(), {"temperature": 1.0, "max_tokens": 1}, uuid4().hex)
            return int(answer.extra_fields["num_cached_tokens"])
        before = await server.state.remote()
        await self.engine.generate(Request(context, ONE, 0, "cache", "cache"))
        after = await server.state.remote()
        return len(context) - int(after.prefilled_tokens - before.prefilled_tokens)


def _saved(folder: Path) -> Weights:
    """The weights of verl's checkpoint of one process."""
    (path,) = folder.rglob("model_world_size_1_rank_0.pt")
    state = torch.load(path, weights_only=False, map_location="cpu")
    return {name: getattr(weight, "_local_tensor", weight).float() for name, weight in state.items()}


def vllm_device() -> str:
    """What vLLM runs on here: cuda or cpu. Skips without either."""
    pytest.importorskip("vllm", reason="vLLM is not installed: its engine is not started")
    device = str(import_module("vllm.platforms").current_platform.device_type)
    if device not in ("cuda", "cpu") or (device == "cuda" and not torch.cuda.is_available()):
        pytest.skip(f"this vLLM is for another device ({device or 'none is on this machine'}): it is not started")
    return device


def vllm_config(model: Path, device: str, *overrides: str) -> RunConfig:
    """verl's own path to vLLM with one training process: FSDP2, verl's sender of weights, vLLM in its own process."""
    machine = {"cuda": ("profile=a100x8",), "cpu": ("profile=toy", "+engine=vllm_cpu")}[device]
    return compose_config(
        *machine,
        "profile.processes=1",
        "profile.logical_cpus=8",
        "profile.track=[]",
        f"model.path={model}",
        "optimizer.lr=0.01",
        "task.max_context_tokens=256",
        "task.max_prompt_tokens=128",
        "task.max_turn_tokens=128",
        *overrides,
    )
