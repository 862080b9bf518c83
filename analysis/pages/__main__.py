"""Draw the figures of docs/ and fill the generated blocks of README.md and docs/, all from records
(docs/extend/extending.md):

    python -m analysis.pages               every block, and the figures
    python -m analysis.pages BLOCK ...     the blocks of these names alone
    python -m analysis.pages --check       write nothing; fail where a page or a figure is stale
"""

import sys

from rtpo.run.command import Parser, command, folder

from analysis.pages.blocks import BLOCKS, draw, filled, pages, stale_figures
from analysis.pages.markdown import changed, told_stale, write
from rtpo.errors import ConfigError
from rtpo.run.config import PROJECT


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(__doc__)
    parser.add_argument("blocks", nargs="*", metavar="BLOCK", help="only blocks of these names; no figure then")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a page or a figure is stale")
    parser.add_argument("--project", type=folder, default=str(PROJECT), help="folder of README.md, docs/ and results/")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.blocks if name not in BLOCKS]:
        raise ConfigError(f"{', '.join(unknown)}: no such block; there are {', '.join(BLOCKS)}.")
    texts = {page: filled(given.project, page, given.blocks) for page in pages(given.project)}
    stale = changed(texts)
    if given.check:
        figures = [] if given.blocks else stale_figures(given.project)
        return told_stale([*stale, *figures], "python -m analysis.pages")
    drawn = [] if given.blocks else draw(given.project)
    write({page: texts[page] for page in stale})
    for path in [*stale, *drawn]:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
