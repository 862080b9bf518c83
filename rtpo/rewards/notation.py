"""Notations that math-verify 0.9.0 reads wrongly, in one table of rewrites to others that it reads."""

import re
import unicodedata
from collections.abc import Callable
from typing import Final

_SUPERSCRIPTS: Final = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_SIGN_TEXTS: Final[dict[int | str, int | str]] = {
    **{code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)},
    **dict.fromkeys("\u2212\u2013\u2012\u2010\u2011", "-"),
    "∞": r"\infty ",
    "π": r"\pi ",
    "×": r"\times ",
    "·": r"\cdot ",
    "÷": r"\div ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "≠": r"\ne ",
    "±": r"\pm ",
    "∪": r"\cup ",
    "∅": r"\emptyset ",
}
_SIGNS: Final = str.maketrans(_SIGN_TEXTS)
_FONTS: Final = r"(?:boldsymbol|underline|bm|mathbf|mathsf|mathtt|mathit|textbf|textit|emph)"
_TEXT: Final = r"\\(?:text|mbox)\s*\{([^{}]*)\}"
_ANGLE: Final = r"[({]?\s*([\d.]+)\s*\^\s*\{?\s*\\circ\s*\}?\s*[)}]?"
_NUMBER: Final = r"-?\d+(?:\.\d+)?"


def _vulgar(match: re.Match[str]) -> str:
    above, below = unicodedata.normalize("NFKC", match[2]).split("\u2044")
    return f"{match[1]}\\frac{{{above}}}{{{below}}}"


def _repeating(match: re.Match[str]) -> str:
    """0.1\\overline{6} as (16 - 1) / 90."""
    whole, fixed, period = match[1], match[2], match[3]
    above = int(whole + fixed + period) - int(whole + fixed)
    return f"\\frac{{{above}}}{{{(10 ** len(period) - 1) * 10 ** len(fixed)}}}"


REWRITES: Final[tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...]] = (
    (re.compile(r"\\(?:text)?color\s*\{[^{}]*\}"), ""),
    # characters for what LaTeX has commands for
    (re.compile(r"(\d?)([\u00bc-\u00be\u2150-\u215e])"), _vulgar),
    (re.compile(r"[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+"), lambda match: f"^{{{match[0].translate(_SUPERSCRIPTS)}}}"),
    (re.compile(r"√\s*(?:\(([^()]*)\)|(\d+|[a-zA-Z]))"), lambda match: f"\\sqrt{{{match[1] or match[2]}}}"),
    # fonts and upright constants
    (re.compile(rf"\\{_FONTS}\s*\{{\s*([-+]?[\d.,]+)\s*\}}"), r"\1"),
    (re.compile(r"\\mathbf\s*\{\s*([RCNQZ])\s*\}"), r"\\mathbb{\1}"),
    (re.compile(r"\{\s*\\(?:mathrm|operatorname|text|textrm)\s*\{\s*([ei])\s*\}\s*\}"), r"{\1}"),
    (re.compile(r"\\(?:mathrm|operatorname|text|textrm)\s*\{\s*([ei])\s*\}"), r" \1 "),
    (re.compile(r"(?<=\d)i(?![a-zA-Z])"), " i"),
    (re.compile(r"\{\s*(\w+)\s*\\choose\s*(\w+)\s*\}"), r"\\binom{\1}{\2}"),
    # layout
    (re.compile(r"\\\\\s*$"), ""),
    (re.compile(r"^\s*\{([^{}]*)\}\s*$"), r"\1"),
    (re.compile(r"(?<=[\d}])\s*~\s*(?=\\(?:text|mathrm|mbox))"), " "),
    (re.compile(r"(?<![\\.])(?<!\\right)[;.,]\s*$"), ""),
    # %, percent and ° at the end are not read: 25\% is 25
    (re.compile(r"\s*(?:\\?%|percent|pct\.?|°)\s*$"), ""),
    # words about a number
    (re.compile(r"^\s*答案\s*[::]?\s*"), ""),
    (re.compile(rf"^\s*({_NUMBER})\s*[个個只隻人元本张張条條件次天岁歲米]\s*$"), r"\1"),
    (re.compile(rf"^\s*\\text\s*\{{\s*({_NUMBER})\s+[a-zA-Z]+\s*\}}\s*$"), r"\1"),
    (re.compile(r"^\s*\\text\s*\{\s*([A-Z][a-z]+)\s*\}\s*(\d+)\s*$"), r"\\text{\1 \2}"),
    (
        re.compile(
            rf"({_NUMBER})\s*\\frac\s*\{{\s*\\text\s*\{{[^{{}}]*\}}\s*\}}\s*\{{\s*\\text\s*\{{[^{{}}]*\}}\s*\}}"
        ),
        r"\1",
    ),
    # other names for the same
    (re.compile(r"\\varnothing(?![a-zA-Z])"), r"\\emptyset"),
    (re.compile(r"\\sqrt\s*\{\s*-\s*1\s*\}"), " i"),
    (re.compile(r"\\log_\s*(?:e(?![a-zA-Z])|\{\s*e\s*\})"), r"\\ln "),
    (re.compile(r"(?:\{\s*\})?_\s*\{?\s*(\d+)\s*\}?\s*C\s*_\s*\{?\s*(\d+)\s*\}?"), r"\\binom{\1}{\2}"),
    (re.compile(r"\\langle(?![a-zA-Z])([^<>|]*,[^<>|]*)\\rangle(?![a-zA-Z])"), r"(\1)"),
    (
        re.compile(rf"\\(?:operatorname\s*\{{\s*cis\s*\}}|cis(?![a-zA-Z]))\s*{_ANGLE}"),
        r"(\\cos(\\frac{\1\\pi}{180})+i\\sin(\\frac{\1\\pi}{180}))",
    ),
    (re.compile(r"(?<![\d.])(\d+)\.(\d*)\\overline\s*\{\s*(\d+)\s*\}"), _repeating),
    (re.compile(rf"(\\(?:sin|cos|tan|cot|sec|csc))\s*{_ANGLE}"), r"\1(\\frac{\2\\pi}{180})"),
    (re.compile(r"^\s*(-?\d+)(?:\s|\\ )+(\d+)\s*/\s*(\d+)\s*$"), r"\1\\frac{\2}{\3}"),
    # a clock time is a pair, and no ratio
    (re.compile(r"^\s*(\d{1,2}):(\d\d)\s*$"), r"(\1,\2)"),
    # from the first text to the last would be one unit
    (
        re.compile(rf"^(?:[^{{}}\\]*\d[^{{}}\\]*{_TEXT}\s*){{2,}}$"),
        lambda match: "(" + ",".join(re.split(r"\\(?:text|mbox)\s*\{[^{}]*\}", match[0])[:-1]) + ")",
    ),
)


def rewritten(text: str) -> str:
    """The text after all rewrites, in the table's order."""
    text = text.translate(_SIGNS)
    for pattern, other in REWRITES:
        text = pattern.sub(other, text)
    return text
