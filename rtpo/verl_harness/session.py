"""A live backend from a run's configuration: one Ray start and, where settings allow, one worker group for many runs.

verl settles its platform when it is first imported, so the environment is set first and verl imported after.
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

from rtpo.core.tree_attention import why_not_trees
from rtpo.errors import ConfigError, DataError, MachineError, Stopped
from rtpo.run.config import PROJECT, ProfileConfig, RunConfig, has_bf16
from rtpo.run.provenance import passed_on
from rtpo.verl_harness.settings import LOOPBACK, SOCKETS

if TYPE_CHECKING:
    from rtpo.verl_harness.backend import VerlBackend

GPU_SETS = ("gpu.txt", "gpu-cu12.txt")
"""of requirements/: packages that were resolved together, for drivers of CUDA 13 and of CUDA 12"""

LONGEST_SOCKET = 107
"""bytes of a Unix socket's path on Linux"""

NODES_JOIN = 120
"""seconds that the nodes of a Ray cluster have to join it"""

VLLM_ON_CPU = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # otherwise to all processors but one, however many they are
    "TORCH_COMPILE_DISABLE": "1",  # minutes of a compiler's work for what a tiny model does in seconds
}

RAY_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",  # spinning threads would slow whatever else the machine does
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}

TOKEN_SOURCES = {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}
"""environment variables by which a reader tells Ray who may use it; with none of them a run makes a token of its own"""

_started: tuple[Any, ...] | None = None
_open: "tuple[dict[str, Any], VerlBackend] | None" = None


def open_backend(config: RunConfig) -> "VerlBackend":
    """A backend with the initial weights. On a CPU the one of the run before is used again when the two differ in the
    optimizer and in name only; on GPUs it ends first, since the pinned memory of its processes comes back no other way.
    On GPUs kernels are compiled here, before any clock runs.

    Raises MachineError, DataError, ConfigError.
    """
    global _open
    settings = settings_of(config)
    if not config.is_embedded and not find_spec("vllm"):
        raise MachineError(
            f"profile {config.profile.name} runs vLLM, which is not installed: use an environment that has it "
            "(docs/cluster/gpus.md)."
        )
    start_ray(config.profile)
    from rtpo.verl_harness.backend import VerlBackend

    if why := why_not_trees(AutoConfig.from_pretrained(config.model.path)):
        print(f"{config.model.name} is trained row by row, not on prefix trees: {why}", flush=True)
    with_reference = config.descriptor.has_reference(config.algorithm_config)
    key = {"settings": _kept_settings(settings), "with_reference": with_reference}
    if _open is not None and _open[0] == key and config.profile.platform == "cpu":
        _open[1].restart(settings)
    else:
        close_backend()
        _open = (key, VerlBackend(settings, with_reference=with_reference))
        if config.profile.platform == "cuda":
            _open[1].warm_up()
    return _open[1]


def settings_of(config: RunConfig) -> DictConfig:
    """verl's settings for a run, with all that can be said of them before Ray starts. Raises ConfigError."""
    os.environ.update(_platform(config.profile))
    from rtpo.verl_harness.settings import check_settings, fit_bucket, verl_settings

    if config.profile.precision == "bf16" and config.profile.platform == "cpu" and not has_bf16():
        raise ConfigError(
            "profile.precision is bf16, which this processor does not compute (no AMX or AVX-512 bf16): use fp32."
        )
    settings = verl_settings(OmegaConf.create(config.verl))
    check_settings(settings)
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
    """Ends the backend and Ray where they, or what is unknown, fail a run inside: the next one starts its own."""
    try:
        yield
    except (ConfigError, DataError, Stopped):
        raise
    except Exception:
        global _open
        with suppress(Exception):  # the run's own failure is the one to tell
            close_backend()
        _open = None
        ray.shutdown()
        raise


def close_session() -> None:
    """End the live backend and Ray."""
    close_backend()
    ray.shutdown()


def package_problems(profile: ProfileConfig) -> Iterator[str]:
    """A sentence for each package of a profile with GPUs that is missing, or another than the pinned one."""
    if profile.platform != "cuda":
        return
    remedy = "install requirements/gpu.txt, or requirements/gpu-cu12.txt for a driver of CUDA 12"
    there = {name: _installed(name) for name in ("torch", "vllm")}
    sets = [_gpu_pins(file) for file in GPU_SETS]
    nearest = next((pins for pins in sets if pins["torch"] == there["torch"].partition("+")[0]), sets[0])
    for name, pinned in nearest.items():
        if not there[name]:
            yield f"profile {profile.name} needs {name}, which is not installed: {remedy}."
        elif there[name].endswith("+cpu"):
            yield f"profile {profile.name} needs CUDA, and {name} {there[name]} is built without: {remedy}."
        elif there[name].partition("+")[0] != pinned:
            yield f"profile {profile.name} needs {name} {pinned}, and {there[name]} is installed: {remedy}."


