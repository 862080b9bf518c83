"""Checks that the tensors of a Hugging Face model folder fit its config.json, as the loader would read them."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open

from rtpo.core.json_text import parse
from rtpo.core.names import counted, first_words, missing_file
from rtpo.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
HEAD, EMBEDDING = "lm_head.weight", "embed_tokens.weight"
FLOATS = ("F64", "F32", "F16", "BF16")
"""safetensors' names of floating-point types, from which a model can be trained"""
HEADS = ("num_attention_heads", "num_key_value_heads", "head_dim")
SIZES = ("vocab_size", "hidden_size", "intermediate_size", *HEADS)
"""fields of config.json that determine the tensors' shapes"""


class TensorHeader(NamedTuple):
    """A tensor's header in a weights file."""

    file: Path
    shape: list[int]
    dtype: str  # safetensors' name of the type, such as BF16


def stored_tensors(path: Path) -> dict[str, TensorHeader]:
    """The headers of all tensors in the folder, by name. Raises DataError for a damaged file, and for a name in two
    files."""
    weights = sorted(path.glob("*.safetensors"))
    if not weights:
        raise DataError(f"model.path {path} has no weights (*.safetensors): copy the whole model folder.")
    tensors: dict[str, TensorHeader] = {}
    for file in weights:
        check_file(path, file)
        try:
            with safe_open(file, framework="np") as content:
                slices = {name: content.get_slice(name) for name in content.keys()}  # noqa: SIM118
                shard = {name: TensorHeader(file, part.get_shape(), part.get_dtype()) for name, part in slices.items()}
        except SafetensorError as error:
            raise DataError(f"{file} is damaged ({error}): copy it again.") from error
        if not shard:
            raise DataError(f"{file} holds no tensors: copy it again.")
        for name in shard.keys() & tensors.keys():
            raise DataError(f"{file} and {tensors[name].file.name} both hold {name}: keep the files of one copy only.")
        tensors |= shard
    return tensors


def read_by_loader(path: Path, tensors: Mapping[str, TensorHeader]) -> dict[str, TensorHeader]:
    """The headers of the tensors that the loader reads, by name. The loader reads `model.safetensors` if this file
    exists, else the files that the index names. Raises DataError if the index is missing, damaged or wrong."""
    file = _source(path)
    if file.name == SINGLE:
        return {name: stored for name, stored in tensors.items() if stored.file == file}
    if not file.is_file():
        shards = sorted({stored.file.name for stored in tensors.values()})
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
        if name not in tensors or tensors[name].file.name != shard:
            raise DataError(f"{file} says that {name} is in {shard}, and it is not: copy the whole model folder.")
    return {name: tensors[name] for name in shard_of}


def _source(path: Path) -> Path:
    """The file that the loader opens first: `model.safetensors` if it exists, else the index."""
    return path / (SINGLE if (path / SINGLE).is_file() else INDEX)


def check_weights(
    path: Path, config: "PreTrainedConfig", all_headers: Mapping[str, TensorHeader], headers: Mapping[str, TensorHeader]
) -> None:
    """Compare the tensors that the loader reads (`headers`), by name, shape and type, with the model of config.json.
    Extra tensors outside the layers are allowed, such as a value head. Raises DataError for the first difference, and
    ConfigError for quantised weights."""
    described, source = path / "config.json", _source(path)
    for name in headers:
        if name.startswith("base_model.model.") or re.search(r"\.(lora_\w+|base_layer)\.", name):
            raise DataError(
                f"{headers[name].file} holds {name}, as peft names tensors: save the merged model (merge_and_unload)."
            )
    missing, misshapen, extra = _load(path, config, headers)
    layers = 1 + max((_layer(name) for name in headers), default=-1)
    has_other_layers = any(_layer(name) >= layers for name in missing)
    has_other_layers |= any(_layer(name) >= config.num_hidden_layers for name in extra)
    if has_other_layers and layers:
        raise DataError(
            f"{described} has num_hidden_layers {config.num_hidden_layers}, and {source} has "
            f"{counted(layers, 'layer')}: set num_hidden_layers to {layers}, or copy the model folder again."
        )
    for name in missing:
        if name in headers:
            raise ConfigError(
                f"{headers[name].file} holds {name} as {headers[name].dtype}: quantised weights cannot be trained; use "
                "the model in bf16 or fp32."
            )
        if name in all_headers:
            raise DataError(
                f"{source} lacks {name}, which {all_headers[name].file.name} holds: copy the whole model folder again."
            )
        if name == HEAD and len(missing) == 1:
            raise DataError(
                f"{described} has tie_word_embeddings false, and {source} has no {HEAD}: set tie_word_embeddings to "
                "true if the embedding is the head, or copy the model folder again."
            )
        raise DataError(
            f"{source} has no {name}, which the {config.model_type} model of {described} has: copy the model folder "
            "again."
        )
    for name, (stored, expected) in misshapen.items():
        wrong_sizes = [size for size, other in zip_longest(expected, stored) if size != other]
        fields = [field for field in SIZES if getattr(config, field, None) in wrong_sizes]
        values = [f"{field} {getattr(config, field)}" for field in fields or HEADS if getattr(config, field, None)]
        raise DataError(
            f"{described} has {' and '.join(values)}, so that {name} has the shape {expected}, and in {source} it has "
            f"{stored}: correct config.json, or copy the model folder again."
        )
    for name in extra:
        if _layer(name) >= 0:
            raise DataError(
                f"{source} has {name}, which the {config.model_type} model of {described} does not have, so that its "
                "loader would leave it out: correct config.json, or copy the model folder again."
            )


