"""Makes text from outside safe to show."""

import unicodedata

HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories of characters that are invisible, or that change how other characters are shown"""


def visible(text: str) -> str:
    """The text with each invisible character spelled out, as in ⟨U+202E⟩. Spaces, tabs and newlines stay."""
    if text.isprintable():
        return text
    is_hidden = [letter not in "\n\t" and unicodedata.category(letter) in HIDDEN for letter in text]
    return "".join(f"⟨U+{ord(letter):04X}⟩" if hide else letter for letter, hide in zip(text, is_hidden, strict=True))


def in_one_line(text: str, characters: int) -> str:
    """The beginning of `visible` text, with each run of white space as one space."""
    return " ".join(visible(text[:characters]).split())[:characters]
