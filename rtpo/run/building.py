"""Builds dataclasses from plain values with pydantic; error messages name the field."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from rtpo.core.names import nearest
from rtpo.errors import ConfigError

LARGEST = 2**53
"""the largest whole number allowed: JSON readers round larger ones"""


def build(cls: type[Any], values: Mapping[str, Any], path: str) -> Any:
    """Build the dataclass `cls` from plain values; `path` is the field that holds them. Raises ConfigError if a field
    is unknown, missing or of a wrong type, at any depth, or if a number is not finite or too large. Each problem is one
    sentence that begins with the field's path."""
    for name, value in leaves(dict(values), path):
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int | float) and not abs(number) <= LARGEST:
                raise ConfigError(f"{name} is {value}: use finite numbers of at most {LARGEST} in size.")
    try:
        # pydantic takes settings for a dict and applies them to the dataclasses in it, but not for a dataclass alone
        adapter = TypeAdapter(dict[str, cls], config=ConfigDict(extra="forbid", strict=True))  # type: ignore[valid-type]
        # strict validation of JSON still accepts lists for tuples and integers for floats
        return adapter.validate_json(json.dumps({path: dict(values)}))[path]
    except ValidationError as error:
        sentences: dict[str, str] = {}
        for problem in error.errors():
            name, message = _explained(cls, path, problem)
            sentences[name] = f"{sentences[name]}; or {problem['msg']}" if name in sentences else message
        raise ConfigError("\n".join(f"{name} {message}." for name, message in sentences.items())) from error


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of every field in a tree. A list counts as one value."""
    if not isinstance(tree, dict) or not tree:
        yield path, tree
        return
    for key, value in tree.items():
        yield from leaves(value, f"{path}.{key}".lstrip("."))


def _explained(cls: type[Any], path: str, problem: Any) -> tuple[str, str]:
    """The path of the field that pydantic refuses, and the reason."""
    *above, last = problem["loc"][1:]
    owner: Any = cls
    for part in above:
        hint = get_type_hints(owner).get(part)
        owner = next((kind for kind in (hint, *get_args(hint)) if is_dataclass(kind)), owner)
    known = [known.name for known in fields(owner)]
    is_unknown = problem["type"] == "unexpected_keyword_argument"
    # for a field of several types, pydantic adds the type that it tried to the field's path
    ends_with_type = isinstance(last, str) and last not in known and bool(above)
    name = ".".join([path, *map(str, above), *([str(last)] if is_unknown or not ends_with_type else [])]).lstrip(".")
    if is_unknown:
        return name, f"is not a field of {owner.__name__}: {nearest(last, known)}"
    is_missing = problem["type"].startswith("missing")
    return name, "is missing" if is_missing else f"is {problem['input']!r}: {problem['msg']}"
