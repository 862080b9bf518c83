"""The toy tasks' tokenizer: one token per word, lossless on canonical text, with a Qwen3-like chat template.

Canonical text has one space before each ordinary word and none before tags, newlines, `\\boxed{` and `}`:

    <|im_start|> user\\n compute 12 + 5 * 3<|im_end|>\\n<|im_start|> assistant\\n<think> first 5 * 3</think>
"""

import re
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rtpo.envs.toy.knowledge import ENTITIES, RELATIONS
from rtpo.errors import DataError

PAD = "<|endoftext|>"
START = "<|im_start|>"
STOP = "<|im_end|>"
UNKNOWN = "<unk>"
SPECIALS = (PAD, START, STOP, UNKNOWN)
TAGS = ("think", "tool_call", "tool_response")
MARKUP = (*(f"<{end}{tag}>" for tag in TAGS for end in ("", "/")), "\\boxed{", "}", "\n")
NUMBERS = tuple(str(number) for number in range(100))
WORDS = (
    *("system", "user", "assistant"),
    *("compute", "+", "-", "*", "(", ")"),
    *("find", "search", "nothing", "from"),
    *("first", "then", "next", "is", "so", "answer", "error", "again", "left", "right", "plan", "start"),
)
TOY_WORDS = (*WORDS, *NUMBERS, *RELATIONS, *ENTITIES)
"""words of the shipped models, in the order of their ids"""

CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8")


def build_tokenizer(words: Sequence[str] = TOY_WORDS) -> PreTrainedTokenizerFast:
    """Build a tokenizer for these words, with stop token `<|im_end|>` and padding `<|endoftext|>`. Raises DataError if
    a word contains markup or white space, or is repeated.

    The chat template takes `keep_think` (default true); false drops each assistant message's text up to `</think>`.
    """
    for word in words:
        if not re.fullmatch(r"[^\s<>{}\\]+", word) or words.count(word) > 1:
            raise DataError(f"the word {word!r} of a recipe contains markup or white space, or is repeated")
    roles = [role for role in ("system", "user", "assistant") if role not in words]
    tokens = (*SPECIALS, *MARKUP, *(f"▁{word}" for word in (*roles, *words)))
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="never")
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIALS])
    # not special, as in Qwen3: decoding without special tokens keeps the tags that environments parse
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in MARKUP])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=STOP,
        unk_token=UNKNOWN,
        additional_special_tokens=[START],
        clean_up_tokenization_spaces=False,
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
    )


def encode_strict(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """The ids of canonical text. Raises DataError if the ids would not decode to the text."""
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids: list[int] = encoding["input_ids"]
    if tokenizer.unk_token_id in ids:
        begin, end = encoding["offset_mapping"][ids.index(tokenizer.unk_token_id)]
        raise DataError(
            f"the text {text!r} has {text[begin:end]!r}, which is not in the recipe's words: "
            "add it to them, or put one space before each word"
        )
    if tokenizer.decode(ids) != text:
        raise DataError(f"the text {text!r} is not canonical: put one space before each word and none elsewhere")
    return ids
