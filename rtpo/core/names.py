"""Parts of messages: hints about names that do not exist, plurals, and shortened lists and errors."""

import os
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from typing import Any

SOME = 5
"""most names that a sentence lists"""


def nearest(name: str, known: Collection[str]) -> str:
    """For a message about an unknown name: the nearest known name, or all known names if none is near."""
    close = get_close_matches(name, known, 1)
    return f"the nearest is {close[0]}" if close else f"there are {', '.join(known)}" if known else "it has none"


def counted(number: int, noun: str) -> str:
    """`1 run`, `2 runs`, `3 processes`, `4 replies`."""
    stem, ending = (noun[:-1], "ies") if noun.endswith("ly") else (noun, "es" if noun.endswith("ss") else "s")
    return f"{number:,} {noun if number == 1 else stem + ending}"


def some(names: Sequence[Any], separator: str = ", ") -> str:
    """The first SOME names, and how many more there are."""
    more = f" and {len(names) - SOME} more" if len(names) > SOME else ""
    return separator.join(map(str, names[:SOME])) + more


def missing_file(path: str | os.PathLike[str]) -> str:
    """A phrase for a missing file or a broken link, with the nearest name in the folder if one is near."""
    missing = os.path.abspath(path)
    while not os.path.isdir(folder := os.path.dirname(missing)):  # up to the first missing part
        missing = folder
    if os.path.islink(missing):
        return f"{os.fspath(path)} is a broken link to {os.readlink(missing)}"
    close = get_close_matches(os.path.basename(missing), os.listdir(folder), 1) if os.access(folder, os.R_OK) else []
    near = os.path.join(folder, *close)
    near = near if os.path.isabs(path) else os.path.relpath(near)
    return f"there is no {os.fspath(path)}" + (f"; the nearest is {near}" if close else "")


def first_words(error: Exception) -> str:
    """The beginning of an error's message, in one line."""
    return " ".join(str(error).split())[:200]
