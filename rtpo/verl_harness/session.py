"""A live backend from a run's configuration: one Ray start and, where settings allow, one worker group for many runs.

verl chooses its platform on import, so the environment is set first and verl imported after.
"""

import logging
import os
import re
import secrets
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import ray
from omegaconf import DictConfig, OmegaConf
from ray._common.utils import get_default_ray_temp_dir
from ray._private import ray_constants
from transformers import AutoConfig

from rtpo.core.names import counted
from rtpo.core.tree_attention import why_not_trees
from rtpo.errors import ConfigError, DataError, FolderInUse, MachineError, Stopped
from rtpo.run.config import PROJECT, ProfileConfig, RunConfig, has_bf16
from rtpo.run.provenance import worker_variables
from rtpo.verl_harness.settings import LOOPBACK, SOCKETS

if TYPE_CHECKING:
    from rtpo.verl_harness.backend import VerlBackend

GPU_SETS = ("gpu.txt", "gpu-cu12.txt")
"""files of requirements/ for drivers of CUDA 13 and of CUDA 12; the packages of a file were resolved together"""

LONGEST_SOCKET = 107
"""the most bytes of a Unix socket's path on Linux"""

NODES_JOIN = 120
"""seconds that the nodes of a Ray cluster have to join it"""

VLLM_ON_CPU = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # otherwise vLLM binds to all processors but one
    "TORCH_COMPILE_DISABLE": "1",  # compiling would take minutes, a tiny model takes seconds
}

RAY_ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # an actor without GPUs keeps CUDA_VISIBLE_DEVICES
}

TOKEN_SOURCES = {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}
"""environment variables that set Ray's authentication; without them a run makes its own token"""

_started: tuple[Any, ...] | None = None
"""the profile's values that this process started Ray with"""
_open: "tuple[dict[str, Any], VerlBackend] | None" = None
"""the settings that the live backend cannot change, and the backend"""


def open_backend(config: RunConfig) -> "VerlBackend":
    """Open a backend with the initial weights. On a CPU the backend of the run before is used again, if only the
    optimizer and the run's name differ. On GPUs the old one ends first, since nothing else frees its pinned memory. On
    GPUs kernels are compiled here, before any timing starts.

    Raises ConfigError for settings, MachineError for the machine or Ray, DataError for weights, and InfrastructureError
    for a process that ended.
    """
    global _open
    check_machine(config)
    check_trees(config)
    settings = settings_of(config)
    if why := why_not_trees(AutoConfig.from_pretrained(config.model.path)):
        print(f"{config.model.name} is trained row by row, not on prefix trees: {why}", flush=True)
    start_ray(config.profile)
    from rtpo.verl_harness.backend import VerlBackend
    from rtpo.verl_harness.engines import trainer_errors

    with_reference = config.descriptor.has_reference(config.algorithm_config)
    key = {"settings": _kept_settings(settings), "with_reference": with_reference}
    if _open is not None and _open[0] == key and config.profile.platform == "cpu":
        _open[1].restart(settings)
    else:
        close_backend()
        with trainer_errors():
            _open = (key, VerlBackend(settings, with_reference=with_reference))
        if config.profile.platform == "cuda":
            _open[1].warm_up()
    return _open[1]


def check_machine(config: RunConfig) -> None:
    """Raises MachineError for packages that a run needs and this machine lacks, or has in another version than the
    pinned one."""
    if problems := list(package_problems(config.profile)):
        raise MachineError("\n".join(problems))
    if not config.is_embedded and not find_spec("vllm"):
        raise MachineError(
            f"profile {config.profile.name} runs vLLM, which is not installed: use an environment that has it "
            "(docs/cluster/gpus.md)."
        )


def check_trees(config: RunConfig) -> None:
    """Raises ConfigError if a run checks prefix trees and its model, which must exist, has none."""
    if config.profile.check_trees and (why := why_not_trees(AutoConfig.from_pretrained(config.model.path))):
        raise ConfigError(f"profile.check_trees is true and {config.model.name} has no prefix trees: {why}")


