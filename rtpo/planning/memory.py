"""What a run needs of memory and disk, from its model's shape and its settings of verl (docs/cluster/planning.md)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rtpo.errors import DataError
from rtpo.planning.data import GIB, Hardware, Shape, assumptions, episodes, model_shape
from rtpo.run.config import RunConfig

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
VERL = "verl.actor_rollout_ref."
REFERENCE, ADAM_STEP = "reference policy", "Adam's step"
ADAM_BYTES = 8
"""two fp32 moments a parameter"""


@dataclass(frozen=True)
class Part:
    """Bytes, and what they are."""

    name: str
    bytes: float


def total(parts: Iterable[Part]) -> float:
    return sum(part.bytes for part in parts)


@dataclass(frozen=True)
class GpuMemory:
    """Of each GPU, in bytes: the parts that are there at once in an update's largest stage, and while rollouts are
    generated.

    cache_tokens: that vLLM's keys and values have room for; below 0 its weights do not fit its share.
    """

    update: tuple[Part, ...]
    generation: tuple[Part, ...]
    cache_tokens: int

    @property
    def update_bytes(self) -> float:
        return total(self.update)

    @property
    def generation_bytes(self) -> float:
        return total(self.generation)

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


def most_nodes(run: RunConfig) -> int:
    """Of a tree, and of a micro-batch of trees, unless a single row has more."""
    return int(verl_setting(run, "actor.ppo_max_token_len_per_gpu", 16384))


def trains(run: RunConfig) -> bool:
    return run.descriptor.rollouts_per_task(run.algorithm_config, run.task.max_turns) > 0


def longest_row(run: RunConfig) -> int:
    """Tokens of the longest row of an update that the limits allow.

    A row with its recorded context is at most `task.max_context_tokens`. Flattened history of stripped rollouts has the
    thinking that no c_k had, so that limit does not bound it: prompt, K turns at their limit, and the feedback that is
    assumed of the environment (none where nothing is).
    """
    task, algorithm, known = run.task, run.algorithm_config, episodes(run)
    feedback = (task.max_turns - 1) * (known.feedback_tokens or 0 if known else 0)
    played = task.max_prompt_tokens + task.max_turns * task.max_turn_tokens + int(feedback)
    if algorithm.training_context == "flattened" and algorithm.rollout_context != "full":
        return played
    return min(played, task.max_context_tokens)


def rows_together(run: RunConfig) -> int:
    """Rows that a loss looks at as one, and which stay in one tree."""
    loss = run.algorithm_config.loss
    return loss.rows_together if loss else 1


def largest_micro_batch(run: RunConfig) -> tuple[int, int]:
    """Nodes of the largest micro-batch of trees, and the most (node, next id) pairs that one trains.

    Padded to its largest tree, it has `most_nodes` nodes at most, each the next id of one pair at most; siblings after
    a short context train nearly all of them. A row that is longer, with those that its loss looks at together, is a
    tree and a micro-batch of its own and costs memory in proportion to its nodes, whether it shares any or not; it
    trains what the policy may say in one turn, or in all turns of a flattened history.
    """
    task, algorithm, limit = run.task, run.algorithm_config, most_nodes(run)
    together = rows_together(run)
    said = task.max_turn_tokens * (task.max_turns if algorithm.training_context == "flattened" else 1)
    alone = together * longest_row(run)
    return max(limit, alone), max(limit, min(alone, together * said))


def gpu_memory(run: RunConfig, hardware: Hardware) -> GpuMemory:
    """The peak of each GPU when `run` uses all GPUs of its nodes: of passes over a micro-batch, or of the optimizer's
    step.

    The largest micro-batch is taken to be full, of nodes and of pairs that are trained, at which alone log-probs are
    computed. There is no mask of nodes by nodes: FlexAttention's blocks take 16 bytes for each pair of blocks of 128
    nodes, 1 MiB of 32,768 nodes, which is left out. Raises DataError for a model whose shape is not known.
    """
    shape = model_shape(run.model.name, run.model.path)
    assumed, gpus = assumptions(), hardware.gpus * run.profile.nodes
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
        return GpuMemory((), (engine, *stays, overhead), int(cache))
    shards = Part("parameter shards", shard), Part("gradient shards", shard), Part("Adam's states", adam)
    awake = [engine] if is_awake else []
    fixed = [
        *shards,
        Part("gathered weights", 2 * (shape.embedding_parameters + 2 * shape.layer_parameters)),
        Part("gradients before they are sharded", 2 * (shape.head_parameters + shape.layer_parameters)),
        overhead,
        *awake,
    ]
    nodes, pairs = largest_micro_batch(run)
    is_fused = bool(verl_setting(run, "model.use_fused_kernels", False))
    at_once = min(pairs, assumed.fused_chunk) if is_fused else pairs
    # and the hidden states that they are of, picked out of all, with their gradient
    picked = 2 * 2 * pairs * shape.hidden_size
    logits = Part("logits", at_once * assumed.logit_bytes * shape.vocab_size + picked)
    is_recomputed = bool(verl_setting(run, "model.enable_gradient_checkpointing", True))
    layer = _layer_bytes(shape)
    # each layer's input, or all that each keeps
    kept = shape.num_hidden_layers * (2.0 * shape.hidden_size + (0 if is_recomputed else layer))
    again = Part("a layer computed again", nodes * layer if is_recomputed else 0.0)
    # logits are gone when the first layer is computed again
    passes = (*fixed, Part("activations", nodes * kept), max(logits, again, key=lambda part: part.bytes))
    # torch's Adam takes the roots of all second moments at once
    step = (*shards, Part(ADAM_STEP, adam / 2), overhead, *awake)
    return GpuMemory(max(passes, step, key=total), (engine, *stays, overhead), int(cache))


def cache_a_path(run: RunConfig, hardware: Hardware, at_once: float) -> float:
    """Tokens that vLLM's keys and values have room for, for each path that an engine runs at once: as many of the
    `at_once` as are its share, and as it takes. Raises DataError for a model whose shape is not known."""
    parallel = int(verl_setting(run, "rollout.tensor_model_parallel_size", 1))
    engines = hardware.gpus * run.profile.nodes / parallel
    running = min(at_once / engines, verl_setting(run, "rollout.max_num_seqs", 256))
    return gpu_memory(run, hardware).cache_tokens / running


def _layer_bytes(shape: Shape) -> float:
    """Of one token, what one layer keeps for its backward pass: in bf16 gate, up, activation and product, q, k, v and
    the attention's output; of each of its four norms the input in fp32, and what it is scaled to and gives in bf16."""
    query, key = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    return 2.0 * (4 * shape.intermediate_size + 2 * query + 2 * key) + 8.0 * (2 * shape.hidden_size + query + key)


