"""Qwen3's tool protocol: a call is JSON with `name` and `arguments` between `<tool_call>` tags."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from rtpo.core.names import counted
from rtpo.tools.base import Arguments
from rtpo.types import Message, ToolOutcome, ToolUse

OPEN, CLOSE = "<tool_call>", "</tool_call>"
SHAPE = '{"name": ..., "arguments": {...}} between tool_call tags'
"""tells the policy how to write a call. It has no literal tags, since `rtpo.core.chat` changes tags in messages"""
CUT = Message("tool", "Error: the reply was cut at its token limit.")
"""answers a reply that was cut before its first whole call"""
_DECODER = json.JSONDecoder()
_TAG, _CLOSED = re.compile(rf"{OPEN}\s*|{CLOSE}"), re.compile(rf"\s*{CLOSE}")
_CHUNK = 1 << 16
"""characters to decode first. For each invalid call, the decoder counts all lines of the text it was given. So
without this limit, a long reply with many invalid calls would take quadratic time"""
_LONGEST_QUOTE = 200
DEEPEST = 20
"""most levels of nested arguments. Much deeper JSON can be written, but not read again"""


@dataclass(frozen=True, slots=True)
class Call:
    """A readable call. Its tool may not exist, and its arguments may not fit the tool's schema."""

    name: str
    arguments: Arguments


@dataclass(frozen=True, slots=True)
class Malformed:
    """An unreadable call."""

    why: str  # told to the policy
    is_open: bool = False  # its tag is not closed


def visible_text(reply: str) -> str:
    """A reply's text after its thinking and before any unclosed `<think>`: the text that
    `rtpo.core.contexts.strip_think` keeps."""
    return reply.rpartition("</think>")[2].partition("<think>")[0]


def parse_calls(text: str) -> tuple[Call | Malformed, ...]:
    """The calls in a reply's visible text, in order. Tags inside a call's JSON strings do not count. Never raises."""
    return tuple(_calls(text))


def whole_calls(calls: tuple[Call | Malformed, ...]) -> tuple[Call | Malformed, ...]:
    """The calls of a reply that was cut at its token limit, without the call that the cut left open."""
    return tuple(call for call in calls if not (isinstance(call, Malformed) and call.is_open))


def refusal(
    call: Call | Malformed, schemas: Mapping[str, Mapping[str, Any]], number: int, limit: int
) -> tuple[str, ToolUse] | None:
    """Check a reply's call. Returns None if it may run, else the text that answers it and its `ToolUse`.

    A call may run if it is readable, names an existing tool, fits the tool's schema, and is within the limit.

    schemas: the tools' schemas, by name.
    number: index of the call in its reply, from 0.
    limit: most calls of a reply.
    """
    if isinstance(call, Malformed):
        return f"Error: {call.why}. Write {SHAPE}.", ToolUse("", ToolOutcome.MALFORMED)
    if call.name not in schemas:
        reason = f"Error: no tool {call.name[:_LONGEST_QUOTE]!r}; use {', '.join(schemas)}."
        return reason, ToolUse("", ToolOutcome.MALFORMED)
    parameters = schemas[call.name]["function"]["parameters"]
    misfit = best_match(Draft202012Validator(parameters).iter_errors(call.arguments))
    if misfit is not None:
        # the message quotes the arguments, which may be long
        message = misfit.message
        reason = message if len(message) <= _LONGEST_QUOTE else message[:_LONGEST_QUOTE] + " ..."
        return f"Error: {reason}.", ToolUse(call.name, ToolOutcome.MALFORMED)
    if number >= limit:
        return f"Error: not run, at most {counted(limit, 'call')} a reply.", ToolUse(call.name, ToolOutcome.REFUSED)
    return None


def render_call(name: str, arguments: Arguments) -> str:
    """A call as the policy must write it and Qwen3's template renders it."""
    return f"{OPEN}\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n{CLOSE}"


def _calls(text: str) -> Iterator[Call | Malformed]:
    position = 0
    while tag := _TAG.search(text, position):
        if tag[0] == CLOSE:
            position = tag.end()
            yield Malformed("a tool_call tag is closed that was not opened")
        else:
            call, position = _call(text, tag.end())
            yield call


def _call(text: str, begin: int) -> tuple[Call | Malformed, int]:
    """The call whose JSON begins at `begin`, and the position after it."""
    end = begin
    try:
        value, end = _decode(text, begin)
        if close := _CLOSED.match(text, end):
            return _read(value), close.end()
        why = "the call has more than one JSON value"
    except (ValueError, RecursionError) as error:
        problem = error.msg if isinstance(error, json.JSONDecodeError) else "too deep or too long"
        why = f"the call is not JSON ({problem})"
    after = text.find(CLOSE, end)
    if after < 0:
        return Malformed("the tool_call tag is not closed", is_open=True), len(text)
    return Malformed(why), after + len(CLOSE)


def _decode(text: str, start: int) -> tuple[Any, int]:
    """The JSON value that begins at `start`, and its end. Raises ValueError and RecursionError."""
    part = text[start : start + _CHUNK]
    try:
        value, end = _DECODER.raw_decode(part)
        if end < _CHUNK:
            return value, start + end
    except json.JSONDecodeError as error:
        # an error near the part's end may come from the cut through a string, number or word
        if len(part) < _CHUNK or (error.pos < _CHUNK - 16 and not error.msg.startswith("Unterminated")):
            raise
    return _DECODER.raw_decode(text, start)


def _read(value: Any) -> Call | Malformed:
    match value:
        case {"name": str(name), "arguments": dict(arguments)}:
            if _is_deeper(arguments, DEEPEST):
                return Malformed(f"the call's arguments are nested deeper than {DEEPEST}")
            return Call(name, arguments)
        case {"name": str()}:
            return Malformed("the call's arguments are not a JSON object")
        case dict():
            return Malformed("the call has no name")
    return Malformed("the call is not a JSON object")


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(item, levels - 1) for item in inner)
