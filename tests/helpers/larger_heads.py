"""A model with larger heads that computes what it did: vLLM's CPU kernels take none below 32, and the toy models' are
of 16."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, Qwen3ForCausalLM

from rtpo.core.files import check_is_free


@torch.no_grad()
def with_larger_heads(model: Qwen3ForCausalLM, factor: int = 2) -> Qwen3ForCausalLM:
    """The model with heads `factor` times as large, the new places 0.

    Rotary pair j of a head of d turns by theta ** (-2j / d), as pair `factor` j of the larger one does, so that is
    where it goes. The mean of squares that the norms of queries and keys divide by would be smaller and so is the scale
    of the scores; both are made up for. Training leaves the new places 0: no gradient reaches them.
    """
    old = model.config.head_dim
    config: Any = deepcopy(model.config)
    config.head_dim = old * factor
    pairs = torch.arange(old // 2) * factor
    places = torch.cat([pairs, pairs + config.head_dim // 2])

    def spread(weight: Tensor, heads: int) -> Tensor:
        """Rows by head and place, to the places of the larger heads."""
        larger = weight.new_zeros(heads, config.head_dim, *weight.shape[1:])
        larger[:, places] = weight.view(heads, old, *weight.shape[1:])
        return larger.flatten(0, 1)

    queries, keys = config.num_attention_heads, config.num_key_value_heads
    weights = dict(model.state_dict())
    for name, weight in weights.items():
        if name.endswith("q_proj.weight"):
            weights[name] = spread(weight, queries) * factor**0.5
        elif name.endswith("k_proj.weight"):
            weights[name] = spread(weight, keys) * factor**0.5
        elif name.endswith("v_proj.weight"):
            weights[name] = spread(weight, keys)
        elif name.endswith("o_proj.weight"):
            weights[name] = spread(weight.T, queries).T
        elif name.endswith("q_norm.weight"):
            weights[name] = spread(weight, 1)  # less by the root of the projection, more by that of the scale
        elif name.endswith("k_norm.weight"):
            weights[name] = spread(weight, 1) / factor**0.5
    larger = Qwen3ForCausalLM(config)
    larger.load_state_dict(weights)
    return larger.eval()


def save_with_larger_heads(model: Path, folder: Path) -> None:
    """The model folder `model` with larger heads, and its tokenizer, as `folder`. Raises DataError when `folder` has
    something in it."""
    check_is_free(folder)
    with_larger_heads(Qwen3ForCausalLM.from_pretrained(model, dtype=torch.float32)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