def settings_of(config: RunConfig) -> DictConfig:
    """verl's settings for a run, after all checks that need no Ray. Raises ConfigError, and MachineError if shared
    memory has no room."""
    os.environ.update(_platform_variables(config.profile))
    from rtpo.verl_harness.settings import check_settings, fit_bucket, verl_settings

    if config.profile.precision == "bf16" and config.profile.platform == "cpu" and not has_bf16():
        raise ConfigError(
            "profile.precision is bf16, which this processor does not compute (no AMX or AVX-512 bf16): use fp32."
        )
    settings = verl_settings(OmegaConf.create(config.verl))
    check_settings(settings, config.model.path)
    if config.profile.platform == "cpu" and not config.is_embedded:
        key = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"
        fit_bucket(settings, config.model.path, OmegaConf.select(OmegaConf.create(config.verl), key))
    return settings


def close_backend() -> None:
    """End the live backend, if there is one."""
    global _open
    if _open is not None:
        _open[1].close()
        _open = None


@contextmanager
def closed_on_failure() -> Iterator[None]:
    """End the backend and Ray after an error in this context, except an invalid input or a stop. The next run starts
    new ones."""
    try:
        yield
    except (ConfigError, DataError, FolderInUse, Stopped):
        raise
    except Exception:
        global _open
        with suppress(Exception):  # the run's own failure is reported
            close_backend()
        _open = None
        ray.shutdown()
        raise


def close_session() -> None:
    """End the live backend and Ray."""
    close_backend()
    ray.shutdown()


def package_problems(profile: ProfileConfig) -> Iterator[str]:
    """A sentence for each package of a GPU profile that is missing, or not of the pinned version."""
    if profile.platform != "cuda":
        return
    remedy = "install requirements/gpu.txt, or requirements/gpu-cu12.txt for a driver of CUDA 12"
    installed = {name: _installed(name) for name in ("torch", "vllm")}
    sets = [_gpu_pins(file) for file in GPU_SETS]
    nearest = next((pins for pins in sets if pins["torch"] == installed["torch"].partition("+")[0]), sets[0])
    for name, pinned in nearest.items():
        if not installed[name]:
            yield f"profile {profile.name} needs {name}, which is not installed: {remedy}."
        elif installed[name].endswith("+cpu"):
            yield f"profile {profile.name} needs CUDA, and {name} {installed[name]} is built without: {remedy}."
        elif installed[name].partition("+")[0] != pinned:
            yield f"profile {profile.name} needs {name} {pinned}, and {installed[name]} is installed: {remedy}."


