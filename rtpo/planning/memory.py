"""Estimates of a run's GPU memory, host memory and disk, from the model's shape and the run's settings of verl
(docs/cluster/gpus.md). Functions raise DataError for a model of unknown shape."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rtpo.core.names import counted
from rtpo.planning.hardware import GIB, Hardware, Shape, model_shape, planning_data
from rtpo.run.config import RunConfig

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
VERL = "verl.actor_rollout_ref."
ADAM_BYTES = 8
"""bytes of a parameter's two fp32 moments"""


class GpuMemory(NamedTuple):
    """Memory of each GPU."""

    update: float  # bytes in use during an update
    generation: float  # bytes in use while rollouts are generated
    cache_tokens: int  # that vLLM's cache has room for


class Saves(NamedTuple):
    """Disk of a run's saves, in bytes."""

    kept: int  # all saves that the run keeps
    writing: int  # the save that is being written; the kept ones stay until it is complete


def verl_setting(run: RunConfig, key: str, default: Any) -> Any:
    """The run's setting actor_rollout_ref.`key`. default: verl's own value, for a run without this setting."""
    value: Any = run.verl
    for part in f"actor_rollout_ref.{key}".split("."):
        if part not in value:
            return default
        value = value[part]
    return value


def trains(run: RunConfig) -> bool:
    """Whether the run's algorithm trains (an algorithm that only evaluates asks for no rollouts)."""
    return run.descriptor.rollouts_per_task(run.algorithm_config, run.task.max_turns) > 0


def offloads(run: RunConfig, part: str) -> bool:
    """Whether a part of the model ("param" or "optimizer") moves to host memory while rollouts are generated."""
    return bool(verl_setting(run, f"actor.fsdp_config.{part}_offload", False))


def longest_row(run: RunConfig) -> int:
    """Tokens of the longest row that an update may have. `max_context_tokens` limits a row, unless rollouts strip past
    thinking and flattened rows keep it."""
    task, algorithm, episode = run.task, run.algorithm_config, planning_data().episodes.get(run.task.env)
    feedback = (task.max_turns - 1) * int(episode.feedback_tokens if episode else 0)
    longest_episode = task.max_prompt_tokens + task.max_turns * task.max_turn_tokens + feedback
    is_unbounded = algorithm.training_context == "flattened" and algorithm.rollout_context != "full"
    return longest_episode if is_unbounded else min(longest_episode, task.max_context_tokens)


def largest_micro_batch(run: RunConfig) -> int:
    """Tokens of the largest micro-batch: verl's limit, or more where the loss needs several long rows in one
    micro-batch."""
    loss = run.algorithm_config.loss
    together = (loss.rows_together if loss else 1) * longest_row(run)
    return max(int(verl_setting(run, "actor.ppo_max_token_len_per_gpu", 16384)), together)


def gpu_memory(run: RunConfig, hardware: Hardware) -> GpuMemory:
    """Estimate the memory of each GPU. Assumes that the run uses all GPUs of its nodes, and fills its micro-batches."""
    shape, assumed, gpus = model_shape(run.model.name, run.model.path), planning_data().assumptions, hardware.gpus
    gpus, parallel = gpus * run.profile.nodes, int(verl_setting(run, "rollout.tensor_model_parallel_size", 1))
    shard = shape.parameters * BYTES[verl_setting(run, "actor.fsdp_config.model_dtype", "fp32")] / gpus
    adam, overhead = shape.parameters * ADAM_BYTES / gpus, assumed["overhead_gib"] * GIB
    engine = float(verl_setting(run, "rollout.gpu_memory_utilization", 0.5)) * hardware.memory_gib * GIB
    cache = (engine - 2 * shape.parameters / parallel - assumed["engine_gib"] * GIB) / (shape.cache_bytes / parallel)
    generation = engine + overhead
    generation += (0 if offloads(run, "param") else 2 * shard) + (0 if offloads(run, "optimizer") else adam)
    awake_engine = 0 if verl_setting(run, "rollout.free_cache_engine", True) else engine
    # adam / 2: torch's Adam holds the square roots of all second moments at the same time
    update = 2 * shard + adam + overhead + awake_engine + max(_pass_bytes(run, shape), adam / 2)
    return GpuMemory(update if trains(run) else 0.0, generation, int(cache))


def _pass_bytes(run: RunConfig, shape: Shape) -> float:
    """Bytes that a forward and backward pass over the largest micro-batch adds to the sharded weights."""
    assumed, tokens = planning_data().assumptions, largest_micro_batch(run)
    embeddings = (1 if shape.tie_word_embeddings else 2) * shape.head_parameters
    # bytes of unsharded tensors in bf16: weights of the embeddings and two layers, gradients of the head and a layer
    gathered = 2 * (embeddings + 2 * shape.layer_parameters) + 2 * (shape.head_parameters + shape.layer_parameters)
    chunk = int(assumed["fused_chunk"]) if verl_setting(run, "model.use_fused_kernels", False) else tokens
    # plus the last hidden states and their gradient, in bf16
    logits = min(tokens, chunk) * assumed["logit_bytes"] * shape.vocab_size + 2 * 2 * tokens * shape.hidden_size
    # bytes a token: gate, up, activation, product, q, k, v and attention in bf16; the inputs of four norms in fp32
    query, key = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    layer = 2.0 * (4 * shape.intermediate_size + 2 * query + 2 * key) + 8.0 * (2 * shape.hidden_size + query + key)
    layer_inputs = 2.0 * tokens * shape.num_hidden_layers * shape.hidden_size
    if not verl_setting(run, "model.enable_gradient_checkpointing", True):
        return gathered + layer_inputs + tokens * shape.num_hidden_layers * layer + logits
    return gathered + layer_inputs + max(logits, tokens * layer)  # logits are freed before layers are recomputed


