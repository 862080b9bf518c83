"""What to write instead of a name that there is none of."""

import os
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from typing import Any

SOME = 5
"""names that a sentence has at most"""


def nearest(name: str, known: Collection[str]) -> str:
    """The known name that is nearest to an unknown one, or all of them where none is near."""
    close = get_close_matches(name, known, 1)
    return f"the nearest is {close[0]}" if close else f"there are {', '.join(known)}" if known else "it has none"


def some(names: Sequence[Any]) -> str:
    """The first of several names, and how many more there are."""
    more = f" and {len(names) - SOME} more" if len(names) > SOME else ""
    return ", ".join(map(str, names[:SOME])) + more


def missing_file(path: str | os.PathLike[str]) -> str:
    """That nothing is at the path, or a link that leads nowhere, and what in its folder has the nearest name."""
    whole = os.path.abspath(path)
    while not os.path.isdir(folder := os.path.dirname(whole)):  # the first part that is missing
        whole = folder
    if os.path.islink(whole):
        return f"{os.fspath(path)} is a link to {os.readlink(whole)}, where nothing is"
    close = get_close_matches(os.path.basename(whole), os.listdir(folder), 1) if os.access(folder, os.R_OK) else []
    near = os.path.join(folder, *close)
    near = near if os.path.isabs(path) else os.path.relpath(near)
    return f"there is no {os.fspath(path)}" + (f"; the nearest is {near}" if close else "")
