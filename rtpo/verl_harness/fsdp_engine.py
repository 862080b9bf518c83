"""What verl's FSDP2 engine does otherwise here, on CPU and CUDA alike. Imported in the workers through
`actor_rollout_ref.model.external_lib`, which puts it in place.

- Micro-batches have rows of like length. verl's mix lengths and are then padded to the longest row, far beyond the
  tokens that `ppo_max_token_len_per_gpu` allows; and they refuse a row longer than that.
- A schedule stays at its last learning rate beyond its end, which a run's last updates may take it to; verl's cosine
  would rise again. The learning rate that is told of a step is the one it was taken with; verl tells the next step's.
- The output layer is part of the model's outermost FSDP group. verl gives one that is not tied to the embeddings a
  group of its own, whose weight the fused kernels would find sharded.
"""

from typing import Any

import torch
import torch.distributed
import verl.utils.fsdp_utils as fsdp_utils
import verl.workers.engine.fsdp.transformer_impl as fsdp
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id
from verl.workers.engine.utils import prepare_micro_batches

from rtpo.core.packing import by_length

_verl_wrap_targets = fsdp_utils._select_fsdp2_wrap_targets
_verl_schedule = fsdp.FSDPEngine._build_lr_scheduler


def micro_batches(data: TensorDict, dp_group: Any = None, **_: Any) -> tuple[list[TensorDict], list[list[int]]]:
    """In place of verl's, which mix lengths: here rows are padded to the longest of their micro-batch. As many on every
    rank, since FSDP gathers weights for each."""
    if not tu.get_non_tensor_data(data, "use_dynamic_bsz", default=True):
        return prepare_micro_batches(data, dp_group)
    limit = tu.get_non_tensor_data(data, "max_token_len_per_gpu", default=None)
    together = tu.get_non_tensor_data(data, "force_group_size", default=1)
    lengths = data["input_ids"].offsets().diff().tolist()
    count = torch.tensor(len(by_length(lengths, limit, together)), device=get_device_id())
    torch.distributed.all_reduce(count, op=torch.distributed.ReduceOp.MAX, group=dp_group)
    batches = by_length(lengths, limit, together, at_least=int(count))
    return [tu.index_select_tensor_dict(data, rows) for rows in batches], batches


def wrap_targets(model: Any, layers: Any) -> list[torch.nn.Module]:
    """verl's, without the output layer."""
    head = model.get_output_embeddings()
    return [module for module in _verl_wrap_targets(model, layers) if module is not head]


def schedule(engine: Any, optimizer: Any) -> Any:
    """verl's, held at its end."""
    scheduler, end = _verl_schedule(engine, optimizer), engine.optimizer_config.total_training_steps
    scheduler.lr_lambdas = [lambda step, share=share: share(min(step, end)) for share in scheduler.lr_lambdas]
    return scheduler


def take_scheduled_step(engine: Any) -> float:
    """To the next step; the learning rate of the one that was taken."""
    lr = float(engine.optimizer.param_groups[0]["lr"])
    engine.lr_scheduler.step()
    return lr


fsdp.FSDPEngine._build_lr_scheduler = schedule  # type: ignore[method-assign]
fsdp.FSDPEngine.lr_scheduler_step = take_scheduled_step  # type: ignore[method-assign]
fsdp.prepare_micro_batches = micro_batches  # type: ignore[assignment]
fsdp_utils._select_fsdp2_wrap_targets = wrap_targets
