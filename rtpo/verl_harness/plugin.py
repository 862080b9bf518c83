"""The CPU platform. verl imports this module in every process (VERL_USE_EXTERNAL_MODULES), so it imports little."""

from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


def _returns(value: Any) -> Callable[..., Any]:
    """A function that returns this value for any arguments."""
    return lambda *_, **__: value


class _CpuModule(ModuleType):
    """torch.cpu with what verl calls on every device. A CPU has no memory statistics, so they are 0."""

    get_device_name = _returns("cpu")
    set_device = empty_cache = ipc_collect = reset_peak_memory_stats = _returns(None)
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)
    get_rng_state, set_rng_state = staticmethod(torch.get_rng_state), staticmethod(torch.set_rng_state)
    memory_allocated = memory_reserved = max_memory_allocated = max_memory_reserved = _returns(0)
    mem_get_info = _returns((0, 0))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """One "device" per worker process. Ray counts them as logical GPUs."""

    device_name = vendor_name = "cpu"
    device_module = _CpuModule("torch.cpu")
    is_available: Any = _returns(True)
    current_device: Any = _returns("cpu")
    """verl passes this to Tensor.to(), so it is the device's name, not its index"""
    device_count: Any = _returns(1)
    set_device = synchronize = set_allocator_settings = empty_cache = profiler_start = profiler_stop = _returns(None)
    manual_seed: Any = staticmethod(torch.manual_seed)
    manual_seed_all: Any = staticmethod(torch.manual_seed)
    get_device_capability: Any = _returns((None, None))
    communication_backend_name: Any = _returns("gloo")
    visible_devices_envvar: Any = _returns("CUDA_VISIBLE_DEVICES")
    nvtx_range: Any = _returns(nullcontext())
    ray_resource_name: Any = _returns("GPU")
    is_ipc_supported: Any = _returns(False)
    cudart: Any = _returns(None)

    def ray_noset_envvars(self) -> list[str]:
        return []