def host_memory(run: RunConfig, hardware: Hardware) -> tuple[Part, ...]:
    """What a node's processor holds at once in the largest stage when `run` uses all GPUs of its nodes. Raises
    DataError for a model whose shape is not known.

    The stages: when the trainer starts, for training or for evaluation, the model that is read, beside the reference
    policy (which verl always keeps there); when it trains, what is offloaded and the reference. A trainer on GPUs ends
    before another starts (`rtpo.verl_harness.session.open_backend`), so that no evaluation stands beside training.
    """
    shape = model_shape(run.model.name, run.model.path)
    # verl lets the first rank alone read a model, but not where its embeddings are tied
    readers = hardware.gpus if shape.tie_word_embeddings else 1
    processes = Part("processes", assumptions().process_gib * GIB * hardware.gpus)
    read = Part("the model, read whole", readers * shape.parameters * BYTES["fp32"])
    if not trains(run):
        return processes, read
    pinned = pinned_memory(run, hardware)
    reference = [part for part in pinned if part.name == REFERENCE]
    return max((processes, read, *reference), (processes, *pinned), key=total)


def pinned_memory(run: RunConfig, hardware: Hardware) -> tuple[Part, ...]:
    """What a node's processor keeps of training when `run` uses all GPUs of its nodes: all that is offloaded, and the
    reference policy. Raises DataError for a model whose shape is not known."""
    kept = []
    if verl_setting(run, "actor.fsdp_config.param_offload", False):
        number = str(verl_setting(run, "actor.fsdp_config.model_dtype", "fp32"))
        kept.append(Part("offloaded parameters", _pinned_bytes(run, hardware, number)))
    if verl_setting(run, "actor.fsdp_config.optimizer_offload", False):
        kept.append(Part("offloaded Adam's states", 2 * _pinned_bytes(run, hardware, "fp32")))
    if run.algorithm_config.kl > 0:
        number = str(verl_setting(run, "ref.fsdp_config.model_dtype", "fp32"))
        kept.append(Part(REFERENCE, _pinned_bytes(run, hardware, number)))
    return tuple(kept)


