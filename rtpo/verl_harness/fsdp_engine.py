"""Our changes to verl's FSDP2 engine, on CPU and CUDA alike. Importing this module makes the changes. Workers import it
through `actor_rollout_ref.model.external_lib`.

- Rows are computed as prefix trees (`rtpo.core.trees`), in micro-batches of trees of similar size. verl computes every
  row whole and mixes lengths in a micro-batch. The padding to the longest row can exceed `ppo_max_token_len_per_gpu`
  tokens by far. verl refuses a row of more tokens than this limit.
- Log-probs, entropies and the output layer are computed for trained ids only; other ids have 0. Without verl's fused
  kernels the output layer is computed in chunks (`rtpo.core.output_layer`), which saves memory. All logits are held
  at once only for models that may change them after this layer.
- A schedule keeps its last learning rate after its end, since a run's last updates may come later. verl's cosine would
  rise again. The learning rate reported for a step is the one that it used; verl reports the next step's.
- The output layer is part of the model's outermost FSDP group. verl gives an untied output layer its own group. The
  fused kernels would then find its weight sharded.
- A save's folder is made without a lock. verl leaves a lock file in the temporary folder for each save. The file locks
  nothing, since processes hash the folder to different names.
"""

import os
from typing import Any

import torch
import verl.utils.checkpoint.fsdp_checkpoint_manager as checkpoint_manager
import verl.utils.fsdp_utils as fsdp_utils
import verl.workers.engine.fsdp.transformer_impl as fsdp
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from rtpo.core.model_family import MODEL_TYPES
from rtpo.core.output_layer import score_at
from rtpo.core.tree_attention import BLOCK, choose_attention, read_at
from rtpo.core.trees import forest

_verl_wrap_targets = fsdp_utils._select_fsdp2_wrap_targets
_verl_micro_batches = fsdp.prepare_micro_batches
_verl_inputs = fsdp.FSDPEngineWithLMHead.prepare_model_inputs
_verl_outputs = fsdp.FSDPEngineWithLMHead.prepare_model_outputs
_verl_schedule = fsdp.FSDPEngine._build_lr_scheduler


def micro_batches(data: TensorDict, *arguments: Any, **named: Any) -> tuple[Any, Any]:
    """In place of verl's: divide rows into the micro-batches that the driver chose. All ranks have equally many, since
    FSDP gathers weights in each. In stock verl the driver chooses none; verl then divides the rows."""
    if not _is_dealt(data):
        return _verl_micro_batches(data, *arguments, **named)
    batch = data["batch"].cpu()
    batches = [(batch == number).nonzero()[:, 0].tolist() for number in range(int(batch.max()) + 1)]
    return [tu.index_select_tensor_dict(data, rows) for rows in batches], batches


