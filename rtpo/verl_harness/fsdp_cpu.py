"""verl's FSDP2 engine on CPU. Imported in the workers through `actor_rollout_ref.model.external_lib`."""

from typing import Any

import torch
import torch.distributed.fsdp
import verl.workers.engine.fsdp.transformer_impl as fsdp
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.workers.engine.base import EngineRegistry
from verl.workers.utils.padding import build_attention_mask_from_nested

from rtpo.verl_harness import (
    fsdp_engine,  # noqa: F401  (puts itself in place)
    rollout_server,  # noqa: F401  (its adapter registers itself)
)


class _PageableOffloadPolicy(torch.distributed.fsdp.CPUOffloadPolicy):
    """The reference policy is offloaded; pinned memory needs a GPU."""

    def __init__(self, pin_memory: bool = False) -> None:
        super().__init__(pin_memory=False)


@EngineRegistry.register(model_type="language_model", backend=["fsdp2"], device=["cpu"])
class FSDPEngineOnCPU(fsdp.FSDPEngineWithLMHead):
    def _build_fsdp_module(self, module: Any) -> Any:
        fsdp.CPUOffloadPolicy = _PageableOffloadPolicy  # type: ignore[misc]
        return super()._build_fsdp_module(module)

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
        """Rows are padded on the right, where causal attention never looks: without mask and positions, which say
        the same, torch takes its fast causal kernel."""
        inputs, arguments = super().prepare_model_inputs(micro_batch)
        return inputs | {"attention_mask": None, "position_ids": None}, arguments

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: TensorDict, logits_processor_func: Any
    ) -> dict[str, torch.Tensor]:
        """Log-probs (and entropies) of all tokens at once; without flash-attn verl takes them token by token. Its fused
        kernels are its own."""
        if tu.get_non_tensor_data(data=micro_batch, key="use_fused_kernels", default=False):
            fused: dict[str, torch.Tensor] = super().prepare_model_outputs(
                output, output_args, micro_batch, logits_processor_func
            )
            return fused
        input_ids = micro_batch["input_ids"]
        offsets = input_ids.offsets()
        is_token = build_attention_mask_from_nested(input_ids).bool()
        temperature = torch.repeat_interleave(output_args["temperature"], offsets.diff())
        logprobs = (output.logits[is_token] / temperature[:, None]).log_softmax(-1)
        labels = output_args["input_ids_rmpad_rolled"]
        chosen = logprobs.gather(-1, labels[:, None])[:, 0]
        outputs = {"log_probs": torch.nested.nested_tensor_from_jagged(chosen, offsets)}
        if tu.get_non_tensor_data(data=micro_batch, key="calculate_entropy", default=False):
            entropy = -(logprobs.exp() * logprobs).sum(-1)
            outputs["entropy"] = torch.nested.nested_tensor_from_jagged(entropy, offsets)
        return outputs
