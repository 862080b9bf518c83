"""verl's FSDP2 engine on CPU. Imported in the workers through `actor_rollout_ref.model.external_lib`."""

from typing import Any

import torch
import torch.distributed.fsdp
import verl.workers.engine.fsdp.transformer_impl as fsdp
from verl.workers.engine.base import EngineRegistry

from rtpo.verl_harness import (
    fsdp_engine,  # noqa: F401  (its import changes verl)
    rollout_server,  # noqa: F401  (its adapter registers itself)
)


class _PageableOffloadPolicy(torch.distributed.fsdp.CPUOffloadPolicy):
    """Offloads the reference policy without pinned memory, which needs a GPU."""

    def __init__(self, pin_memory: bool = False) -> None:
        super().__init__(pin_memory=False)


@EngineRegistry.register(model_type="language_model", backend=["fsdp2"], device=["cpu"])
class FSDPEngineOnCPU(fsdp.FSDPEngineWithLMHead):
    def _build_fsdp_module(self, module: Any) -> Any:
        fsdp.CPUOffloadPolicy = _PageableOffloadPolicy  # type: ignore[misc]
        return super()._build_fsdp_module(module)
