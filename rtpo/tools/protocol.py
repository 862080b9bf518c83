"""Qwen3's tool protocol: the calls in a reply's text, `<tool_call>` around JSON with `name` and `arguments`."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rtpo.tools.base import Arguments

OPEN, CLOSE = "<tool_call>", "</tool_call>"
SHAPE = f'{OPEN}\n{{"name": ..., "arguments": {{...}}}}\n{CLOSE}'
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Call:
    """A call that could be read; whether its tool exists and its arguments fit is not known yet."""

    name: str
    arguments: Arguments


@dataclass(frozen=True, slots=True)
class Malformed:
    """What stands where a call should. why: for the policy. is_open: the tag was not closed."""

    why: str
    is_open: bool = False


def visible_text(reply: str) -> str:
    """What a reply says after its thinking; nothing when its thinking is never closed."""
    text = reply.rpartition("</think>")[2]
    return "" if "<think>" in text else text


def parse_calls(text: str) -> tuple[Call | Malformed, ...]:
    """The calls in a reply's visible text, in order. Tags inside a call's JSON strings are part of them. Raises
    nothing, whatever the text."""
    return tuple(_calls(text))


def render_call(name: str, arguments: Arguments) -> str:
    """A call as the policy is to write it, and as Qwen3's template renders one."""
    return f"{OPEN}\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n{CLOSE}"


def _calls(text: str) -> Iterator[Call | Malformed]:
    place = 0
    while True:
        begin, stray = text.find(OPEN, place), text.find(CLOSE, place)
        if stray >= 0 and (begin < 0 or stray < begin):
            yield Malformed(f"{CLOSE} without {OPEN}")
            place = stray + len(CLOSE)
            continue
        if begin < 0:
            return
        begin += len(OPEN)
        call, place = _call(text, begin)
        yield call


def _call(text: str, begin: int) -> tuple[Call | Malformed, int]:
    """The call whose JSON begins at `begin` or after white space, and where to read on."""
    start = begin + len(text[begin:]) - len(text[begin:].lstrip())
    close = text.find(CLOSE, begin)
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        if close < 0:
            return Malformed(f"{OPEN} is not closed", is_open=True), len(text)
        why = error.msg if isinstance(error, json.JSONDecodeError) else "too deep or too long"
        return Malformed(f"the call is not JSON ({why})"), close + len(CLOSE)
    end += len(text[end:]) - len(text[end:].lstrip())
    if not text.startswith(CLOSE, end):
        close = text.find(CLOSE, end)
        if close < 0:
            return Malformed(f"{OPEN} is not closed", is_open=True), len(text)
        return Malformed("the call has more than one JSON value"), close + len(CLOSE)
    return _read(value), end + len(CLOSE)


def _read(value: Any) -> Call | Malformed:
    if not isinstance(value, dict):
        return Malformed("the call is not a JSON object")
    if not isinstance(value.get("name"), str):
        return Malformed("the call has no name")
    if not isinstance(value.get("arguments"), dict):
        return Malformed("the call's arguments are not a JSON object")
    return Call(value["name"], value["arguments"])
