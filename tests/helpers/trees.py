"""Configurations compared by field."""

from collections.abc import Iterator
from typing import Any


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """The dotted names of the fields that differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            yield from differences(one.get(key), other.get(key), f"{path}.{key}".lstrip("."))
    elif one != other:
        yield path
