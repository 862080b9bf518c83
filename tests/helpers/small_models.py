"""Small random models."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

SMOLLM2 = {"hidden_size": 36, "intermediate_size": 96, "num_hidden_layers": 3, "head_dim": 4}
SMOLLM2 |= {"num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True}
"""its proportions"""
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 4096}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2}


def small_model(
    tokenizer: PreTrainedTokenizerFast | None = None, folder: Path | None = None, member: str = "llama", **changes: Any
) -> Any:
    """A model of a member of the family for a tokenizer. changes: of SIZES. folder: where both are saved."""
    torch.manual_seed(0)
    own = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id} if tokenizer else {}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(member, **SIZES | own | changes)).eval()
    for part in (model, tokenizer) if folder else ():
        if part is not None:
            part.save_pretrained(folder)
    return model
