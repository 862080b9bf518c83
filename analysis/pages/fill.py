"""How a page gets its tables and numbers: marks in Markdown that survive filling, so that a page can be filled again.

    <!-- generated:theory.theorems.order -->            a block: what `order` of analysis/theory/theorems.py returns
    <!-- end -->
    <!--theory.map.runs:Measurements-->2,700<!--/-->    a slot: a cell of such a table, by the cells that begin its row
                                                        and its column's title, with | between; in a table of two
                                                        columns the title is left out

Words after a name are arguments of the function. Marks in a ```markdown example stay as they are.
"""

import re
from collections.abc import Callable
from functools import cache
from importlib import import_module

import pandas as pd

from analysis.tables import Table, markdown, ruled
from rtpo.errors import DataError

Content = Table | pd.DataFrame | str
"""what a function that a mark names returns; a frame is a table without a caption, a text is Markdown"""
EXAMPLE = re.compile(r"^(```markdown\n(?:.*\n)*?```)$", re.MULTILINE)
BLOCK = re.compile(
    r"^(<!-- generated:(\S+)((?: \S+)*) -->\n)(?:(?!<!-- (?:generated:|end )).*\n)*(<!-- end -->)$", re.MULTILINE
)
SLOT = re.compile(r"(<!--([\w.]+)((?: [\w.]+)*):([^\n>]+?)-->)[^\n<]*(<!--/-->)")
MARK = re.compile(r"<!-- (?:generated:.*|end) -->|<!--[\w. ]+:[^\n>]*-->|<!--/-->")


@cache
def content(name: str, *arguments: str) -> Content:
    """What a public function under analysis/ returns, by its dotted name. Raises DataError where there is none."""
    module, _, function = name.rpartition(".")
    try:
        if function.startswith("_"):
            raise KeyError(function)
        source: Callable[..., Content] = vars(import_module(f"analysis.{module}"))[function]
    except (ModuleNotFoundError, KeyError) as error:
        raise DataError(f"{name}: analysis/{module.replace('.', '/')}.py has no public function {function}.") from error
    return source(*arguments)


def block_text(shown: Content) -> str:
    """As Markdown; of a table with a caption, caption and notes too."""
    if isinstance(shown, Table):
        return markdown(shown)
    return shown if isinstance(shown, str) else ruled(list(shown.columns), shown.to_numpy().tolist())


def cell(shown: Content, place: str) -> str:
    """A cell, without bold, by the texts that begin its row and its column's title. Raises DataError unless there is
    exactly one."""
    if isinstance(shown, str):
        raise DataError(f"{place}: a text has no cells.")
    frame = shown.frame if isinstance(shown, Table) else shown
    *row, column = (part.strip() for part in place.split("|"))
    if not row:
        row, column = [column], str(frame.columns[-1])
    rows = [line for line in frame.to_numpy().tolist() if [str(text) for text in line[: len(row)]] == row]
    columns = [number for number, title in enumerate(frame.columns) if title == column]
    if len(rows) != 1 or len(columns) != 1:
        raise DataError(f"{place}: the table has {len(rows)} such rows and {len(columns)} such columns, not one each.")
    return str(rows[0][columns[0]]).strip("*")


def filled(text: str, content: Callable[..., Content] = content) -> tuple[str, int]:
    """A page's text with the present content of each mark, and the number of its marks. Raises DataError for a mark
    that is not closed or not opened, and for one that names what is not there."""

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
