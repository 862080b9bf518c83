"""A model with larger heads computes what it did, and goes on doing so while it is trained."""

import pytest
import torch
from larger_heads import with_larger_heads
from transformers import Qwen3ForCausalLM

from rtpo.toy.warm_start import SHIPPED

MODEL = SHIPPED / "warm_start_math"
IDS = torch.arange(3, 163).view(4, 40)


@pytest.fixture
def model() -> Qwen3ForCausalLM:
    found: Qwen3ForCausalLM = Qwen3ForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    return found


@pytest.mark.parametrize("factor", [2, 4])
def test_a_model_with_larger_heads_computes_what_it_did(model: Qwen3ForCausalLM, factor: int) -> None:
    larger = with_larger_heads(model, factor)
    assert larger.config.head_dim == factor * model.config.head_dim
    with torch.no_grad():
        before, after = (one(IDS).logits.log_softmax(-1) for one in (model, larger))
    torch.testing.assert_close(after, before, atol=1e-4, rtol=0)
