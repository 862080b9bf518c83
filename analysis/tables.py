"""A table as a specification, and its three formats."""

import csv
import io
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import fsum
from pathlib import Path

from analysis.intervals import Interval
from analysis.pages.markdown import changed, ruled, told_stale, write
from analysis.records import RunGroup

NOT_RUN = "not run"
NO_VALUE = "—"
UNKNOWN = "unknown"
SUPPORTED, CONTRADICTED, UNDECIDED = "supported", "contradicted", "undecided"
FEW_RUNS = 5
"""a verdict on fewer runs, or pairs of runs, than these says on how many"""
INTERVALS = (
    "They are t intervals over runs, those of one warm start compared with each other, widened by what other questions "
    "would change, and never narrower than over the questions alone. They hold for few runs too, if these spread "
    "roughly normally, and do not cover other warm starts. Where no warm start has two runs they are over questions "
    "alone and say nothing of other runs."
)
"""what is to be said of those over runs"""
MINUS = "−"
LEGEND = {
    NOT_RUN: f"“{NOT_RUN}”: there are no such runs, or they have no such evaluation.",
    NO_VALUE: f"“{NO_VALUE}”: the runs give this no value.",
    UNKNOWN: f"“{UNKNOWN}”: the records, of an earlier version, do not count it, or the engine does not tell.",
}
BOLD = re.compile(r"\*\*(.+?)\*\*")
CODE = re.compile(r"`(.+?)`")
NUMBER = r"[+-]?[\d,]*\d(?:\.\d+)?"
MEASURED = re.compile(rf"({NUMBER})(?: \[({NUMBER}), ({NUMBER})\])?(?: \(.*\))?")
"""a number, with its interval or without, and what is said of it"""
SEVERAL = re.compile(" [/×→] ")
"""between the parts of a cell"""
PACKAGES = ("array", "booktabs")
LINE, PAGE = 43.0, 58.0
"""of LaTeX's article at \\scriptsize: a line's width in em, and lines on a page"""
HEAD = 6.0
"""lines of a header, and of a short caption"""
APART = 0.25
"""lines between two rows"""
BETWEEN = 0.8
"""of columns, in em"""
WIDEST = 12.0
"""of a column that says what a row is, in em"""
EMS = {
    **dict.fromkeys("ijl.,:;'|![]\0 ", 0.34),
    **dict.fromkeys("frst()-–", 0.41),
    **dict.fromkeys("aceogz0123456789", 0.51),
    **dict.fromkeys("mwMW%@=+<>→×−±∞", 1.03),
}
"""how wide letters are in the font of LaTeX, in em"""
LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "\0": "~",
    "^": r"\textasciicircum{}",
    "[": "{[}",
    "<": "$<$",
    ">": "$>$",
    "†": r"\dag{}",
    "→": r"$\rightarrow$",
    "×": r"$\times$",
    "±": r"$\pm$",
    "∞": r"$\infty$",
    "α": r"$\alpha$",
    MINUS: "$-$",
    "—": "---",
    "“": "``",
    "”": "''",
}


