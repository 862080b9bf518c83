"""A pretrained model becomes a folder that the project's chat accepts, whole or not at all."""

import json
import shutil
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from byte_tokenizer import MARKUP, byte_tokenizer
from safetensors.torch import load_file, save_file
from small_models import small_model
from textworld_games import needs_textworld
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.prepare_model import main
from rtpo.core.chat import ChatFormat
from rtpo.core.files import sha256
from rtpo.errors import DataError
from rtpo.run.config import DataConfig, TaskConfig
from rtpo.types import Message, Opening
from rtpo.warm_starts.adapter import measure_turns
from rtpo.warm_starts.pretrained import RECORD, TAGS, from_adapter, origin_of_adapter, read_record
from rtpo.warm_starts.recipes import SHIPPED, WARM_START, read_adapter

TASK = TaskConfig("textworld", "textworld", DataConfig("all", 1), DataConfig("all", 1), 8, 512, 48, 1536)
PLAIN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
PLAIN += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
"""a template without tools"""


def source(folder: Path, *, stops: bool = True, tokenizer: Any = None, spare: int = 0) -> Path:
    """A random model that speaks no tags and whose every reply is the stop token, or never. spare: rows of its
    vocabulary without a token."""
    tokenizer = tokenizer or byte_tokenizer((), PLAIN)
    sizes = {"num_hidden_layers": 1, "head_dim": 16, "max_position_embeddings": 512}
    model = small_model(member="qwen3", vocab_size=len(tokenizer) + spare, tie_word_embeddings=False, **sizes)
    with torch.no_grad():
        model.get_input_embeddings().weight[:, 0] = 9
        model.get_output_embeddings().weight[tokenizer.eos_token_id, 0] = 9 if stops else -9
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.eos_token, tokenizer.pad_token = "<|im_start|>", None
    tokenizer.save_pretrained(folder)
    return folder


def prepared(*words: str | Path) -> int:
    return main([str(word) for word in words])


def test_a_model_gets_tags_ends_and_a_template_and_keeps_its_weights(tmp_path: Path) -> None:
    came, output = source(tmp_path / "source"), tmp_path / "models" / "mine"
    assert prepared("--from", came, "--output", output) == 0
    before = AutoModelForCausalLM.from_pretrained(came, dtype="auto")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(output, dtype="auto"), AutoTokenizer.from_pretrained(output)
    known = before.config.vocab_size
    assert [tokenizer.encode(tag) for tag in TAGS] == [[known + i] for i in range(len(TAGS))]
    assert model.dtype == before.dtype == torch.bfloat16
    for name, weight in before.state_dict().items():
        assert torch.equal(model.state_dict()[name][: len(weight)], weight)
    embedding = model.get_input_embeddings().weight
    spelt = embedding[AutoTokenizer.from_pretrained(came).encode(TAGS[0])].float().mean(0)
    assert torch.equal(embedding[known], spelt.bfloat16())
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    chat = ChatFormat(tokenizer)
    assert None not in (chat.tags.open_id, chat.tags.close_id)
    tool = json.dumps({"type": "function", "function": {"name": "look"}})
    text = chat.decode(chat.opening(Opening((Message("system", "Be brief."), Message("user", "q")), (tool,))))
    assert text.index("Be brief.") < text.index(tool[:20]) < text.index("<tool_call>") < text.index("<|im_start|>user")


