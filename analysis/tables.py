"""A table as a specification, and its three formats."""

import csv
import io
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from analysis.intervals import Interval
from analysis.pages.markdown import changed, told_stale, write
from analysis.records import RunGroup

NOT_RUN = "not run"
NO_VALUE = "—"
SUPPORTED, CONTRADICTED, UNDECIDED = "supported", "contradicted", "undecided"
FEW_RUNS = 5
"""a verdict on fewer runs, or pairs of runs, than these says on how many"""
ONE_SEED = " (other seeds unknown)"
"""after an interval over questions alone"""
INTERVALS = (
    "They are t intervals over runs, those of one warm start compared with each other, widened by what other questions "
    "would change, and never narrower than over the questions alone. They hold for few runs too, if these spread "
    "roughly normally, and do not cover other warm starts."
)
"""what is to be said of those over runs"""
MINUS = "−"
LEGEND = {
    NOT_RUN: f"“{NOT_RUN}”: the runs have no such evaluation.",
    NO_VALUE: f"“{NO_VALUE}”: the runs give this no value.",
}
PAGE_ROWS = 40
"""that fit on a page of LaTeX"""
BOLD = re.compile(r"\*\*(.+?)\*\*")
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
    "^": r"\textasciicircum{}",
    "†": r"\dag{}",
    "→": r"$\rightarrow$",
    "×": r"$\times$",
    "∞": r"$\infty$",
    MINUS: "$-$",
    "—": "---",
    "“": "``",
    "”": "''",
}


@dataclass(frozen=True)
class Column:
    """A column: `cell` gives the text for a configuration."""

    title: str
    cell: Callable[[RunGroup], str]


@dataclass(frozen=True)
class Table:
    """A table's text, ready for any format. `name` names its files and its LaTeX label."""

    name: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str
    notes: tuple[str, ...]


def build(
    name: str, columns: Sequence[Column], groups: Sequence[RunGroup], caption: Sequence[str], excluded: Sequence[str]
) -> Table:
    """A table with a row for each configuration. caption: its sentences. excluded: names of incomplete runs."""
    rows = tuple(tuple(column.cell(group) for column in columns) for group in groups)
    notes = [text for mark, text in LEGEND.items() if any(mark in cell for row in rows for cell in row)]
    if excluded:
        notes.append(f"Excluded, because incomplete: {', '.join(excluded)}.")
    return Table(name, tuple(column.title for column in columns), rows, " ".join(caption), tuple(notes))


def markdown(table: Table) -> str:
    """Caption, the table with aligned columns, notes."""
    lines = [tuple(cell.replace("|", r"\|") for cell in line) for line in (table.header, *table.rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    ruled = [lines[0], tuple("-" * width for width in widths), *lines[1:]]
    body = [f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |" for line in ruled]
    return "\n\n".join([table.caption, "\n".join(body), *table.notes]) + "\n"


def narrowest(table: Table) -> str:
    """Markdown for a terminal: as it is, or with a column for each row where that takes less width."""
    turned = tuple(zip(*(table.header, *table.rows), strict=True))
    sideways = replace(table, header=turned[0], rows=turned[1:])
    return min(markdown(table), markdown(sideways), key=lambda text: text.partition("\n|")[2].index("\n"))


def csv_text(table: Table) -> str:
    """Header and rows, the cells as in the other formats but for an ASCII minus and without bold."""
    out = io.StringIO()
    rows = ([BOLD.sub(r"\1", cell.replace(MINUS, "-")) for cell in row] for row in (table.header, *table.rows))
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def latex(table: Table) -> str:
    """A float, with booktabs and graphicx, scaled to the width of the line; with more rows than a page has, a longtable
    of the package of that name."""
    lines = [" & ".join(_latex(cell) for cell in line) + r" \\" for line in (table.header, *table.rows)]
    layout, caption = "l" * len(table.header), _latex(" ".join([table.caption, *table.notes]))
    if len(table.rows) > PAGE_ROWS:
        return "\n".join(
            [
                r"{\scriptsize",
                rf"\begin{{longtable}}{{{layout}}}",
                rf"\caption{{{caption}}}",
                rf"\label{{tab:{table.name}}}\\",
                r"\toprule",
                lines[0],
                r"\midrule",
                r"\endhead",
                *lines[1:],
                r"\bottomrule",
                r"\end{longtable}}",
                "",
            ]
        )
    return "\n".join(
        [
            r"\begin{table*}[t]",
            r"\centering",
            rf"\caption{{{caption}}}",
            rf"\label{{tab:{table.name}}}",
            r"\resizebox{\linewidth}{!}{%",
            rf"\begin{{tabular}}{{{layout}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}}",
            r"\end{table*}",
            "",
        ]
    )


FORMATS: dict[str, Callable[[Table], str]] = {"md": markdown, "csv": csv_text, "tex": latex}


def files_of(tables: Iterable[Table], output: Path) -> dict[Path, str]:
    """Tables in every format."""
    return {output / f"{table.name}.{suffix}": render(table) for table in tables for suffix, render in FORMATS.items()}


def write_tables(tables: Sequence[Table], output: Path) -> None:
    """Write tables in every format, and print them and their files."""
    files = files_of(tables, output)
    output.mkdir(parents=True, exist_ok=True)
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
    return f"{mean} [{low}, {high}]{ONE_SEED if value.alone else ''}"


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
    return BOLD.sub(r"\\textbf{\1}", "".join(LATEX.get(letter, letter) for letter in text))
