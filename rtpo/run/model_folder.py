"""Checks of a Hugging Face model folder, before any process is started for it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open

from rtpo.core.chat import ChatFormat
from rtpo.core.contexts import check_context
from rtpo.core.json_text import parse
from rtpo.core.names import missing_file
from rtpo.errors import ConfigError, DataError
from rtpo.run.config import RunConfig

CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""sizes of a head that vLLM's CPU kernels take (its CPUAttentionBackend)"""


def check_model_of(run: RunConfig) -> None:
    """Raises as `check_model`, and ConfigError for heads that vLLM's CPU build does not take, or whose size is
    unknown."""
    check_model(run.model.path, run.top_logprobs, embedded=run.is_embedded)
    if run.profile.platform == "cpu" and not run.is_embedded:
        config = parse((Path(run.model.path) / "config.json").read_text(encoding="utf-8"))
        try:
            size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        except KeyError as error:
            raise ConfigError(
                f"model.path is {run.model.path}, whose config.json has no {error.args[0]}: vLLM's CPU build takes "
                "heads of some sizes alone, and these are not known; use another model, or leave out +engine=vllm_cpu."
            ) from error
        if size not in CPU_HEADS:
            raise ConfigError(
                f"model.path is {run.model.path}, whose heads are of {size}: vLLM's CPU build takes "
                f"{', '.join(map(str, CPU_HEADS))}; tests/helpers/larger_heads.py makes a toy model's larger."
            )


def check_model(folder: str | Path, top_logprobs: int = 0, *, embedded: bool = False) -> None:
    """Raises DataError, naming the file, for a folder that is missing, incomplete or damaged, and ConfigError when the
    algorithm asks for more log-probs at a position than the model has tokens, or when the engine is the embedded one
    and it does not compute this model."""
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
            raise DataError(f"{path / name} is no JSON object: copy the model folder again.")
    tokens = contents["config.json"].get("vocab_size")
    if tokens is not None and top_logprobs > tokens:
        raise ConfigError(
            f"algorithm.top_logprobs is {top_logprobs} and the model in {path} has {tokens} tokens: use that or fewer."
        )
    weights = sorted(path.glob("*.safetensors"))
    if not weights:
        raise DataError(f"model.path {path} has no weights (*.safetensors): copy the whole model folder.")
    if embedded:
        _check_embedded(path, contents["config.json"].get("model_type"))
    for file in weights:
        try:
            with safe_open(file, framework="np") as tensors:
                names = list(tensors.keys())
        except SafetensorError as error:
            raise DataError(f"{file} is damaged ({error}): copy it again.") from error
        if not names:
            raise DataError(f"{file} holds no tensors: copy it again.")


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
    """Of the model's own tokenizer. Raises DataError, and ConfigError for one without what the run takes."""
    chat = ChatFormat(load_tokenizer(config.model.path))
    check_context(config.algorithm_config.rollout_context, chat.tags)
    return chat


def first_words(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def check_same_model(config: RunConfig, manifest: Mapping[str, Any], there: Mapping[str, str]) -> None:
    """Raises DataError where the initial model, with these checksums, is not the one of the finished run."""
    known = manifest["model_sha256"]
    different = sorted(name for name in there.keys() | known.keys() if there.get(name) != known.get(name))
    if different:
        raise DataError(
            f"{config.model.path} is not the model that the run began from ({different[0]} differs from the manifest): "
            "put that model there."
        )


def _check_embedded(path: Path, model_type: str | None) -> None:
    if model_type is None:
        raise DataError(f"{path / 'config.json'} names no model_type: copy the model folder again.")
    # seconds to import, which no command takes to say what is wrong with its arguments
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
