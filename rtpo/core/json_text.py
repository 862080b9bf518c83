"""Reading JSON that others wrote."""

import json
from typing import Any


def parse(text: str | bytes) -> Any:
    """The value of a JSON text. Raises nothing but ValueError: also if it is nested too deeply to be read, and for half
    a surrogate pair, which JSON can spell and no file or tokenizer can take."""
    try:
        value = json.loads(text)
        if "\\u" in text if isinstance(text, str) else b"\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise ValueError(error.msg) from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except UnicodeEncodeError as error:
        raise ValueError("half a surrogate pair is no character") from error
    return value


def encodable(text: str) -> str:
    """The text with every half of a surrogate pair replaced by a question mark: JSON can spell it and no tokenizer
    takes it."""
    return text.encode("utf-8", "replace").decode("utf-8")
