"""A table of rewrites. Each turns a notation that math-verify 0.9.0 misreads into an equal notation that it reads.

Rewrites keep the number's value, but drop its unit or percent sign. Some mend issues of
huggingface/Math-Verify: 14 (`\\mathrm{e}`), 61 (`28 pct`), 76 (`**73**`), 82 (it takes numbers from unreadable text).
"""

import re
import unicodedata
from collections.abc import Callable
from typing import Final, NamedTuple

from rtpo.rewards.units import COUNTED, NUMBER, TEXT, names_what_is_counted

_OPERATORS: Final = {
    "∞": r"\infty ",
    "π": r"\pi ",
    **dict.fromkeys("×✕", r"\times "),
    "·": r"\cdot ",
    "÷": r"\div ",
    "∕": "/",
    "≤": r"\le ",
    "⩽": r"\le ",
    "≥": r"\ge ",
    "⩾": r"\ge ",
    "≠": r"\ne ",
    "±": r"\pm ",
    "∈": r"\in ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∅": r"\emptyset ",
    "√": r"\surd ",
    "∛": r"\surd[3] ",
    "∜": r"\surd[4] ",
    **dict.fromkeys("°º˚", r"^\circ "),
    "‖": r"\|",
    "⟨": r"\langle ",
    "〈": r"\langle ",
    "⟩": r"\rangle ",
    "〉": r"\rangle ",
    "−": "-",
    "∶": ":",
    "…": r"\ldots ",
    "⋯": r"\cdots ",
    **dict.fromkeys("→⟶↦", r"\to "),
    **dict.fromkeys("⇒⟹", r"\implies "),
    **dict.fromkeys("≈≃≅", r"\approx "),
    "∴": r"\therefore ",
    "∉": r"\notin ",
    "∝": r"\propto ",
}
_MULTIPLES: Final = {
    **{
        "hundred": "100",
        "thousand": "10^3",
        "million": "10^6",
        "billion": "10^9",
        "trillion": "10^{12}",
        "dozen": "12",
        "lakh": "10^5",
        "crore": "10^7",
    },
    **{"百": "100", "千": "10^3", "万": "10^4", "萬": "10^4", "亿": "10^8", "億": "10^8", "兆": "10^{12}"},
    **{"백": "100", "천": "10^3", "만": "10^4", "억": "10^8"},
}
_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_GROUP: Final = r"\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}"
BRACED: Final = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
_TAKES_TWO: Final = "[dt]?frac|[dt]?binom"
_CONSTANTS: Final = "pi|alpha|beta|gamma|delta|theta|lambda|mu|phi|varphi|omega|rho|sigma|tau|infty"
_BARE_ARGUMENT: Final = rf"[0-9]|(?<=[^a-zA-Z])[a-zA-Z]|\\(?:{_CONSTANTS})(?![a-zA-Z])"
_WORDS: Final = r"\\(?:text|mathrm)\s*\{[^{}]*\}"
_POWER: Final = r"\^\s*\{?\s*-?\d\s*\}?"
_UNIT: Final = rf"{_WORDS}(?:\s*{_POWER})?"
_BOLD: Final = "boldsymbol|bm|pmb|mathbf"
_ENVIRONMENTS: Final = r"aligned|align\*?|gathered|split|equation\*?|array"
_FONTS: Final = (
    f"{_BOLD}|mathord|mathbin|mathrel|mathop|mathsf|mathtt|mathit|mathnormal|ensuremath|underline|underbrace"
)
_TEXTS: Final = "textbf|textit|textrm|textsf|texttt|textup|textnormal|emph|mbox|hbox"
_NAMES: Final = "ln|log|lg|exp|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|cis"
_DEGREES: Final = r"\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))"
_FRACTION: Final = rf"\\[dt]?frac\s*(?:{_GROUP}|\d)\s*(?:{_GROUP}|\d)"
_ANGLE: Final = rf"(?:{_FRACTION}|\([^()]*\)|{_GROUP}|\d[\d,]*(?:\.\d+)?|\.\d+)"


