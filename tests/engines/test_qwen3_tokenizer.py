"""Qwen3's own tokenizer, of RTPO_DATA, through the chat format and contexts, id by id.

Expected ids are written out, or are transformers' rendering of the whole conversation by Qwen3's template, encoded at
once.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from rtpo.core.chat import ChatFormat
from rtpo.core.contexts import next_context
from rtpo.tools.protocol import CUT, Call, parse_calls, visible_text
from rtpo.tools.search.tool import SCHEMA
from rtpo.types import Message, Opening, RolloutContext, StopReason, as_ids

DATA = os.environ.get("RTPO_DATA")
pytestmark = pytest.mark.skipif(not DATA, reason="set RTPO_DATA to a folder with qwen3_tokenizer")
VOCABULARY_SIZE = 151936
"""of Qwen3's embeddings, which are padded beyond the 151,669 tokens"""
THOUGHT = "<think>\n先算 17 × 23。\n\n\t then  search  \n</think>\n\n"
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "Ada Holm 画家"}}\n</tool_call>'
MODES: tuple[RolloutContext, RolloutContext] = ("strip_think", "full")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(Path(str(DATA)) / "qwen3_tokenizer")


@pytest.fixture(scope="module")
def chat(tokenizer: Any) -> ChatFormat:
    return ChatFormat(tokenizer)


def encoded(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def rendered(tokenizer: Any, messages: Sequence[Message], *, tools: Sequence[Any] = ()) -> list[int]:
    """The whole conversation, rendered and encoded by transformers."""
    turns = [{"role": message.role, "content": message.content} for message in messages]
    ids = tokenizer.apply_chat_template(
        turns, tools=list(tools) or None, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    return list(ids)


# contexts, written out

ASKED = "17 × 23 等于多少？"
C_0 = [151644, 872, 198, 16, 22, 24768, 220, 17, 18, 10236, 255, 231, 34204, 100430, 11319, 151645, 198]
C_0 += [151644, 77091, 198]
SAID = (
    "<think>\n先算。\n\n\t ok  \n</think>\n\n我查。\n"
    '<tool_call>\n{"name": "python", "arguments": {"code": "17 * 23"}}\n</tool_call><|im_end|>'
)
THINKS = [151667, 198, 60726, 69103, 3407, 197, 5394, 2303, 151668, 271]
CALLS = [35946, 32876, 8997, 151657, 198, 4913, 606, 788, 330, 12669, 497, 330, 16370, 788, 5212, 1851, 788, 330, 16]
CALLS += [22, 353, 220, 17, 18, 95642, 151658, 151645]
F_0 = [198, 151644, 872, 198, 151665, 198, 18, 24, 16, 271, 151666, 151645, 198, 151644, 77091, 198]
CUT_THOUGHT = [151667, 198, 87256]
F_1 = [151645, 198, 151644, 872, 198, 151665, 198, 1454, 25, 279, 9851, 572, 3931, 518, 1181, 3950, 3930, 624, 151666]
F_1 += [151645, 198, 151644, 77091, 198]


def test_two_turns_are_these_ids(tokenizer: Any, chat: ChatFormat) -> None:
    """Thinking, a call, an answer that ends with a newline, a turn cut in its thinking."""
    opening = chat.opening(Opening((Message("user", ASKED),)))
    first, cut = as_ids(encoded(tokenizer, SAID)), as_ids(encoded(tokenizer, "<think>\n再"))
    told = chat.feedback([Message("tool", "391\n")], StopReason.STOP), chat.feedback([CUT], StopReason.LENGTH)
    assert [ids.tolist() for ids in (opening, first, cut)] == [C_0, THINKS + CALLS, CUT_THOUGHT]
    assert [ids.tolist() for ids in told] == [F_0, F_1]
    (call,) = parse_calls(visible_text(chat.decode(first[:-1])))
    assert call == Call("python", {"code": "17 * 23"})
    stripped, full = (next_context(opening, first, told[0], chat.tags, mode) for mode in MODES)
    assert stripped.tolist() == C_0 + CALLS + F_0
    assert full.tolist() == C_0 + THINKS + CALLS + F_0
    assert next_context(stripped, cut, told[1], chat.tags, "strip_think").tolist() == C_0 + CALLS + F_0 + F_1
    assert next_context(full, cut, told[1], chat.tags, "full").tolist() == full.tolist() + CUT_THOUGHT + F_1


# contexts, as transformers renders them


@dataclass(frozen=True)
class Said:
    """A reply. visible: it without its thinking, as the template has it; by hand, not by the code under test."""

    text: str
    visible: str
    stop: StopReason = StopReason.STOP


REPLIES = {
    "thinking and a call": Said(THOUGHT + CALL, CALL),
    "white space": Said(f"{THOUGHT}  a\tb  \r\n\n\n  c\u3000 \n{CALL}  ", f"  a\tb  \r\n\n\n  c\u3000 \n{CALL}  "),
    "no thinking": Said(f"{CALL}\n{CALL}", f"{CALL}\n{CALL}"),
    "cut in its thinking": Said("<think>\n先算 17 ×", "", StopReason.LENGTH),
    "cut in a call": Said(f'{THOUGHT}<tool_call>\n{{"name": "sea', '<tool_call>\n{"name": "sea', StopReason.LENGTH),
}
QUESTION = (Message("system", "回答\n\n  briefly. "), Message("user", "17 × 23 等于多少？\n\n\t$x^2$  "))
ANSWERS = (Message("tool", "第一\n\n"), Message("tool", "  {'b': 2}\t"), Message("tool", ""))


@pytest.mark.parametrize("reply", REPLIES)
def test_contexts_are_what_the_template_renders(reply: str, tokenizer: Any, chat: ChatFormat) -> None:
    """With thinking and without it, two turns on."""
    said, history = REPLIES[reply], {}
    output = encoded(tokenizer, said.text) + [151645] * (said.stop is StopReason.STOP)
    opening, feedback = chat.opening(Opening(QUESTION, (json.dumps(SCHEMA),))), chat.feedback(ANSWERS, said.stop)
    for mode, text in zip(MODES, (said.visible, said.text), strict=True):
        context, messages = opening, [*QUESTION]
        for _ in range(2):
            context = next_context(context, as_ids(output), feedback, chat.tags, mode)
            messages += [Message("assistant", text), *ANSWERS]
        assert context.tolist() == rendered(tokenizer, messages, tools=[SCHEMA]), mode
        history[mode] = context
    assert opening.tolist() == rendered(tokenizer, QUESTION, tools=[SCHEMA])
    assert (len(history["full"]) > len(history["strip_think"])) == ("<think>" in said.text)


def test_ids_that_text_would_not_come_back_to_stay_as_they_were_sampled(tokenizer: Any, chat: ChatFormat) -> None:
    """Letters one by one, newlines apart, half of a character, and an id of the embeddings that no token has. The
    template would leave out tags with nothing between them, too; the ids keep them."""
    letters = [encoded(tokenizer, letter)[0] for letter in "answer"]
    sampled = [151667, *letters, 198, 198, 151668, 198, 271, *letters, 220, 220, 156, VOCABULARY_SIZE - 1, 151645]
    assert encoded(tokenizer, chat.decode(sampled)) != sampled
    opening, feedback = chat.opening(Opening(QUESTION)), chat.feedback(ANSWERS, StopReason.STOP)
    for mode, kept in zip(MODES, (sampled[sampled.index(271) + 1 :], sampled), strict=True):
        context = next_context(opening, as_ids(sampled), feedback, chat.tags, mode)
        assert context.tolist() == [*opening, *kept, *feedback], mode
