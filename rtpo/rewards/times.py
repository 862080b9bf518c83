"""Compares clock times and ratios, which math-verify reads as pairs or quotients (its issue 14 on GitHub)."""

import re
from fractions import Fraction
from typing import Final

_CLOCK: Final = re.compile(
    r"(?P<hour>\d{1,2}):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d))?\s*(?P<half>[ap]\.?\s*m\.?)?", re.IGNORECASE
)
_PART: Final = r"\d+(?:\.\d+)?"
_RATIO: Final = re.compile(rf"{_PART}(?:\s*(?::|\\colon)\s*{_PART})+")
_COMMAND: Final = re.compile(r"\\(?:text|mathrm)\s*\{([^{}]*)\}|\\[,;: ]")


def equal_times_or_ratios(gold: str, answer: str) -> bool | None:
    """Whether both are the same clock time, such as 3:45, or the same ratio, such as 4 : 6 : 8. None if the gold is
    neither, or if it is a ratio of two numbers and the answer may be its quotient."""
    gold, answer = _plain(gold), _plain(answer)
    if time := _CLOCK.fullmatch(gold):
        other = _CLOCK.fullmatch(answer)
        return other is not None and _are_same_time(time, other)
    if not _RATIO.fullmatch(gold):
        return None
    if not _RATIO.fullmatch(answer):
        return False if gold.count(":") > 1 else None
    return _normalised(gold) == _normalised(answer)


def _plain(text: str) -> str:
    return " ".join(_COMMAND.sub(lambda match: match[1] or " ", text).replace(r"\colon", ":").split())


def _are_same_time(left: re.Match[str], right: re.Match[str]) -> bool:
    if (left["minute"], left["second"] or "00") != (right["minute"], right["second"] or "00"):
        return False
    if left["half"] and right["half"] and left["half"][0].lower() != right["half"][0].lower():
        return False
    # a side may state am or pm, leave it open, or imply it as 15:45 does
    hours = [{int(side["hour"])} | _hour_of_day(side) for side in (left, right)]
    return bool(hours[0] & hours[1])


def _hour_of_day(time: re.Match[str]) -> set[int]:
    if not time["half"]:
        return set()
    return {int(time["hour"]) % 12 + 12 * (time["half"][0].lower() == "p")}


def _normalised(ratio: str) -> list[Fraction]:
    """Each part's share of the sum."""
    parts = [Fraction(part) for part in re.split(r"\s*:\s*", ratio)]
    return [part / (sum(parts) or 1) for part in parts]
