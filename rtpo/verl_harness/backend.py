"""verl as the harness's backend: one worker group and one rollout engine, on CPU or CUDA alike.

The profile decides the platform, and the engine: the embedded server or vLLM. verl's FSDP2 trains on both platforms.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from omegaconf import DictConfig
from ray.util.placement_group import remove_placement_group
from verl.checkpoint_engine import CheckpointEngineManager
from verl.single_controller.ray.base import RayClassWithInitArgs, RayWorkerGroup, ResourcePoolManager
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.rollout.llm_server import LLMServerManager

from rtpo.core.files import remedy_of
from rtpo.core.names import counted, first_words
from rtpo.core.packing import Packed
from rtpo.core.tree_attention import why_not_trees
from rtpo.core.trees import BREAK_EVEN, Dealt, deal
from rtpo.engines.backend import StepResult, TokenScores
from rtpo.engines.base import Engine
from rtpo.errors import DataError, MachineError, StaleEngine
from rtpo.types import Floats
from rtpo.verbs import Loss, TokenClip
from rtpo.verl_harness import rollout_server
from rtpo.verl_harness.engines import VllmEngine, embedded_engine, ray_failures, trainer_errors, wait_for_weights
from rtpo.verl_harness.worker import AgentWorker

POOL = "policy"
WARM_LENGTHS = (24, 96, 384, 1024)
"""row lengths for warming up. The first fits one FlexAttention block of 128 nodes, others need more and more blocks"""

# hides torch's notice about a renamed function, which nested tensors cause once per process
logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)


class VerlBackend:
    """`rtpo.engines.backend.Backend`, which explains parameters, on verl's workers, checkpoint manager and servers."""

    def __init__(self, settings: DictConfig, *, with_reference: bool) -> None:
        self._settings = settings
        self.has_reference = with_reference
        self._temperature = float(settings.actor_rollout_ref.rollout.temperature)
        self._token_limit = int(settings.actor_rollout_ref.actor.ppo_max_token_len_per_gpu)
        model_config = omega_conf_to_dataclass(settings.actor_rollout_ref.model).hf_config
        # on a CPU attention costs no more in a larger tree, since a node attends only to its own path
        self._break_even = BREAK_EVEN * int(model_config.hidden_size) if settings.trainer.device == "cuda" else 2**40
        self._rows_apart = why_not_trees(model_config) is not None
        trainer = settings.trainer
        pools = ResourcePoolManager(
            {POOL: [trainer.n_gpus_per_node] * trainer.nnodes}, mapping={0: POOL}, max_colocate_count=1
        )
        pools.create_resource_pool()
        self._pool = pools.resource_pool_dict[POOL]
        role = "actor_rollout_ref" if with_reference else "actor_rollout"
        group: Any = RayWorkerGroup(
            resource_pool=self._pool,
            ray_cls_with_init=RayClassWithInitArgs(
                ray.remote(AgentWorker), config=settings.actor_rollout_ref, role=role
            ),
            device_name=trainer.device,
        )
        # verl binds the worker's registered methods to the group at run time
        self._workers: Any = group
        self.ranks = int(group.world_size)
        started = group.start()
        if not self._is_embedded:
            ray.get(started)  # vLLM measures the memory that the trainer leaves
        with redirect_stdout(StringIO()):  # it prints its servers' names
            self._server_manager = self._server_manager_class.create(config=settings, worker_group=self._workers)
        ray.get(started)
        checkpoint_engine = omega_conf_to_dataclass(settings.actor_rollout_ref.rollout.checkpoint_engine)
        self._replicas = self._server_manager.get_replicas()
        self._weight_sync = CheckpointEngineManager(checkpoint_engine, self._workers, self._replicas)
        self.engine = self._connect()
        if self._is_embedded:
            # waits until the servers are up; otherwise a run's first synchronisation would
            asyncio.run(_clear_caches(self._replicas))
        self.is_serving = True
        self._free_the_device()

    def warm_up(self) -> None:
        """Run forward and backward passes over forked rows of several lengths and discard the results. This compiles
        CUDA's kernels for prefix trees before any timing starts. Each kind of kernel takes a minute."""
        for length in WARM_LENGTHS:
            packed = forked_rows(self.ranks, length)
            self.score(packed)
            with trainer_errors():
                self._workers.warm_up(self._training_batch(packed, self._deal(packed), None, TokenClip()))

    def _free_the_device(self) -> None:
        """Let an engine that shares the trainer's device release its memory, until the next push gives it weights."""
        if self._settings.actor_rollout_ref.rollout.free_cache_engine and self.is_serving:
            with ray_failures("the rollout engine"):
                self._weight_sync.sleep_replicas()
            self.is_serving = False

    @property
    def _server_manager_class(self) -> type[LLMServerManager]:
        if self._is_embedded:
            return rollout_server.EmbeddedServers
        from rtpo.verl_harness.vllm_server import VllmServers  # needs vLLM, which a CPU install lacks

        return VllmServers

    def _connect(self) -> Engine:
        if self._is_embedded:
            delay = self._settings.actor_rollout_ref.rollout.engine_kwargs.embedded.delay
            return embedded_engine([replica.server_handle for replica in self._replicas], delay)
        config = omega_conf_to_dataclass(self._settings.actor_rollout_ref.model)
        return VllmEngine(self._server_manager.get_client(), int(config.tokenizer.eos_token_id))

    @property
    def _is_embedded(self) -> bool:
        return self._settings.actor_rollout_ref.rollout.name == rollout_server.NAME

    @property
    def prefilled_tokens(self) -> int | None:
        if not self._is_embedded:
            return None
        with ray_failures("the rollout engine"):
            return sum(ray.get([replica.server_handle.prefilled_tokens.remote() for replica in self._replicas]))

    def score(self, packed: Packed, *, apart: bool = False, shift: int = 0) -> TokenScores:
        dealt = self._deal(packed, apart=apart)
        batch = self._batch(packed, dealt, calculate_entropy=True, compute_loss=False, shift=shift)
        with trainer_errors():
            output = self._workers.compute_log_prob(batch)
        return _scores(output, packed, dealt, dealt.nodes)

    def reference(self, packed: Packed) -> TokenScores:
        dealt = self._deal(packed)
        batch = self._batch(packed, dealt, calculate_entropy=False, compute_loss=False)
        with trainer_errors():
            output = self._workers.compute_ref_log_prob(batch)
        logprobs = _trained(output, "log_probs", packed, dealt)
        return TokenScores(logprobs, np.empty(0, np.float32), dealt.nodes)

    def step(
        self, packed: Packed, reference: Floats | None, loss: Loss, *, scored: bool = False, apart: bool = False
    ) -> StepResult:
        dealt = self._deal(packed, loss.rows_together, apart=apart)
        batch = self._training_batch(packed, dealt, reference, loss, scored=scored)
        with trainer_errors():
            output = self._workers.train(batch)
        metrics = tu.get(output, "metrics")
        names = ("tokens", "clipped", "policy_loss", "kl_loss", "residual")
        sums = {name: float(np.sum(_flat(metrics[name]))) for name in names}
        # rank 0 has every rank's sums
        return StepResult(
            grad_norm=float(_flat(metrics["grad_norm"])[0]),
            loss=sums["policy_loss"] + loss.kl * sums["kl_loss"],
            sums=sums,
            lr=float(_flat(metrics["lr"])[0]),
            computed_tokens=dealt.nodes,
            scores=_scores(output, packed, dealt, 0) if scored else None,
        )

    def gradient(self, packed: Packed, reference: Floats | None, loss: Loss) -> Floats:
        """The gradient of a mini-batch's loss over all parameters, before clipping; no step is taken."""
        dealt = self._deal(packed, loss.rows_together)
        with trainer_errors():
            output = self._workers.gradient(self._training_batch(packed, dealt, reference, loss))
        return np.asarray(output["gradient"][0], dtype=np.float32)

    def push(self, version: int) -> None:
        self._free_the_device()
        with ray_failures("the synchronisation"):
            if self._is_embedded or self._weight_sync.backend != "naive":
                self._weight_sync.update_weights(version)
            else:  # verl's manager would wait for ever for a vLLM that failed to load weights
                calls = self._workers.update_weights(global_steps=version, mode=self._weight_sync.backend)
                wait_for_weights(calls, [server for replica in self._replicas for server in replica.servers])
            self.is_serving = True
            if not self._is_embedded:
                # no check here: every output has its version, and a cache that is not emptied raises StaleEngine
                asyncio.run(_clear_caches(self._replicas))
                return
        for state in self.engine_states():
            if state.version != version or state.cached_prompts:
                raise StaleEngine(
                    f"after the synchronisation to version {version} an engine holds version {state.version} and "
                    f"{counted(state.cached_prompts, 'cached prompt')}."
                )

    def engine_states(self) -> list[rollout_server.EngineState]:
        """The state of each embedded server."""
        with ray_failures("the rollout engine"):
            return ray.get([replica.server_handle.state.remote() for replica in self._replicas])

    def engine_checksums(self) -> list[str]:
        """A checksum of the weights of each embedded server."""
        return ray.get([replica.server_handle.checksum.remote() for replica in self._replicas])

    def restart(self, settings: DictConfig) -> None:
        """Reset to the initial weights and a new optimizer, as in a new backend with these settings."""
        self._free_the_device()
        self._settings = settings
        self._temperature = float(settings.actor_rollout_ref.rollout.temperature)
        with trainer_errors():
            self._workers.restart(settings.actor_rollout_ref.actor.optim)

    def close(self) -> None:
        """End the worker and engine processes. Raises MachineError if Ray does not release their resources."""
        for actor in [*self._workers.workers, *(server for replica in self._replicas for server in replica.servers)]:
            ray.kill(actor)
        pools: Any = self._pool.pgs
        for pool in pools:
            remove_placement_group(pool)
        deadline = time.monotonic() + 60
        while ray.available_resources().get("GPU", 0) < self.ranks:
            if time.monotonic() > deadline:
                raise MachineError(
                    "Ray did not release the ended workers' resources within a minute: start the run again."
                )
            time.sleep(0.1)

    def save(self, folder: Path) -> None:
        self._free_the_device()
        try:
            with trainer_errors():
                self._workers.save_checkpoint(str(folder.resolve()))
        except ray.exceptions.RayTaskError as error:
            raise MachineError(
                f"the weights could not be written to {folder}: {first_words(error.cause)}. What was saved "
                f"before is intact; {remedy_of(error.cause) or 'make room'} and run the same command to go on."
            ) from error

    def load(self, folder: Path) -> None:
        self._free_the_device()
        try:
            with trainer_errors():
                self._workers.load_checkpoint(str(folder.resolve()))
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            why = f"the weights in {folder} cannot be loaded: {first_words(cause)}. They are intact"
            is_missing = isinstance(cause, FileNotFoundError)  # the files' names have the number of processes
            if isinstance(cause, OSError | MemoryError | torch.OutOfMemoryError) and not is_missing:
                raise MachineError(f"{why}; {remedy_of(cause) or 'make room'} and run the same command.") from error
            raise DataError(
                f"{why}, but another version or number of processes wrote them. Delete the run's checkpoints folder to "
                "start it afresh."
            ) from error

    def _training_batch(
        self, packed: Packed, dealt: Dealt, reference: Floats | None, loss: Loss, *, scored: bool = False
    ) -> Any:
        fields = {
            "mask": packed.mask.astype(np.float32),
            "advantage": packed.advantage,
            "weight": packed.weight,
        }
        if packed.old_logprobs is not None:
            fields["old_logprobs"] = packed.old_logprobs
        if reference is not None:
            fields["reference"] = _spread(reference, packed)
        return self._batch(packed, dealt, fields, loss=loss, calculate_entropy=scored, return_model_output=scored)

    def _deal(self, packed: Packed, together: int = 1, *, apart: bool = False) -> Dealt:
        rows = np.split(packed.ids, np.cumsum(packed.lengths)[:-1])
        apart = apart or self._rows_apart
        return deal(rows, self.ranks, self._token_limit, break_even=self._break_even, together=together, apart=apart)

    def _batch(
        self, packed: Packed, dealt: Dealt, fields: Mapping[str, np.ndarray] | None = None, **settings: Any
    ) -> Any:
        """A batch in verl's no-padding layout: nested tensors, one component a row, in the order of the ranks."""
        self._free_the_device()
        offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(dealt.lengths)]).astype(np.int64))
        blank = dealt.source < 0

        def nested(values: np.ndarray) -> torch.Tensor:
            placed = np.where(blank, 0, values[dealt.source]).astype(values.dtype)
            return torch.nested.nested_tensor_from_jagged(torch.from_numpy(placed), offsets)

        tensors: dict[str, Any] = {
            "input_ids": nested(packed.ids.astype(np.int64)),
            "loss_mask": nested(packed.mask.astype(np.int64)),
            "tree": torch.from_numpy(dealt.tree),
            "batch": torch.from_numpy(dealt.batch),
            **{name: nested(values) for name, values in (fields or {}).items()},
        }
        return tu.get_tensordict(
            tensors,
            {
                "temperature": self._temperature,
                "global_token_num": dealt.lengths.tolist(),
                "max_seq_len": int(dealt.lengths.max()),
                **settings,
            },
        )


