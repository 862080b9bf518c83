"""Token ids as text: whole characters, and which part of a reply is thinking."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rtpo.core.chat import ChatFormat

BROKEN = "\ufffd"
"""how a decoder shows a part of a character"""
LONGEST = 8
"""tokens that may make one character"""


@dataclass(frozen=True)
class Piece:
    """The text of the ids first..last-1: one token, or the tokens that only together make a character."""

    text: str
    first: int
    last: int


@dataclass(frozen=True)
class ReplyPassage:
    """A part of a reply."""

    is_thinking: bool
    pieces: Sequence[Piece]


def passages(chat: ChatFormat, output_ids: Sequence[int]) -> list[ReplyPassage]:
    """The parts of a reply in order, none empty. Thinking is what `rtpo.core.contexts.strip_think` drops, without the
    newlines after it: all up to the last `</think>`, and all from a later `<think>` that is not closed, without the
    stop token."""
    tags, end = chat.tags, len(output_ids)
    closed = max((i + 1 for i, token in enumerate(output_ids) if token == tags.close_id), default=0)
    opened = next((i for i in range(closed, end) if output_ids[i] == tags.open_id), end)
    stop = end - 1 if opened < end and output_ids[-1] == tags.stop_id else end
    parts = [(True, 0, closed), (False, closed, opened), (True, opened, stop), (False, stop, end)]
    return [
        ReplyPassage(kind, pieces(output_ids, first, last, chat.decode)) for kind, first, last in parts if first < last
    ]


def pieces(ids: Sequence[int], first: int, last: int, decode: Callable[[Sequence[int]], str]) -> list[Piece]:
    """The ids first..last-1, cut where characters end; a piece's text is what it adds to the piece before it."""
    shown: list[Piece] = []
    before = start = first
    for end in range(first + 1, last + 1):
        known, text = decode(ids[before:start]), decode(ids[before:end])
        is_broken = text.endswith(BROKEN)
        if is_broken and end < last and end - start < LONGEST:
            continue
        shown.append(Piece(text[len(known) :], start, end))
        before, start = (end if is_broken else start), end
    return shown
