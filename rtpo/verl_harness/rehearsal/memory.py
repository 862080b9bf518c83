"""What an update takes of a GPU: FSDP2 as verl applies it, on tensors without contents, on one rank of a group that has
no others. verl must have been imported for the platform `cpu`, whose engine needs no driver; bytes are the same."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from weakref import finalize

import torch
import torch.distributed as dist
import transformers.masking_utils
import verl.workers.engine.fsdp.transformer_impl as fsdp
from omegaconf import DictConfig
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.common_utils import get_untyped_storages
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from transformers import AutoModelForCausalLM

from rtpo.verl_harness.fsdp_cpu import FSDPEngineOnCPU
from rtpo.verl_harness.fsdp_engine import _read_at
from rtpo.verl_harness.rehearsal.composition import worker_configs
from rtpo.verl_harness.settings import verl_settings


@dataclass(frozen=True)
class Measured:
    """Bytes: of a rank at its peak, in the passes over a micro-batch and in the optimizer's step, and the parameters'
    shards on all ranks, one by one."""

    passes: int
    step: int
    shards: tuple[int, ...]

    @property
    def peak(self) -> int:
        return max(self.passes, self.step)


class Living(TorchDispatchMode):
    """Counts the bytes of tensors while they live, those that FSDP empties and fills again as they are. (torch's own
    MemTracker keeps counting what an optimizer's step is done with.)"""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}

    def __enter__(self) -> Any:
        self._resize = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, size: int) -> None:
            self._resize(storage, size)
            if storage._cdata in self._sizes:
                self._set(storage._cdata, size)

        torch.UntypedStorage.resize_ = resize  # type: ignore[assignment, method-assign]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_iter(made):
            if isinstance(tensor, torch.Tensor):
                self.count(tensor)
        return made

    def count(self, tensor: torch.Tensor) -> None:
        for storage in get_untyped_storages(tensor):
            if storage._cdata not in self._sizes:
                self._set(storage._cdata, storage.nbytes())
                finalize(storage, self._forget, storage._cdata)

    def _set(self, storage: int, size: int) -> None:
        self.now += size - self._sizes.get(storage, 0)
        self._sizes[storage] = size
        self.peak = max(self.peak, self.now)

    def _forget(self, storage: int) -> None:
        self.now -= self._sizes.pop(storage)


def update_memory(overrides: DictConfig, model: str, ranks: int, nodes: int, pairs: int) -> Measured:
    """Of rank 0 of `ranks` in updates of micro-batches of `nodes` nodes without branches, of which `pairs` are trained.
    overrides: a run's `verl` key. model: a folder with config.json and a tokenizer."""
    settings = verl_settings(overrides)
    roles = settings.actor_rollout_ref
    roles.model.path, roles.model.external_lib = model, "rtpo.verl_harness.fsdp_cpu"
    roles.actor.fsdp_config.use_torch_compile = False
    config = worker_configs(settings)["actor"]
    with _group(ranks):
        parts: Any = config.model_config, config.engine_config, config.optimizer_config, config.checkpoint_config
        engine = FSDPEngineOnCPU(*deepcopy(parts))
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        _build(engine, mode)
        parameters = list(engine.module.parameters())
        with mode, Living() as living, _causal():
            for parameter in parameters:
                living.count(parameter)
            # Adam's states are there, and gradients of micro-batches before
            for parameter in parameters:
                parameter.grad = torch.zeros_like(parameter)
            engine.optimizer.step()
            living.peak = living.now
            _passes(engine, nodes, pairs)
            fsdp.fsdp2_clip_grad_norm_(parameters, max_norm=1.0)
            passes, living.peak = living.peak, living.now
            engine.optimizer.step()
        shards = tuple(
            len(rows) * one[:1].numel() * one.element_size()
            for one in parameters
            for rows in torch.empty(len(one), device="meta").chunk(ranks)
        )
    return Measured(passes, living.peak, shards)


@contextmanager
def _group(ranks: int) -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def _causal() -> Iterator[None]:
    """What transformers finds in ids that are there: no mask is needed."""
    masks = transformers.masking_utils
    with (
        patch.object(masks, "is_tracing", lambda *_: False),
        patch.object(masks, "find_packed_sequence_indices", lambda *_, **__: None),
    ):
        yield


def _build(engine: Any, mode: FakeTensorMode) -> None:
    """Model and optimizer by verl's own code, the model being made where it would be read."""

    def made(config: Any, torch_dtype: torch.dtype, **_: Any) -> torch.nn.Module:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, dtype=torch_dtype, attn_implementation="sdpa")

    def filled(module: torch.nn.Module, *_: Any) -> None:
        with mode:
            module.to_empty(device="cpu")

    with (
        patch("verl.utils.model.get_hf_auto_model_class", lambda **_: SimpleNamespace(from_pretrained=made)),
        patch("verl.utils.model.print_model_size"),
        patch.object(fsdp, "fsdp2_load_full_state_dict", filled),
    ):
        engine._build_model_optimizer()
    for group in engine.optimizer.param_groups:
        group["foreach"] = True  # as on CUDA
    engine.module.train()


def _passes(engine: Any, nodes: int, pairs: int) -> None:
    """Forward and backward over a micro-batch, as `rtpo.verl_harness.fsdp_engine` has the engine compute one by fused
    kernels, which profiles of GPUs use."""
    _read_at(engine.module, torch.arange(pairs))
    labels = torch.zeros(1, pairs, dtype=torch.long)
    with torch.autocast("cpu", engine._autocast_dtype):
        output = engine.module(
            input_ids=torch.zeros(1, nodes, dtype=torch.long),
            attention_mask=None,
            use_cache=False,
            temperature=1.0,
            return_dict=True,
            shift_labels=labels,
        )
    output.log_probs.sum().backward()
