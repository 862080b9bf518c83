"""Splits as a function of a problem alone, so that no two can share one."""

import hashlib
from typing import Final

SPLITS: Final = {"held_out": range(0, 1), "validation": range(1, 2), "train": range(2, 10)}
"""tenths of all problems"""


def split_of(key: str) -> str:
    """The split of the problem that `key` spells."""
    tenth = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % 10
    return next(split for split, tenths in SPLITS.items() if tenth in tenths)
