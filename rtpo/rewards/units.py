"""Decides whether words behind a number name what it counts (`5 red apples`) or change its value (`5 halves`).

Words that change a value are listed, by kind. All other words may stand before a plural noun or a unit.
"""

import re
from typing import Final

TEXT: Final = r"\\text\s*\{([^{}]*)\}"
NUMBER: Final = r"[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)"
_CJK_VALUES: Final = (
    "零〇一二三四五六七八九十百千万萬亿億兆京垓분반백천만억분之点點加减減乘除负負或和与與及至到不非无無"
    "半倍割折成以上下未満满平立方乗階阶左右多余几幾约約"
)
"""characters that change the value of the number before them, or continue the number"""
_COUNTERS: Final = (
    "个個箇颗顆粒只隻本张張枚人名位元円圆圓块塊角分秒时時天日周週月年岁歳歲次回种種支枝条條台臺辆輛架层層页頁杯瓶盒包袋箱双雙对對"
    "组組队隊家所间間门門道题題步级級度公斤吨噸米尺升里寸克厘毫件套根朵棵株头頭匹羽冊册首篇座艘場场番号號通小"
    "つキメグセミリトドペ개명마리권장대살번시초원달미"
)
"""characters with which counters and units begin"""
_CJK: Final = r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
COUNTED: Final = (
    rf"(?:(?:平方|立方)?[千公厘毫分]?[米里克升斤尺]|(?![{_CJK_VALUES}])[{_COUNTERS}](?:(?![{_CJK_VALUES}]){_CJK})*)"
)
"""matches a counter or unit, and the noun behind it"""
_NUMBERS: Final = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million billion trillion
    dozen lakh crore score tens hundreds thousands millions billions trillions dozens lakhs crores
"""
_PARTS: Final = """
    half third quarter fourth fifth sixth seventh eighth ninth tenth eleventh twelfth twentieth hundredth thousandth
    millionth halves thirds quarters fourths fifths sixths sevenths eighths ninths tenths elevenths twelfths twentieths
    hundredths thousandths millionths basis permille mille percentile
"""
_OPERATIONS: Final = """
    squared cubed factorial choose plus minus over mod modulo negative doubled tripled halved divided multiplied
    remainder root sqrt log ln point power raised pi infinity twice thrice inverse reciprocal
    k x y z n
"""
_DENIALS: Final = "not no nor never or than below above wrong false incorrect impossible undefined except unless"
_JOINS: Final = "and of by to from times out"
"""words that may join two numbers; alone they change no value, but they end a noun phrase"""
_UNIT_WORDS: Final = """
    hour minute second day week month year decade century dollar cent euro pound yen mile yard foot inch meter metre
    kilometer kilometre centimeter centimetre millimeter millimetre gram kilogram ounce ton tonne liter litre gallon
    degree radian way person unit people children men women feet mice geese teeth percent hertz joule watt volt newton
    pascal kelvin celsius fahrenheit deg oclock old
"""
_SYMBOLS: Final = re.compile(
    r"(?:[mckμ]?m|[kmμ]?g|[mkc]?[lL]|ft|in|yd|mi|lbs?|oz|hrs?|h|mins?|secs?|s|ms|mph|kph|km/h|m/s|sq|cu|USD|EUR|AM|PM"
    r"|[kM]?(?:Hz|J|W|V|N|Pa|A|eV)|K|C|F|mol|rad)(?:\s*\^\s*\{?\s*-?[23]\s*\}?)?"
)
VALUE_WORDS: Final = frozenset(f"{_NUMBERS} {_PARTS} {_OPERATIONS} {_DENIALS}".split())
"""words that change the value of the number beside them"""
_NOUN_BREAKERS: Final = VALUE_WORDS | frozenset(_JOINS.split())
_UNITS: Final = frozenset(_UNIT_WORDS.split())


def changes_value(words: str, symbols: frozenset[str] = frozenset()) -> bool:
    """Whether a word changes the value of the number beside it, or denies the number. Symbols change nothing."""
    return not VALUE_WORDS.isdisjoint(set(_split(words.lower())) - symbols)


def names_what_is_counted(words: str) -> bool:
    """Whether words are a unit or a plural noun. Words that keep the number's value may stand before the noun; `of` and
    further words may stand behind it."""
    words, _, words_after_of = words.partition(" of ")
    if re.search(r"[^a-zA-Z ]", words_after_of) or not _NOUN_BREAKERS.isdisjoint(_split(words_after_of.lower())):
        return False
    parts = _split(words)
    if not parts or not _NOUN_BREAKERS.isdisjoint(part.lower() for part in parts):
        return False
    last = parts[-1]
    is_plural = len(last) > 3 and last.endswith("s") and last.isalpha()
    is_unit = last.lower() in _UNITS or _SYMBOLS.fullmatch(last) is not None
    return (is_plural or is_unit) and all(re.fullmatch(r"[^\W\d_][\w/^{}-]*", part) for part in parts)


def _split(words: str) -> list[str]:
    return [part for part in re.split(r"[\s.,;:!?()]+", words) if part]


_BARE: Final = re.compile(rf"\s*{NUMBER}\s*|\s*-?\\[dt]?frac\s*(?:\{{\d+\}}|\d)\s*(?:\{{\d+\}}|\d)\s*")
_WORDED: Final = re.compile(r"(?P<number>.*[\d}])(?:\s|\\[,;:! ])+(?P<words>[a-zA-Z][^\\]*)")
_WORDS: Final = re.compile(r"\\(?:text|mathrm)\s*\{([^{}]*)\}|(?<![\\a-zA-Z])([a-zA-Z]{2,}(?:[\s-]+[a-zA-Z]+)*)")
_REMARK: Final = re.compile(
    r"\\(?:text|mathrm)\s*\{\s*(?:[,;(]|(?:where|when|if|for|with|provided|given|assuming|as)\b).*", re.DOTALL
)
"""a condition or comment behind a value, as in `2x\\text{ where }x\\text{ is not 0}`"""


def without_words(gold: str, answer: str) -> str:
    """The answer without a unit or words after its number, if the gold is a bare number."""
    if _BARE.fullmatch(gold) and (match := _WORDED.fullmatch(answer)) and names_what_is_counted(match["words"]):
        return match["number"]
    return answer


def says_another_value(gold: str, answer: str) -> bool:
    """Whether an answer's words give its value another value. Examples are `5 halves`, `5\\text{ times 3}` and
    `3x\\text{ squared}`, whose words math-verify would drop. A gold may have such words itself.

    Beside a gold that is not a number, letters are products, so there only words in `\\text` behind a value count.
    """
    if _BARE.fullmatch(gold):
        symbols, matches = frozenset[str](), list(_WORDS.finditer(answer))
    elif any(changes_value(match[1] or match[2]) for match in _WORDS.finditer(gold)):
        return False
    else:
        symbols = frozenset(re.sub(r"\\[a-zA-Z]+", "", gold).lower())
        answer = _REMARK.sub("", answer).rpartition("=")[2]  # a label may stand before
        matches = [match for match in _WORDS.finditer(answer) if match[1] and answer[: match.start()].strip()]
    return any(changes_value(match[1] or match[2], symbols) or _joins_numbers(answer, match) for match in matches)


def _joins_numbers(answer: str, words: re.Match[str]) -> bool:
    """Whether a number stands before a text and another number in it, as in `5\\text{ times 3}`. A unit's power, as in
    `m2`, does not count."""
    return bool(re.search(r"\d", answer[: words.start()]) and re.search(r"(?:^|[\s(])\d", words[1] or ""))
