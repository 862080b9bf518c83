"""JSON as others write it."""

import json
from typing import Any


def parse(text: str | bytes) -> Any:
    """What the text says. Raises ValueError alone: also for what is nested too deeply to be read, and for half a
    surrogate pair, which JSON can spell and no file or tokenizer can take."""
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
    """Half of a surrogate pair, which JSON can spell and no tokenizer takes, becomes a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")
