"""A run's configuration: the resolved Hydra tree, checked before anything starts.

The YAML files under configs/ hold values only; what each field means stands here and, for an algorithm's own fields,
in its file.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from rtpo.algorithms import PROJECT, load_algorithm
from rtpo.core.names import nearest
from rtpo.core.splits import SPLITS
from rtpo.engines.base import Sampling
from rtpo.envs.base import Env, Settings
from rtpo.envs.registry import ENVIRONMENTS, make_env
from rtpo.errors import ConfigError
from rtpo.harness.episodes import EpisodeLimits
from rtpo.verbs import Algorithm, AlgorithmConfig

T = TypeVar("T")
LAUNCH = "launch"
"""the part of the tree that is no part of a run (`rtpo.run.experiments`)"""

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Tolerance = Annotated[float, Field(gt=0, strict=True)]
Decay = Annotated[float, Field(ge=0, lt=1)]
LARGEST = 2**53
"""of whole numbers: beyond it JSON's readers round"""

OmegaConf.register_new_resolver("project", lambda: str(PROJECT), replace=True)
OmegaConf.register_new_resolver("given", lambda value, otherwise: otherwise if value is None else value, replace=True)


@dataclass(frozen=True)
class DataConfig:
    """Where tasks come from: `file`, or, without one, the task's generator.

    split: `train`, `validation` or `held_out`, a function of the problem, so that they are disjoint; `all` takes every
    task of a file. count: tasks to generate, or the most to take from a file (null: all of them). seed: of the
    generator.
    """

    split: str
    count: Count | None
    seed: Natural = 0
    file: str | None = None


@dataclass(frozen=True)
class TaskConfig:
    """An environment with its problems and limits (`rtpo.harness.episodes.EpisodeLimits`).

    env: a name in `rtpo.envs.registry`. max_turns: K. settings: the environment's own, by its settings type.
    """

    name: str
    env: str
    train: DataConfig
    held_out: DataConfig
    max_turns: Count
    max_prompt_tokens: Count
    max_turn_tokens: Count
    max_context_tokens: Count
    settings: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def env_settings(self) -> Settings:
        """Raises ConfigError."""
        return self.settings_at("task.settings")

    def settings_at(self, path: str) -> Settings:
        """`env_settings`, in errors called `path`."""
        return cast(Settings, build(ENVIRONMENTS[self.env].settings, self.settings, path))

    def make_env(self) -> Env:
        return make_env(self.env, self.env_settings, self.max_turns)

    def limits_problems(self, path: str) -> list[str]:
        """A sentence where a longest prompt would fill the context; `path` is where the task stands."""
        if self.max_context_tokens > self.max_prompt_tokens:
            return []
        return [
            f"{path}.max_context_tokens is {self.max_context_tokens} and {path}.max_prompt_tokens "
            f"{self.max_prompt_tokens}: a longest prompt would leave no room for a turn; use more of the first, or "
            "less of the second."
        ]

    @property
    def limits(self) -> EpisodeLimits:
        return EpisodeLimits(self.max_turns, self.max_prompt_tokens, self.max_turn_tokens, self.max_context_tokens)


@dataclass(frozen=True)
class ModelConfig:
    """path: a Hugging Face model folder."""

    name: str
    path: str