def test_a_model_with_tags_and_tools_keeps_its_template(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(MARKUP)
    template = tokenizer.chat_template
    came = source(tmp_path / "source", tokenizer=tokenizer)
    assert prepared("--from", came, "--output", tmp_path / "mine") == 0
    after = AutoTokenizer.from_pretrained(tmp_path / "mine")
    assert after.chat_template == template
    assert len(after) == len(tokenizer)


@pytest.mark.parametrize("spare", [2, 32])
def test_tags_take_the_spare_rows_of_a_vocabulary(spare: int, tmp_path: Path) -> None:
    assert prepared("--from", source(tmp_path / "source", spare=spare), "--output", tmp_path / "mine") == 0
    model, tokenizer = (kind.from_pretrained(tmp_path / "mine") for kind in (AutoModelForCausalLM, AutoTokenizer))
    known = len(byte_tokenizer((), PLAIN))
    assert [tokenizer.encode(tag) for tag in TAGS] == [[known + i] for i in range(len(TAGS))]
    assert model.config.vocab_size == known + max(spare, len(TAGS))


def test_a_folder_with_another_model_is_not_taken_for_the_one_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output, first, second = tmp_path / "mine", source(tmp_path / "first"), source(tmp_path / "second")
    assert prepared("--from", f"{first}/", "--output", output) == 0
    monkeypatch.chdir(tmp_path)
    for asked in (("--from", second), ("--from", "of/the-hub"), ()):
        assert prepared(*asked, "--output", output) == 1
        assert "another model" in capsys.readouterr().err
    record = json.loads((output / RECORD).read_text())
    for typed in (first, "first", "./first/", "../" + tmp_path.name + "/first"):
        assert prepared("--from", typed, "--output", output) == 0
        record["origin"] = {"folder": str(typed)}  # as earlier versions wrote it
        (output / RECORD).write_text(json.dumps(record))
        assert prepared("--from", first, "--output", output) == 0
    shutil.rmtree(first)
    assert prepared("--from", first, "--output", output) == 0


def test_a_prepared_folder_is_checked_and_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "mine"
    arguments = ("--from", source(tmp_path / "source"), "--output", output)
    assert prepared(*arguments) == 0
    times = {path: path.stat().st_mtime_ns for path in output.iterdir()}
    assert prepared(*arguments) == 0
    assert {path: path.stat().st_mtime_ns for path in output.iterdir()} == times
    weights = output / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert prepared(*arguments) == 1
    assert "model.safetensors" in capsys.readouterr().err
    weights.rename(tmp_path / weights.name)
    assert prepared(*arguments) == 1
    assert "model.safetensors" in capsys.readouterr().err
    (output / RECORD).unlink()
    assert prepared(*arguments) == 1
    assert (output / "config.json").exists()


def test_a_model_that_fails_a_check_or_is_interrupted_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    models = tmp_path / "models"
    assert prepared("--from", source(tmp_path / "endless", stops=False), "--output", models / "a") == 1
    assert "does not stop" in capsys.readouterr().err
    without = source(tmp_path / "without", tokenizer=byte_tokenizer((), PLAIN))
    text = (without / "tokenizer.json").read_text().replace("<|endoftext|>", "<pad>")
    (without / "tokenizer.json").write_text(text)
    assert prepared("--from", without, "--output", models / "b") == 1
    assert "<|endoftext|>" in capsys.readouterr().err
    headless = source(tmp_path / "headless")
    weights = load_file(headless / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, headless / "model.safetensors", metadata={"format": "pt"})
    assert prepared("--from", headless, "--output", models / "d") == 1
    assert "it has no lm_head.weight" in capsys.readouterr().err
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    assert prepared("--from", source(tmp_path / "whole"), "--output", models / "c") == 130
    assert not models.exists() or not list(models.iterdir())


@needs_textworld
def test_an_adapter_is_merged_into_its_own_model_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import peft

    monkeypatch.setattr("experiments.prepare_model.MODELS", tmp_path)
    base, adapter = tmp_path / "small-model", tmp_path / "quests_0"
    whole = source(tmp_path / "sources" / base.name)
    assert prepared("--from", whole) == 0
    torch.manual_seed(1)
    settings = peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), settings)
    model.save_pretrained(adapter)
    shipped = asdict(read_adapter(SHIPPED / "quests_0"))
    weights = {"model.safetensors": sha256(base / "model.safetensors")}
    (adapter / WARM_START).write_text(json.dumps(shipped | {"base": weights}))
    merging = from_adapter(base, adapter)
    assert merging.name == "small-quests-0"
    assert prepared("--from", whole, "--adapter", adapter) == 0
    record = read_record(tmp_path / merging.name, origin_of_adapter(base, adapter))
    assert record is not None
    assert record.origin["adapter"] == "quests_0"
    with pytest.raises(SystemExit):
        prepared("--adapter", "quest_0")
    assert "quests_0" in capsys.readouterr().err
    ids = torch.tensor([[5, 6, 7]])
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / merging.name)
    torch.testing.assert_close(merged(ids).logits, model(ids).logits, atol=1e-4, rtol=1e-4)
    (tmp_path / "quests_1").symlink_to(adapter)
    with pytest.raises(DataError, match="another model"):
        read_record(tmp_path / merging.name, origin_of_adapter(base, tmp_path / "quests_1"))
    (adapter / WARM_START).write_text(json.dumps(shipped))
    for refused in (partial(from_adapter, base, adapter), partial(measure_turns, base, adapter, TASK, [])):
        with pytest.raises(DataError, match="other weights"):
            refused()
