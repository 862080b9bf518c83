"""A model with larger heads that computes what it did: vLLM's CPU kernels take none below 32, and the toy models' are
of 16."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, Qwen3ForCausalLM


@torch.no_grad()
def save_with_larger_heads(folder: Path, output: Path) -> None:
    """The model and tokenizer of a folder in another, with heads twice as large, the new places 0.

    Rotary pair j of a head of d turns by theta ** (-2j / d), as pair 2j of the larger one does, so that is where it
    goes. The mean of squares that the norms of queries and keys divide by would be smaller and so is the scale of the
    scores; both are made up for. Training leaves the new places 0: no gradient reaches them.
    """
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    old = model.config.head_dim
    config: Any = deepcopy(model.config)
    config.head_dim = 2 * old
    pairs = 2 * torch.arange(old // 2)
    places = torch.cat([pairs, pairs + old])
    queries, keys = config.num_attention_heads, config.num_key_value_heads
    # by projection or norm: its heads, and what its numbers are multiplied by
    changes = {"q_proj": (queries, 2**0.5), "k_proj": (keys, 2**0.5), "v_proj": (keys, 1.0), "o_proj": (queries, 1.0)}
    # less by the root of the projection, more by that of the scale
    changes |= {"q_norm": (1, 1.0), "k_norm": (1, 0.5**0.5)}

    def spread(weight: Tensor, heads: int) -> Tensor:
        """Rows by head and place, to the places of the larger heads."""
        larger = weight.new_zeros(heads, 2 * old, *weight.shape[1:])
        larger[:, places] = weight.view(heads, old, *weight.shape[1:])
        return larger.flatten(0, 1)

    weights = dict(model.state_dict())
    for name, weight in weights.items():
        heads, scale = changes.get(part := name.split(".")[-2], (0, 1.0))
        if heads:
            weights[name] = scale * (spread(weight.T, heads).T if part == "o_proj" else spread(weight, heads))
    larger = Qwen3ForCausalLM(config)
    larger.load_state_dict(weights)
    larger.save_pretrained(output)
    AutoTokenizer.from_pretrained(folder).save_pretrained(output)
