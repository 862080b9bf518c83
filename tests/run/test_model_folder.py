"""Model folders are checked as their loader will read them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from rtpo.errors import ConfigError, DataError
from rtpo.run.config import PROJECT
from rtpo.run.model_folder import check_model

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
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
        (configure(vocab_size=9), "vocab_size"),
    ],
)
def test_what_the_loader_would_fail_at_or_read_wrongly_is_refused(
    change: Callable[[Path], object], named: str, model: Path
) -> None:
    check_model(model)
    change(model)
    with pytest.raises((ConfigError, DataError), match=named):
        check_model(model)


@pytest.mark.parametrize("change", [shard, own_head(1)])
def test_shards_with_their_index_and_a_head_that_is_the_embedding_are_taken(
    change: Callable[[Path], None], model: Path
) -> None:
    change(model)
    check_model(model)
