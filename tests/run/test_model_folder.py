"""Model folders are checked as their loader will read them."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from rtpo.errors import ConfigError, DataError
from rtpo.run.config import PROJECT
from rtpo.run.model_folder import check_model, positions_of

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
NORM, EXTRA = "model.norm.weight", "v_head.summary.weight"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PROJECT / "rtpo" / "toy" / "warm_start_math", tmp_path / "model"))


def shard(model: Path, index: bool = True) -> None:
    """The weights in two files."""
    weights = load_file(model / WEIGHTS)
    (model / WEIGHTS).unlink()
    parts = [dict(list(weights.items())[start::2]) for start in (0, 1)]
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for name, part in zip(names, parts, strict=True):
        save_file(part, model / name)
    if index:
        places = {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part}
        (model / INDEX).write_text(json.dumps({"weight_map": places}))


def lose_shard(model: Path) -> None:
    shard(model)
    (model / "model-00002-of-00002.safetensors").unlink()


def exchange_shards(model: Path) -> None:
    shard(model)
    first, second, beside = (model / f"model-0000{n}-of-00002.safetensors" for n in (1, 2, 3))
    first.rename(beside), second.rename(first), beside.rename(second)


def configure(**fields: object) -> Callable[[Path], None]:
    def change(model: Path) -> None:
        file = model / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | fields))

    return change


def own_head(scale: float) -> Callable[[Path], None]:
    def change(model: Path) -> None:
        weights = load_file(model / WEIGHTS)
        save_file(weights | {HEAD: weights[EMBEDDING] * scale}, model / WEIGHTS)

    return change


def with_weights(change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Callable[[Path], None]:
    return lambda model: save_file(change(load_file(model / WEIGHTS)), model / WEIGHTS)


def cast(dtype: torch.dtype) -> Callable[[Path], None]:
    return with_weights(lambda weights: weights | {NORM: weights[NORM].to(dtype)})


def shorten_index(model: Path) -> None:
    shard(model)
    index = json.loads((model / INDEX).read_text())
    del index["weight_map"][NORM]
    (model / INDEX).write_text(json.dumps(index))


def folder_in_place_of(name: str) -> Callable[[Path], None]:
    return lambda model: ((model / name).unlink(), (model / name).mkdir())[1]


def broken_link(name: str) -> Callable[[Path], None]:
    return lambda model: ((model / name).unlink(), (model / name).symlink_to("nowhere"))[1]


def cut_embedding(model: Path) -> None:
    weights = load_file(model / WEIGHTS)
    rows = len(weights[EMBEDDING]) - 3
    save_file(weights | {EMBEDDING: weights[EMBEDDING][:rows].clone()}, model / WEIGHTS)
    configure(vocab_size=rows)(model)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lose_shard, "00002-of-00002"),
        (exchange_shards, INDEX),
        (lambda model: shard(model, index=False), INDEX),
        (lambda model: (shard(model), (model / INDEX).write_text("{}")), INDEX),
        (configure(quantization_config={"quant_method": "awq"}), "quantization_config"),
        (own_head(2), HEAD),
        (cut_embedding, "tokenizer"),
        (configure(vocab_size=9), "vocab_size 9"),
        (configure(vocab_size="abc"), "config.json.*'vocab_size'"),
        (configure(vocab_size=None), "config.json.*'vocab_size'"),
        (configure(vocab_size=-1), "config.json"),
        (configure(num_attention_heads=0), "config.json"),
        (configure(hidden_act="nosuch"), "config.json.*nosuch"),
        (configure(model_type="t5"), "config.json has model_type t5"),
        (configure(num_hidden_layers=4), "config.json.*num_hidden_layers.*layer_types"),
        (configure(num_hidden_layers=4, layer_types=None), "num_hidden_layers to 3"),
        (configure(num_hidden_layers=2, layer_types=None), "num_hidden_layers to 3"),
        (configure(hidden_size=32), "hidden_size 32"),
        (configure(intermediate_size=64), "intermediate_size 64"),
        (configure(num_attention_heads=8), "num_attention_heads 8"),
        (configure(tie_word_embeddings=False), f"tie_word_embeddings false.*{HEAD}"),
        (configure(attention_bias=True), "self_attn.q_proj.bias"),
        (configure(model_type="llama"), "self_attn.k_norm.weight, which the llama model"),
        (configure(compression_config={"format": "int-quantized"}), "compression_config"),
        (cast(torch.int8), f"{NORM} as I8"),
        (cast(torch.float8_e4m3fn), f"{NORM} as F8_E4M3"),
        (shorten_index, f"{INDEX} lacks {NORM}"),
        (with_weights(lambda weights: {f"base_model.model.{name}": weights[name] for name in weights}), "merge_and_un"),
        (with_weights(lambda weights: {**weights, "model.lora_A.weight": weights[NORM].clone()}), "merge_and_unload"),
        (lambda model: (model / "adapter_config.json").write_text("{}"), "adapter_config.json"),
        (with_weights(lambda weights: {**weights, HEAD: weights[EMBEDDING].bfloat16()}), f"leave {HEAD} out"),
        *((folder_in_place_of(name), f"{name} is not a regular file") for name in ("config.json", WEIGHTS)),
        *((broken_link(name), f"{name} is a broken link") for name in ("config.json", WEIGHTS)),
    ],
)
def test_what_the_loader_would_fail_at_or_read_wrongly_is_refused(
    change: Callable[[Path], object], named: str, model: Path
) -> None:
    check_model(model)
    change(model)
    with pytest.raises((ConfigError, DataError), match=named):
        check_model(model)


@pytest.mark.parametrize(
    "change",
    [
        shard,
        own_head(1),
        with_weights(lambda weights: {name.removeprefix("model."): weights[name] for name in weights}),
        with_weights(lambda weights: {**weights, EXTRA: weights[NORM].clone()}),
        with_weights(lambda weights: {**weights, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}),
        with_weights(lambda weights: {name: weights[name].bfloat16() for name in weights}),
        with_weights(
            lambda weights: {**weights, EMBEDDING: (rows := weights[EMBEDDING].bfloat16()), HEAD: rows.float()}
        ),
    ],
)
def test_shards_a_head_that_is_the_embedding_and_what_the_loader_ignores_are_taken(
    change: Callable[[Path], None], model: Path
) -> None:
    change(model)
    check_model(model)


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
def test_a_folder_without_a_tensor_or_with_one_of_a_different_shape_is_refused(
    model_type: str, is_tied: bool, model: Path
) -> None:
    draw = random.Random(f"{model_type} {is_tied}")
    described = json.loads((model / "config.json").read_text())
    sizes = {"vocab_size": described["vocab_size"], "num_hidden_layers": draw.choice([2, 3])}
    sizes |= {"hidden_size": 8 * draw.choice([2, 3]), "intermediate_size": draw.choice([20, 28])}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": draw.choice([1, 2])}
    config = AutoConfig.for_model(model_type, **sizes, tie_word_embeddings=is_tied, attention_bias=draw.random() < 0.5)
    AutoModelForCausalLM.from_config(config).save_pretrained(model)
    check_model(model)
    weights = load_file(model / WEIGHTS)
    assert (HEAD in weights) != is_tied
    for name in {EMBEDDING, NORM, *draw.sample(sorted(weights), 6), *([] if is_tied else [HEAD])}:
        rest = {each: weights[each] for each in weights if each != name}
        larger = torch.zeros([size + draw.choice([1, 2]) for size in weights[name].shape])
        for changed in (rest, rest | {name: larger}):
            save_file(changed, model / WEIGHTS)
            with pytest.raises(DataError, match=name):
                check_model(model)


@pytest.mark.parametrize(
    ("field", "rope", "positions"),
    [
        ("rope_parameters", {"rope_type": "default", "rope_theta": 1e6}, 40960),
        ("rope_scaling", {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        ("rope_scaling", {"type": "yarn", "factor": 2.0}, 81920),
        ("rope_scaling", {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 40960),
        ("rope_scaling", None, 40960),
    ],
)
def test_yarn_makes_contexts_longer(field: str, rope: dict[str, object] | None, positions: int, model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    config.pop("rope_parameters", None)
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 40960, field: rope}))
    assert positions_of(model) == positions
