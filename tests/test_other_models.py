"""Models of other families through the whole loop on a CPU: verl trains them, the embedded decoder samples with
transformers' layers, and export gives them back."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_conformance import STOP, folder_of
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM
from whole_runs import GRPO, RTPO, config_in, lines

from experiments.export import export
from experiments.training import train
from rtpo.envs.registry import ENVIRONMENTS
from rtpo.envs.toy.math import ToyMathEnv
from rtpo.run.run import StopRequest
from rtpo.types import Grade, GradeOutcome

SIZES = {
    "vocab_size": 204,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "initializer_range": 0.1,
}
FAMILIES: dict[str, tuple[Any, type[Any], tuple[str, ...]]] = {
    # as Llama 3's instruction models: a list of tokens that end a turn, of which the tokenizer has one
    "llama": (LlamaConfig(**SIZES, eos_token_id=[5, STOP], tie_word_embeddings=False), LlamaForCausalLM, RTPO),
    "qwen2": (Qwen2Config(**SIZES, eos_token_id=STOP, tie_word_embeddings=True), Qwen2ForCausalLM, GRPO),
}


class AnyText(ToyMathEnv):
    """Random weights answer nothing: half of all that they say is right."""

    async def grade(self) -> Grade:
        return Grade(GradeOutcome.GRADED, float(int(self.snapshot().digest, 16) % 2))


@pytest.mark.parametrize("family", FAMILIES)
def test_another_family_trains_and_is_exported(
    family: str,
    results: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each synchronisation compares the engine's log-probs with the trainer's, and each update trees with rows."""
    graded = replace(ENVIRONMENTS["toy_math"], make=lambda settings, max_turns: AnyText())
    monkeypatch.setitem(ENVIRONMENTS, "toy_math", graded)
    architecture, network, algorithm = FAMILIES[family]
    torch.manual_seed(0)
    model = folder_of(AutoModelForCausalLM.from_config(architecture), tmp_path / "model")
    chosen = (f"model.path={model}", "profile.check_trees=1e-4", "optimizer.lr=0.01")
    config = config_in(results, *chosen, algorithm=algorithm)
    folder = train(config, StopRequest())
    assert f"transformers' own layers: model_type is '{family}'" in capsys.readouterr().out
    assert folder.is_finished
    steps = lines(folder.path, "steps.jsonl")
    assert sum(len(step["updates"]) for step in steps) > 1
    export(folder.path, tmp_path / "exported")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    initial = AutoModelForCausalLM.from_pretrained(model)
    assert type(exported) is network
    moved = [(one - other).abs().max() for one, other in zip(exported.parameters(), initial.parameters(), strict=True)]
    assert min(moved) > 0
