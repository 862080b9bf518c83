"""Token ids as text: which text is whose, and what of a reply is thinking.

A token need not be a whole character. Tokens that make one together are one piece.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rtpo.core.chat import ChatFormat
from rtpo.errors import DataError

Ids = Sequence[int]
BROKEN = "\ufffd"
"""how a decoder shows a part of a character"""
LONGEST = 8
"""tokens that are waited for to make a character"""


@dataclass(frozen=True)
class Piece:
    """The text of the ids first..last-1."""

    text: str
    first: int
    last: int


@dataclass(frozen=True)
class Passage:
    """A part of a reply."""

    is_thinking: bool
    pieces: tuple[Piece, ...]

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def tokens(self) -> int:
        return sum(piece.last - piece.first for piece in self.pieces)


class Reader(Protocol):
    """Shows ids."""

    def whole(self, ids: Ids) -> str: ...

    def passages(self, output_ids: Ids) -> list[Passage]:
        """The parts of a reply in order, none of them empty."""
        ...


class TextReader:
    """By a tokenizer."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat

    def whole(self, ids: Ids) -> str:
        return self._chat.decode(ids)

    def passages(self, output_ids: Ids) -> list[Passage]:
        """Thinking is what `rtpo.core.contexts.strip_think` drops, the newlines after it apart: all up to the last
        `</think>`, and all from a later `<think>` that is not closed, but for the stop token."""
        tags, end = self._chat.tags, len(output_ids)
        closed = max((i + 1 for i, one in enumerate(output_ids) if one == tags.close_id), default=0)
        opened = next((i for i in range(closed, end) if output_ids[i] == tags.open_id), end)
        stop = end - 1 if opened < end and output_ids[-1] == tags.stop_id else end
        places = [(True, 0, closed), (False, closed, opened), (True, opened, stop), (False, stop, end)]
        return [
            Passage(is_thinking, tuple(pieces(output_ids, first, last, self._chat.decode)))
            for is_thinking, first, last in places
            if first < last
        ]


class IdReader:
    """The ids themselves, for want of a tokenizer."""

    def whole(self, ids: Ids) -> str:
        return " ".join(map(str, ids))

    def passages(self, output_ids: Ids) -> list[Passage]:
        shown = tuple(Piece(f"{one} ", i, i + 1) for i, one in enumerate(output_ids))
        return [Passage(False, shown)] if shown else []


def open_reader(model_folder: Path) -> TextReader:
    """The tokenizer of a model folder. Raises DataError where it is not there, ConfigError where it has no chat
    format."""
    if not (model_folder / "tokenizer_config.json").exists():
        raise DataError(
            f"the tokenizer of {model_folder} (model.path of the run's config.yaml) is needed to show text, and is not "
            "there: put the model folder there, its tokenizer at least, or see token ids with --ids."
        )
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model_folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise DataError(f"the tokenizer of {model_folder} cannot be read ({error}): copy it again.") from error
    return TextReader(ChatFormat(tokenizer))


def pieces(ids: Ids, first: int, last: int, decode: Callable[[Ids], str]) -> list[Piece]:
    """The ids first..last-1 by the text that each adds to the piece before it."""
    found: list[Piece] = []
    before = start = first
    for end in range(first + 1, last + 1):
        known, text = decode(ids[before:start]), decode(ids[before:end])
        is_broken = text.endswith(BROKEN)
        if is_broken and end < last and end - start < LONGEST:
            continue
        found.append(Piece(text[len(known) :], start, end))
        before, start = (end if is_broken else start), end
    return found
