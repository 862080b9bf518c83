"""Draw figures from run records (docs/results/figures.md).

    python analysis/make_figures.py                          every figure of the paper
    python analysis/make_figures.py --figure consistency     one of them
    python analysis/make_figures.py --experiment quickstart  the training curves of one experiment
    python analysis/make_figures.py --run FOLDER             one run on a sheet, finished or not
    python analysis/make_figures.py --page                   docs/results/figures.md

--check tells whether the page is stale. What was not run is printed with the command that would.
"""

import sys
from pathlib import Path

from rtpo.run.command import Parser, command, folder

from analysis.figures import page as figure_page
from analysis.figures.paper_figures import FIGURES
from analysis.figures.runs import draw_run, draw_training
from analysis.pages.markdown import told_stale
from rtpo.run.config import PROJECT


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(__doc__, usage="%(prog)s [options]")
    parser.add_argument("--results", type=folder, default="results", help="folder of the run records")
    parser.add_argument("--output", type=Path, help="folder of the figures (default: figures/ beside the runs)")
    parser.add_argument(
        "--project", type=folder, default=str(PROJECT), help="folder of docs/ and results/ for the next two"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--experiment", metavar="NAME", help="the training curves of this folder under --results instead")
    what.add_argument("--run", type=Path, help="the sheet of the run in this folder instead")
    what.add_argument("--figure", choices=FIGURES, metavar="NAME", help=f"one of {', '.join(FIGURES)}")
    what.add_argument("--page", action="store_true", help="write docs/results/figures.md and its pictures")
    what.add_argument("--check", action="store_true", help="write nothing; fail when one of these is stale")
    given = parser.parse_args(arguments)
    output = given.output or given.results / "figures"
    if given.check:
        return told_stale(figure_page.stale(given.project), f"{figure_page.COMMAND} --page")
    missing: list[str] = []
    if given.page:
        files = figure_page.save_page(given.project)
    elif given.run:
        files = draw_run(given.run, given.output or given.run.absolute().parents[1] / "figures")
    elif given.experiment:
        files = draw_training(given.results, given.experiment, output)
    else:
        found = figure_page.drawings(given.results, [given.figure] if given.figure else list(FIGURES))
        files = figure_page.save_figures(found, output)
        missing = [line for drawing in found if (line := drawing.not_run())]
    is_failed = bool(given.figure and not files)
    for shown in (*files, *missing):
        print(shown, file=sys.stderr if is_failed else sys.stdout)
    return int(is_failed)


if __name__ == "__main__":
    sys.exit(main())
