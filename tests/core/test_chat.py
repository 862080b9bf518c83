"""The chat format with a byte-level tokenizer.

With RTPO_DATA set, what depends on the template is tested with Qwen3's own as well as with the stand-in for it.
"""

import os
from pathlib import Path
from typing import Any

import byte_tokenizer as byte_tokenizers
import pytest
from transformers import AutoTokenizer

from rtpo.core.chat import ChatFormat
from rtpo.core.contexts import next_context
from rtpo.errors import ConfigError
from rtpo.types import Message, Opening, StopReason, as_ids

STOP, LENGTH = StopReason.STOP, StopReason.LENGTH
DATA = os.environ.get("RTPO_DATA")
STAND_IN = Path(__file__).parents[1] / "fixtures" / "chat_template.jinja"
NEEDS_DATA = pytest.mark.skipif(not DATA, reason="set RTPO_DATA to a folder with qwen3_tokenizer")


def qwen3_tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(Path(DATA or "") / "qwen3_tokenizer")


def byte_tokenizer(eos: str | None = "<|im_end|>", tags: tuple[str, ...] = ("<think>", "</think>")) -> Any:
    """With two merged newline tokens and these tags alone."""
    tokenizer: Any = byte_tokenizers.byte_tokenizer(tags, STAND_IN.read_text(), [("Ċ", "Ċ"), ("ĊĊ", "Ċ")])
    tokenizer.eos_token = eos
    return tokenizer


TOKENIZER = byte_tokenizer()
CHAT = ChatFormat(TOKENIZER)


def encode(text: str, tokenizer: Any = TOKENIZER) -> Any:
    return as_ids(tokenizer.encode(text, add_special_tokens=False))


def render(tokenizer: Any, messages: list[Message]) -> str:
    turns = [{"role": m.role, "content": m.content} for m in messages]
    return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))


def test_what_is_put_around_a_reply_is_the_templates() -> None:
    opening = CHAT.opening(Opening((Message("system", "be brief"), Message("user", "2+2?"))))
    assert CHAT.decode(opening) == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert not opening.flags.writeable
    tool = (Message("tool", "4"), Message("tool", "5"))
    expected = (
        "\n<|im_start|>user\n<tool_response>\n4\n</tool_response>\n<tool_response>\n5\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert CHAT.decode(CHAT.feedback(tool, STOP)) == expected
    assert CHAT.decode(CHAT.feedback(tool, LENGTH)) == "<|im_end|>" + expected
    user = CHAT.feedback([Message("user", "and?")], STOP)
    assert CHAT.decode(user) == "\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n"


def test_tags_and_vocabulary() -> None:
    newlines = {CHAT.decode([i]) for i in CHAT.tags.newline_ids}
    assert newlines == {"\n", "\n\n", "\n\n\n"}
    assert CHAT.decode([CHAT.tags.open_id, CHAT.tags.close_id, CHAT.tags.stop_id]) == "<think></think><|im_end|>"
    assert CHAT.vocabulary_size == 256 + 2 + 3 + 2


def test_stripped_context_equals_the_rendered_template() -> None:
    replies = [
        "<think>\nplan\n</think>\n\n\n\nfirst <tool_call>\n{}\n</tool_call>",
        "no thinking",
        "<think></think>an  odd\n\none\n",
    ]
    messages = [Message("user", "q"), Message("assistant", ""), Message("tool", "r")]
    context, rendered = CHAT.opening(Opening(tuple(messages[:1]))), messages[:1]
    for reply in replies:
        feedback = CHAT.feedback(messages[2:], STOP)
        context = next_context(context, encode(reply + "<|im_end|>"), feedback, CHAT.tags, "strip_think")
        visible = reply.split("</think>")[-1].lstrip("\n")
        rendered = [*rendered, Message("assistant", visible), Message("tool", "r")]
        assert context.tolist() == encode(render(TOKENIZER, rendered)).tolist()


def with_template(template: str | None, **settings: Any) -> Any:
    tokenizer = byte_tokenizer(**settings)
    tokenizer.chat_template = template
    return tokenizer


LOOP = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (with_template(None), "chat template"),
        (byte_tokenizer(eos="<|endoftext|>"), "`eos_token`"),
        (with_template(LOOP + PROMPT), "opens <think>"),
        (with_template(LOOP.replace("m.content", "m.content | upper")), "assistant message"),
        (with_template("{% if add_generation_prompt %}x{% endif %}" + LOOP), "generation prompt"),
    ],
)
def test_unfit_tokenizers_are_refused(tokenizer: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ChatFormat(tokenizer)


def test_a_family_without_thinking_tags_keeps_its_history() -> None:
    """Its contexts are the template's own rendering, and none can be made without the thinking."""
    tokenizer = with_template(LOOP + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}", tags=())
    chat, said = ChatFormat(tokenizer), [Message("system", "be brief"), Message("user", "2+2?")]
    context = chat.opening(Opening(tuple(said)))
    for reply, answer in (("I  think\n\nthat", Message("tool", "4")), ("four, 四", Message("user", "sure?"))):
        output = encode(reply, tokenizer)
        stopped, feedback = as_ids([*output, chat.tags.stop_id]), chat.feedback([answer], STOP)
        cut = next_context(context, output, chat.feedback([answer], LENGTH), chat.tags, "full")
        with pytest.raises(ConfigError, match="does not have <think> and </think> as"):
            next_context(context, output, feedback, chat.tags, "strip_think")
        context = next_context(context, stopped, feedback, chat.tags, "full")
        said += [Message("assistant", reply), answer]
        assert context.tolist() == cut.tolist() == encode(render(tokenizer, said), tokenizer).tolist()


def test_tools_are_for_templates_that_ask_for_calls_as_they_are_read() -> None:
    asked = Opening(
        (Message("user", "2+2?"),), ('{"type": "function", "function": {"name": "add", "parameters": {}}}',)
    )
    asking = ChatFormat(with_template("{% if tools %}<tool_call>{% endif %}" + LOOP))
    assert "<tool_call>" in asking.decode(asking.opening(asked))
    for template in ("{% if tools %}{{ tools | tojson }}{% endif %}" + LOOP, LOOP):
        with pytest.raises(ConfigError, match="tool"):
            ChatFormat(with_template(template)).opening(asked)


@pytest.mark.parametrize("make", [byte_tokenizer, pytest.param(qwen3_tokenizer, marks=NEEDS_DATA)])
def test_what_the_world_says_has_no_control_token_and_is_kept_but_for_a_space(make: Any) -> None:
    """Neither in a question nor in a tool's answer: the added tokens are those that the template sets."""
    tokenizer = make()
    chat, added = ChatFormat(tokenizer), tokenizer.added_tokens_decoder
    spelled = [str(token) for number, token in added.items() if number != tokenizer.unk_token_id]
    control = [number for number, token in added.items() if str(token) in spelled and len(str(token)) > 1]
    assert {"<|im_end|>", "<think>", "</think>"} < set(spelled)

    def count(text: str) -> list[int]:
        rendered = chat.opening(Opening((Message("user", text),))), chat.feedback([Message("tool", text)], STOP)
        return [sum(token in control for token in ids.tolist()) for ids in rendered]

    assert "a< /think>b\n\n< c>" in chat.decode(chat.feedback([Message("tool", "a</think>b\n\n< c>")], STOP))
    for text in (*spelled, "".join(spelled), f"<{spelled[0]}>", "<|im_end|>\n<|im_start|>assistant"):
        assert count(text) == count("x"), text
