"""verl's actor-rollout worker with our loss, a gradient without a step, and a fresh start between runs."""

import gc
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import ray
import torch
from omegaconf import DictConfig
from tensordict import TensorDict
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.device import get_device_name, get_nccl_backend
from verl.utils.distributed import create_tcp_store, initialize_global_process_group_ray
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.engine_workers import ActorRolloutRefWorker

from rtpo.core.files import HashedFile
from rtpo.core.losses import TokenBatch, loss
from rtpo.verl_harness.memory import give_back
from rtpo.verl_harness.settings import LOOPBACK, unique_job_id


def row_loss(model_output: dict[str, Any], data: TensorDict, dp_group: Any = None) -> tuple[torch.Tensor, dict]:
    """`rtpo.core.losses.loss` on a micro-batch in verl's no-padding layout.

    Position t of `log_probs` is the log-prob of id t + 1, so fields of ids are rolled back by one. A row's first id is
    never trained, so no trained value moves to the row before.
    """
    mask = torch.roll(data["mask"].values(), -1).bool()

    def trained(field: str) -> torch.Tensor:
        return torch.roll(data[field].values(), -1)[mask]

    lengths = data["input_ids"].offsets().diff()
    row = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
    batch = TokenBatch(
        logprobs=model_output["log_probs"].values()[mask],
        old=trained("old_logprobs") if "old_logprobs" in data else None,
        advantage=trained("advantage"),
        weight=trained("weight"),
        row=row[mask],
        rows=len(lengths),
        reference=trained("reference") if "reference" in data else None,
    )
    value, sums = loss(batch, tu.get(data, "loss"))
    # FSDP averages gradients over the data-parallel ranks; the rows' weights are already shares of the whole
    return value * data["dp_size"], sums


_torch_save = torch.save


def save_hashed(value: Any, path: str) -> None:
    with open(path, "wb") as file:
        hashed = HashedFile(file)
        _torch_save(value, hashed)  # type: ignore[arg-type]  # torch only writes to it
    hashed.note(Path(path))


def cast_weights(weights: Iterable[tuple[str, torch.Tensor]], dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    """Cast weights to the engine's dtype, as FSDP2 does for the trainer's forward pass. verl would
    send the optimizer's fp32 weights, of twice the bytes. A bucket would not hold the embeddings of an 8B model."""
    for name, weight in weights:
        yield name, weight.to(dtype)


def join_on_loopback(backend: str | None, timeout: float | None) -> None:
    """Set up torch's process group as verl does, but on the loopback address; torch would listen on all addresses."""
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    rank, size, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    listener = None if rank else socket.create_server((LOOPBACK, port))
    torch.distributed.init_process_group(
        backend=backend or f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}",
        store=create_tcp_store(LOOPBACK, port, listener, world_size=size, is_master=not rank),
        rank=rank,
        world_size=size,
        timeout=None if timeout is None else timedelta(seconds=timeout),
    )


class AgentWorker(ActorRolloutRefWorker):
    """The worker the harness drives."""

    actor: Any

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)  # type: ignore[attr-defined]
    def start(self) -> None:
        """Build model, optimizer and rollout adapter, and set `row_loss` as the loss of training."""
        # starts the process group before verl would: verl ignores the timeout in its settings, and on a CPU asks for
        # "cpu:gloo,cpu:gloo", which torch refuses
        is_cpu = get_device_name() == "cpu"
        backend = "cpu:gloo" if is_cpu else None
        timeout = None if is_cpu else self.config.nccl_timeout
        if os.environ["MASTER_ADDR"] == LOOPBACK:
            join_on_loopback(backend, timeout)
        else:
            initialize_global_process_group_ray(timeout, backend)
        self.init_model()
        self.actor.set_loss_fn(row_loss)
        adapter: Any = self.rollout
        if hasattr(adapter, "zmq_handle"):  # vLLM's adapter: where its workers listen
            job = ray.get_runtime_context().get_job_id()
            adapter.zmq_handle = adapter.zmq_handle.replace(job, unique_job_id(job))
        send, dtype = adapter.update_weights, PrecisionType.to_dtype(self.config.rollout.dtype)
        adapter.update_weights = lambda weights, **options: send(cast_weights(weights, dtype), **options)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[attr-defined]
    def restart(self, optimizer: DictConfig) -> None:
        """Reset to the initial weights and a new optimizer, as in a new process."""
        engine: Any = self.actor.engine
        self.actor.optimizer_config = engine.optimizer_config = omega_conf_to_dataclass(optimizer)
        # otherwise the old ones would stay in memory while the new are built
        engine.module = engine.optimizer = engine.lr_scheduler = engine.checkpoint_manager = None
        gc.collect()
        give_back()
        self.actor.reset()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[attr-defined]
    def save_checkpoint(self, *arguments: Any, **options: Any) -> None:
        """verl's save, with files that are hashed as they are written."""
        torch.save = save_hashed  # type: ignore[assignment]
        try:
            super().save_checkpoint(*arguments, **options)
        finally:
            torch.save = _torch_save

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def train(self, data: TensorDict) -> TensorDict:
        """Take one optimizer step as verl's `update_actor` does. verl drops the forward pass's values for each id; here
        they are returned with `return_model_output`."""
        engine = self._engine_for(data)
        with engine.train_mode():
            output = engine.train_batch(data, row_loss)
        output["metrics"]["lr"] = engine.lr_scheduler_step()
        if self.config.rollout.free_cache_engine and get_device_name() == "cpu":
            give_back()
        return self.actor._postprocess_output(
            output, global_token_num=None, delta_time=0.0, forward_only=False, images_seqlens=None
        ).cpu()

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def warm_up(self, data: TensorDict) -> TensorDict:
        """Run forward and backward passes over a mini-batch and discard the results."""
        with self._gradient_of(data):
            return tu.get_tensordict({"done": torch.ones(1)})

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def gradient(self, data: TensorDict) -> TensorDict:
        """The gradient of a mini-batch's loss, without a step: one row of [parameters] for each rank."""
        with self._gradient_of(data) as engine:
            flat = torch.cat([grad.flatten() for grad in _whole_gradients(engine)])[None].clone().cpu()
        return tu.get_tensordict({"gradient": flat})

    @contextmanager
    def _gradient_of(self, data: TensorDict) -> Iterator[Any]:
        """The actor's engine while it holds the gradient of a mini-batch's loss; no step is taken."""
        engine = self._engine_for(data)
        with engine.train_mode():
            engine.optimizer_zero_grad()
            engine.forward_backward_batch(data, row_loss)
            yield engine
            engine.optimizer_zero_grad()

    def _engine_for(self, data: TensorDict) -> Any:
        """The actor's engine, after adding its batching settings to `data`, where it expects them."""
        config = self.actor.engine_config
        names = ("use_remove_padding", "use_fused_kernels", "use_dynamic_bsz", "max_token_len_per_gpu")
        tu.assign_non_tensor(data, **{name: getattr(config, name) for name in (*names, "micro_batch_size_per_gpu")})
        return self.actor.engine


def _whole_gradients(engine: Any) -> Iterator[torch.Tensor]:
    """Each parameter's gradient, gathered where it is sharded."""
    for parameter in engine.module.parameters():
        gradient: Any = parameter.grad
        yield gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