def _latex_of(letter: str) -> str:
    """Rewrite a character in LaTeX, such as a digit of another script, a dash, a mathematical letter or an operator."""
    if letter.isascii():
        return letter
    if letter in _OPERATORS:
        return _OPERATORS[letter]
    category, decomposed = unicodedata.category(letter), unicodedata.decomposition(letter)
    if category == "Nd":
        return str(unicodedata.decimal(letter))
    if category in ("Cf", "Pd", "Zs"):
        return {"Cf": "", "Pd": "-", "Zs": " "}[category]
    if decomposed.startswith(("<wide>", "<circle>")) or "\U0001d400" <= letter <= "\U0001d7ff":
        return "".join(map(_latex_of, unicodedata.normalize("NFKC", letter)))
    if decomposed.startswith("<font>") and "DOUBLE-STRUCK CAPITAL" in unicodedata.name(letter):
        return f"\\mathbb{{{unicodedata.normalize('NFKC', letter)}}}"
    return letter


def _script_rewrite(kind: str, mark: str) -> tuple[re.Pattern[str], Callable[[re.Match[str]], str]]:
    """Pattern and replacement of Unicode superscripts (super, `^`) or subscripts (sub, `_`) after a base."""
    letters = [chr(code) for code in (*range(0xA0, 0x250), *range(0x2070, 0x20A0), *range(0x1D00, 0x1DC0))]
    chosen = "".join(letter for letter in letters if unicodedata.decomposition(letter).startswith(f"<{kind}>"))

    def plain(match: re.Match[str]) -> str:
        return f"{mark}{{{unicodedata.normalize('NFKC', match[0]).replace(chr(0x2212), '-')}}}"

    return re.compile(rf"(?<=[\w)}}\]])[{chosen}]+"), plain


def _fraction_of(match: re.Match[str]) -> str:
    above, below = unicodedata.normalize("NFKC", match[0]).split("\u2044")
    return f"\\frac{{{above}}}{{{below}}}"


def _repeating(match: re.Match[str]) -> str:
    """Rewrite 0.1\\overline{6} as (16 - 1) / 90."""
    whole, fixed, period = match[1], match[2], re.sub(r"\D", "", match[3])
    above = int(whole + fixed + period) - int((whole + fixed) or "0")
    return f"\\frac{{{above}}}{{{(10 ** len(period) - 1) * 10 ** len(fixed)}}}"


def _in_radians(angles: str) -> str:
    return re.sub(rf"({_ANGLE}){_DEGREES}", r"\\frac{\1\\pi}{180}", angles)


def _function_in_radians(match: re.Match[str]) -> str:
    argument = _in_radians(match["argument"])
    # in parentheses, or a factor behind would count as a part of the argument
    return match[0] if argument == match["argument"] else f"{match['function']}({argument})"


def _cis(match: re.Match[str]) -> str:
    angle = _in_radians(match["angle"])
    return f"(\\cos({angle})+i\\sin({angle}))"


def _binomial_of(match: re.Match[str]) -> str:
    above, below = match["n"].strip("{} "), match["k"].strip("{} ")
    if above.isdigit() and below.isdigit() and int(above) < int(below):
        return match[0]
    return f"\\binom{{{above}}}{{{below}}}"


def _permutation_of(match: re.Match[str]) -> str:
    above, below = match["n"].strip("{} "), match["k"].strip("{} ")
    return f"\\frac{{({above})!}}{{({above}-{below})!}}"


def _with_power(match: re.Match[str]) -> str:
    """Rewrite 5 million as 5\\cdot 10^6. A `\\text` around both, or around the word alone, is dropped."""
    before, end = match["before"] or "", match["end"] or ""
    value = f"{match['number']}\\cdot {_MULTIPLES[match['multiple'].lower()]}"
    if match["between"]:
        return before + value + ("" if end else " \\text{")
    return value if before and end else before + value + end


def _with_month(match: re.Match[str]) -> str:
    (month,) = [name for name in _MONTHS if name[:3].lower() == (match["month"] or match["month_2"])[:3].lower()]
    year = match["year"] or match["year_2"]
    return f"\\text{{{month} {match['day'] or match['day_2']}{f', {year}' if year else ''}}}"