def tree_inputs(engine: Any, micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
    """In place of verl's: the model's inputs for the trees of a micro-batch (`forest`), and which outputs are read."""
    if not _is_dealt(micro_batch):
        return _verl_inputs(engine, micro_batch)
    temperature = tu.get_non_tensor_data(micro_batch, "temperature", default=None)
    rows, masks = ([row.numpy() for row in micro_batch[name].cpu().unbind()] for name in ("input_ids", "loss_mask"))
    device = micro_batch["input_ids"].device
    multiple = BLOCK if device.type == "cuda" else 1
    trees = forest(rows, [mask.astype(bool) for mask in masks], micro_batch["tree"].tolist(), multiple=multiple)
    ids, depth, nodes, labels, read = (
        torch.from_numpy(values).to(device)
        for values in (trees.ids, trees.depth, trees.nodes, trees.labels, trees.read)
    )
    read_at(engine.module, nodes)
    end = None if trees.end is None else torch.from_numpy(trees.end).to(device)
    mask = choose_attention(engine.module.config, end)
    positions = depth + tu.get_non_tensor_data(micro_batch, "shift", default=0)
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    if tu.get_non_tensor_data(micro_batch, "use_fused_kernels", default=False):
        inputs |= {"temperature": temperature, "return_dict": True, "shift_labels": labels[None]}
    elif has_plain_head(engine):
        entropies = tu.get_non_tensor_data(micro_batch, "calculate_entropy", default=False)
        score_at(engine.module, labels, temperature, with_entropy=entropies)
    return inputs, {"temperature": temperature, "labels": labels, "read": read}


def tree_outputs(
    engine: Any, output: Any, output_args: dict[str, Any], micro_batch: TensorDict, logits_processor_func: Any
) -> dict[str, torch.Tensor]:
    """In place of verl's: log-probs and entropies of trained ids, at the positions before them. 0 elsewhere."""
    if not _is_dealt(micro_batch):
        return _verl_outputs(engine, output, output_args, micro_batch, logits_processor_func)
    entropies = tu.get_non_tensor_data(micro_batch, "calculate_entropy", default=False)
    if tu.get_non_tensor_data(micro_batch, "use_fused_kernels", default=False):
        pairs = {"log_probs": output.log_probs[0], "entropy": output.entropy[0]}
    elif has_plain_head(engine):
        scores = output.logits[0]
        pairs = {"log_probs": scores[:, 0], "entropy": scores[:, 1].detach()}
    else:
        logprobs = (output.logits[0].float() / output_args["temperature"]).log_softmax(-1)
        pairs = {"log_probs": logprobs.gather(-1, output_args["labels"][:, None])[:, 0]}
        if entropies:
            pairs["entropy"] = -(logprobs.detach().exp() * logprobs.detach()).sum(-1)
    offsets = micro_batch["input_ids"].offsets()
    before = torch.roll(micro_batch["loss_mask"].values(), -1).bool().nonzero()[:, 0]
    outputs = {}
    for name in ("log_probs", "entropy") if entropies else ("log_probs",):
        # index_select, not indexing: its gradient is summed in a fixed order
        values = pairs[name].index_select(0, output_args["read"])
        placed = torch.zeros(int(offsets[-1]), dtype=values.dtype, device=values.device).index_copy(0, before, values)
        outputs[name] = torch.nested.nested_tensor_from_jagged(placed, offsets)
    return outputs


def has_plain_head(engine: Any) -> bool:
    """Whether the output layer's result is the logits, as in the models that are computed as trees."""
    return engine.module.config.model_type in MODEL_TYPES


def _is_dealt(rows: TensorDict) -> bool:
    return "tree" in rows.keys()  # noqa: SIM118  (a TensorDict does not support `in`)


def wrap_targets(model: Any, layers: Any) -> list[torch.nn.Module]:
    """In place of verl's: its FSDP groups, without the output layer."""
    head = model.get_output_embeddings()
    return [module for module in _verl_wrap_targets(model, layers) if module is not head]


def schedule(engine: Any, optimizer: Any) -> Any:
    """In place of verl's: its schedule, constant from its end on."""
    scheduler, end = _verl_schedule(engine, optimizer), engine.optimizer_config.total_training_steps
    scheduler.lr_lambdas = [lambda step, share=share: share(min(step, end)) for share in scheduler.lr_lambdas]
    return scheduler


def take_scheduled_step(engine: Any) -> float:
    """In place of verl's: take a step of the schedule, and return the learning rate that was used before it."""
    lr = float(engine.optimizer.param_groups[0]["lr"])
    engine.lr_scheduler.step()
    return lr


def make_folder(path: str) -> str:
    """In place of verl's: make a folder, without a lock."""
    os.makedirs(path, exist_ok=True)
    return path


checkpoint_manager.local_mkdir_safe = make_folder
fsdp.FSDPEngine._build_lr_scheduler = schedule  # type: ignore[method-assign]
fsdp.FSDPEngine.lr_scheduler_step = take_scheduled_step  # type: ignore[method-assign]
fsdp.FSDPEngineWithLMHead.prepare_model_inputs = tree_inputs  # type: ignore
fsdp.FSDPEngineWithLMHead.prepare_model_outputs = tree_outputs  # type: ignore
fsdp.prepare_micro_batches = micro_batches
fsdp_utils._select_fsdp2_wrap_targets = wrap_targets