@dataclass(frozen=True)
class SamplingConfig:
    """How training rollouts are drawn; log-probs are taken at this temperature everywhere."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1


@dataclass(frozen=True)
class OptimizerConfig:
    """Given on to verl. The learning rate is constant unless `verl.actor_rollout_ref.actor.optim` has a schedule
    (docs/extend/harness.md)."""

    lr: Positive
    betas: tuple[Decay, Decay]
    weight_decay: Annotated[float, Field(ge=0)]
    clip_grad: Positive


@dataclass(frozen=True)
class BudgetConfig:
    """rollouts: the global budget (`rtpo.harness.budget`); 0 evaluates the model alone. tasks_per_step: tasks in a data
    step; the last steps take fewer.

    A run also ends after the step in which it has generated `generated_tokens`, taken `optimizer_steps`, or trained for
    `seconds` (generation, scoring, updates and synchronisations); null sets no such limit.
    """

    rollouts: Natural
    tasks_per_step: Count
    generated_tokens: Count | None
    optimizer_steps: Count | None
    seconds: Positive | None


@dataclass(frozen=True)
class EvaluationConfig:
    """Held-out evaluation before and after training, and after each step that takes the training rollouts to or past a
    multiple of `every_rollouts` (0: never between).

    samples: sampled rollouts a task, at temperature 1; greedy: one greedy rollout a task as well, before and after;
    paper: as many samples at the paper's decoding as well (`rtpo.engines.base.PAPER_DECODING`). before: whether before
    training too, where all algorithms with one `rollout_context` give the same numbers, from a model and seed.
    """

    samples: Count
    greedy: bool
    every_rollouts: Natural
    paper: bool = False
    before: bool = True


@dataclass(frozen=True)
class SaveConfig:
    """every_steps: steps between saves; 0 saves only when the run is asked to stop and at its end. every_phases:
    synchronisations between saves inside a step, where each also writes the step's rollouts so far; 0 for none. keep:
    saves kept."""

    every_steps: Natural
    every_phases: Natural
    keep: Count


@dataclass(frozen=True)
class ProfileConfig:
    """The machine.

    platform: `cpu` (the embedded engine, or a CPU build of vLLM) or `cuda` (vLLM). processes: training processes on
    each of `nodes` nodes. logical_cpus: what Ray may schedule. threads: of each process. engine_kl_limit, scored_share,
    check_trees: see `rtpo.harness.harness.AgentHarness`. track: verl tracking backends
    (`rtpo.run.tracking.BACKENDS`) beside the run's own records.
    """

    name: str
    platform: Literal["cpu", "cuda"]
    processes: Count
    nodes: Count
    logical_cpus: Count
    threads: Count
    engine_kl_limit: Positive
    track: tuple[str, ...]
    scored_share: Share = 1.0
    check_trees: Tolerance | None = None

    @property
    def required_cpus(self) -> int:
        """Logical CPUs: one for each training process, one for each engine, two to spare (verl's router, what starts
        actors)."""
        return 2 * self.processes * self.nodes + 2


@dataclass(frozen=True)
class RunConfig:
    """Everything of a run. deterministic: the same configuration gives the same run, bit for bit and over crashes
    (CPU alone; docs/extend/harness.md). data: a file of tasks for both of a task's data sets, where the task names
    none itself; null leaves its generator. samples_per_rollout: see `rtpo.harness.harness.AgentHarness`. `verl` is
    verl's own tree, overrides only."""

    experiment_name: str
    seed: Natural
    results: str
    deterministic: bool
    data: str | None
    algorithm: dict[str, Any]
    task: TaskConfig
    model: ModelConfig
    sampling: SamplingConfig
    optimizer: OptimizerConfig
    budget: BudgetConfig
    evaluation: EvaluationConfig
    save: SaveConfig
    profile: ProfileConfig
    samples_per_rollout: Natural = 4
    verl: dict[str, Any] = field(default_factory=dict)

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
        """How many of the largest log-probs the algorithm asks of the engine at each position."""
        return int(getattr(self.algorithm_config, "top_logprobs", 0))

    def as_dict(self) -> dict[str, Any]:
        """For the records. Paths inside the project are written from `${project:}`, so that they are those of any
        checkout."""
        return cast(dict[str, Any], portable(asdict(self)))


def compose_run(tree: DictConfig) -> RunConfig:
    """The checked configuration of a composed Hydra tree.

    Raises ConfigError with one sentence a problem, each naming its fields.
    """
    run = read_tree(RunConfig, tree)
    for field_name in ("name", "label"):
        if field_name not in run.algorithm:
            raise ConfigError(f"algorithm.{field_name} is missing: choose an algorithm with algorithm=<name>.")
    problems = _problems(run)
    if problems:
        raise ConfigError("\n".join(problems))
    return run


def read_tree(cls: type[T], tree: DictConfig) -> T:
    """A composed Hydra tree as a dataclass. Raises ConfigError with one sentence a problem."""
    try:
        plain = OmegaConf.to_container(tree, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        raise ConfigError(f"{error.full_key} is not given: name it with {error.full_key}=<value>.") from error
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key or 'the configuration'}: {str(error).splitlines()[0]}") from error
    assert isinstance(plain, dict)
    return cast(T, build(cls, {str(key): value for key, value in plain.items() if key not in ("hydra", LAUNCH)}, ""))


