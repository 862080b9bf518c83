"""A table: a frame, a caption and notes, as Markdown, LaTeX and CSV.

    table = Table("runs", pd.DataFrame({"Method": ["RTPO"], "After": [Number(0.75, 0.72, 0.78, scale=100)]}), "Runs.")
    markdown(table), latex(table), csv_text(table)

A cell is a text or a `Number`. CSV has the unrounded number, and its interval in two more columns. **Bold** and `code`
in texts are Markdown.
"""

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isinf, isnan, nan
from pathlib import Path

import pandas as pd

from analysis.stats import Interval

NOT_RUN, NO_VALUE, UNKNOWN = "not run", "—", "unknown"
MINUS = "−"
LONG_ROWS = 45
"""a table with more rows is a longtable"""
BOLD, CODE, INTERVAL = re.compile(r"\*\*(.+?)\*\*"), re.compile(r"`(.+?)`"), re.compile(r"\[([^\]]*)\]")
LATEX_NEEDS = r"% needs \usepackage{booktabs,graphicx,longtable}"
FITTED = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{\begin{tabular}"
LATEX = str.maketrans(
    {
        **{letter: f"\\{letter}" for letter in "&%$#_{}"},
        **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "[": "{[}", "\0": "~"},
        **{"<": "$<$", ">": "$>$", "→": r"$\rightarrow$", "×": r"$\times$", "±": r"$\pm$", "∞": r"$\infty$"},
        **{"α": r"$\alpha$", "σ": r"$\sigma$", MINUS: "$-$", "—": "---", "–": "--", "“": "``", "”": "''"},
        **{"†": r"\dag{}", "\1": r"\textbf{", "\2": "}", "\3": r"\texttt{"},
    }
)
"""LaTeX by letter. `_latex` marks with control characters: \\0 unbreakable space, \\1 bold, \\3 code, \\2 their end."""


@dataclass(frozen=True)
class Number:
    """A cell: a number with its interval."""

    value: float
    low: float = nan
    high: float = nan
    digits: int = 1  # decimals
    scale: float = 1.0  # factor of all three when they are shown
    sign: bool = False  # whether to show +
    note: str = ""  # in parentheses after the number
    is_bold: bool = False

    @property
    def shown(self) -> str:
        """The number alone, rounded."""
        return number(self.value, self.digits, self.scale, self.sign)

    def __str__(self) -> str:
        text = self.shown
        if not isnan(self.low):
            ends = (number(end, self.digits, self.scale, self.sign) for end in (self.low, self.high))
            text += f" [{', '.join(ends)}]"
        return (f"**{text}**" if self.is_bold else text) + (f" ({self.note})" if self.note else "")


Cell = str | Number


@dataclass(frozen=True, eq=False)
class Table:
    """A table of cells."""

    name: str  # of its files and its LaTeX label
    frame: pd.DataFrame  # of cells
    caption: str
    notes: tuple[str, ...] = ()
    label_columns: int = 1  # number of leading columns that identify a row

    @property
    def header(self) -> tuple[str, ...]:
        return tuple(map(str, self.frame.columns))

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """The cells as texts."""
        return tuple(tuple(map(str, row)) for row in self.frame.itertuples(index=False))


def of_rows(
    name: str,
    header: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    caption: str,
    notes: Sequence[str] = (),
    label_columns: int = 1,
) -> Table:
    """A table from its rows."""
    frame = pd.DataFrame([list(row) for row in rows], columns=pd.Index(header), dtype=object)
    return Table(name, frame, caption, tuple(notes), label_columns)


def cell(interval: Interval | None, digits: int = 1, scale: float = 1.0, sign: bool = False) -> Cell:
    """An interval as a cell."""
    if interval is None or isnan(interval.mean):
        return NO_VALUE
    return Number(interval.mean, interval.low, interval.high, digits, scale, sign)


def percent_cell(interval: Interval | None, sign: bool = False) -> Cell:
    """The interval of a share, or of a difference of shares, in percent."""
    return cell(interval, 1, 100.0, sign)


def bold_best(frame: pd.DataFrame, columns: Iterable[str]) -> pd.DataFrame:
    """The frame with the best number of each of these columns in bold, if its interval lies above those of all other
    rows. Numbers that round to the best one count as equal to it."""
    frame = frame.copy()
    for column in columns:
        numbers = {row: value for row, value in frame[column].items() if isinstance(value, Number)}
        best = max((value.value for value in numbers.values()), default=nan)
        first = {row for row, value in numbers.items() if value.shown == replace(value, value=best).shown}
        rest = [value for row, value in numbers.items() if row not in first]
        # without intervals nothing is bold, since a comparison with NaN is false
        if rest and all(numbers[row].low > other.high for row in first for other in rest):
            bold = {row: replace(numbers[row], is_bold=True) for row in first}
            frame[column] = [bold.get(row, value) for row, value in frame[column].items()]
    return frame


