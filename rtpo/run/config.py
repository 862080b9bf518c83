"""A run's configuration: the resolved Hydra tree, checked before anything starts.

The YAML files under configs/ hold only values. This module documents the fields; an algorithm's file documents its own.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import Field

from rtpo.algorithms import PROJECT, load_algorithm
from rtpo.core.bounds import Count, Natural, Positive, Text, UpToMillion
from rtpo.core.names import counted, nearest
from rtpo.core.splits import SPLITS
from rtpo.engines.base import Sampling
from rtpo.envs.base import Env, Settings
from rtpo.envs.registry import ENVIRONMENTS, make_env
from rtpo.errors import ConfigError
from rtpo.harness.episodes import EpisodeLimits
from rtpo.run.building import build
from rtpo.verbs import Algorithm, AlgorithmConfig

T = TypeVar("T")
LAUNCH = "launch"
"""the key of the tree that describes an experiment, not a run (`rtpo.run.experiments`)"""

Precision = Literal["fp32", "bf16"]
DTYPES: dict[Precision, str] = {"fp32": "float32", "bf16": "bfloat16"}
"""torch's name for each precision"""
Share = Annotated[float, Field(gt=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
FOLDER_NAME = re.compile(r"\w[\w.+,=-]{0,199}")
FolderName = Annotated[str, Field(pattern=rf"^{FOLDER_NAME.pattern}$")]
FOLDER_RULE = "it names a folder; use at most 200 letters, digits and . _ + - , ="


def has_bf16() -> bool:
    """Whether the processor computes in bf16 itself."""
    import torch  # takes seconds, and only CPU profiles need it

    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("amx_bf16", "avx512_bf16"))


def fastest_precision() -> Precision:
    """bf16 where the processor computes in it, else fp32."""
    return "bf16" if has_bf16() else "fp32"


OmegaConf.register_new_resolver("project", lambda: str(PROJECT), replace=True)
OmegaConf.register_new_resolver("dtype", lambda precision: DTYPES.get(precision, precision), replace=True)
OmegaConf.register_new_resolver("fastest_precision", fastest_precision, replace=True)
# ${unless:x,y}: y if x is null, else null; ${given:x,y}: x, or y if x is null
OmegaConf.register_new_resolver("unless", lambda value, otherwise: otherwise if value is None else None, replace=True)
OmegaConf.register_new_resolver("given", lambda value, otherwise: otherwise if value is None else value, replace=True)


@dataclass(frozen=True)
class DataConfig:
    """Where tasks come from: a file, or without one the task's generator."""

    split: str  # train, validation or held_out (`rtpo.core.splits`), or all, for every task of a file
    count: UpToMillion | None  # tasks to generate, or the most to take from a file; null takes all
    seed: Natural = 0  # of the generator
    file: Text | None = None


@dataclass(frozen=True)
class TaskConfig:
    """An environment with its tasks and limits (`rtpo.harness.episodes.EpisodeLimits`)."""

    name: str
    env: str  # a name in `rtpo.envs.registry`
    train: DataConfig
    held_out: DataConfig
    max_turns: Count  # K
    max_prompt_tokens: Count
    max_turn_tokens: Count
    max_context_tokens: Count
    settings: dict[str, Any] = field(default_factory=dict)  # fields of the environment's settings type

    @cached_property
    def env_settings(self) -> Settings:
        """The environment's settings, checked. Raises ConfigError."""
        return cast(Settings, build(ENVIRONMENTS[self.env].settings, self.settings, "task.settings"))

    def make_env(self) -> Env:
        return make_env(self.env, self.env_settings, self.max_turns)

    def problems(self, path: str) -> Iterator[str]:
        """Yield a sentence for each value that the environment or the limits forbid. path: the task's field. Raises
        ConfigError for settings that the environment does not have."""
        if self.env in ENVIRONMENTS:
            settings = build(ENVIRONMENTS[self.env].settings, self.settings, f"{path}.settings")
            yield from settings.problems(f"{path}.settings")
        else:
            yield f"{path}.env is {self.env!r}: no such environment; {nearest(self.env, ENVIRONMENTS)}."
        if self.max_context_tokens <= self.max_prompt_tokens:
            values = f"max_context_tokens is {self.max_context_tokens} and max_prompt_tokens {self.max_prompt_tokens}"
            yield f"{path}.{values}: a prompt of that length would leave no room for a turn."

    @property
    def limits(self) -> EpisodeLimits:
        return EpisodeLimits(self.max_turns, self.max_prompt_tokens, self.max_turn_tokens, self.max_context_tokens)


@dataclass(frozen=True)
class ModelConfig:
    """The initial policy."""

    name: Text
    path: Text  # a Hugging Face model folder


@dataclass(frozen=True)
class SamplingConfig:
    """How training rollouts are drawn; log-probs are taken at this temperature everywhere."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer's settings, passed on to verl. The learning rate is constant unless
    `verl.actor_rollout_ref.actor.optim` has a schedule (docs/extend/harness.md)."""

    lr: Positive
    betas: tuple[Decay, Decay]
    weight_decay: Annotated[float, Field(ge=0)]
    clip_grad: Positive


@dataclass(frozen=True)
class BudgetConfig:
    """When a run ends. `rollouts` is the global budget (`rtpo.harness.budget`). Each further limit ends the run after
    the data step that reaches it; null sets none."""

    rollouts: Natural  # 0 evaluates the model without training
    tasks_per_step: Count  # tasks of a data step; the last steps take fewer
    generated_tokens: Count | None
    optimizer_steps: Count | None
    seconds: Positive | None  # of generation, scoring, updates and synchronisations
    steps: Count | None = None  # data steps
    tied_steps: Count | None = None  # steps in a row in which all groups tie


@dataclass(frozen=True)
class EvaluationConfig:
    """Held-out evaluation: always after training; before and during it as set here."""

    samples: UpToMillion  # rollouts a task at temperature 1
    greedy: bool  # also one greedy rollout a task, before and after training
    every_rollouts: Natural  # also after each step that reaches a multiple of this; 0: never during training
    paper: bool = False  # also `samples` rollouts at the paper's decoding (`rtpo.engines.base.PAPER_DECODING`)
    before: bool = True  # also before training


@dataclass(frozen=True)
class SaveConfig:
    """When a run saves, and what it keeps."""

    every_steps: Natural  # data steps between saves; 0: only at a stop, after training, and as `every_phases` says
    every_phases: Natural  # synchronisations between saves inside a step; 0: none inside a step
    keep: Count  # saves kept
    grace: Annotated[float, Field(ge=0)] | None = None
    """seconds after SIGTERM to finish the phase and save; a phase that takes longer is dropped; null: no limit"""


@dataclass(frozen=True)
class ProfileConfig:
    """The machine that runs use. For engine_kl_limit, scored_share and check_trees see
    `rtpo.harness.harness.AgentHarness`."""

    name: str
    platform: Literal["cpu", "cuda"]  # cpu: the embedded engine or vLLM's CPU build; cuda: vLLM
    processes: Count  # training processes on each node
    nodes: Count
    logical_cpus: Count  # CPUs that Ray may schedule
    threads: Count  # of each process
    engine_kl_limit: Positive
    track: tuple[Literal["wandb", "tensorboard", "file"], ...]  # tracking backends
    scored_share: Share = 1.0
    check_trees: bool = False
    precision: Precision = "fp32"
    """number type of trainer, reference policy and engine; the optimizer's weights are fp32"""

    @property
    def required_cpus(self) -> int:
        """CPUs that Ray needs: one for each training process, one for each engine, one for verl's router and one to
        start actors."""
        return 2 * self.processes * self.nodes + 2


@dataclass(frozen=True)
class RunConfig:
    """The whole configuration of a run."""

    experiment_name: FolderName
    seed: Natural
    results: Text
    deterministic: bool  # the same configuration gives the same run bit for bit, over crashes too; CPU only
    data: Text | None  # a file of tasks for both of a task's data sets; null: the task's own
    algorithm: dict[str, Any]
    task: TaskConfig
    model: ModelConfig
    sampling: SamplingConfig
    optimizer: OptimizerConfig
    budget: BudgetConfig
    evaluation: EvaluationConfig
    save: SaveConfig
    profile: ProfileConfig
    samples_per_rollout: Natural = 4  # see `rtpo.harness.harness.AgentHarness`
    verl: dict[str, Any] = field(default_factory=dict)  # overrides of verl's own tree

    @property
    def label(self) -> str:
        return str(self.algorithm["label"])

    @property
    def folder(self) -> Path:
        return Path(self.results) / self.experiment_name / f"{self.label}-seed{self.seed}"

    @property
    def descriptor(self) -> Algorithm:
        return load_algorithm(str(self.algorithm["name"]))

    @property
    def algorithm_config(self) -> AlgorithmConfig:
        return cast(AlgorithmConfig, build(self.descriptor.config, self.algorithm, "algorithm"))

    @property
    def is_embedded(self) -> bool:
        """Whether the rollout engine is the embedded one; otherwise it is vLLM."""
        return bool(OmegaConf.select(OmegaConf.create(self.verl), "actor_rollout_ref.rollout.name") == "embedded")

    @property
    def top_logprobs(self) -> int:
        """How many of the largest log-probs the algorithm requests at each position."""
        return int(getattr(self.algorithm_config, "top_logprobs", 0))

    def as_dict(self) -> dict[str, Any]:
        """The configuration for the records. Paths inside the project begin with `${project:}`, so that they fit any
        checkout."""
        return cast(dict[str, Any], portable(asdict(self)))


def compose_run(tree: DictConfig) -> RunConfig:
    """The checked configuration of a composed Hydra tree. Raises ConfigError with one sentence for each problem."""
    run = read_tree(RunConfig, tree)
    for field_name in ("name", "label"):
        if field_name not in run.algorithm:
            raise ConfigError(f"algorithm.{field_name} is missing: choose an algorithm with algorithm=<name>.")
    for problems in (_task_problems, _problems, _budget_problems):  # each may rely on the earlier ones
        if sentences := list(problems(run)):
            raise ConfigError("\n".join(sentences))
    return run


def read_tree(cls: type[T], tree: DictConfig) -> T:
    """A composed Hydra tree as a dataclass. Raises ConfigError with one sentence for each problem."""
    try:
        plain = OmegaConf.to_container(tree, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key or 'the configuration'}: {str(error).splitlines()[0]}.") from error
    assert isinstance(plain, dict)
    return cast(T, build(cls, {str(key): value for key, value in plain.items() if key not in ("hydra", LAUNCH)}, ""))


def _task_problems(run: RunConfig) -> Iterator[str]:
    task, config = run.task, run.algorithm_config
    for name, number in [("epochs", config.epochs), ("minibatches", config.minibatches)]:
        if number < 1:
            yield f"algorithm.{name} is {number}: use 1 or more."
    for name, data in [("train", task.train), ("held_out", task.held_out)]:
        if data.count is None and data.file is None:
            yield f"task.{name}.count is null: say how many tasks to generate, or name a file with data=<file>."
        if data.split not in SPLITS and (data.split != "all" or data.file is None):
            yield f"task.{name}.split is {data.split!r}: use one of {', '.join(SPLITS)}, or all with a file."
    files = task.train.file, task.held_out.file
    if run.data not in (None, *files):
        yield f"data is {run.data} and task.train.file {files[0]}, task.held_out.file {files[1]}: set these instead."


def _problems(run: RunConfig) -> Iterator[str]:
    """Yield a sentence for each value that the algorithm, the engine or the budget forbids."""
    config, descriptor, budget, sampling = run.algorithm_config, run.descriptor, run.budget, run.sampling
    yield from run.task.problems("task")
    yield from config.loss.problems() if config.loss is not None else ()
    yield from _verl_problems(run)
    if not run.is_embedded:
        yield from _vllm_problems(run)
    if not FOLDER_NAME.fullmatch(run.label):
        yield f"algorithm.label is {run.label!r}: {FOLDER_RULE}; name it yourself with algorithm.label=NAME."
    if run.profile.logical_cpus < run.profile.required_cpus:
        needed = f"the training processes with their engines need {run.profile.required_cpus}, or Ray waits for ever"
        yield f"profile.logical_cpus is {run.profile.logical_cpus}: {needed} (it may be more than the machine has)."
    if run.deterministic and not run.is_embedded:
        yield "deterministic is true, but vLLM's batches are not deterministic: use false, or the embedded engine."
    if run.deterministic and budget.seconds is not None:
        yield f"deterministic is true and budget.seconds {budget.seconds}, a limit of the clock: use only one of them."
    if config.kl < 0:
        yield f"algorithm.kl is {config.kl}: use 0 or more."
    if sampling.temperature <= 0:
        yield "sampling.temperature must be above 0: greedy rollouts have no log-probs to train on."
    if sampling.top_p != 1 or sampling.top_k != -1:
        cut = f"sampling.top_p is {sampling.top_p} and sampling.top_k {sampling.top_k}"
        yield f"{cut}: truncated sampling biases the ratio, since the trainer does not truncate; use 1.0 and -1."
    sync_kl, key = getattr(config, "sync_kl", None), "actor_rollout_ref.rollout.free_cache_engine"
    if sync_kl is not None and OmegaConf.select(OmegaConf.create(run.verl), key, default=True):
        values = f"algorithm.sync_kl is {sync_kl} and verl.{key} true"
        yield f"{values}: the engine wakes at a synchronisation, which sync_kl may skip; set one to null or false."
    forks, turn, last = getattr(config, "forks", 0), getattr(config, "fork_turn", None), run.task.max_turns - 1
    if forks and (last < 1 or (isinstance(turn, int) and turn > last)):
        yield f"algorithm.fork_turn is {turn}, and the last turn is {last}: no fork could begin; use algorithm.forks=0."
    yield from descriptor.check(config)
    if (count := run.task.train.count) is not None and budget.tasks_per_step > count:
        yield f"budget.tasks_per_step is {budget.tasks_per_step} and task.train.count {count}: tasks would come twice."


def _budget_problems(run: RunConfig) -> Iterator[str]:
    rollouts, worst = run.budget.rollouts, run.descriptor.rollouts_per_task(run.algorithm_config, run.task.max_turns)
    if 0 < rollouts < worst:
        worst_case = counted(worst, "rollout")
        yield f"budget.rollouts is {rollouts} and one task can take {worst_case}: not one step would fit."


def _verl_problems(run: RunConfig) -> Iterator[str]:
    """Yield a sentence for each verl setting that this project does not support. `rtpo.verl_harness.settings` checks
    verl's own keys."""
    verl, prefix = OmegaConf.create(run.verl), "actor_rollout_ref"
    for key in ("model.lora_rank", "model.lora.rank", "model.lora_adapter_path"):
        if (value := OmegaConf.select(verl, f"{prefix}.{key}")) not in (None, 0):
            yield f"verl.{prefix}.{key} is {value}: LoRA is not supported, all weights are trained."
    numbers: dict[str, str] = {
        f"{role}.fsdp_config.mixed_precision.param_dtype": run.profile.precision for role in ("actor", "ref")
    }
    numbers |= {"actor.fsdp_config.model_dtype": "fp32", "rollout.dtype": DTYPES[run.profile.precision]}
    for key, wanted in numbers.items():
        if (value := OmegaConf.select(verl, f"{prefix}.{key}")) != wanted:
            values = f"verl.{prefix}.{key} is {value} and profile.precision {run.profile.precision}"
            yield f"{values}: it must be {wanted}; set profile.precision alone."
    engines = ("embedded", "vllm") if run.profile.platform == "cpu" else ("vllm",)
    for key, known in (("actor.strategy", ("fsdp2",)), ("ref.strategy", ("fsdp2",)), ("rollout.name", engines)):
        if (value := OmegaConf.select(verl, f"{prefix}.{key}")) not in known:
            yield f"verl.{prefix}.{key} is {value}: with this profile use {' or '.join(known)}."
    for key, wanted in asdict(run.sampling).items():
        if (value := OmegaConf.select(verl, f"{prefix}.rollout.{key}")) not in (None, wanted):
            yield f"verl.{prefix}.rollout.{key} is {value} and sampling.{key} {wanted}: set sampling.{key} alone."
    prefix += ".actor.optim"
    optim = OmegaConf.select(verl, prefix)
    if not isinstance(optim, DictConfig):
        yield f"verl.{prefix} is {optim}: it must hold the optimizer's settings; leave it as in the profile."
        return
    for key, wanted in asdict(run.optimizer).items():
        if (value := optim.get(key)) != (list(wanted) if isinstance(wanted, tuple) else wanted):
            yield f"verl.{prefix}.{key} is {value} and optimizer.{key} {wanted}: set optimizer.{key} alone."
    for key in ("lr_warmup_steps_ratio", "min_lr_ratio"):
        value = optim.get(key) or 0
        if not (isinstance(value, int | float) and 0 <= value <= 1):
            yield f"verl.{prefix}.{key} is {value}: use a number from 0 to 1."
    total, steps = optim.get("total_training_steps"), run.budget.optimizer_steps
    for key in ("lr_scheduler_type", "warmup_style", "lr_warmup_steps_ratio"):
        if (value := optim.get(key)) not in (None, 0, "constant") and total != steps:
            values = f"total_training_steps {total} and budget.optimizer_steps {steps}"
            yield f"verl.{prefix}.{key} is {value}, {values}: a schedule ends with the run; set budget.optimizer_steps."


def _vllm_problems(run: RunConfig) -> Iterator[str]:
    verl, prefix = OmegaConf.create({"verl": run.verl}), "verl.actor_rollout_ref.rollout"
    # the defaults are verl's and vLLM's
    mode = OmegaConf.select(verl, f"{prefix}.logprobs_mode", default="processed_logprobs")
    if mode != "processed_logprobs":
        yield f"{prefix}.logprobs_mode is {mode}: log-probs must be the sampled distribution's; use processed_logprobs."
    key = f"{prefix}.engine_kwargs.vllm.max_logprobs"
    most = OmegaConf.select(verl, key, default=20)
    if 0 <= most < run.top_logprobs:
        yield f"algorithm.top_logprobs is {run.top_logprobs}: use {most} or fewer, or raise {key}."


def rollout_sampling(run: RunConfig) -> Sampling:
    return Sampling(run.sampling.temperature, run.sampling.top_p, run.sampling.top_k)


def portable(value: Any) -> Any:
    """Replace the project's folder by `${project:}` in all paths of a tree."""
    if isinstance(value, dict):
        return {key: portable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [portable(item) for item in value]
    if isinstance(value, str) and (path := Path(os.path.normpath(value))).is_relative_to(PROJECT):
        return "${project:}" + str(path).removeprefix(str(PROJECT))
    return value