def _problems(run: RunConfig) -> list[str]:
    config, descriptor = run.algorithm_config, run.descriptor
    problems = []
    for name, value in [("epochs", config.epochs), ("minibatches", config.minibatches)]:
        if value < 1:
            problems.append(f"algorithm.{name} is {value}: use 1 or more.")
    for name, data in [("train", run.task.train), ("held_out", run.task.held_out)]:
        if data.count is None and data.file is None:
            problems.append(
                f"task.{name}.count is null: say how many tasks to generate, or name a file with data=<file>."
            )
        if data.split not in SPLITS and (data.split != "all" or data.file is None):
            problems.append(f"task.{name}.split is {data.split!r}: use one of {', '.join(SPLITS)}, or all with a file.")
    if run.data is not None and run.data not in (run.task.train.file, run.task.held_out.file):
        problems.append(
            f"data is {run.data} and task.train.file {run.task.train.file}, task.held_out.file "
            f"{run.task.held_out.file}: this task names its own files; set these."
        )
    if problems:
        return problems
    if run.task.env not in ENVIRONMENTS:
        problems.append(f"task.env is {run.task.env!r}: no such environment; {nearest(run.task.env, ENVIRONMENTS)}.")
    else:
        problems += run.task.env_settings.problems("task.settings")
    problems += run.task.limits_problems("task")
    if config.loss is not None:
        problems += config.loss.problems()
    problems += _verl_problems(run)
    if not run.is_embedded:
        problems += _vllm_problems(run)
    for name, text in [("experiment_name", run.experiment_name), ("algorithm.label", run.label)]:
        if not re.fullmatch(r"[\w.+-]+", text) or text.startswith("."):
            problems.append(f"{name} is {text!r}: it names a folder; use letters, digits and . _ + - alone.")
    if run.deterministic and not run.is_embedded:
        problems.append(
            "deterministic is true: vLLM's batches are not ours to order, so it holds with the embedded engine alone; "
            "use false."
        )
    if run.deterministic and run.budget.seconds is not None:
        problems.append(
            f"deterministic is true and budget.seconds {run.budget.seconds:g}: the clock would decide when the run "
            "ends; use one of the two."
        )
    if config.kl < 0:
        problems.append(f"algorithm.kl is {config.kl}: use 0 or more.")
    if run.sampling.temperature <= 0:
        problems.append("sampling.temperature must be above 0: greedy rollouts have no log-probs to train on.")
    if run.sampling.top_p != 1 or run.sampling.top_k != -1:
        problems.append(
            f"sampling.top_p is {run.sampling.top_p} and sampling.top_k {run.sampling.top_k}: a cut distribution "
            "biases the ratio, since the trainer's is not cut; use 1.0 and -1 in training."
        )
    problems += descriptor.check(config)
    worst = descriptor.rollouts_per_task(config, run.task.max_turns)
    if not problems and run.budget.rollouts and worst > run.budget.rollouts:
        problems.append(
            f"budget.rollouts is {run.budget.rollouts} and one task can take {worst} rollouts with this algorithm: "
            "not one step would fit."
        )
    if run.task.train.count is not None and run.budget.tasks_per_step > run.task.train.count:
        problems.append(
            f"budget.tasks_per_step is {run.budget.tasks_per_step} and task.train.count {run.task.train.count}: a step "
            "would hold a task twice."
        )
    return problems


def _verl_problems(run: RunConfig) -> list[str]:
    """Of what verl would take and this project does not do. That verl has the keys is seen to by
    `rtpo.verl_harness.settings`."""
    verl, problems = OmegaConf.create(run.verl), []
    model, actor = (f"actor_rollout_ref.{part}" for part in ("model", "actor.optim"))
    for key in (f"{model}.lora_rank", f"{model}.lora.rank", f"{model}.lora_adapter_path"):
        if (value := OmegaConf.select(verl, key)) not in (None, 0):
            problems.append(f"verl.{key} is {value}: LoRA is not supported, all weights are trained; leave it out.")
    engines = {"cpu": ("embedded", "vllm"), "cuda": ("vllm",)}[run.profile.platform]
    fsdp2 = ("fsdp2",)
    for key, known in (("actor.strategy", fsdp2), ("ref.strategy", fsdp2), ("rollout.name", engines)):
        if (value := OmegaConf.select(verl, f"actor_rollout_ref.{key}")) not in known:
            problems.append(f"verl.actor_rollout_ref.{key} is {value}: with this profile use {' or '.join(known)}.")
    optim = OmegaConf.select(verl, actor)
    if not isinstance(optim, DictConfig):
        return [*problems, f"verl.{actor} is {optim}: it has the optimizer's settings; leave it as the profile has it."]
    for name, wanted in asdict(run.optimizer).items():
        if (value := optim.get(name)) != (list(wanted) if isinstance(wanted, tuple) else wanted):
            problems.append(
                f"verl.{actor}.{name} is {value} and optimizer.{name} {wanted}: set optimizer.{name} alone."
            )
    for name in ("lr_warmup_steps_ratio", "min_lr_ratio"):
        value = optim.get(name)
        if value is not None and not (isinstance(value, int | float) and 0 <= value <= 1):
            problems.append(f"verl.{actor}.{name} is {value}: use a number from 0 to 1.")
    schedules = {name: optim.get(name) for name in ("lr_scheduler_type", "warmup_style", "lr_warmup_steps_ratio")}
    total, steps = optim.get("total_training_steps"), run.budget.optimizer_steps
    for name, value in schedules.items():
        if value not in (None, 0, "constant") and total != steps:
            problems.append(
                f"verl.{actor}.{name} is {value}, total_training_steps {total} and budget.optimizer_steps {steps}: a "
                "schedule ends where the run does; set budget.optimizer_steps alone."
            )
    return problems


