"""What a run needs of memory and disk, from its model's shape and its settings of verl (docs/planning.md)."""

from dataclasses import dataclass
from typing import Any

from rtpo.config import RunConfig
from rtpo.errors import DataError
from rtpo.planning_data import GIB, Hardware, Shape, episodes, model_shape, values

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
ADAM_BYTES = 8
"""two fp32 moments a parameter"""


@dataclass(frozen=True)
class Part:
    """Bytes, and what they are."""

    name: str
    bytes: float


@dataclass(frozen=True)
class GpuMemory:
    """Of each GPU, in bytes: the parts that are there at once in an update's largest stage, and while rollouts are
    generated.

    cache_tokens: that vLLM's keys and values have room for; below 0 its weights do not fit its share.
    batch: tokens of the largest micro-batch, actor.ppo_max_token_len_per_gpu or a longer row alone; 0 for none.
    longest_batch: that with which an update would fit; 0 for none.
    """

    update: tuple[Part, ...]
    generation: tuple[Part, ...]
    cache_tokens: int
    batch: int
    longest_batch: int

    @property
    def update_bytes(self) -> float:
        return sum(part.bytes for part in self.update)

    @property
    def generation_bytes(self) -> float:
        return sum(part.bytes for part in self.generation)

    @property
    def peak_bytes(self) -> float:
        return max(self.update_bytes, self.generation_bytes)


def verl_setting(run: RunConfig, key: str, default: Any) -> Any:
    """A setting under actor_rollout_ref, or verl's own default where the run does not set it."""
    found: Any = run.verl
    for part in f"actor_rollout_ref.{key}".split("."):
        if part not in found:
            return default
        found = found[part]
    return found


def trains(run: RunConfig) -> bool:
    return run.descriptor.rollouts_per_task(run.algorithm_config, run.task.max_turns) > 0


def longest_row(run: RunConfig) -> int:
    """Tokens of the longest row of an update that the limits allow.

    A row with its recorded context is at most `task.max_context_tokens`. Flattened history of stripped rollouts has the
    thinking that no c_k had, so that limit does not bound it: prompt, K turns at their limit, and the feedback that is
    assumed of the environment (none where nothing is).
    """
    task, algorithm, known = run.task, run.algorithm_config, episodes(run.task.env)
    feedback = (task.max_turns - 1) * (known.feedback_tokens if known else 0)
    played = task.max_prompt_tokens + task.max_turns * task.max_turn_tokens + int(feedback)
    if algorithm.training_context == "flattened" and algorithm.rollout_context != "full":
        return played
    return min(played, task.max_context_tokens)


