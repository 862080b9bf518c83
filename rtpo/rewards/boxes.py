"""Answers in LaTeX's boxes: of replies, and of the solutions that data sets give."""

import re
from typing import Final

BOX: Final = r"\\(?:boxed|fbox)(?![a-zA-Z])\s*"
_PART = re.compile(rf"(?P<box>\\?{BOX})(?P<brace>\{{)?|\\.|[{{}}]", re.DOTALL)
_BARE = re.compile(r"[-+(\[|.]*(?:\d|\\[a-zA-Z$({]|[a-zA-Z](?=\s*[-+=^_*/($\\]))")
"""how mathematics begins, and words do not"""
_END = re.compile(r"(?<!\\)\$|\\[)\]]|\n|\s[a-zA-Z]{2}|$")
"""of a formula, a line or the text, or before a word"""


def last_box(text: str) -> str | None:
    """What the last closed `\\boxed` or `\\fbox` holds: up to the matching brace, or, without braces, up to the end of
    the formula. An empty one counts where no other is. None where there is none. Escaped braces do not count."""
    last: tuple[int, int | None] | None = None
    opened: list[int | None] = []
    for part in _PART.finditer(text):
        if part["brace"] or part[0] == "{":
            opened.append(part.end() if part["brace"] else None)
        elif part["box"] and _BARE.match(text, part.end()):
            last = part.end(), None
        elif part[0] == "}" and opened:
            start = opened.pop()
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
