"""Fill the generated tables and numbers of README.md and docs/ from the records (docs/extend/extending.md):

    python -m analysis.pages                             all pages
    python -m analysis.pages docs/results/theory.md      this page
    python -m analysis.pages --check                     write nothing; fail if a page differs from the records

The marks in pages, such as `<!-- generated:NAME -->`, name the function that makes the text between them.
"""

import gc
import sys
from pathlib import Path

from analysis.pages.fill import fill
from analysis.tables import report_stale
from rtpo.core.files import disk_errors
from rtpo.errors import DataError
from rtpo.run.cli import Parser, command
from rtpo.run.config import PROJECT


def pages() -> list[Path]:
    """The project's pages that may have marks."""
    return [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]


@command
def main(arguments: list[str] | None = None) -> int:
    parser = Parser(__doc__)
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="Markdown file to fill; default: all pages")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page differs from the records")
    options = parser.parse_args(arguments)
    stale: dict[Path, str] = {}
    for page in options.pages or pages():
        try:
            old = page.read_text(encoding="utf-8")
            new, marks = fill(old)
        except (DataError, UnicodeDecodeError) as error:
            raise DataError(f"{page}: {error}") from error
        if options.pages and not marks:
            raise DataError(f"{page} has no mark: there is nothing to fill or to check.")
        if new != old:
            stale[page] = new
    if options.check:
        return report_stale(stale, "python -m analysis.pages")
    for page, text in stale.items():
        with disk_errors(page):
            page.write_bytes(text.encode())
        print(page)
    return 0


if __name__ == "__main__":
    gc.disable()  # the frames live until the end; collecting garbage among them would take a tenth of the time
    sys.exit(main())