def _installed(package: str) -> str:
    """Its version, or an empty string."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _gpu_pins(file: str) -> dict[str, str]:
    text = (PROJECT / "requirements" / file).read_text(encoding="utf-8")
    return dict(re.findall(r"^(vllm|torch)==(\S+)", text, re.MULTILINE))


def start_ray(profile: ProfileConfig) -> None:
    """Start Ray on this machine, or join the cluster RAY_ADDRESS names; once a process. A Ray that is started here
    listens on the loopback address alone.

    Raises MachineError, for packages of a GPU profile that are not the pinned ones, too.
    """
    if problems := list(package_problems(profile)):
        raise MachineError("\n".join(problems))
    processes = profile.processes * profile.nodes
    global _started
    machine = (profile.platform, profile.processes, profile.nodes, profile.logical_cpus, profile.threads)
    if ray.is_initialized():
        if _started == machine:
            return
        close_session()
    _started = machine
    print("starting Ray, the trainer and the rollout engine", flush=True)
    environment = _platform(profile) | passed_on() | RAY_ENVIRONMENT
    environment |= {"OMP_NUM_THREADS": str(profile.threads), SOCKETS: uuid.uuid4().hex[:12]}
    os.environ.update(environment)
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        _check_sockets()
    local: dict[str, Any] = {} if address else {"num_cpus": profile.logical_cpus, "include_dashboard": False}
    if not address:
        ray_constants.ENABLE_RAY_CLUSTER = False  # Ray then takes the loopback address for this machine's
        environment["VLLM_HOST_IP"] = LOOPBACK
        if TOKEN_SOURCES.isdisjoint(os.environ):
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # Ray's own would lie in ~/.ray, for all to read
    if profile.platform == "cpu" and not address:
        local["num_gpus"] = processes  # logical ones: verl's resource pools count GPUs
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # of real ones, and Ray would count these
    try:
        with _held_interrupts():
            ray.init(
                # "local": otherwise Ray joins whatever cluster a file in /tmp names, which another user may write
                address=address or "local",
                runtime_env={"env_vars": environment},
                log_to_driver=False,
                logging_level=logging.ERROR,
                **local,
            )
    except SystemExit as ended:  # Ray's own handler meanwhile
        raise KeyboardInterrupt("SIGTERM") from ended
    except Exception as error:  # Ray raises no narrower one
        raise MachineError(
            f"Ray did not start: {str(error).partition(chr(10))[0].rstrip('.')}. An overloaded machine may start "
            "it later: give the same command again. Ray's logs are in "
            f"{get_default_ray_temp_dir()}/session_latest/logs."
        ) from error
    if address:
        _wait_for_nodes(profile.nodes)
    there = ray.cluster_resources()
    for resource, wanted in (("CPU", profile.required_cpus), ("GPU", processes)):
        if there.get(resource, 0) < wanted:
            raise MachineError(
                f"the Ray cluster has {there.get(resource, 0):g} {resource} and {processes} training process(es) need "
                f"{wanted}: Ray would wait for ever. Start a larger cluster (under SLURM: launch.resources)."
            )


def _check_sockets() -> None:
    """Raises MachineError where Ray's temporary folder has too long a name for the sockets below it."""
    folder = get_default_ray_temp_dir()
    room = LONGEST_SOCKET - len("/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store")
    if len(os.fsencode(folder)) > room:
        raise MachineError(
            f"Ray's folder {folder} has a name of {len(os.fsencode(folder))} bytes, and {room} is the most for the "
            "sockets in it: give it a shorter one, as by RAY_TMPDIR=/tmp."
        )


@contextmanager
def _held_interrupts() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until Ray has started: raised in the middle, they can lock its client for ever."""
    heard: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    heeded = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in heeded:
        signal.signal(number, lambda number, _: heard.append(number))
    try:
        yield
    finally:
        for number, handler in heeded.items():  # Ray's own for SIGTERM would abort
            signal.signal(number, handler)
    if heard:
        raise KeyboardInterrupt(*(["SIGTERM"] if signal.SIGTERM in heard else []))


def _platform(profile: ProfileConfig) -> dict[str, str]:
    is_cpu = profile.platform == "cpu"
    return {
        "VERL_PLATFORM": "cpu" if is_cpu else "nvidia",
        "VERL_USE_EXTERNAL_MODULES": "rtpo.verl_harness.plugin" if is_cpu else "",
        "VERL_LOGGING_LEVEL": os.environ.get("VERL_LOGGING_LEVEL", "WARN"),
    } | (VLLM_ON_CPU if is_cpu else {})


def _wait_for_nodes(nodes: int) -> None:
    """The other nodes of an allocation join after the first. Raises MachineError."""
    end = time.monotonic() + NODES_JOIN
    while (there := sum(node["Alive"] for node in ray.nodes())) < nodes:
        if time.monotonic() > end:
            raise MachineError(
                f"profile.nodes is {nodes} and the Ray cluster has {there} after {NODES_JOIN} s: look at what ray "
                "start says on the others, in the log."
            )
        time.sleep(1)


def tracker(project: str, run: str, backend: str) -> Any:
    """verl's tracking of a run with one backend, opened."""
    from verl.utils.tracking import Tracking

    return Tracking(project, run, backend)


def _kept_settings(settings: DictConfig) -> dict[str, Any]:
    """What a live backend cannot change: all but the optimizer and the run's name."""
    plain: Any = OmegaConf.to_container(settings)
    plain["actor_rollout_ref"]["actor"].pop("optim")
    plain["trainer"].pop("experiment_name")
    return plain
