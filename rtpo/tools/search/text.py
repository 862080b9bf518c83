"""Normalises queries and renders results as the policy's text."""

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

NO_RESULTS = "No results."
TEXT_FORMAT = 1
"""version of the output of `normalise_query` and `render`; each version has its own cache"""
_REPLACED_BY_SPACE = ("Cc", "Cs")
"""control characters, and single surrogates, which JSON allows"""


@dataclass(frozen=True, slots=True)
class Passage:
    """One result. `title` may be empty."""

    title: str
    text: str


def normalise_query(query: str) -> str:
    """The query to store and send: Unicode NFC on one line (`plain`). Case and punctuation stay."""
    return plain(unicodedata.normalize("NFC", query))


def plain(text: str) -> str:
    """Text on one line: control characters and single surrogates become spaces, runs of white space one space."""
    if not text.isprintable():
        text = "".join(" " if unicodedata.category(letter) in _REPLACED_BY_SPACE else letter for letter in text)
    return " ".join(text.split())


def render(passages: Iterable[Passage], characters: int) -> str:
    """One line per result, `Page i: title: text`, with title and text cut at `characters`; or `No results.`"""
    lines = []
    for number, passage in enumerate(passages, start=1):
        line = ": ".join(part for part in (plain(passage.title), plain(passage.text)) if part)
        if len(line) > characters:
            line = line[:characters].rstrip() + " ..."
        lines.append(f"Page {number}: {line}")
    return "\n".join(lines) or NO_RESULTS
