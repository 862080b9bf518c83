"""The byte-level model: its tokenizer, the traces it is made of, and the command."""

import pytest
from byte_tokenizer import byte_tokenizer
from conftest import compose_config

from rtpo.core.chat import ChatFormat
from rtpo.run.config import TaskConfig


@pytest.fixture
def math() -> TaskConfig:
    return compose_config("task=math", "data=somewhere.jsonl").task


def test_every_text_is_bytes_and_the_tags_are_single_tokens() -> None:
    tokenizer = byte_tokenizer()
    assert len(tokenizer) == 256 + 9
    for text in ("é\u2028\n\n\x00 日", "<|im_start|>user\n<think>\n\n</think>\n\n<tool_call>x</tool_call><|im_end|>"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text
    assert len(ids) == len("user") + len("\n" * 5) + len("x") + 6
    chat = ChatFormat(tokenizer)
    assert chat.tags.newline_ids == {*tokenizer.encode("\n")}