def _vector(match: re.Match[str]) -> str:
    """Rewrite 3 i - 2 j as (3,-2)."""
    parts = {"i": "0", "j": "0"}
    for sign, size, name in re.findall(rf"([-+]?)\s*([^-+]*?)\s*{_UNIT_VECTOR}", match[0]):
        parts[name] = f"{sign.replace('+', '')}{size or '1'}"
    return f"({','.join(parts[name] for name in sorted(parts))})"


_UNIT_VECTOR: Final = rf"\\(?:{_BOLD}|hat|widehat|vec)\s*\{{?\s*(?:\\hat\s*\{{?)?\s*\\?([ijk])(?:math)?\s*\}}*"
_DAY: Final = r"(\d{1,2})(?:\s*\^?\s*\{?\s*(?:st|nd|rd|th)\s*\}?)?"
_MONTH: Final = "|".join(f"{name[:3]}(?:{name[3:]})?" for name in _MONTHS)
_SIDE: Final = r"(?:\{[^{}]*\}|\w)"
_LETTER_C: Final = r"(?:\\(?:mathrm|text)\s*\{\s*C\s*\}|C)"


class Rewrite(NamedTuple):
    """One rewrite of the table."""

    kind: str  # of notation
    pattern: re.Pattern[str]
    replacement: str | Callable[[re.Match[str]], str]
    loops: bool = False  # repeat it until nothing changes, for nested matches


def _rewrite(
    kind: str, pattern: str, replacement: str | Callable[[re.Match[str]], str], loops: bool = False
) -> Rewrite:
    return Rewrite(kind, re.compile(pattern), replacement, loops)


def _without_noun(match: re.Match[str]) -> str:
    return match[1] if names_what_is_counted(match[2]) else match[0]


def _amounts(match: re.Match[str]) -> str:
    """Rewrite 3\\text{ ft }4\\text{ in} as (3,4), on each side of an equation."""
    sides = (",".join(re.split(r"\\text\s*\{[^{}]*\}", side)[:-1]) for side in match[0].split("="))
    return "=".join(f"({side})" if "," in side else side for side in sides)


def _date_as_text(match: re.Match[str]) -> str:
    """Rewrite a text that is a date as one `\\text`; leave any other text."""
    plain = re.sub(r"\\(?:text|mathrm)\s*\{([^{}]*)\}", r"\1", match[0]).replace("\\ ", " ")
    date = _DATE.fullmatch(" ".join(plain.split()))
    return _with_month(date) if date else match[0]


_DATE: Final = re.compile(
    rf"(?:(?P<month>{_MONTH})\.? {_DAY.replace('(', '(?P<day>', 1)}(?:,? (?P<year>\d{{4}}))?"
    rf"|{_DAY.replace('(', '(?P<day_2>', 1)} (?:of )?(?P<month_2>{_MONTH})\.?(?:,? (?P<year_2>\d{{4}}))?)",
    re.IGNORECASE,
)

