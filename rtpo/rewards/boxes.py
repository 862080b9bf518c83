"""Finds answers in LaTeX boxes, in replies and in the solutions of data sets."""

import re
from typing import Final

BOX: Final = r"\\(?:boxed|fbox)(?![a-zA-Z])\s*"
_PART = re.compile(rf"(?P<box>\\?{BOX})(?P<brace>\{{)?|\\.|[{{}}]", re.DOTALL)
_BARE = re.compile(r"[-+(\[|.]*(?:\d|\\[a-zA-Z$({]|[a-zA-Z](?=\s*[-+=^_*/($\\]))")
"""matches the start of mathematics, but not of words"""
_END = re.compile(r"(?<!\\)\$|\\[)\]]|\n|\s[a-zA-Z]{2}|$")
"""matches the end of a formula, a line or the text, or the space before a word"""


def last_box(text: str) -> str | None:
    """The content of the last closed `\\boxed{...}` or `\\fbox{...}`; None if there is no box.

    An empty box counts only if all boxes are empty, or inside another box. A box without braces ends with its formula.
    """
    last: tuple[int, int | None] | None = None
    open_braces: list[int | None] = []
    for part in _PART.finditer(text):
        if part["brace"] or part[0] == "{":
            open_braces.append(part.end() if part["brace"] else None)
        elif part["box"] and _BARE.match(text, part.end()):
            last = part.end(), None
        elif part[0] == "}" and open_braces:
            start = open_braces.pop()
            is_empty = start is not None and not text[start : part.start()].strip()
            if start is not None and (last is None or (start > last[0] and not is_empty)):
                last = start, part.start()
    if last is None:
        return None
    start, end = last
    if end is not None:
        return text[start:end]
    ending = _END.search(text, start)
    assert ending is not None
    return text[start : ending.start()].rstrip(". ")