def forked_rows(pairs: int, length: int) -> Packed:
    """Pairs of rows of `length` ids: a pair shares the first half and trains the second."""
    rows, half = 2 * pairs, length // 2
    ids = np.repeat(np.arange(rows)[:, None], length, axis=1)
    ids[:, :half] = pairs + np.arange(rows)[:, None] // 2
    mask = np.tile(np.arange(length) >= half, rows)
    weight = np.where(mask, 1 / mask.sum(), 0).astype(np.float32)
    return Packed(ids.flatten().astype(np.int32), np.full(rows, length, np.int32), mask, weight, weight, None)


async def _clear_caches(replicas: list[Any]) -> None:
    await asyncio.gather(*[replica.clear_kv_cache() for replica in replicas])


def _scores(output: Any, packed: Packed, dealt: Dealt, computed: int) -> TokenScores:
    logprobs, entropy = (_trained(output, name, packed, dealt) for name in ("log_probs", "entropy"))
    return TokenScores(logprobs, entropy, computed)


def _trained(output: Any, field: str, packed: Packed, dealt: Dealt) -> Floats:
    """The values of trained tokens; position t of verl's output belongs to id t + 1."""
    known = dealt.source >= 0
    values = np.empty(len(packed.ids), np.float32)
    values[dealt.source[known]] = np.roll(output[field].values().float().numpy(), 1)[known]
    return values[packed.mask]


def _spread(trained: Floats, packed: Packed) -> Floats:
    """One value for each of the batch's ids: those of trained ids, and 0 for the rest."""
    values = np.zeros(len(packed.ids), np.float32)
    values[packed.mask] = trained
    return values


def _flat(values: Any) -> list[float]:
    if isinstance(values, list | tuple):
        return [number for value in values for number in _flat(value)]
    return [float(values)]
