"""The chat format on token ids: c_0, and the ids between u_k and u_{k+1} (Sec. 3.1 of the paper).

The chat template renders only an episode's opening and the environment's answers. The policy's replies are never
rendered: their sampled ids are used as they are (`rtpo.core.contexts`).
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from jinja2 import TemplateError

from rtpo.errors import ConfigError
from rtpo.types import Ids, Message, Opening, StopReason, as_ids

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"
TOOL_CALL = "<tool_call>"

# Marks the policy's reply in a rendered conversation, to find the template's text after it.
_REPLY = "\u2402reply\u2403"
_NEWLINE_SPELLINGS = frozenset("\nĊ")  # byte-level vocabularies spell a newline Ċ

# Entries of a cache. Paths share openings, and tools repeat answers.
_CACHE_SIZE = 1024


@dataclass(frozen=True, slots=True)
class ThinkTags:
    """The ids that `rtpo.core.contexts.strip_think` looks for.

    open_id, close_id: `<think>` and `</think>`; None if the tokenizer does not have it as a single token.
    stop_id: ends an assistant message.
    newline_ids: every id whose text is newlines and nothing else.
    """

    open_id: int | None
    close_id: int | None
    stop_id: int
    newline_ids: frozenset[int]


class ChatFormat:
    """A Hugging Face tokenizer's chat template, on ids.

    Raises ConfigError if the tokenizer lacks a chat template or an eos token, or if its template is unsuitable. The
    template must end an assistant message with the eos token. Its generation prompt must not open the thinking, since
    the tag would stay in every later context. Thinking can be stripped only if `<think>` and `</think>` are single
    tokens (`rtpo.core.contexts.check_context`).
    """

    tags: ThinkTags

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                "The tokenizer has no chat template: use a chat model's tokenizer or set `chat_template`."
            )
        if tokenizer.eos_token_id is None:
            raise ConfigError("The tokenizer has no eos token: set `eos_token` to the token that ends a turn.")
        self._stop_text: str = tokenizer.eos_token
        # all added tokens: tags such as <think> are not marked as special. Those of one character are plain text
        added = (str(token) for token in tokenizer.added_tokens_decoder.values())
        self._control = tuple(token for token in added if len(token.strip()) > 1)
        self.tags = ThinkTags(
            open_id=self._single_id(THINK_OPEN),
            close_id=self._single_id(THINK_CLOSE),
            stop_id=int(tokenizer.eos_token_id),
            newline_ids=frozenset(self._newline_ids()),
        )
        self._check_template()
        self._opening_ids = lru_cache(_CACHE_SIZE)(self._encode_opening)
        self._feedback_ids = lru_cache(_CACHE_SIZE)(self._encode_feedback)

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens, added ones included (a model's embedding may be padded beyond it)."""
        return len(self._tokenizer)

    def opening(self, opening: Opening) -> Ids:
        """c_0: the rendered messages, tools and generation prompt. Raises ValueError without messages, and
        ConfigError if the template does not show the tools or ask for calls between `<tool_call>` tags."""
        if not opening.messages:
            raise ValueError("opening needs a message")
        return self._opening_ids(opening)

    def feedback(self, messages: Sequence[Message], stop: StopReason) -> Ids:
        """f_k as ids: all that the template puts between a reply's stop token and the next reply.

        After a turn that ended by LENGTH, the missing stop token comes first. Raises ValueError without messages.
        """
        if not messages:
            raise ValueError("feedback needs a message")
        return self._feedback_ids(tuple(messages), stop)

    def decode(self, ids: Ids | Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        array = np.asarray(ids, np.int32)
        return str(self._tokenizer.decode(array, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _encode_opening(self, opening: Opening) -> Ids:
        text = self._render(opening.messages, generation_prompt=True, tools=opening.tools)
        text_without_tools = self._render(opening.messages, generation_prompt=True) if opening.tools else ""
        if opening.tools and text == text_without_tools:
            raise ConfigError("The chat template does not show the tools: use one that takes `tools`, as Qwen3's does.")
        if opening.tools and text.count(TOOL_CALL) == text_without_tools.count(TOOL_CALL):
            raise ConfigError(
                f"The chat template shows the tools and does not ask for calls between {TOOL_CALL} tags, where they "
                "are read: set `chat_template` to one that does, as Qwen3's and Qwen2.5's do."
            )
        return self._encode(text)

    def _encode_feedback(self, messages: tuple[Message, ...], stop: StopReason) -> Ids:
        text = self._after_reply(messages)
        return self._encode(text if stop is StopReason.LENGTH else text.removeprefix(self._stop_text))

    def _encode(self, text: str) -> Ids:
        return as_ids(self._tokenizer.encode(text, add_special_tokens=False))

    def _render(self, messages: Sequence[Message], *, generation_prompt: bool, tools: Sequence[str] = ()) -> str:
        turns = [{"role": message.role, "content": self._plain(message.content)} for message in messages]
        schemas = [json.loads(tool) for tool in tools] or None
        try:
            text = self._tokenizer.apply_chat_template(
                turns, tools=schemas, tokenize=False, add_generation_prompt=generation_prompt
            )
        except TemplateError as error:
            roles = ", ".join(message.role for message in messages)
            raise ConfigError(f"The chat template refuses messages with the roles {roles}: {error}") from error
        return str(text)

    def _plain(self, content: str) -> str:
        """Content from the environment with each of the tokenizer's added tokens broken up, as in `< |im_end|>`. So it
        can neither end a message nor imitate a tag of the policy or the template."""
        for token in self._control:
            content = content.replace(token, f"{token[0]} {token[1:]}")
        return content

    def _after_reply(self, messages: Sequence[Message]) -> str:
        """The text between a reply and the next one: the stop token, the answering messages, the generation prompt.

        The reply is rendered as a marker, and the text after the marker is returned. Removing the conversation up to
        the reply would fail: Qwen3's template adds an empty thinking block to the last assistant message alone.
        """
        conversation = [Message("user", "q"), Message("assistant", _REPLY), *messages]
        _, marker, after = self._render(conversation, generation_prompt=True).partition(_REPLY)
        if not marker:
            raise ConfigError("The chat template does not show an assistant message's content as it is.")
        if not after.startswith(self._stop_text):
            raise ConfigError(
                f"The chat template puts {after[:20]!r} after an assistant message, and the tokenizer's eos token is "
                f"{self._stop_text!r}: set `eos_token` to the token that ends a turn."
            )
        return after

    def _check_template(self) -> None:
        question = [Message("user", "q")]
        with_prompt = self._render(question, generation_prompt=True)
        without_prompt = self._render(question, generation_prompt=False)
        if not with_prompt.startswith(without_prompt):
            raise ConfigError("The chat template changes the messages when it adds the generation prompt.")
        prompt = with_prompt.removeprefix(without_prompt)
        if prompt.rfind(THINK_OPEN) > prompt.rfind(THINK_CLOSE):
            raise ConfigError(
                f"The chat template's generation prompt opens {THINK_OPEN} itself, which would stay in later contexts: "
                "use a template that leaves the tag to the policy."
            )
        self._after_reply(question)

    def _single_id(self, tag: str) -> int | None:
        ids = self._tokenizer.encode(tag, add_special_tokens=False)
        return int(ids[0]) if len(ids) == 1 and ids[0] != self._tokenizer.unk_token_id else None

    def _newline_ids(self) -> Iterable[int]:
        for token, index in self._tokenizer.get_vocab().items():
            if (token and _NEWLINE_SPELLINGS.issuperset(token)) or token == "<0x0A>":
                text = self.decode([index])
                if text and not text.strip("\n"):
                    yield int(index)
