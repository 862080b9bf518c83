"""Checks of a Hugging Face model folder, before any process loads the model."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub.errors import StrictDataclassError

from rtpo.core.chat import ChatFormat
from rtpo.core.contexts import check_context
from rtpo.core.json_text import json_object
from rtpo.core.names import counted, first_words, missing_file
from rtpo.errors import ConfigError, DataError
from rtpo.run.config import RunConfig
from rtpo.run.model_weights import check_file, check_head, check_weights, config_errors, read_by_loader, stored_tensors

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""head sizes that vLLM's CPU kernels support (its CPUAttentionBackend)"""
ADAPTER = "adapter_config.json"


def check_run_model(run: RunConfig) -> None:
    """Check a run's model. Raises as `check_model`, and ConfigError if the model is the warm start of a different toy
    task. On vLLM's CPU build, raises ConfigError for a head size that is unknown or unsupported."""
    check_model(run.model.path, run.top_logprobs, embedded=run.is_embedded)
    path, name = Path(run.model.path), "warm_start.json"
    settings = _json_file(path, name).get("settings", {}) if (path / name).is_file() else {}
    if run.task.env.startswith("toy_") and settings.get("task", run.task.env) != run.task.env:
        raise ConfigError(
            f"model.path is {run.model.path}, a warm start of {settings['task']}, and task.env is {run.task.env}: give "
            "a model of this task, or leave out model."
        )
    if run.profile.platform == "cpu" and not run.is_embedded:
        config = _json_file(path, "config.json")
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
    """Check a model folder.

    top_logprobs: number of log-probs that the algorithm requests at each position.
    embedded: also check that the embedded engine supports the model.

    Raises DataError, naming the file, if the folder is missing, incomplete or damaged, or if its tensors do not fit its
    config.json. (The loader would draw missing tensors at random, and only warn.) Raises ConfigError for quantised
    weights, an unsupported model, and `top_logprobs` above the number of tokens.
    """
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
    if (path / ADAPTER).exists():
        raise DataError(
            f"model.path {path} has {ADAPTER}, so that its loader reads an adapter: save the merged model (peft's "
            f"merge_and_unload), or remove {ADAPTER} if the weights are merged."
        )
    fields = _json_file(path, "config.json")
    _json_file(path, "tokenizer_config.json")
    _check_quantised(path, fields)
    config = _read_config(path, fields.get("model_type"))
    if embedded:
        _check_embedded(path, config)
    all_headers = stored_tensors(path)
    headers = read_by_loader(path, all_headers)
    check_weights(path, config, all_headers, headers)
    check_head(path, config, headers)
    vocab_size = getattr(config.get_text_config(), "vocab_size", None)
    if vocab_size is not None and top_logprobs > vocab_size:
        raise ConfigError(
            f"algorithm.top_logprobs is {top_logprobs} and the model in {path} has {counted(vocab_size, 'token')}: use "
            "that or fewer."
        )
    _check_tokens(path, vocab_size)


def check_contexts(run: RunConfig) -> None:
    """Raises ConfigError if a run's contexts may be longer than its model's."""
    check_positions("task", run.task.max_context_tokens, positions_of(Path(run.model.path)))


def positions_of(folder: Path) -> int | None:
    """The longest context of a folder's model, in tokens, which YaRN may extend; None if its config.json does not
    say. Raises ConfigError for YaRN without a factor."""
    config = _json_file(folder, "config.json")
    positions: int | None = config.get("max_position_embeddings")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if positions is not None and "yarn" in (rope.get("rope_type"), rope.get("type")):
        if "factor" not in rope:
            raise ConfigError(f"model.path is {folder}, whose config.json has YaRN without a factor.")
        return int(rope.get("original_max_position_embeddings", positions) * rope["factor"])
    return positions


def check_positions(task: str, most: int, positions: int | None) -> None:
    """Raises ConfigError if a task's longest context is longer than the model's. task: the field's prefix. positions:
    as `positions_of` gives them."""
    if positions is not None and most > positions:
        raise ConfigError(
            f"{task}.max_context_tokens is {most} and the model has {counted(positions, 'position')}: use that or "
            "fewer."
        )


def _json_file(path: Path, name: str) -> dict[str, Any]:
    check_file(path, path / name)
    return json_object((path / name).read_bytes(), str(path / name), "copy the model folder again")


def _check_quantised(path: Path, fields: Mapping[str, Any]) -> None:
    for field in ("quantization_config", "compression_config"):
        if fields.get(field) is not None:
            raise ConfigError(
                f"model.path is {path}, whose config.json has a {field}: quantised "
                "weights cannot be trained; use the model in bf16 or fp32."
            )


def _read_config(path: Path, model_type: Any) -> "PreTrainedConfig":
    if model_type is None:
        raise DataError(f"{path / 'config.json'} names no model_type: copy the model folder again.")
    # this import takes seconds, and a command must refuse wrong arguments at once
    from transformers import AutoConfig

    with config_errors(path, model_type):
        return AutoConfig.from_pretrained(path)


def _check_embedded(path: Path, config: "PreTrainedConfig") -> None:
    from rtpo.engines.transformer import architecture_of

    try:
        with config_errors(path, config.model_type):
            architecture_of(config)
    except ConfigError as error:
        raise ConfigError(
            f"model.path is {path}: {error} Use such a model, or a profile with vLLM; an evaluation can be "
            "given a server's address too."
        ) from error


def _check_tokens(path: Path, vocab_size: int | None) -> None:
    """Raises DataError if the tokenizer has ids beyond the embedding's rows."""
    largest = max(load_tokenizer(path).get_vocab().values(), default=0)
    if vocab_size is not None and largest >= vocab_size:
        raise DataError(
            f"the tokenizer in {path} has ids up to {largest}, and the embedding has {counted(vocab_size, 'row')}: use "
            "the model's own tokenizer, or resize the embedding."
        )


def load_tokenizer(folder: str | Path) -> Any:
    """A model folder's tokenizer. Raises DataError if it cannot be read."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, RecursionError, StrictDataclassError) as error:
        raise DataError(
            f"the tokenizer in {folder} cannot be read ({first_words(error)}): copy the whole folder."
        ) from error


def chat_format(config: RunConfig) -> ChatFormat:
    """The chat format of the model's tokenizer. Raises DataError as `load_tokenizer` does, and ConfigError if the
    tokenizer lacks tags that the run's rollout context needs."""
    chat = ChatFormat(load_tokenizer(config.model.path))
    check_context(config.algorithm_config.rollout_context, chat.tags)
    return chat


def check_same_model(config: RunConfig, recorded: Mapping[str, str], checksums: Mapping[str, str]) -> None:
    """Raises DataError if a run began from a different model. recorded: checksums of the files of the model that it
    began from, by name. checksums: of those of the configuration's model."""
    different = sorted(name for name in checksums.keys() | recorded.keys() if checksums.get(name) != recorded.get(name))
    if different:
        raise DataError(
            f"{config.model.path} is not the model that the run began from ({different[0]} differs): put that model "
            "there."
        )
