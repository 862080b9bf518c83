"""A problem's split depends on the problem alone, so no problem is in two splits."""

import hashlib
from typing import Final

SPLITS: Final = {"held_out": range(0, 1), "validation": range(1, 2), "train": range(2, 10)}
"""which tenths of all problems a split has"""


def split_of(key: str) -> str:
    """The split of the problem with this key."""
    tenth = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % 10
    return next(split for split, tenths in SPLITS.items() if tenth in tenths)