@dataclass(frozen=True)
class Column:
    """A column: `cell` gives the text for a configuration. parts: titles of its parts, each a column of CSV."""

    title: str
    cell: Callable[[RunGroup], str]
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table's text, ready for any format. `name` names its files and its LaTeX label. labels: how many columns say
    what a row is. parts: of columns whose cells hold several values, by title."""

    name: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str
    notes: tuple[str, ...]
    labels: int = 1
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def build(
    name: str, columns: Sequence[Column], groups: Sequence[RunGroup], caption: Sequence[str], excluded: Sequence[str]
) -> Table:
    """A table with a row for each configuration. caption: its sentences. excluded: names of incomplete runs."""
    rows = tuple(tuple(column.cell(group) for column in columns) for group in groups)
    notes = [text for mark, text in LEGEND.items() if any(mark in cell for row in rows for cell in row)]
    if excluded:
        notes.append(f"Excluded, because incomplete: {', '.join(excluded)}.")
    parts = {column.title: column.parts for column in columns if column.parts}
    titles = tuple(column.title for column in columns)
    return Table(name, titles, rows, " ".join(caption), tuple(notes), parts=parts)


def markdown(table: Table) -> str:
    """Caption, the table with aligned columns, notes."""
    body = ruled(table.header, table.rows, aligned=True).removesuffix("\n")
    return "\n\n".join([table.caption, body, *table.notes]) + "\n"


def narrowest(table: Table) -> str:
    """Markdown for a terminal: as it is, or with a column for each row where that takes less width."""
    turned = tuple(zip(*(table.header, *table.rows), strict=True))
    sideways = replace(table, header=turned[0], rows=turned[1:])
    return min(markdown(table), markdown(sideways), key=lambda text: text.partition("\n|")[2].index("\n"))


def csv_text(table: Table) -> str:
    """Header and rows. Numbers are plain, and an interval stands in two columns of its own after its number, and so
    do the parts of a cell; what is not there is empty."""
    apart: list[tuple[str, list[str]]] = []
    for title, texts in zip(table.header, map(list, zip(*table.rows, strict=True)), strict=True):
        parts = table.parts.get(title, (title,))
        split = [SEVERAL.split(text) if len(parts) > 1 else [text] for text in texts]
        apart += [(name, [one[place] if len(one) > 1 else one[0] for one in split]) for place, name in enumerate(parts)]
    columns: list[Sequence[str]] = []
    for title, texts in apart:
        column = [_measured(text) for text in texts]
        names = [title, f"{title}, low", f"{title}, high"] if any(len(cell) > 1 for cell in column) else [title]
        columns += zip(names, *((*cell, "", "")[: len(names)] for cell in column), strict=True)
    return csv_lines(zip(*columns, strict=True))


def _measured(cell: str) -> tuple[str, ...]:
    plain = BOLD.sub(r"\1", cell.replace(MINUS, "-"))
    if match := MEASURED.fullmatch(plain):
        return tuple(part.replace(",", "") for part in match.groups() if part is not None)
    return ("" if plain in (NO_VALUE, NOT_RUN, UNKNOWN) else plain,)


def csv_lines(lines: Iterable[Iterable[object]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(lines)
    return out.getvalue()


def latex(table: Table) -> str:
    """Floats that fit an article's page: as many columns side by side as its line holds, and as many rows as a page;
    the columns that say what a row is come again in each. Its first line loads what it needs."""
    columns = list(zip(table.header, *table.rows, strict=True))
    widths = [_width(cells, place < table.labels) for place, cells in enumerate(columns)]
    notes = " ".join(table.notes)
    used = HEAD + 1.4 * _ems(table.caption + notes) / LINE
    parts = [(rows, chosen) for rows in _pages(table, widths, used) for chosen in _bands(widths, table.labels)]
    lines = [rf"% needs \usepackage{{{','.join(PACKAGES)}}}"]
    for number, (rows, chosen) in enumerate(parts, start=1):
        part = f" Part {number} of {len(parts)}." if len(parts) > 1 else ""
        caption = _latex(table.caption) + rf"\label{{tab:{table.name}}}" if number == 1 else "Continued."
        layout = "".join(rf">{{\raggedright\arraybackslash}}p{{{widths[place]:.1f}em}}" for place in chosen)
        head, first, *body = (
            " & ".join(_latex(line[place]) for place in chosen) + r" \\" for line in (table.header, *rows)
        )
        apart = [r"\addlinespace[2pt] " * bool(row[0]) for row in rows[1:]]
        body = [before + line for before, line in zip(apart, body, strict=True)]
        lines += [
            r"\begin{table*}[tp]" + r"\addtocounter{table}{-1}" * (number > 1),
            rf"\caption{{\footnotesize {caption}{part}}}",
            r"\smallskip\centering\scriptsize\setlength{\tabcolsep}{0.4em}",
            rf"\begin{{tabular}}{{@{{}}{layout}@{{}}}}",
            *(r"\toprule", head, r"\midrule", first, *body, r"\bottomrule"),
            r"\end{tabular}",
            *([rf"\par\smallskip\raggedright {_latex(notes)}\par"] if number == len(parts) and notes else []),
            r"\end{table*}",
        ]
    return "\n".join([*lines, ""])


def _width(cells: Sequence[str], label: bool) -> float:
    """Of a column, in em: of its longest word, and of one that says what a row is of its widest cell within reason."""
    words = max((_ems(word) for cell in cells for word in _whole(cell).split()), default=0.0)
    return max(words, min(WIDEST, max(map(_ems, cells))) if label else 0.0, 2.0)


def _whole(cell: str) -> str:
    """With intervals whole: no line is broken in them."""
    return re.sub(r"\[[^\]]*\]", lambda match: match[0].replace(" ", "\0"), cell)


def _ems(text: str) -> float:
    """How wide a text is set, in em, rather more than less."""
    return fsum(EMS.get(letter, 0.8 if letter.isupper() else 0.57) for letter in text)


def _lines(cell: str, width: float) -> int:
    """How many lines a cell takes."""
    lines, used = 1, 0.0
    for word in map(_ems, _whole(cell).split()):
        if used and used + word > width:
            lines, used = lines + 1, 0.0
        used += word + EMS[" "]
    return lines


def _bands(widths: Sequence[float], labels: int) -> Iterator[list[int]]:
    """The places of the columns that a line holds, the first `labels` always among them."""
    first = list(range(labels))
    chosen = list(first)
    for place in range(labels, len(widths)):
        if len(chosen) > labels and sum(widths[one] + BETWEEN for one in [*chosen, place]) > LINE:
            yield chosen
            chosen = list(first)
        chosen.append(place)
    yield chosen


def _pages(table: Table, widths: Sequence[float], used: float) -> Iterator[Sequence[tuple[str, ...]]]:
    """The rows that a page holds of which so many lines are used."""
    start, lines = 0, used
    for place, row in enumerate(table.rows):
        height = APART + max(_lines(cell, width) for cell, width in zip(row, widths, strict=True))
        if lines + height > PAGE and place > start and row[0]:
            yield table.rows[start:place]
            start, lines = place, HEAD
        lines += height
    yield table.rows[start:]


FORMATS: dict[str, Callable[[Table], str]] = {"md": markdown, "csv": csv_text, "tex": latex}


def files_of(tables: Iterable[Table], output: Path) -> dict[Path, str]:
    """Tables in every format."""
    return {output / f"{table.name}.{suffix}": render(table) for table in tables for suffix, render in FORMATS.items()}


def write_tables(tables: Sequence[Table], output: Path) -> None:
    """Write tables in every format, and print them and their files."""
    output.mkdir(parents=True, exist_ok=True)
    told(tables, files_of(tables, output))


def told(tables: Iterable[Table], files: Mapping[Path, str]) -> None:
    """Write the files of tables, and print both."""
    write(files)
    for shown in (*map(narrowest, tables), *files):
        print(shown)


def check_tables(tables: Sequence[Table], output: Path, command: str) -> int:
    """The exit status: 1 where a file is not what its table gives, named with the command that writes it."""
    return told_stale(changed(files_of(tables, output)), command)


def number(value: float, digits: int, scale: float = 1, sign: bool = False) -> str:
    """A fixed number of digits with thousands separated; never a negative zero."""
    if value != value:
        return NO_VALUE
    rounded = round(value * scale, digits) + 0.0
    return f"{rounded:{'+' if sign else ''},.{digits}f}".replace("-", MINUS)


def percent(value: Interval | None, sign: bool = False) -> str:
    """A mean and its interval, where there is one, in percent."""
    if value is None:
        return NO_VALUE
    if value.low != value.low:
        return number(value.mean, 1, scale=100, sign=sign)
    mean, low, high = (number(part, 1, scale=100, sign=sign) for part in (value.mean, value.low, value.high))
    return f"{mean} [{low}, {high}]"


def said(word: str, counts: Collection[int], of: str = "pairs") -> str:
    """A word with the numbers of pairs (runs, seeds) that it rests on, where one of them is small. 0: on none."""
    known = [count for count in counts if count]
    if not known or min(known) >= FEW_RUNS:
        return word
    least, most = min(known), max(known)
    return f"{word} ({least} {of[:-1] if most == 1 else of})" if least == most else f"{word} ({least} to {most} {of})"


def bold(text: str) -> str:
    """A cell that stands out."""
    return f"**{text}**"


def _latex(text: str) -> str:
    kept = "".join(LATEX.get(letter, letter) for letter in _whole(text))
    kept = kept.replace(r" \%", r"~\%")
    return CODE.sub(r"\\texttt{\1}", BOLD.sub(r"\\textbf{\1}", kept))
