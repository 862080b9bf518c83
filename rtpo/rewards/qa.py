"""Scores short answers to questions, in training and evaluation alike (docs/run/tools.md).

`tokenize` splits a text into tokens. A prediction's tokens are scored against each accepted answer (alias); the best
score counts.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

_ARTICLES: Final = frozenset({"a", "an", "the"})
_YES_NO: Final = frozenset({"yes", "no"})
_SINGLE = re.compile("[\u3005\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
"""ideographs and kana, which are written without spaces"""
_THOUSANDS = re.compile(r",\d{3}(?!\d)")
_WRAPPER = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|emph|operatorname|boxed|fbox)\s*(?=\{)")
"""LaTeX commands around words in a box"""
_RANGE = re.compile(r"(?<=\d)-{2,3}(?=\d)")
"""LaTeX's dash between two numbers"""
_CURRENCIES: Final = "".join(letter for letter in map(chr, range(0x2100)) if unicodedata.category(letter) == "Sc")
_RELATIONS: Final = "=<>≤≥≈"
_DEBT = re.compile(rf"(?<![^\s(\[{{{_RELATIONS}])-([{_CURRENCIES}])(?=\.?\d)")
"""a minus before a currency sign, as in -$5"""
_SIGNED = re.compile(r"-\.?(?=\d)|\.(?=\d)")

Tokens = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QAScore:
    """A prediction's scores, each the best over the accepted answers."""

    exact: bool  # same tokens
    f1: float  # token F1, in [0, 1]
    span_f1: float  # the best token F1 of a span of the prediction, in [0, 1]


def score(answers: Sequence[str], prediction: str) -> QAScore:
    """Score a prediction against accepted answers. An empty prediction scores 0. Raises ValueError if no accepted
    answer has a token."""
    golds, predicted = _accepted(answers), tokenize(prediction)
    return QAScore(
        exact=predicted in golds,
        f1=max(_f1(predicted, gold) for gold in golds),
        span_f1=max(_span_f1(predicted, gold) for gold in golds),
    )


def output_hit(answers: Sequence[str], texts: Iterable[str]) -> bool:
    """Whether one of the texts contains the tokens of an accepted answer, one after another.

    texts: the final answer, or all texts that the policy wrote, without tool outputs. Raises ValueError if no accepted
    answer has a token.
    """
    golds = [f" {' '.join(gold)} " for gold in _accepted(answers)]
    return any(gold in f" {' '.join(tokenize(text))} " for text in texts for gold in golds)


def tokenize(text: str) -> Tokens:
    """The tokens of a text after NFKC and lower case.

    - White space and LaTeX's text commands, as in `\\text{Paris}`, separate tokens. Each ideograph or kana is a token.
    - Punctuation, symbols and invisible characters are removed, but a minus sign or point that begins a number stays,
      also behind a relation (`x=-3`) and before a currency sign (`-$5`).
    - Between two digits, a decimal point stays, a thousands comma is removed, and any other mark separates tokens.
    - The articles a, an and the are removed. Articles or punctuation stay if nothing else would be left.
    """
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).lower()).replace("\u2212", "-")
    text = _RANGE.sub("-", _WRAPPER.sub(" ", re.sub(r"(?<=\w)\\?~(?=\w)", " ", text)))
    text = "".join(c for c in text if c.isspace() or unicodedata.category(c) not in ("Cc", "Cf"))
    text = _DEBT.sub(r"\1-", text)
    signs = {
        number.start(): number.group() for number in _SIGNED.finditer(text) if _may_begin_number(text, number.start())
    }
    parts = (f" {signs[place]}" if place in signs else _replacement(text, place) for place in range(len(text)))
    tokens = "".join(parts).split() or text.split()
    return tuple(token for token in tokens if token not in _ARTICLES) or tuple(tokens)


def _may_begin_number(text: str, place: int) -> bool:
    """Whether a number may begin at `place`."""
    before = text[place - 1 : place]
    return not before or before.isspace() or before in _RELATIONS or unicodedata.category(before) in ("Ps", "Pi", "Sc")


def _replacement(text: str, place: int) -> str:
    """The text that replaces the character at `place`."""
    mark = text[place]
    if unicodedata.category(mark)[0] not in "PS":
        return f" {mark} " if _SINGLE.match(mark) else mark
    before, after = text[place - 1 : place], text[place + 1 : place + 2]
    if before.isdecimal() and after.isdecimal():
        if mark == ".":
            return mark
        return "" if _THOUSANDS.match(text, place) else " "
    return ""


def _accepted(answers: Sequence[str]) -> list[Tokens]:
    if isinstance(answers, str):
        raise ValueError(f"answers is the text {answers!r}: give a tuple of accepted answers")
    golds = [gold for gold in map(tokenize, answers) if gold]
    if not golds:
        raise ValueError(f"no accepted answer has a token: {answers!r}")
    return golds


def _is_yes_no(tokens: Tokens) -> bool:
    return len(tokens) == 1 and tokens[0] in _YES_NO


def _f1(predicted: Tokens, gold: Tokens) -> float:
    """2 |predicted ∩ gold| / (|predicted| + |gold|) for multisets. If either side is yes or no, 1 for equal sides, else
    0."""
    if _is_yes_no(predicted) or _is_yes_no(gold):
        return float(predicted == gold)
    common = (Counter(predicted) & Counter(gold)).total()
    return 2 * common / (len(predicted) + len(gold))


def _span_f1(predicted: Tokens, gold: Tokens) -> float:
    """The largest token F1 of a span of `predicted`. If either side is yes or no, the result is `_f1`, because many
    texts contain these words.

    Among the spans with m common tokens, the shortest span is best. A sliding window finds it, so the whole search
    takes O(|predicted| |gold|).
    """
    if _is_yes_no(predicted) or _is_yes_no(gold):
        return _f1(predicted, gold)
    best = 0.0
    for common in range((Counter(predicted) & Counter(gold)).total(), 0, -1):
        if 2 * common / (common + len(gold)) <= best:
            break
        best = max(best, 2 * common / (_shortest_span(predicted, gold, common) + len(gold)))
    return best


def _shortest_span(predicted: Tokens, gold: Tokens, common: int) -> int:
    """Length of the shortest span that shares `common` tokens with `gold`. Such a span must exist."""
    needed, counts = Counter(gold), Counter[str]()
    places = [place for place, token in enumerate(predicted) if token in needed]
    shortest, shared, first = len(predicted), 0, 0
    for last in places:
        counts[predicted[last]] += 1
        shared += counts[predicted[last]] <= needed[predicted[last]]
        while shared == common:
            shortest = min(shortest, last - places[first] + 1)
            counts[predicted[places[first]]] -= 1
            shared -= counts[predicted[places[first]]] < needed[predicted[places[first]]]
            first += 1
    return shortest
