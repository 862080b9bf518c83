"""Checks of a Hugging Face model folder, before any process is started for it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open

from rtpo.core.chat import ChatFormat
from rtpo.core.contexts import check_context
from rtpo.core.json_text import parse
from rtpo.core.names import counted, missing_file
from rtpo.errors import ConfigError, DataError
from rtpo.run.config import RunConfig

CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""head sizes that vLLM's CPU kernels support (its CPUAttentionBackend)"""


INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
HEAD, EMBEDDING = "lm_head.weight", "embed_tokens.weight"


def check_run_model(run: RunConfig) -> None:
    """Check a run's model. Raises as `check_model`, and ConfigError if the model is the warm start of a different toy
    task. On vLLM's CPU build, raises ConfigError for a head size that is unknown or unsupported."""
    check_model(run.model.path, run.top_logprobs, embedded=run.is_embedded)
    record = Path(run.model.path) / "warm_start.json"
    settings = parse(record.read_text(encoding="utf-8"))["settings"] if record.exists() else {}
    if run.task.env.startswith("toy_") and settings.get("task", run.task.env) != run.task.env:
        raise ConfigError(
            f"model.path is {run.model.path}, a warm start of {settings['task']}, and task.env is {run.task.env}: give "
            "a model of this task, or leave out model."
        )
    if run.profile.platform == "cpu" and not run.is_embedded:
        config = parse((Path(run.model.path) / "config.json").read_text(encoding="utf-8"))
        try:
            size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        except KeyError as error:
            raise ConfigError(
                f"model.path is {run.model.path}, whose config.json has no {error.args[0]}: vLLM's CPU build supports "
                "only some head sizes, and this one is unknown; use another model, or leave out +engine=vllm_cpu."
            ) from error
        if size not in CPU_HEADS:
            raise ConfigError(
                f"model.path is {run.model.path}, whose head size is {size}: vLLM's CPU build supports "
                f"{', '.join(map(str, CPU_HEADS))}; tests/helpers/larger_heads.py enlarges a toy model's."
            )