def _pinned_bytes(run: RunConfig, hardware: Hardware, number: str) -> int:
    """Of a node, one copy of its ranks' shards in pinned memory: a block for each parameter's rows, which torch rounds
    up to a power of two (CachingHostAllocator)."""
    ranks = hardware.gpus * run.profile.nodes
    blocks = (
        -(-rows // ranks) * columns * BYTES[number]
        for rows, columns in model_shape(run.model.name, run.model.path).matrices
    )
    return hardware.gpus * sum(1 << (block - 1).bit_length() for block in blocks)


def gpu_problems(run: RunConfig, hardware: Hardware) -> list[str]:
    """A sentence where the run does not fit the machine's GPUs. Raises DataError for a model whose shape is not
    known."""
    memory, gpus = gpu_memory(run, hardware), hardware.gpus * run.profile.nodes
    if memory.peak_bytes > hardware.memory_bytes:
        less = f"lower {VERL}rollout.gpu_memory_utilization"
        if memory.update_bytes > hardware.memory_bytes:
            row = longest_row(run)
            less = (
                f"lower {VERL}actor.ppo_max_token_len_per_gpu and the limits of task (a row may have {row:,} tokens)"
                if ADAM_STEP not in {part.name for part in memory.update}
                else "a smaller model"
            )
        return [
            f"{run.model.name} on {gpus} GPU(s) is estimated to need {memory.peak_bytes / GIB:.0f} GiB on each, and "
            f"one of {hardware.title} has {hardware.memory_gib:.0f} GiB: take more or larger GPUs, or {less}."
        ]
    if memory.cache_tokens < run.task.max_context_tokens:
        return [
            f"vLLM's share of {hardware.title} with {run.model.name} has room for {max(0, memory.cache_tokens):,} "
            f"cached tokens, below task.max_context_tokens {run.task.max_context_tokens:,}: raise "
            f"{VERL}rollout.gpu_memory_utilization, or take larger GPUs."
        ]
    return []


def mask_bytes(run: RunConfig) -> float:
    """What a CPU's masks of trees take at most: of nodes by nodes, a byte each, and what each layer makes of it in the
    model's own numbers, which is kept for the backward pass unless layers are computed again. A tree of one row has
    none, however long it is. Raises DataError for a model whose shape is not known."""
    number = BYTES[verl_setting(run, "actor.fsdp_config.model_dtype", "fp32")]
    layers = model_shape(run.model.name, run.model.path).num_hidden_layers
    kept = 1 if verl_setting(run, "model.enable_gradient_checkpointing", True) else layers
    nodes = largest_micro_batch(run)[0] if rows_together(run) > 1 else most_nodes(run)
    return float(run.profile.processes * nodes**2 * (1 + number * kept))


def mask_problems(run: RunConfig, asked_gib: float) -> list[str]:
    """A sentence where the masks of trees alone are more than what is asked of a CPU's memory; nothing else is looked
    at there. Raises DataError for a model whose shape is not known."""
    needed = mask_bytes(run) / GIB
    if not trains(run) or needed <= asked_gib:
        return []
    return [
        f"launch.resources.memory_gb is {asked_gib:g}, and masks of prefix trees of {most_nodes(run):,} nodes "
        f"({VERL}actor.ppo_max_token_len_per_gpu) take {needed:.0f} GiB on a CPU: lower that, or ask for more."
    ]


def host_problems(run: RunConfig, hardware: Hardware, asked_gib: float) -> list[str]:
    """A sentence where what is asked of a node's memory is too little, or more than the machine has. Raises DataError
    for a model whose shape is not known."""
    needed = total(host_memory(run, hardware)) / GIB
    said = (
        f"launch.resources.memory_gb is {asked_gib:g}, and {run.model.name} is estimated to need {needed:.0f} GiB of a "
        "node's memory"
    )
    less = "offload less (verl.actor_rollout_ref.actor.fsdp_config)"
    if hardware.host_gib is not None and max(asked_gib, needed) > hardware.host_gib:
        return [
            f"{said}, of which {hardware.title} has {hardware.host_gib:.0f}: ask for no more than it has, and {less} "
            "or take a smaller model where that is too little."
        ]
    return [f"{said}: ask for that or more, or {less}."] if needed > asked_gib else []


@dataclass(frozen=True)
class Saves:
    """Bytes on disk: of the saves that a run keeps, and of the one that is being written beside them."""

    kept: int
    writing: int


def saves(run: RunConfig) -> Saves | None:
    """`save.keep` saves and one more, each with the parameters and Adam's states. A run that does not train saves once.
    None for a model whose shape is not known."""
    try:
        shape = model_shape(run.model.name, run.model.path)
    except DataError:
        return None
    contents = verl_setting(run, "actor.checkpoint.save_contents", ["model", "optimizer", "extra"])
    size = BYTES[verl_setting(run, "actor.fsdp_config.model_dtype", "fp32")] if "model" in contents else 0
    if not trains(run):
        return Saves(shape.parameters * size, 0)
    size += ADAM_BYTES if "optimizer" in contents else 0
    return Saves(shape.parameters * size * run.save.keep, shape.parameters * size)
