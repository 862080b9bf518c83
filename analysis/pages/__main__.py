"""Draw the figures of docs/ and fill the generated blocks of README.md and docs/, all from records
(docs/extend/extending.md):

    python -m analysis.pages               every block, and the figures
    python -m analysis.pages NAME ...      the blocks of these names alone; or a whole page of
                                           docs/results/ that has records of its own, such as map,
                                           whose blocks have no name here, with its figures
    python -m analysis.pages --check       write nothing; fail where a page or a figure is stale
"""

import sys

from rtpo.run.command import Parser, command, folder

from analysis.pages.blocks import BLOCKS, OWN_PAGES, figures, filled, own_pages, pages
from analysis.pages.markdown import changed, told_stale, write
from rtpo.errors import ConfigError
from rtpo.run.config import PROJECT


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these blocks and pages")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a page or a figure is stale")
    parser.add_argument("--project", type=folder, default=str(PROJECT), help="folder of README.md, docs/ and results/")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.names if name not in (*BLOCKS, *OWN_PAGES)]:
        raise ConfigError(
            f"{', '.join(unknown)}: no such block or page; there are {', '.join((*BLOCKS, *OWN_PAGES))}. "
            f"The other blocks of {', '.join(OWN_PAGES)} go with their page."
        )
    own = own_pages(given.project)
    if missing := [f"docs/results/{name}.md" for name in given.names if name in OWN_PAGES and name not in own]:
        raise ConfigError(f"{', '.join(missing)}: there is no such page under {given.project}: restore it.")
    texts = {page: filled(given.project, page, own, given.names) for page in pages(given.project)}
    drawn, stale = figures(given.project, own, given.names), changed(texts)
    if given.check:
        old = [one.png(given.project) for one in drawn if one.is_stale(given.project)]
        return told_stale([*stale, *old], "python -m analysis.pages")
    write({page: texts[page] for page in stale})
    for path in [*stale, *(path for one in drawn for path in one.save(given.project))]:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
