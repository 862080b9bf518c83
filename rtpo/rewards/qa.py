"""Scores of short answers to questions, the same in training and evaluation (docs/run/tools.md).

A text becomes tokens by one rule, `tokenize`. A prediction is scored against each accepted answer (alias) by its
tokens, and the best score counts.
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
"""LaTeX around the words of a box"""
_RANGE = re.compile(r"(?<=\d)-{2,3}(?=\d)")
"""LaTeX's dash between numbers"""
_SIGNED = re.compile(r"-\.?(?=\d)|\.(?=\d)")

Tokens = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QAScore:
    """The best over the accepted answers, each score by itself; f1 and span_f1 in [0, 1].

    exact: same tokens. f1: token F1. span_f1: token F1 of the best run of consecutive tokens of the prediction.
    """

    exact: bool
    f1: float
    span_f1: float


def score(answers: Sequence[str], prediction: str) -> QAScore:
    """A prediction against accepted answers. An empty prediction scores 0.

    Raises ValueError where no accepted answer has a token.
    """
    golds, said = _accepted(answers), tokenize(prediction)
    return QAScore(
        exact=said in golds,
        f1=max(_f1(said, gold) for gold in golds),
        span_f1=max(_span_f1(said, gold) for gold in golds),
    )


def output_hit(answers: Sequence[str], texts: Iterable[str]) -> bool:
    """Whether one of the texts contains the tokens of an accepted answer, one after another.

    The texts are either the final answer's alone, or all that the policy wrote; never what a tool returned. Raises
    ValueError where no accepted answer has a token.
    """
    golds = [f" {' '.join(gold)} " for gold in _accepted(answers)]
    return any(gold in f" {' '.join(tokenize(text))} " for text in texts for gold in golds)


def tokenize(text: str) -> Tokens:
    """The tokens of a text after NFKC and lower case.

    LaTeX's commands for text, as in `\\text{Paris}`, and white space part tokens, and an ideograph or kana is one by
    itself. Punctuation, symbols and invisible characters are removed, except in and before numbers: between two digits
    a decimal point stays, a comma before three digits goes and any other mark parts tokens; a minus or point that
    begins a number stays. The articles a, an and the are left out. Where nothing would be left without punctuation, or
    without articles, these are kept.
    """
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).lower()).replace("\u2212", "-")
    text = _RANGE.sub("-", _WRAPPER.sub(" ", re.sub(r"(?<=\w)\\?~(?=\w)", " ", text)))
    text = "".join(c for c in text if c.isspace() or unicodedata.category(c) not in ("Cc", "Cf"))
    signs = {number.start(): number.group() for number in _SIGNED.finditer(text) if _begins(text, number.start())}
    written = (f" {signs[place]}" if place in signs else _written(text, place) for place in range(len(text)))
    tokens = "".join(written).split() or text.split()
    return tuple(token for token in tokens if token not in _ARTICLES) or tuple(tokens)


def _begins(text: str, place: int) -> bool:
    """Whether a number may begin there."""
    before = text[place - 1 : place]
    return not before or before.isspace() or unicodedata.category(before) in ("Ps", "Pi", "Sc")


def _written(text: str, place: int) -> str:
    """What becomes of one character."""
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


def _f1(said: Tokens, gold: Tokens) -> float:
    """2 |said ∩ gold| / (|said| + |gold|), of multisets. With yes or no on either side 1 or 0, as the answers are
    the same or not."""
    if _is_yes_no(said) or _is_yes_no(gold):
        return float(said == gold)
    common = (Counter(said) & Counter(gold)).total()
    return 2 * common / (len(said) + len(gold))


def _span_f1(said: Tokens, gold: Tokens) -> float:
    """The largest token F1 of a span of `said`. With yes or no on either side it is `_f1`: a span would find them in
    any text.

    The best span with m tokens in common is the shortest one. One pass of two ends finds it, so all of them take
    O(|said| |gold|).
    """
    if _is_yes_no(said) or _is_yes_no(gold):
        return _f1(said, gold)
    best = 0.0
    for common in range((Counter(said) & Counter(gold)).total(), 0, -1):
        if 2 * common / (common + len(gold)) <= best:
            break
        best = max(best, 2 * common / (_shortest_span(said, gold, common) + len(gold)))
    return best


def _shortest_span(said: Tokens, gold: Tokens, common: int) -> int:
    """Tokens in the shortest span that has `common` in common with `gold`; there is one."""
    wanted, held = Counter(gold), Counter[str]()
    places = [place for place, token in enumerate(said) if token in wanted]
    shortest, shared, first = len(said), 0, 0
    for last in places:
        held[said[last]] += 1
        shared += held[said[last]] <= wanted[said[last]]
        while shared == common:
            shortest = min(shortest, last - places[first] + 1)
            held[said[places[first]]] -= 1
            shared -= held[said[places[first]]] < wanted[said[places[first]]]
            first += 1
    return shortest
