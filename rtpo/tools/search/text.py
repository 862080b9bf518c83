"""Queries and results as text: the one form of a query, and what the policy reads."""

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

NO_RESULTS = "No results."
TEXT_FORMAT = 1
"""of what `normalise_query` and `render` make; another format, another cache"""
_NOT_TEXT = ("Cc", "Cs")
"""control characters, and halves of surrogate pairs, which JSON can spell"""


@dataclass(frozen=True, slots=True)
class Passage:
    """One result. `title` may be empty."""

    title: str
    text: str


def normalise_query(query: str) -> str:
    """The query that is kept and sent: Unicode NFC, control characters and half surrogate pairs as spaces, each run of
    white space one space, none at the ends. Case and punctuation stay."""
    return plain(unicodedata.normalize("NFC", query))


def plain(text: str) -> str:
    """One line: control characters and half surrogate pairs as spaces, each run of white space one space."""
    if not text.isprintable():
        text = "".join(" " if unicodedata.category(letter) in _NOT_TEXT else letter for letter in text)
    return " ".join(text.split())


def render(passages: Iterable[Passage], characters: int) -> str:
    """One line a result, `Page i: title: text`, the title and text cut at `characters`; `No results.` without any."""
    lines = []
    for number, passage in enumerate(passages, start=1):
        line = ": ".join(part for part in (plain(passage.title), plain(passage.text)) if part)
        if len(line) > characters:
            line = line[:characters].rstrip() + " ..."
        lines.append(f"Page {number}: {line}")
    return "\n".join(lines) or NO_RESULTS
