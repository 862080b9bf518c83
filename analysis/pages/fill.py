"""Fill the tables and numbers of a page. Its marks in Markdown survive, so a page can be filled again.

    <!-- generated:theory.theorems.order -->            a block: the table of `order` in analysis/theory/theorems.py
    <!-- end -->
    <!--study.gains.score turns:size-->4 of 10<!--/-->  a slot: the cell of the last column in the row `size`
    <!--study.gains.runs turns:Toy keys | RTPO | Runs-->20<!--/-->    by the first cells of its row, then its column

Words after a function's name are its arguments. Marks in a ```markdown example stay unchanged.
"""

import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from inspect import signature

import pandas as pd

from analysis.tables import Table, markdown, ruled
from rtpo.core.names import counted
from rtpo.errors import DataError

Content = Table | pd.DataFrame | str
"""the result of a mark's function; a frame is a table without a caption, a text is Markdown"""
EXAMPLE = re.compile(r"^(```markdown\n(?:.*\n)*?```)$", re.MULTILINE)
BLOCK = re.compile(
    r"^(<!-- generated:(\S+)((?: \S+)*) -->\n)(?:(?!<!-- (?:generated:|end )).*\n)*(<!-- end -->)$", re.MULTILINE
)
SLOT = re.compile(r"(<!--([\w.]+)((?: [\w.]+)*):([^\n>]+?)-->)(?:(?!<!--)[^\n])*(<!--/-->)")
MARK = re.compile(r"<!-- (?:generated:.*|end) -->|<!--[\w. ]+:[^\n>]*-->|<!--/-->")


@cache
def content(name: str, *arguments: str) -> Content:
    """The result of a public function under analysis/, by its dotted name. Raises DataError for an unknown name, and
    for missing or needless arguments."""
    module, _, function = name.rpartition(".")
    try:
        if function.startswith("_"):
            raise KeyError(function)
        source: Callable[..., Content] = vars(import_module(f"analysis.{module}"))[function]
    except (ModuleNotFoundError, KeyError) as error:
        if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("analysis"):
            raise  # a package that the module needs
        raise DataError(f"{name}: analysis/{module.replace('.', '/')}.py has no public function {function}.") from error
    try:
        signature(source).bind(*arguments)
    except TypeError as error:
        raise DataError(f"{name} {' '.join(arguments)}: {error}.") from error
    return source(*arguments)


def block_text(content: Content) -> str:
    """A table or text as Markdown, with the caption and notes of a `Table`."""
    if isinstance(content, Table):
        return markdown(content)
    return content if isinstance(content, str) else ruled(list(content.columns), content.to_numpy().tolist())


def cell(content: Content, place: str) -> str:
    """A cell's text, without bold. place: the first cells of its row, then its column's title, between bars; or the
    first cell alone, for the last column. Raises DataError unless exactly one cell matches."""
    if isinstance(content, str):
        raise DataError(f"{place}: a text has no cells.")
    frame = content.frame if isinstance(content, Table) else content
    *row, column = (part.strip() for part in place.split("|"))
    if not row:
        row, column = [column], str(frame.columns[-1])
    rows = [line for line in frame.to_numpy().tolist() if [str(text) for text in line[: len(row)]] == row]
    columns = [number for number, title in enumerate(frame.columns) if title == column]
    if len(rows) != 1 or len(columns) != 1:
        raise DataError(
            f"{place}: the table has {counted(len(rows), 'such row')} and {counted(len(columns), 'such column')}, not "
            "one each."
        )
    return str(rows[0][columns[0]]).strip("*")


def fill(text: str, content: Callable[..., Content] = content) -> tuple[str, int]:
    """A page's text with the current content of each mark, and the number of marks. Raises DataError for a mark without
    an end or a beginning, and for an unknown function or cell."""

    def block(match: re.Match[str]) -> str:
        return f"{match[1]}{block_text(content(match[2], *match[3].split()))}{match[4]}"

    def slot(match: re.Match[str]) -> str:
        return f"{match[1]}{cell(content(match[2], *match[3].split()), match[4])}{match[5]}"

    parts, marks = EXAMPLE.split(text), 0
    for place in range(0, len(parts), 2):  # between examples
        if wrong := MARK.findall(SLOT.sub("", BLOCK.sub("", parts[place]))):
            raise DataError(f"{wrong[0]}: the mark is not closed, or not opened.")
        with_blocks, blocks = BLOCK.subn(block, parts[place])
        parts[place], slots = SLOT.subn(slot, with_blocks)
        marks += blocks + slots
    return "".join(parts), marks
