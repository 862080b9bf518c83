"""Parsing JSON from outside the project."""

import json
from typing import Any

from rtpo.errors import DataError


def parse(text: str | bytes) -> Any:
    """The value of a JSON text. Raises only ValueError, also for too deep nesting and for a lone surrogate. JSON can
    spell a lone surrogate, but files and tokenizers cannot encode it."""
    try:
        value = json.loads(text)
        if "\\u" in text if isinstance(text, str) else b"\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise ValueError(error.msg) from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except UnicodeEncodeError as error:
        raise ValueError("a lone surrogate is not a character") from error
    return value


def json_object(text: str | bytes, place: str, remedy: str) -> dict[str, Any]:
    """The value of a JSON object. place, remedy: where it is and what to do, for the message. Raises DataError."""
    try:
        value = parse(text)
    except ValueError as error:
        raise DataError(f"{place} is not JSON ({error}): {remedy}.") from error
    if not isinstance(value, dict):
        raise DataError(f"{place} is not a JSON object: {remedy}.")
    return value


def encodable(text: str) -> str:
    """The text with a question mark in place of each lone surrogate, which no tokenizer can encode."""
    return text.encode("utf-8", "replace").decode("utf-8")
