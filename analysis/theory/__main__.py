"""Tables, figures and verdicts of the paper's theorems from results/theory: python -m analysis.theory [--check]

Fills the blocks of docs/results/theory.md, and draws docs/results/theory_<n>.png and results/figures/theory_<n>.pdf.
"""

import sys

from rtpo.run.command import Parser, command, folder

from analysis.pages.markdown import changed, told_stale, write
from analysis.plots import drawn_from
from analysis.theory.figures import draw
from analysis.theory.page import PAGE, RESULTS, filled
from analysis.theory.records import THEOREMS, checksum, load
from rtpo.run.config import PROJECT


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the page or a figure is stale")
    parser.add_argument("--project", type=folder, default=str(PROJECT), help="folder of docs/ and results/")
    given = parser.parse_args(arguments)
    results, page = given.project / RESULTS, given.project / PAGE
    files, records = {page: filled(given.project)}, checksum(results)
    if given.check:
        figures = [page.with_name(f"theory_{theorem}.png") for theorem in THEOREMS]
        stale = [*changed(files), *(figure for figure in figures if drawn_from(figure) != records)]
        return told_stale(stale, "python -m analysis.theory")
    write(files)
    drawn = [path for theorem in THEOREMS for path in draw(load(results, theorem), theorem, given.project, records)]
    print(*(page, *drawn), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
