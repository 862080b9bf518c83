"""A run's settings as vLLM takes them: its server's own command line, through its parser, to the configuration of an
engine on a GPU that is not there. Importing this makes this process's vLLM believe in one; needs vLLM."""

import asyncio
import ctypes
import os
import sys
from argparse import Namespace
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

import torch
import vllm.platforms
from omegaconf import DictConfig

try:
    ctypes.CDLL("libcuda.so.1")
except OSError:  # a driver's, without which kernels cannot be imported, and what modules ask them as they are
    for _kernels in ("vllm._C_stable_libtorch", "vllm.vllm_flash_attn._vllm_fa2_C"):
        sys.modules[_kernels] = ModuleType(_kernels)
    _library = torch.library.Library("_C", "FRAGMENT")
    for _asked in ("scaled_mm_supports_fp8", "scaled_mm_supports_block_fp8", "group_gemm_supported"):
        _library.define(f"cutlass_{_asked}(int capability) -> bool")
        _library.impl(f"cutlass_{_asked}", lambda capability: False, "CompositeExplicitAutograd")

from vllm.platforms.cuda import NonNvmlCudaPlatform
from vllm.platforms.interface import DeviceCapability


class _A100(NonNvmlCudaPlatform):
    """What vLLM asks of a GPU before it uses one."""

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
        return DeviceCapability(major=8, minor=0)

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return "NVIDIA A100-SXM4-80GB"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return 80 * 2**30

    @classmethod
    def device_count(cls) -> int:
        return 8

    def is_cumem_allocator_available(self) -> bool:
        return True


# asked for by modules of vLLM as they are imported
vllm.platforms._current_platform = _A100()

import verl.workers.rollout.vllm_rollout.vllm_async_server as verl_server  # noqa: E402
from verl.workers.rollout.replica import RolloutMode  # noqa: E402
from vllm.config import VllmConfig  # noqa: E402
from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: E402
from vllm.usage.usage_lib import UsageContext  # noqa: E402

from rtpo.errors import ConfigError  # noqa: E402
from rtpo.verl_harness.settings import SOCKETS  # noqa: E402
from rtpo.verl_harness.vllm_server import VllmServer  # noqa: E402


class _Configured(VllmServer):
    """verl's server, up to where it would start an engine."""

    made: VllmConfig

    async def run_server(self, args: Namespace) -> None:
        arguments = AsyncEngineArgs.from_cli_args(args)
        self.made = arguments.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)


def engine_config(settings: DictConfig) -> VllmConfig:
    """What the first rollout server of a run with these settings (`rtpo.verl_harness.settings.verl_settings`) would
    start vLLM with. `model.path` must hold config.json and a tokenizer.

    Raises ConfigError for what verl or vLLM refuses.
    """
    roles, gpus = settings.actor_rollout_ref, int(settings.trainer.n_gpus_per_node)
    job = SimpleNamespace(get_job_id=lambda: "01000000")
    try:
        with (
            patch.object(verl_server.ray, "get_runtime_context", return_value=job),
            patch.dict(os.environ, {SOCKETS: "configuration"}),
        ):
            server = _Configured(roles.rollout, roles.model, RolloutMode.HYBRID, [], 0, 0, gpus, 1, "0")
            asyncio.run(server.launch_server())
    except (Exception, SystemExit) as error:
        raise ConfigError(f"vLLM refuses verl.actor_rollout_ref.rollout: {' '.join(str(error).split())}") from error
    return server.made