REWRITES: Final = (
    # characters
    Rewrite("raised", *_script_rewrite("super", "^")),
    Rewrite("lowered", *_script_rewrite("sub", "_")),
    _rewrite("fraction", "[\u00bc-\u00be\u2150-\u215e\u2189]", _fraction_of),
    _rewrite("fraction", "([\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+)\u2044([\u2080-\u2089]+)", _fraction_of),
    _rewrite("fraction", "(\\d+)\u2044(\\d+)", r"\\frac{\1}{\2}"),
    _rewrite("root", r"\\surd(\[\d\])?\s*\(([^()]*)\)", r"\\sqrt\1{\2}"),
    _rewrite("root", r"\\surd(\[\d\])?\s*(\d+|[a-zA-Z](?![a-zA-Z]))", r"\\sqrt\1{\2}"),
    _rewrite("root", r"\\surd(\[\d\])?(?![a-zA-Z])", r"\\sqrt\1"),
    # layout
    _rewrite("colour", r"\\(?:text)?color\s*\{[^{}]*\}", ""),
    _rewrite("tie", r"~", " "),
    _rewrite("space", r"\\[hv]space\*?\s*\{[^{}]*\}", " "),
    _rewrite("dots", r"\.\.\.", r"\\ldots "),
    _rewrite("factorial", r"\\text\s*\{\s*!\s*\}", "!"),
    _rewrite("colon", r"\{:\}", ":"),
    _rewrite(
        "environment", rf"\\begin\{{({_ENVIRONMENTS})\}}(?:\{{[clr|]*\}})?((?:(?!\\\\|&).)*?)\\end\{{\1\}}", r"\2"
    ),
    _rewrite("bracket", r"\\(?:left|right)\s*(?=[()\[\]<>]|\\[lr]angle|\\\||\\[lr]?Vert)", ""),
    _rewrite("limit", r"\\lim\s*\\(?:no)?limits(?![a-zA-Z])", r"\\lim"),
    _rewrite("limit", r"(\\lim\s*_\s*\{[^{}]*)\\(?:long)?rightarrow(?![a-zA-Z])", r"\1\\to "),
    _rewrite("size", r"\\(?:displaystyle|textstyle|tiny|small|normalsize|large|Large|LARGE|huge|Huge)(?![a-zA-Z])", ""),
    _rewrite("dollar", r"^\s*(?:\$+|\\\()(.*?)(?:\$+|\\\))\s*$", r"\1"),
    _rewrite("marks", r"^\s*\*\*([^*]+)\*\*\s*$", r"\1"),
    _rewrite("dollar", r"\\text\s*\{\s*\\?\$\s*\}", ""),
    # bare arguments, as in \frac\pi4 and \sqrt2
    _rewrite("braces", rf"\\({_TAKES_TWO}|sqrt(?:\[\d\])?)\s*({_BARE_ARGUMENT})", r"\\\1{\2}"),
    _rewrite("braces", rf"\\({_TAKES_TWO})\s*({BRACED})\s*({_BARE_ARGUMENT})", r"\\\1\2{\3}"),
    # fonts
    _rewrite("font", r"\{\s*\\(?:rm|bf|it|sf|tt)(?![a-zA-Z])([^{}]*)\}", r"\\mathrm{\1}"),
    _rewrite("font", r"\\(?:rm|bf|it|sf|tt)(?![a-zA-Z])\s*\{", r"\\mathrm{"),
    _rewrite("font", r"\\(?:rm|bf|it|sf|tt)(?![a-zA-Z])\s*([a-zA-Z]+|\d+)", r"\\mathrm{\1}"),
    _rewrite("font", r"\\(?:mathbb|Bbb)\s*\{?\s*([RCNQZ])\s*\}?", r"\\mathbb{\1}"),
    _rewrite("font", r"\\([RNQZ])(?![a-zA-Z])", r"\\mathbb{\1}"),
    _rewrite(
        "font",
        rf"\\({_FONTS}|mathrm|text)\s*(\\[a-zA-Z]+(?!\s*\{{)|(?<![a-zA-Z])\d|(?<=\s)[a-zA-Z](?![a-zA-Z]))",
        r"\\\1{\2}",
    ),
    _rewrite("vector", rf"^\s*(?:[-+]?[^-+,=]*?{_UNIT_VECTOR}\s*){{2,3}}$", _vector),
    _rewrite("font", rf"\\(?:{_BOLD})\s*\{{\s*([RCNQZ])\s*\}}", r"\\mathbb{\1}"),
    _rewrite("font", rf"\\(?:{_TEXTS})\s*\{{", r"\\text{"),
    _rewrite("font", rf"\\(?:{_FONTS})\s*{_GROUP}", r"\1", loops=True),
    _rewrite("font", rf"\\(?:text|mathrm)\s*\{{\s*({NUMBER})\s*\}}", r"\1"),
    # upright constants and functions
    _rewrite("upright", rf"\\(?:operatorname|text|mathrm)\s*\*?\s*\{{\s*({_NAMES})\s*\}}", r"\\\1 "),
    _rewrite("upright", r"\{\s*\\(?:mathrm|operatorname|text)\s*\{\s*([ei])\s*\}\s*\}", r"{\1}"),
    _rewrite("upright", r"\\(?:mathrm|operatorname|text)\s*\{\s*([ei]|\\[a-z]+)\s*\}", r" \1 "),
    _rewrite("upright", r"\\(?:imath|mathrm\{\\imath\})(?![a-zA-Z])", " i "),
    _rewrite("upright", r"\\uppi(?![a-zA-Z])", r"\\pi "),
    _rewrite("upright", r"(?<=\d)i(?![a-zA-Z])", " i"),
    # spaces, breaks and marks at either end
    _rewrite(
        "ends",
        r"(?:\\\\(?:\[[^\]]*\])?|\\[,;:! ]|\s"
        r"|\\(?:newline|hfill|q?quad|notag|nonumber|qed|blacksquare|square)(?![a-zA-Z]))+$",
        "",
    ),
    _rewrite("ends", r"^(?:\\\\|\\q?quad(?![a-zA-Z])|\\[,;:! ]|&|\s)+", ""),
    _rewrite("ends", r"^\s*\{([^{}]*)\}\s*$", r"\1"),
    _rewrite("ends", r"(?<![\\.])(?<!\\right)[;.,。]\s*$", ""),
    # what leads to the answer
    _rewrite("answer", r"^\s*(?:(?:答案|答|结果|結果|解)\s*(?:[::=]|是|为|為)|总共|總共|一共|共计|合計|共)\s*", ""),
    _rewrite("answer", r"(?i)^\s*\\text\s*\{(?:the )?(?:final )?answer(?: is)?\s*:?\s*\}\s*:?", ""),
    _rewrite("answer", rf"(?i)^\s*\\text\s*\{{(?:the )?(?:final )?answer(?: is)?\s*:?\s*({NUMBER})\s*\}}$", r"\1"),
    _rewrite("sign", r"\\(?:simeq|sim|cong|approxeq|doteq)\s*(?=[-+.\d])", r"\\approx "),
    _rewrite(
        "sign",
        r"^\s*(?:(?::?=|\\(?:approx|equiv|therefore|because|to|implies|iff|(?:[lL]ong)?(?:[lL]eft)?[rR]ightarrow)"
        r"(?![a-zA-Z]))\s*)+",
        "",
    ),
    # exponents as programs print them. 2e3 stays, since it may be a product with Euler's number
    _rewrite("exponent", r"^\s*([-+]?\d+\.\d+)[eE]([-+]?\d+)\s*$", r"\1\\times 10^{\2}"),
    _rewrite("exponent", r"^\s*([-+]?\d+)[eE]([-+]\d{2,})\s*$", r"\1\\times 10^{\2}"),
    # a final % or percent does not count: 25\% equals 25; nor does a C or F after a °
    _rewrite(
        "percent",
        r"(?i)\s*(?:\\*%|percent(?:age(?: points?)?)?|per cent|pct\.?|\\text\s*\{\s*(?:\\?%|per ?cent|pct\.?)\s*\})"
        r"(?:\s*\\text\s*\{ [a-z ]*\})?\s*$",
        "",
    ),
    _rewrite("degree", r"\\degree(?![a-zA-Z])", r"^\\circ "),
    _rewrite("degree", rf"({_DEGREES})\s*(?:[CF]|\\(?:text|mathrm)\s*\{{\s*[CF]\s*\}})\s*$", r"\1"),
    _rewrite("ordinal", r"(\d)\s*\^\s*\{?\s*\\(?:text|mathrm)\s*\{\s*(?:st|nd|rd|th)\s*\}\s*\}?", r"\1"),
    # words about a number
    _rewrite("date", r"^.*(?:" + _MONTH + r").*$", _date_as_text),
    _rewrite("mixed", r"^\s*\\text\s*\{\s*(-?\d+\s+\d+\s*/\s*\d+)(?!\d)([^{}]*)\}\s*$", r"\1\2"),
    _rewrite(
        "mixed",
        rf"^(\s*(?:\\?\$)?-?\d+)(?:\s|\\ )+(\d+)\s*/\s*(\d+)(?=(?:\s|\\[,;: ])*(?:$|=|{_UNIT}|[a-zA-Z]{{2}}))",
        r"\1\\frac{\2}{\3}",
    ),
    _rewrite(
        "multiple",
        rf"(?i)(?P<before>\\text\s*\{{\s*)?(?P<number>{NUMBER}|(?:-?\d+\s*)?{_FRACTION})\s*"
        r"(?P<between>\\text\s*\{)?\s*(?!千[米克瓦])"
        rf"(?P<multiple>{'|'.join(_MULTIPLES)})s?(?=[\s}}]|$|[^\W\da-z_])(?P<end>\s*\}})?",
        _with_power,
    ),
    _rewrite("counter", rf"(?<=[\d)}}])\s*{COUNTED}\s*$", ""),
    _rewrite("counter", rf"^\s*\\text\s*\{{\s*({NUMBER})\s*{COUNTED}\s*\}}$", r"\1"),
    _rewrite("words", rf"^\s*\\text\s*\{{\s*({NUMBER})\s+([^{{}}]*)\}}\s*$", _without_noun),
    _rewrite("unit", rf"(?<=[\d}}])(?:\s|\\[,;: ])*\\[dt]?frac\s*\{{\s*{_UNIT}\s*\}}\s*\{{\s*{_UNIT}\s*\}}\s*$", ""),
    _rewrite("unit", rf"(?<=[\d}}])(?:\s|\\[,;: ])*{_UNIT}\s*/\s*{_UNIT}\s*$", ""),
    _rewrite("unit", rf"(?<=[\d}}])(?:\s|\\[,;: ])*(?:\\Omega|\\mu\s*{_UNIT}|\\unit\s*\{{[^{{}}]*\}})\s*$", ""),
    _rewrite("unit", rf"\\(?:SI|qty)\s*\{{({NUMBER})\}}\s*\{{[^{{}}]*\}}", r"\1"),
    _rewrite("unit", rf"(?<=\\pi)((?:\s|\\[,;: ])*{_WORDS})\s*{_POWER}\s*$", r"\1"),
    # other notations of sets, logarithms, binomials, intervals, vectors, decimals and angles
    _rewrite("set", r"\\varnothing(?![a-zA-Z])", r"\\emptyset"),
    _rewrite("set", r"\\([lr])brace(?![a-zA-Z])", lambda match: "\\{" if match[1] == "l" else "\\}"),
    _rewrite("norm", r"\\(?:\||[lr]?Vert(?![a-zA-Z]))", "|"),
    _rewrite("imaginary", r"\\sqrt\s*\{\s*-\s*1\s*\}", " i"),
    _rewrite("log", r"\\log_\s*(?:e(?![a-zA-Z])|\{\s*e\s*\})", r"\\ln "),
    _rewrite("log", r"\\lg(?![a-zA-Z])", r"\\log_{10} "),
    _rewrite(
        "binomial",
        r"\{\s*(\{[^{}]*\}|[^{}]*?)\s*\\choose\s*(\{[^{}]*\}|[^{}]*?)\s*\}",
        lambda match: "\\binom{" + match[1].strip("{}") + "}{" + match[2].strip("{}") + "}",
    ),
    _rewrite("binomial", r"^\s*([^{}]*?)\s*\\choose\s*([^{}]*?)\s*$", r"\\binom{\1}{\2}"),
    _rewrite(
        "binomial",
        rf"\\[dt]?binom\s*(?P<n>{_SIDE})\s*(?P<k>{_SIDE})",
        lambda match: f"\\binom{{{match['n'].strip('{}')}}}{{{match['k'].strip('{}')}}}",
    ),
    _rewrite("binomial", rf"(?:\{{\s*\}})?[_^]\s*(?P<n>{_SIDE})\s*{_LETTER_C}\s*_\s*(?P<k>{_SIDE})", _binomial_of),
    _rewrite("binomial", rf"{_LETTER_C}\s*_\s*(?P<n>{_SIDE})\s*\^\s*(?P<k>{_SIDE})", _binomial_of),
    _rewrite("binomial", rf"{_LETTER_C}\s*\^\s*(?P<k>{_SIDE})\s*_\s*(?P<n>{_SIDE})", _binomial_of),
    _rewrite("binomial", r"^\s*(?P<n>\d+)\s*C\s*(?P<k>\d+)\s*$", _binomial_of),
    _rewrite("permutation", rf"(?:\{{\s*\}})?[_^]\s*(?P<n>{_SIDE})\s*P\s*_\s*(?P<k>{_SIDE})", _permutation_of),
    _rewrite("interval", r"^\s*\]([^\[\]]*,[^\[\]]*)(?=[\[\]]\s*$)", r"(\1"),
    _rewrite("interval", r"^(\s*[(\[][^\[\]]*,[^\[\]]*)\[\s*$", r"\1)"),
    _rewrite("vector", r"\\langle(?![a-zA-Z])([^<>|]*,[^<>|]*)\\rangle(?![a-zA-Z])", r"(\1)"),
    _rewrite("vector", r"^\s*<([^<>]*,[^<>]*)>\s*$", r"(\1)"),
    _rewrite(
        "vector", r"^\s*[(\[]([^()\[\]]*,[^()\[\]]*)[)\]]\s*\^\s*\{?\s*(?:T|\\top|\\mathrm\{T\})\s*\}?\s*$", r"(\1)"
    ),
    _rewrite("vector", r"^\s*\\(?:vec|overrightarrow)\s*\{?\s*\w+\s*\}?\s*=\s*(?=[(\\])", ""),
    _rewrite("cis", r"\\cis(?![a-zA-Z])(?:\s|\\,)*(?:\((?P<angle>(?:[^()]|\([^()]*\))*)\))", _cis),
    _rewrite(
        "cis",
        rf"\\cis(?![a-zA-Z])(?:\s|\\,)*(?:\{{\s*)?(?P<angle>-?[\d.]+{_DEGREES}|-?\d*\s*{_FRACTION}(?:\s*\\pi)?|-?\d*\s*\\pi(?:\s*/\s*\d+)?|\\[a-z]+|[a-z])(?:\s*\}})?",
        _cis,
    ),
    _rewrite("repeating", "(?<![\\d.])(\\d*)\\.(\\d*?)((?:\\d\u0305)+)", _repeating),
    _rewrite("repeating", r"(?<![\d.])(\d*)\.(\d*)\\(?:overline|bar)\s*(\{\s*\d+\s*\}|\d)", _repeating),
    _rewrite(
        "repeating", r"(?<![\d.])(\d*)\.(\d*)(\\dot\s*\{?\s*\d\s*\}?(?:\s*\d*\s*\\dot\s*\{?\s*\d\s*\}?)?)", _repeating
    ),
    _rewrite("repeating", r"^\s*(\d*)\.(\d*)(\(\d+\))\s*$", _repeating),
    _rewrite(
        "degree",
        rf"(?P<function>\\(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])\s*(?:\^\s*(?:\d|{_GROUP}))?)(?:\s|\\[,;:! ])*"
        rf"(?P<argument>-?\s*{_ANGLE}{_DEGREES}|\((?:[^()]|\([^()]*\))*\)|{_FRACTION}|{_GROUP})",
        _function_in_radians,
    ),
    # numbers with units become a tuple; math-verify would read the text from the first unit to the last as one unit
    _rewrite(
        "units",
        rf"^(?:[^{{}}\\]*\d[^{{}}\\]*{TEXT}\s*){{2,}}$",
        _amounts,
    ),
)


def in_latex(text: str) -> str:
    """Rewrite the non-ASCII characters of a text as LaTeX commands, ASCII digits and plain letters."""
    return text if text.isascii() else "".join(map(_latex_of, text))


def rewritten(text: str) -> str:
    """The text after all rewrites, in the table's order."""
    text = in_latex(text)
    for rewrite in REWRITES:
        before, text = text, rewrite.pattern.sub(rewrite.replacement, text)
        while rewrite.loops and text != before:
            before, text = text, rewrite.pattern.sub(rewrite.replacement, text)
    return text
