"""Markup in which all text is escaped, unless it was made here."""

import unicodedata
from html import escape

HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""categories of characters that show nothing, or change how others are shown"""
EMPTY = frozenset({"br", "meta"})


class Html(str):
    """Markup, as against text."""

    __slots__ = ()


def text(words: str) -> Html:
    """Words as markup. Characters that cannot be seen, but for spaces and line ends, are spelled: ⟨U+202E⟩."""
    if not words.isprintable():
        words = "".join(f"⟨U+{ord(one):04X}⟩" if _is_hidden(one) else one for one in words)
    return Html(escape(words, quote=True))


def element(name: str, /, *children: str, **attributes: str | bool) -> Html:
    """An element; children that are not markup are escaped, `class_` is `class`, an attribute that is False is left
    out."""
    given = "".join(
        f" {key.rstrip('_')}" + ("" if value is True else f'="{text(value)}"')
        for key, value in attributes.items()
        if value is not False and value is not None
    )
    inner = "".join(child if isinstance(child, Html) else text(child) for child in children)
    return Html(f"<{name}{given}>" if name in EMPTY else f"<{name}{given}>{inner}</{name}>")


def joined(parts: list[Html], between: str = "") -> Html:
    return Html(text(between).join(parts))


def _is_hidden(character: str) -> bool:
    return character not in "\n\t" and unicodedata.category(character) in HIDDEN