# formats


def ruled(header: Sequence[str], lines: Iterable[Sequence[object]], aligned: bool = True) -> str:
    """A Markdown table. aligned: pad each column to its widest cell, for a terminal."""
    shown = [[str(value).replace("|", r"\|") for value in line] for line in (header, *lines)]
    widths = [max(map(len, column)) if aligned else 0 for column in zip(*shown, strict=True)]
    shown.insert(1, ["-" * (width or 3) for width in widths])
    return "".join(f"| {' | '.join(map(str.ljust, line, widths))} |\n" for line in shown)


def markdown(table: Table) -> str:
    """Caption, table, notes."""
    parts = (table.caption, ruled(table.header, table.rows).removesuffix("\n"), *table.notes)
    return "\n\n".join(filter(None, parts)) + "\n"


def csv_text(table: Table) -> str:
    """Header and rows. Numbers are plain, intervals have two columns of their own, and missing values are empty."""
    columns: dict[str, list[str]] = {}
    for place, title in enumerate(table.header):
        cells = list(table.frame.iloc[:, place])
        columns[title if title not in columns else f"{title} {place}"] = [_plain(value, "value") for value in cells]
        if any(isinstance(value, Number) and not isnan(value.low) for value in cells):
            for end in ("low", "high"):
                columns[f"{title}, {end}"] = [_plain(value, end) for value in cells]
    text: str = pd.DataFrame(columns).to_csv(index=False, lineterminator="\n")
    return text


def _plain(value: object, part: str) -> str:
    if isinstance(value, Number):
        scaled: float = getattr(value, part) * value.scale
        return "" if isnan(scaled) else f"{scaled:.10g}"
    return "" if part != "value" or str(value) in (NO_VALUE, NOT_RUN, UNKNOWN) else BOLD.sub(r"\1", str(value))


def latex(table: Table) -> str:
    """A float of at most the line's width, or a longtable for more than LONG_ROWS rows. The first line names the
    packages that it needs."""
    is_long = len(table.rows) > LONG_ROWS
    text = (
        pd.DataFrame(table.rows)
        .map(_latex)
        .to_latex(
            index=False,
            header=list(map(_latex, table.header)),
            column_format="@{}" + "l" * table.label_columns + "r" * (len(table.header) - table.label_columns) + "@{}",
            caption=_latex(" ".join([table.caption, *table.notes])),
            label=f"tab:{table.name}",
            longtable=is_long,
            position=None if is_long else "tbp",
        )
    )
    if is_long:
        return f"{LATEX_NEEDS}\n{{\\scriptsize\\setlength{{\\tabcolsep}}{{3pt}}\n{text}}}\n"
    text = text.replace("\\caption", "\\centering\\small\n\\caption", 1).replace(r"\begin{tabular}", FITTED, 1)
    text = text.replace(r"\end{tabular}", r"\end{tabular}}")
    return f"{LATEX_NEEDS}\n{text}"


def _latex(text: str) -> str:
    whole = INTERVAL.sub(lambda match: match[0].replace(" ", "\0"), text)
    marked = CODE.sub("\3\\1\2", BOLD.sub("\1\\1\2", whole))
    return marked.translate(LATEX)


FORMATS: Mapping[str, Callable[[Table], str]] = {"md": markdown, "csv": csv_text, "tex": latex}


# files


def files_of(tables: Iterable[Table], output: Path) -> dict[Path, str]:
    """Tables in every format."""
    return {output / f"{table.name}.{suffix}": render(table) for table in tables for suffix, render in FORMATS.items()}


def write(files: Mapping[Path, str]) -> None:
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())


def changed(files: Mapping[Path, str]) -> list[Path]:
    """The files whose content differs from their text, or that are missing."""
    return [path for path, text in files.items() if not path.exists() or path.read_bytes() != text.encode()]


def report_stale(paths: Iterable[Path], command: str) -> int:
    """Print each stale file with the command that makes it. Returns the exit status: 1 if there is one."""
    stale = list(paths)
    for path in stale:
        print(f"{path} is not what the records give: {command}", file=sys.stderr)
    return int(bool(stale))


# numbers as text


def number(value: float, digits: int, scale: float = 1, sign: bool = False) -> str:
    """A number with so many decimals and a separator of thousands; never a negative zero."""
    if isnan(value) or isinf(value):
        return NO_VALUE if isnan(value) else f"{MINUS if value < 0 else ''}∞"
    rounded = round(value * scale, digits) + 0.0
    return f"{rounded:{'+' if sign else ''},.{digits}f}".replace("-", MINUS)


def percent(value: Interval | None, sign: bool = False) -> str:
    """A mean and its interval in percent."""
    return str(percent_cell(value, sign))