def check_model(folder: str | Path, top_logprobs: int = 0, *, embedded: bool = False) -> None:
    """Check a model folder. Raises DataError, naming the file, if it is missing, incomplete or damaged. Raises
    ConfigError if the algorithm requests more log-probs at a position than the model has tokens, or if `embedded` and
    the embedded engine does not support the model."""
    path = Path(folder)
    if not path.is_dir():
        remedy = (
            f"download it: hf download Qwen/{path.name} --local-dir {path}"
            if path.name.startswith("Qwen")
            else "tests/helpers/byte_model.py makes those of math, search, booking"
        )
        raise DataError(
            f"model.path is {path}: {missing_file(path)}. Give a Hugging Face model folder with config.json, "
            f"weights (*.safetensors) and tokenizer; {remedy}."
        )
    contents = {}
    for name in ("config.json", "tokenizer_config.json"):
        try:
            contents[name] = parse((path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DataError(f"model.path {path} has no {name}: copy the whole model folder.") from None
        except ValueError as error:
            raise DataError(f"{path / name} is not JSON ({error}): copy the model folder again.") from error
        if not isinstance(contents[name], dict):
            raise DataError(f"{path / name} is not a JSON object: copy the model folder again.")
    tokens = contents["config.json"].get("vocab_size")
    if tokens is not None and top_logprobs > tokens:
        raise ConfigError(
            f"algorithm.top_logprobs is {top_logprobs} and the model in {path} has {counted(tokens, 'token')}: use "
            "that or fewer."
        )
    weights = sorted(path.glob("*.safetensors"))
    if not weights:
        raise DataError(f"model.path {path} has no weights (*.safetensors): copy the whole model folder.")
    if embedded:
        _check_embedded(path, contents["config.json"].get("model_type"))
    places: dict[str, Path] = {}
    for file in weights:
        try:
            with safe_open(file, framework="np") as tensors:
                names = list(tensors.keys())
        except SafetensorError as error:
            raise DataError(f"{file} is damaged ({error}): copy it again.") from error
        if not names:
            raise DataError(f"{file} holds no tensors: copy it again.")
        for name in names:
            if name in places:
                raise DataError(f"{file} and {places[name].name} both hold {name}: keep the files of one copy only.")
            places[name] = file
    _check_shards(path, places)
    _check_quantised(path, contents["config.json"])
    _check_head(path, contents["config.json"], places)
    _check_tokens(path, contents["config.json"], places)


def _check_shards(path: Path, places: Mapping[str, Path]) -> None:
    """Check the files that the loader reads: the index's shards, or a single `model.safetensors`. Raises DataError."""
    file = path / INDEX
    if (path / SINGLE).exists():
        return  # the loader prefers it to any index
    if not file.exists():
        shards = sorted({place.name for place in places.values()})
        raise DataError(
            f"model.path {path} has {', '.join(shards[:3])} without {INDEX}, which says what each holds: copy the "
            f"whole model folder, or name a single file {SINGLE}."
        )
    try:
        index = parse(file.read_text(encoding="utf-8"))
        shard_of = dict(index["weight_map"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} is not an index of shards ({first_words(error)}): copy it again.") from error
    for name, shard in shard_of.items():
        if not (path / str(shard)).exists():
            raise DataError(f"{file} names {shard}, which is not there: copy the whole model folder.")
        if places.get(name, Path()).name != shard:
            raise DataError(f"{file} says that {name} is in {shard}, and it is not: copy the whole model folder.")


def _check_quantised(path: Path, config: Mapping[str, Any]) -> None:
    if config.get("quantization_config") is not None:
        raise ConfigError(
            f"model.path is {path}, whose config.json has a quantization_config: quantised "
            "weights cannot be trained; use the model in bf16 or fp32."
        )


def _check_head(path: Path, config: Mapping[str, Any], places: Mapping[str, Path]) -> None:
    """Raises DataError if the model ties its head to the embedding and the files hold a different head."""
    embedding = next((name for name in places if name.endswith(EMBEDDING)), None)
    if not config.get("tie_word_embeddings") or HEAD not in places or embedding is None:
        return
    if not np.array_equal(_numbers(places[HEAD], HEAD), _numbers(places[embedding], embedding)):
        raise DataError(
            f"{path / 'config.json'} has tie_word_embeddings true, and {HEAD} in {places[HEAD].name} is not "
            f"{embedding}: set tie_word_embeddings to false if the model has a head of its own, or leave the head out."
        )


def _check_tokens(path: Path, config: Mapping[str, Any], places: Mapping[str, Path]) -> None:
    """Raises DataError if the tokenizer has ids beyond the embedding's rows, or the embedding's rows are not
    config.json's vocab_size."""
    embedding = next((name for name in places if name.endswith(EMBEDDING)), None)
    if embedding is None:
        return
    with safe_open(places[embedding], framework="np") as tensors:
        rows = tensors.get_slice(embedding).get_shape()[0]
    if config.get("vocab_size", rows) != rows:
        raise DataError(
            f"{path / 'config.json'} has vocab_size {config['vocab_size']}, and {embedding} has "
            f"{counted(rows, 'row')}: copy the model folder again."
        )
    largest = max(load_tokenizer(path).get_vocab().values(), default=0)
    if largest >= rows:
        raise DataError(
            f"the tokenizer in {path} has ids up to {largest}, and {embedding} has {counted(rows, 'row')}: use the "
            "model's own tokenizer, or resize the embedding."
        )


def _numbers(file: Path, name: str) -> Any:
    """A tensor's values, read by torch: NumPy has no bf16."""
    with safe_open(file, framework="pt") as tensors:
        return tensors.get_tensor(name).float().numpy()


def load_tokenizer(folder: str | Path) -> Any:
    """A model folder's tokenizer. Raises DataError."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, RecursionError, StrictDataclassError) as error:
        raise DataError(
            f"the tokenizer in {folder} cannot be read ({first_words(error)}): copy the whole folder."
        ) from error


def chat_format(config: RunConfig) -> ChatFormat:
    """The chat format of the model's tokenizer. Raises DataError, and ConfigError if the tokenizer lacks what the run's
    rollout context needs."""
    chat = ChatFormat(load_tokenizer(config.model.path))
    check_context(config.algorithm_config.rollout_context, chat.tags)
    return chat


def first_words(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def check_same_model(config: RunConfig, manifest: Mapping[str, Any], checksums: Mapping[str, str]) -> None:
    """Raises DataError if the initial model's `checksums` are not those of the finished run."""
    known = manifest["model_sha256"]
    different = sorted(name for name in checksums.keys() | known.keys() if checksums.get(name) != known.get(name))
    if different:
        raise DataError(
            f"{config.model.path} is not the model that the run began from ({different[0]} differs from the manifest): "
            "put that model there."
        )


def _check_embedded(path: Path, model_type: str | None) -> None:
    if model_type is None:
        raise DataError(f"{path / 'config.json'} names no model_type: copy the model folder again.")
    # imported here, since it takes seconds: a command refuses wrong arguments at once
    from transformers import AutoConfig

    from rtpo.engines.transformer import architecture_of

    try:
        architecture_of(AutoConfig.from_pretrained(path))
    except ConfigError as error:
        raise ConfigError(
            f"model.path is {path}: {error} Use such a model, or a profile with vLLM; an evaluation can be "
            "given a server's address too."
        ) from error
    except (AttributeError, KeyError, TypeError, ValueError, StrictDataclassError) as error:
        raise DataError(
            f"{path / 'config.json'} is no {model_type} model's ({first_words(error)}): copy the folder again."
        ) from error