def gpu_memory(run: RunConfig, hardware: Hardware, shape: Shape | None = None) -> GpuMemory | None:
    """The peak of each GPU when `run` uses all of this machine's; None for a profile without GPUs.

    The largest micro-batch is taken to be full: actor.ppo_max_token_len_per_gpu tokens, or the longest row where that
    is longer, which is a micro-batch of its own. Raises DataError for a model whose shape is not known.
    """
    if run.profile.platform == "cpu":
        return None
    shape = shape or model_shape(run.model.name, run.model.path)
    assumed, gpus = values(), hardware.gpus
    shard = shape.parameters * BYTES[verl_setting(run, "actor.fsdp_config.model_dtype", "fp32")] / gpus
    adam = shape.parameters * ADAM_BYTES / gpus
    overhead = Part("CUDA contexts and fragmentation", assumed.overhead_gib * GIB)
    tensor_parallel = int(verl_setting(run, "rollout.tensor_model_parallel_size", 1))
    share = float(verl_setting(run, "rollout.gpu_memory_utilization", 0.5)) * hardware.memory_bytes
    weights = 2 * shape.parameters / tensor_parallel
    cache = (share - weights - assumed.engine_gib * GIB) / (shape.cache_bytes / tensor_parallel)
    engine = Part("vLLM: weights and cache", share)
    is_awake = not verl_setting(run, "rollout.free_cache_engine", True)
    stays = []
    if not verl_setting(run, "actor.fsdp_config.param_offload", False):
        stays += [Part("parameter and gradient shards", 2 * shard)]
    if not verl_setting(run, "actor.fsdp_config.optimizer_offload", False):
        stays += [Part("Adam's states", adam)]
    if not trains(run):
        return GpuMemory((), (engine, *stays, overhead), int(cache), 0, 0)
    fixed = [
        Part("parameter shards", shard),
        Part("gradient shards", shard),
        Part("Adam's states", adam),
        Part("gathered weights", 2 * (shape.embedding_parameters + 2 * shape.layer_parameters)),
        Part("gradients before they are sharded", 2 * (shape.head_parameters + shape.layer_parameters)),
        overhead,
        *([engine] if is_awake else []),
    ]
    tokens = max(int(verl_setting(run, "actor.ppo_max_token_len_per_gpu", 16384)), longest_row(run))
    is_fused = bool(verl_setting(run, "model.use_fused_kernels", False))
    at_once = min(tokens, int(assumed.fused_chunk)) if is_fused else tokens
    logits = Part("logits", at_once * assumed.logit_bytes * shape.vocab_size)
    is_recomputed = bool(verl_setting(run, "model.enable_gradient_checkpointing", True))
    layer = _layer_bytes(shape)
    # each layer's input, or all that each keeps
    kept = shape.num_hidden_layers * (2.0 * shape.hidden_size + (0 if is_recomputed else layer))
    again = Part("a layer computed again", tokens * layer if is_recomputed else 0.0)
    room = hardware.memory_bytes - sum(part.bytes for part in fixed)
    # logits are gone when the first layer is computed again
    with_logits = (room - logits.bytes) / kept if is_fused else room / (kept + assumed.logit_bytes * shape.vocab_size)
    longest = min(with_logits, room / (kept + layer)) if is_recomputed else with_logits
    update = (*fixed, Part("activations", tokens * kept), max(logits, again, key=lambda part: part.bytes))
    return GpuMemory(update, (engine, *stays, overhead), int(cache), tokens, max(0, int(longest) // 1024 * 1024))


def _layer_bytes(shape: Shape) -> float:
    """Of one token, what one layer keeps for its backward pass: in bf16 gate, up, activation and product, q, k, v and
    the attention's output; of each of its four norms the input in fp32, and what it is scaled to and gives in bf16."""
    query, key = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    return 2.0 * (4 * shape.intermediate_size + 2 * query + 2 * key) + 8.0 * (2 * shape.hidden_size + query + key)


def host_bytes(run: RunConfig, hardware: Hardware, shape: Shape | None = None) -> float | None:
    """Memory of a node's processor when `run` uses all of this machine's GPUs, in its largest stage; None for a profile
    without GPUs. Raises DataError.

    What is offloaded, the reference policy (which verl always keeps there) and the processes. When the trained policy
    is evaluated by the same process, its first rank reads the whole model in fp32 beside them.
    """
    if run.profile.platform == "cpu":
        return None
    shape = shape or model_shape(run.model.name, run.model.path)
    bytes_of = 0.0
    if trains(run):
        size = BYTES[verl_setting(run, "actor.fsdp_config.model_dtype", "fp32")]
        bytes_of += size if verl_setting(run, "actor.fsdp_config.param_offload", False) else 0
        bytes_of += ADAM_BYTES if verl_setting(run, "actor.fsdp_config.optimizer_offload", False) else 0
        if run.algorithm_config.kl > 0:
            bytes_of += BYTES[verl_setting(run, "ref.fsdp_config.model_dtype", "fp32")]
    whole = shape.parameters * BYTES["fp32"]
    return whole + shape.parameters * bytes_of / run.profile.nodes + values().process_gib * GIB * hardware.gpus


def save_bytes(run: RunConfig, shape: Shape) -> int:
    """One save: the parameters, and Adam's states where the run trains."""
    contents = verl_setting(run, "actor.checkpoint.save_contents", ["model", "optimizer", "extra"])
    size = BYTES[verl_setting(run, "actor.fsdp_config.model_dtype", "fp32")] if "model" in contents else 0
    size += ADAM_BYTES if "optimizer" in contents and trains(run) else 0
    return shape.parameters * size


def checkpoint_bytes(run: RunConfig) -> int | None:
    """The most a run's saves take on disk: `save.keep` of them, and the one that is being written. A run that does not
    train saves once. None for a model whose shape is not known."""
    try:
        shape = model_shape(run.model.name, run.model.path)
    except DataError:
        return None
    return save_bytes(run, shape) * (run.save.keep + 1 if trains(run) else 1)
