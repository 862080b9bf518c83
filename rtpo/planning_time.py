"""Hours from counts: generation is bound by memory bandwidth, the rest of the model's work by FLOP/s."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rtpo.config import RunConfig
from rtpo.planning_data import Hardware, Range, Shape, Values
from rtpo.planning_memory import gpu_memory, save_bytes, trains, verl_setting
from rtpo.planning_sketch import Call, Course, EpisodeShape, Pass, Sketch


@dataclass(frozen=True)
class Seconds:
    """Of a whole run. decode: at the full memory bandwidth, to be divided by the fitted efficiency. fixed: the rest of
    training."""

    decode: float
    fixed: float

    def at(self, efficiency: float) -> float:
        return self.decode / efficiency + self.fixed


@dataclass(frozen=True)
class Machine:
    """A model on a machine: what its work takes there."""

    shape: Shape
    hardware: Hardware
    tensor_parallel: int
    cache_tokens: int
    assumed: Values

    def model_seconds(self, work: Pass, factor: float = 1.0) -> float:
        """Forward passes over this work, `factor` times, on all GPUs."""
        rate = self.hardware.gpus * self.hardware.tflops * 1e12 * self.assumed.training_mfu
        return factor * self.shape.forward_flops(work.tokens, work.pairs) / rate

    def decode_seconds(self, call: Call, paths: float, generated: float) -> float:
        """`generated` tokens by `paths` paths at once, at the full bandwidth: each step of an engine reads its weights
        and the cache of all its paths."""
        engines = self.hardware.gpus / self.tensor_parallel
        context = call.cached / call.generated
        at_once = max(1.0, min(paths / engines, self.cache_tokens / max(context, 1.0)))
        weights = 2.0 * self.shape.parameters
        read = (weights + at_once * context * self.shape.cache_bytes) / (self.hardware.bandwidth_gb * 1e9)
        computed = at_once * weights / (self.hardware.tflops * 1e12)
        return generated / engines / at_once * max(read, computed) / self.tensor_parallel


def machine(run: RunConfig, shape: Shape, hardware: Hardware, assumed: Values) -> Machine | None:
    """None where the engine's weights leave no room for a cache."""
    memory = gpu_memory(run, hardware, shape)
    assert memory is not None
    if memory.cache_tokens < 1:
        return None
    parallel = int(verl_setting(run, "rollout.tensor_model_parallel_size", 1))
    return Machine(shape, hardware, parallel, memory.cache_tokens, assumed)


def training_seconds(run: RunConfig, where: Machine, counts: Sketch, whole: Course, tool_seconds: float) -> Seconds:
    """Of a run that takes `whole`, whose steps are like those counted. A forward pass for scoring and reference, four
    for an update with gradient checkpointing (three without)."""
    share = whole.tasks / counts.tasks
    step = run.budget.tasks_per_step * counts.steps / counts.tasks
    decode = share * sum(where.decode_seconds(call, call.paths * step, call.generated) for call in counts.calls)
    passes = 4 if verl_setting(run, "model.enable_gradient_checkpointing", True) else 3
    model = where.model_seconds(counts.prefill) + where.model_seconds(counts.scored)
    model += where.model_seconds(counts.reference) + where.model_seconds(counts.updated, passes)
    each_step = counts.syncs * where.assumed.sync_seconds + sum(call.longest for call in counts.calls) * tool_seconds
    return Seconds(decode, share * model + whole.steps / counts.steps * each_step)


def playing_seconds(
    where: Machine, episodes: EpisodeShape, paths: int, at_once: int, tool_seconds: float, turns: float
) -> Seconds:
    """Of whole episodes of `turns` turns from their tasks, `at_once` of them together."""
    kept = (1 - episodes.thinking) * episodes.tokens_per_turn + episodes.feedback_tokens
    generated = turns * episodes.tokens_per_turn
    context = episodes.prompt_tokens + (turns - 1) / 2 * kept + episodes.tokens_per_turn / 2
    work = Pass()
    work.add(paths * (episodes.prompt_tokens + (turns - 1) * kept))
    work.pairs = work.tokens * context
    together = min(at_once, paths)
    call = Call(together, generated=generated, cached=generated * context)
    decode = where.decode_seconds(call, together, paths * generated)
    waits = turns * tool_seconds * math.ceil(paths / together)
    return Seconds(decode, where.model_seconds(work) + waits)


def saving_seconds(run: RunConfig, shape: Shape, steps: int, disk_gb: float) -> float:
    every = run.save.every_steps
    saves = max(1, -(-steps // every)) if every and trains(run) else 1
    return saves * save_bytes(run, shape) / (disk_gb * 1e9)


def fit_efficiency(runs: Sequence[tuple[Seconds, float]]) -> float:
    """The decode efficiency, of 0.01 to 1, at which these runs take nearest to these hours: the least sum of squared
    logarithms of the ratios."""
    low, high = math.log(0.01), 0.0

    def miss(log_efficiency: float) -> float:
        modelled = [(seconds.at(math.exp(log_efficiency)) / 3600, hours) for seconds, hours in runs]
        return sum(math.log(mine / paper) ** 2 for mine, paper in modelled)

    for _ in range(80):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, right) if miss(left) < miss(right) else (left, high)
    return math.exp((low + high) / 2)


def envelope(middle: float, moved: Iterable[float]) -> Range:
    """The middle with the least and the most of what moved assumptions give."""
    found = [middle, *moved]
    return Range(min(found), middle, max(found))