def _layer(name: str) -> int:
    """The index of a tensor's layer; -1 for a tensor outside the layers."""
    match = re.search(r"(?:^|\.)layers\.(\d+)\.", name)
    return int(match[1]) if match else -1


class LoadReport(NamedTuple):
    """What transformers reports when it loads tensors into a model."""

    missing: list[str]  # the model's tensors that it does not find, in the model's order
    misshapen: dict[str, tuple[tuple[int, ...], tuple[int, ...]]]  # by name: the stored shape, and the model's
    extra: list[str]  # stored tensors that the model does not have


def _load(path: Path, config: "PreTrainedConfig", headers: Mapping[str, TensorHeader]) -> LoadReport:
    """Load tensors of these names and shapes, without their values. Tensors that are not floating-point numbers are
    left out, so the report calls them missing."""
    import torch
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    weights = {
        name: torch.empty(stored.shape, device="meta") for name, stored in headers.items() if stored.dtype in FLOATS
    }
    if config.tie_word_embeddings and any(name.endswith(EMBEDDING) for name in weights):
        weights.pop(HEAD, None)  # `check_head` compares it with the embedding
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if model_class is None:
        raise DataError(
            f"{path / 'config.json'} has model_type {config.model_type}, which is no causal language model: give one."
        )
    with config_errors(path, config.model_type):
        model, report = model_class.from_pretrained(
            None,
            config=config,
            state_dict=weights,
            device_map="meta",
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    names = list(model.state_dict())
    shapes = {name: (tuple(stored), tuple(expected)) for name, stored, expected in report["mismatched_keys"]}
    return LoadReport(
        missing=[name for name in names if name in report["missing_keys"]],
        misshapen={name: shapes[name] for name in names if name in shapes},
        extra=sorted(report["unexpected_keys"]),
    )


def check_head(path: Path, config: "PreTrainedConfig", headers: Mapping[str, TensorHeader]) -> None:
    """Raises DataError if config.json ties the head to the embedding, but the files hold different values for them. The
    loader compares both in fp32."""
    import torch

    embedding = next((name for name in headers if name.endswith(EMBEDDING)), None)
    if not config.tie_word_embeddings or HEAD not in headers or embedding is None:
        return
    head, rows = _values(headers[HEAD].file, HEAD), _values(headers[embedding].file, embedding)
    if torch.equal(head.float(), rows.float()):
        return
    if torch.equal(head, rows.to(head.dtype)) or torch.equal(head.to(rows.dtype), rows):
        raise DataError(
            f"{HEAD} in {headers[HEAD].file} is {embedding} in a different precision ({headers[HEAD].dtype} and "
            f"{headers[embedding].dtype}), so that its loader would not tie them: leave {HEAD} out of the file."
        )
    raise DataError(
        f"{path / 'config.json'} has tie_word_embeddings true, and {HEAD} in {headers[HEAD].file.name} is not "
        f"{embedding}: set tie_word_embeddings to false if the model has a head of its own, or leave the head out."
    )


def _values(file: Path, name: str) -> Any:
    """A tensor's values, read with torch, since NumPy has no bf16."""
    with safe_open(file, framework="pt") as tensors:
        return tensors.get_tensor(name)


def check_file(path: Path, file: Path) -> None:
    """Raises DataError if a file of the model folder is missing or no regular file."""
    if not file.is_file():
        why = f"{file} is not a regular file" if file.exists() else missing_file(file)
        raise DataError(f"model.path is {path}: {why}: copy the whole model folder.")


@contextmanager
def config_errors(path: Path, model_type: str) -> Iterator[None]:
    """Turn transformers' error for a wrong field of config.json into a DataError. Meanwhile, silence transformers'
    logs."""
    from transformers.utils import logging

    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except (
        *(ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError),
        StrictDataclassError,
    ) as error:
        words = first_words(error)
        raise DataError(
            f"{path / 'config.json'} is no {model_type} model's ({words.partition('Error: ')[2] or words}): correct "
            "that field, or copy config.json again."
        ) from error
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()