def _vllm_problems(run: RunConfig) -> list[str]:
    verl, rollout = OmegaConf.create(run.verl), "actor_rollout_ref.rollout"
    # the defaults are verl's and vLLM's
    mode = OmegaConf.select(verl, f"{rollout}.logprobs_mode", default="processed_logprobs")
    most = OmegaConf.select(verl, f"{rollout}.engine_kwargs.vllm.max_logprobs", default=20)
    problems = []
    if mode != "processed_logprobs":
        problems.append(
            f"verl.{rollout}.logprobs_mode is {mode}: log-probs are those of the distribution that the token was drawn "
            "from; use processed_logprobs."
        )
    may_skip = getattr(run.algorithm_config, "sync_kl", None)
    if may_skip is not None and OmegaConf.select(verl, f"{rollout}.free_cache_engine", default=True):
        problems.append(
            f"algorithm.sync_kl is {may_skip:g} and verl.{rollout}.free_cache_engine true: vLLM sleeps while the "
            "trainer works and wakes at a synchronisation, which sync_kl may skip; use sync_kl null, or "
            "free_cache_engine false."
        )
    if 0 <= most < run.top_logprobs:
        problems.append(
            f"algorithm.top_logprobs is {run.top_logprobs} and vLLM gives {most} at most: use {most} or fewer, or "
            f"raise verl.{rollout}.engine_kwargs.vllm.max_logprobs."
        )
    return problems


def rollout_sampling(run: RunConfig) -> Sampling:
    return Sampling(run.sampling.temperature, run.sampling.top_p, run.sampling.top_k)


def portable(value: Any) -> Any:
    """A tree with the paths inside the project written from `${project:}`."""
    if isinstance(value, dict):
        return {key: portable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [portable(item) for item in value]
    if isinstance(value, str) and Path(value).is_relative_to(PROJECT):
        return "${project:}" + value.removeprefix(str(PROJECT))
    return value


def build(cls: type[Any], values: Mapping[str, Any], path: str) -> Any:
    """A dataclass of these values; `path` is where they stand. At every depth, fields that its classes do not have are
    refused, and numbers that are not finite or too large. Raises ConfigError with one sentence a problem."""
    try:
        # within a dict, since a dataclass at the top takes no settings of pydantic's; those below take the dict's
        adapter = TypeAdapter(dict[str, cls], config=ConfigDict(extra="forbid"))  # type: ignore[valid-type]
        built = adapter.validate_python({path: dict(values)})[path]
    except ValidationError as error:
        raise ConfigError("\n".join(_sentence(cls, path, item) for item in error.errors())) from error
    for problem in _numbers(asdict(built), path):  # the first: others may be written from its value
        raise ConfigError(problem)
    return built


RANGES = {
    "greater_than_equal": "use {ge:g} or more",
    "greater_than": "use a number above {gt:g}",
    "less_than": "use a number below {lt:g}",
    "less_than_equal": "use {le:g} or less",
}
"""by pydantic's name of the problem"""


def _sentence(cls: type[Any], path: str, item: Any) -> str:
    _, *place = item["loc"]
    name = ".".join([path, *map(str, place)]).lstrip(".")
    if item["type"] in {"unexpected_keyword_argument", "extra_forbidden"}:
        owner = _owner(cls, place)
        return f"{name} is not a field of {owner.__name__}: {nearest(place[-1], [one.name for one in fields(owner)])}."
    if item["type"] in {"missing", "missing_argument"}:
        return f"{name} is missing."
    if item["type"] in RANGES:
        return f"{name} is {item['input']}: {RANGES[item['type']].format(**item['ctx'])}."
    if item["type"] == "tuple_type":
        within = "" if item["input"] is None else item["input"]
        return f"{name} is {item['input']!r}, and it is a list: use {name}=[{within}]."
    return f"{name} is {item['input']!r}: {item['msg'][0].lower()}{item['msg'][1:]}."


def _owner(cls: Any, place: list[Any]) -> Any:
    """The dataclass that the last part of `place` would be a field of."""
    for part in place:
        hint = get_type_hints(cls).get(part)
        cls = next((one for one in (hint, *get_args(hint)) if is_dataclass(one)), cls)
    return cls


def _numbers(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(item, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from _numbers(item, f"{path}.{place}")
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{path} is {value}: use a finite number."
    elif isinstance(value, int) and abs(value) > LARGEST:
        yield f"{path} is {value}: use a number of at most {LARGEST} in size."