def host_memory(run: RunConfig, hardware: Hardware) -> float:
    """Estimate a node's host memory in bytes: its processes, and the larger of start-up (which reads the model) and
    training (which pins the offloaded parts and the reference policy)."""
    shape, ranks = model_shape(run.model.name, run.model.path), hardware.gpus * run.profile.nodes

    def pinned(dtype: str) -> int:  # torch rounds each block up to a power of two
        blocks = (-(-rows // ranks) * columns * BYTES[dtype] for rows, columns in shape.matrices)
        return hardware.gpus * sum(1 << (block - 1).bit_length() for block in blocks)

    # in verl every rank reads a model with tied embeddings; otherwise only the first rank does
    start = (hardware.gpus if shape.tie_word_embeddings else 1) * shape.parameters * BYTES["fp32"]
    training = 0
    if trains(run) and run.descriptor.has_reference(run.algorithm_config):
        training = pinned(verl_setting(run, "ref.fsdp_config.model_dtype", "fp32"))
        start += training
    if trains(run) and offloads(run, "param"):
        training += pinned(verl_setting(run, "actor.fsdp_config.model_dtype", "fp32"))
    if trains(run) and offloads(run, "optimizer"):
        training += 2 * pinned("fp32")
    return planning_data().assumptions["process_gib"] * GIB * hardware.gpus + max(start, training)


def saves(run: RunConfig) -> Saves:
    """Estimate the disk of a run's saves. A run that does not train saves its parameters once, without Adam's
    moments."""
    parameters = model_shape(run.model.name, run.model.path).parameters
    size = BYTES[verl_setting(run, "actor.fsdp_config.model_dtype", "fp32")]
    if not trains(run):
        return Saves(parameters * size, 0)
    size += ADAM_BYTES
    return Saves(parameters * size * run.save.keep, parameters * size)


def peak_disk(sizes: Sequence[Saves], at_once: int | None, keep: str) -> int:
    """The most bytes that the saves of several runs take together, without exported weights.

    at_once: runs at the same time; None: all.
    keep: "save" if each run keeps its last save after evaluation.
    """
    working = len(sizes) if at_once is None else min(at_once, len(sizes))
    kept, writing = (sorted((size[part] for size in sizes), reverse=True) for part in (0, 1))
    return sum(kept if keep == "save" else kept[:working]) + sum(writing[:working])


def free_space(folder: str) -> tuple[Path, int]:
    """The folder (or its nearest parent that exists) and its free bytes."""
    place = Path(folder).absolute()
    place = next(path for path in (place, *place.parents) if path.exists())
    return place, shutil.disk_usage(place).free


def memory_problems(run: RunConfig, hardware: Hardware | None, asked_gib: float) -> list[str]:
    """List the reasons why a run does not fit, a sentence each.

    hardware: the node; None without GPUs, where nothing is estimated.
    asked_gib: host memory that the run requests of the cluster.
    """
    return [] if hardware is None else [*gpu_problems(run, hardware), *_host_problems(run, hardware, asked_gib)]


def gpu_problems(run: RunConfig, hardware: Hardware) -> list[str]:
    """A list with one sentence if the run does not fit the node's GPUs, otherwise empty."""
    update, generation, cache = gpu_memory(run, hardware)
    name, available = run.model.name, hardware.memory_gib
    if max(update, generation) > available * GIB:
        field = "actor.ppo_max_token_len_per_gpu" if update > generation else "rollout.gpu_memory_utilization"
        needed = f"{name} is estimated to need {max(update, generation) / GIB:.0f} GiB on each GPU"
        return [
            f"{needed}, and one of {hardware.title} has {available:.0f} GiB: lower {VERL}{field}, or take more GPUs."
        ]
    if cache < run.task.max_context_tokens:
        below = f"vLLM has room for {counted(max(0, cache), 'cached token')}, below task.max_context_tokens"
        return [f"{below} {run.task.max_context_tokens:,}: raise {VERL}rollout.gpu_memory_utilization."]
    return []


def _host_problems(run: RunConfig, hardware: Hardware, asked_gib: float) -> list[str]:
    needed, available = host_memory(run, hardware) / GIB, hardware.host_gib
    if needed <= asked_gib <= (available or asked_gib):
        return []
    known_size = f", of {available:.0f} that {hardware.title} has" if available else ""
    estimate = f"{run.model.name} is estimated to need {needed:.0f} GiB of a node's memory{known_size}"
    return [f"launch.resources.memory_gb is {asked_gib:g}, and {estimate}: ask for more, or offload less."]
