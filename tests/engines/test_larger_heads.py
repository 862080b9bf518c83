"""A model with larger heads computes what it did, and goes on doing so while it is trained."""

from pathlib import Path

import pytest
import torch
from larger_heads import save_with_larger_heads, with_larger_heads
from transformers import AutoTokenizer, Qwen3ForCausalLM

from rtpo.engines.qwen3 import check_architecture
from rtpo.errors import DataError
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


def test_training_leaves_the_new_places_empty(model: Qwen3ForCausalLM) -> None:
    larger = with_larger_heads(model)
    optimizer = torch.optim.AdamW(larger.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        larger(IDS, labels=IDS).loss.backward()
        optimizer.step()
    for layer in larger.model.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
            by_place = projection.weight.detach().unflatten(0, (-1, 32)).abs().amax((0, 2))
            assert (by_place[::2] > 0).all()
            assert (by_place[1::2] == 0).all()


def test_a_folder_of_it_is_a_whole_model_and_none_is_written_over(tmp_path: Path) -> None:
    save_with_larger_heads(MODEL, tmp_path / "model")
    check_architecture(Qwen3ForCausalLM.from_pretrained(tmp_path / "model").config)
    there, shipped = (AutoTokenizer.from_pretrained(folder) for folder in (tmp_path / "model", MODEL))
    assert there.get_vocab() == shipped.get_vocab()
    assert there.chat_template == shipped.chat_template
    with pytest.raises(DataError, match="there already"):
        save_with_larger_heads(MODEL, tmp_path / "model")
