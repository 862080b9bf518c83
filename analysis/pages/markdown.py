"""What generated pages share: Markdown tables, blocks that are filled, and files that are written or found stale."""

import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from rtpo.errors import DataError

EXAMPLE = re.compile(r"^(```markdown\n(?:.*\n)*?```)$", re.MULTILINE)
"""of a page's text, whose blocks are not those of the page that shows it"""


def ruled(header: Sequence[str], lines: Iterable[Sequence[str]], aligned: bool = False) -> str:
    """A table; `aligned`, every column as wide as its widest cell, for those that are read as text."""
    shown = [[cell.replace("|", r"\|") for cell in line] for line in (header, *lines)]
    widths = [max(map(len, column)) if aligned else 0 for column in zip(*shown, strict=True)]
    shown.insert(1, ["-" * (width or 3) for width in widths])
    return "".join(f"| {' | '.join(map(str.ljust, line, widths))} |\n" for line in shown)


def filled(
    page: Path,
    blocks: Mapping[str, Callable[[], str]],
    only: Collection[str] = (),
    *,
    marks: tuple[str, str] = ("generated", "end"),
) -> str:
    """A page's text with every block, or `only` those of some names, as the records have it. A block stands between
    `<!-- generated:NAME -->` and `<!-- end -->`, or other `marks`, each alone on its line. Raises DataError for a block
    that is unknown or open."""
    begin, end = marks

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        if name not in blocks:
            raise DataError(f"{page} has a block {name!r}: no such block; there are {', '.join(blocks)}.")
        if only and name not in only:
            return match[0]
        return f"<!-- {begin}:{name} -->\n{blocks[name]()}<!-- {end} -->"

    parts = EXAMPLE.split(page.read_text(encoding="utf-8"))
    block = rf"^<!-- {begin}:(\S+) -->\n(?:(?!<!-- {begin}:).*\n)*?<!-- {end} -->$"
    marker = rf"^<!-- (?:{begin}:\S+|{end}) -->$"
    if any(len(re.findall(marker, part, re.M)) != 2 * len(re.findall(block, part, re.M)) for part in parts[::2]):
        raise DataError(f"{page}: a {begin} block is not closed by its own <!-- {end} -->, or not opened.")
    whole = [part if place % 2 else re.sub(block, fill, part, flags=re.M) for place, part in enumerate(parts)]
    return "".join(whole)


def changed(files: Mapping[Path, str]) -> list[Path]:
    """Those that do not hold their text."""
    return [path for path, text in files.items() if not path.exists() or path.read_bytes() != text.encode()]


def told_stale(paths: Iterable[Path], command: str) -> int:
    """Name each path with the command that makes it; the exit status, 1 where there is one."""
    found = list(paths)
    for path in found:
        print(f"{path} is not what the records give: {command}", file=sys.stderr)
    return int(bool(found))


def write(files: Mapping[Path, str]) -> None:
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