def _installed(package: str) -> str:
    """A package's version, or an empty string."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _gpu_pins(file: str) -> dict[str, str]:
    text = (PROJECT / "requirements" / file).read_text(encoding="utf-8")
    return dict(re.findall(r"^(vllm|torch)==(\S+)", text, re.MULTILINE))


def start_ray(profile: ProfileConfig) -> None:
    """Start Ray on this machine, or join the cluster that RAY_ADDRESS names. A Ray started here listens only on the
    loopback address. A later call restarts Ray if the profile's platform, processes, nodes, CPUs or threads differ.

    Raises MachineError.
    """
    global _started
    machine = (profile.platform, profile.processes, profile.nodes, profile.logical_cpus, profile.threads)
    if ray.is_initialized():
        if _started == machine:
            return
        close_session()
    _started = None
    print("starting Ray, the trainer and the rollout engine", flush=True)
    environment = _platform_variables(profile) | worker_variables() | RAY_ENVIRONMENT
    environment |= {"OMP_NUM_THREADS": str(profile.threads), SOCKETS: uuid.uuid4().hex[:12]}
    os.environ.update(environment)
    if address := os.environ.get("RAY_ADDRESS"):
        _init_ray(address=address, runtime_env={"env_vars": environment})
        _wait_for_nodes(profile.nodes)
    else:
        _init_local_ray(profile, environment | {"VLLM_HOST_IP": LOOPBACK})
    _check_resources(profile)
    _started = machine


def _init_local_ray(profile: ProfileConfig, environment: dict[str, str]) -> None:
    _check_sockets()
    ray_constants.ENABLE_RAY_CLUSTER = False  # so that Ray uses the loopback address for this machine
    if TOKEN_SOURCES.isdisjoint(os.environ):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # Ray would write its own to ~/.ray, readable by all
    logical: dict[str, int] = {"num_cpus": profile.logical_cpus}
    if profile.platform == "cpu":
        logical["num_gpus"] = profile.processes * profile.nodes  # verl's resource pools count GPUs
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # Ray would count real GPUs instead
    # "local": otherwise Ray joins whatever cluster a file in /tmp names, which another user may write
    _init_ray(address="local", runtime_env={"env_vars": environment}, include_dashboard=False, **logical)


def _init_ray(**options: Any) -> None:
    try:
        with _held_interrupts():
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    except SystemExit as ended:  # raised by Ray's own handler during its start
        raise KeyboardInterrupt("SIGTERM") from ended
    except Exception as error:  # Ray raises no narrower error
        raise MachineError(
            f"Ray did not start: {str(error).partition(chr(10))[0].rstrip('.')}. An overloaded machine may start "
            "it later: give the same command again. Ray's logs are in "
            f"{get_default_ray_temp_dir()}/session_latest/logs."
        ) from error


def _check_resources(profile: ProfileConfig) -> None:
    """Raises MachineError if the cluster has fewer CPUs or GPUs than the training processes need."""
    processes, resources = profile.processes * profile.nodes, ray.cluster_resources()
    for resource, wanted in (("CPU", profile.required_cpus), ("GPU", processes)):
        if resources.get(resource, 0) < wanted:
            raise MachineError(
                f"the Ray cluster has {resources.get(resource, 0):g} {resource} and "
                f"{counted(processes, 'training process')} need {wanted}: Ray would wait for ever. Start a larger "
                "cluster (under SLURM: launch.resources)."
            )


def _check_sockets() -> None:
    """Raises MachineError if the path of Ray's temporary folder is too long for its sockets."""
    folder = get_default_ray_temp_dir()
    room = LONGEST_SOCKET - len("/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store")
    if len(os.fsencode(folder)) > room:
        raise MachineError(
            f"Ray's folder {folder} has a path of {counted(len(os.fsencode(folder)), 'byte')}, and its sockets allow "
            f"{room}: use a shorter one, such as by RAY_TMPDIR=/tmp."
        )


@contextmanager
def _held_interrupts() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until Ray has started: during the start they may lock its client for ever."""
    heard: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    replaced = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in replaced:
        signal.signal(number, lambda number, _: heard.append(number))
    try:
        yield
    finally:
        for number, handler in replaced.items():  # Ray's own handler of SIGTERM would abort
            signal.signal(number, handler)
    if heard:
        raise KeyboardInterrupt(*(["SIGTERM"] if signal.SIGTERM in heard else []))


def _platform_variables(profile: ProfileConfig) -> dict[str, str]:
    is_cpu = profile.platform == "cpu"
    return {
        "VERL_PLATFORM": "cpu" if is_cpu else "nvidia",
        "VERL_USE_EXTERNAL_MODULES": "rtpo.verl_harness.plugin" if is_cpu else "",
        "VERL_LOGGING_LEVEL": os.environ.get("VERL_LOGGING_LEVEL", "WARN"),
    } | (VLLM_ON_CPU if is_cpu else {})


def _wait_for_nodes(nodes: int) -> None:
    """Wait until all nodes of an allocation have joined. Raises MachineError after NODES_JOIN seconds."""
    end = time.monotonic() + NODES_JOIN
    while (joined := sum(node["Alive"] for node in ray.nodes())) < nodes:
        if time.monotonic() > end:
            raise MachineError(
                f"profile.nodes is {nodes} and the Ray cluster has {joined} after {NODES_JOIN} s: read the "
                "output of `ray start` on the missing nodes, in the log."
            )
        time.sleep(1)


def tracker(project: str, run: str, backend: str) -> Any:
    """Open verl's tracking of a run with one backend."""
    from verl.utils.tracking import Tracking

    return Tracking(project, run, backend)


def _kept_settings(settings: DictConfig) -> dict[str, Any]:
    """Settings that a live backend cannot change: all but the optimizer and the run's name."""
    plain: Any = OmegaConf.to_container(settings)
    plain["actor_rollout_ref"]["actor"].pop("optim")
    plain["trainer"].pop("experiment_name")
    return plain
