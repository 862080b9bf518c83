"""Draw figures from run records (docs/results/figures.md).

    python analysis/make_figures.py                          every figure that has runs
    python analysis/make_figures.py --figure consistency     one of them
    python analysis/make_figures.py --experiment quickstart  the training curves of one experiment
    python analysis/make_figures.py --run FOLDER             one run on a sheet, finished or not
    python analysis/make_figures.py --docs                   the pictures of docs/results/

--check fails if a picture of docs/results/ differs from the records.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from analysis.figures.costs import cost_figure, has_test_runs
from analysis.figures.gains import gain_figure
from analysis.figures.paper import FIGURES, Source, profiles
from analysis.figures.runs import draw_run, draw_training, training_figure
from analysis.load import experiment, groups
from analysis.plots import every_format, is_stale, save
from analysis.tables import report_stale
from rtpo.errors import DataError
from rtpo.run.cli import Parser, command, folder
from rtpo.run.config import PROJECT

DOCS = PROJECT / "docs" / "results"


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(__doc__, usage="%(prog)s [options]")
    parser.add_argument("--results", type=folder, default="results", help="folder of the records (default: results)")
    parser.add_argument("--output", type=Path, help="folder of the figures (default: figures/ beside the runs)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--experiment", metavar="NAME", help="draw the training curves of an experiment in --results")
    what.add_argument("--run", type=Path, help="draw one sheet of the run in this folder")
    what.add_argument("--figure", choices=FIGURES, metavar="NAME", help=f"draw this figure alone: {', '.join(FIGURES)}")
    what.add_argument(
        "--docs", action="store_true", help="draw the pictures of docs/results/ from the project's records"
    )
    what.add_argument("--check", action="store_true", help="write nothing; fail if a picture of docs/results/ is stale")
    options = parser.parse_args(arguments)
    output, faults = options.output or options.results / "figures", list[str]()
    if options.check:
        stale = [DOCS / name for name, draw in pictures().items() if is_stale(DOCS / name, draw)]
        return report_stale(stale, "python analysis/make_figures.py --docs")
    if options.docs:
        files = [file for name, draw in pictures().items() for file in save(draw, [DOCS / name])]
    elif options.run:
        files = draw_run(options.run, options.output or options.run.absolute().parents[1] / "figures")
    elif options.experiment:
        files = draw_training(options.results, options.experiment, output)
    else:
        sources, faults = profiles(options.results)
        files = draw_figures(sources, [options.figure] if options.figure else list(FIGURES), output)
    print(*files, sep="\n", file=sys.stdout if files else sys.stderr)
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    return int(bool(faults) or (bool(options.figure) and not files))


def draw_figures(sources: list[Source], names: list[str], output: Path) -> list[Path]:
    """Figures of the sources that have runs; returns the files, and says which were not run."""
    files = []
    for source in sources:
        for name in names:
            try:
                if source.tasks:
                    draw = partial(FIGURES[name], source)
                    files += save(draw, every_format(output, f"paper_{name}_{source.profile}"))
            except DataError as error:
                print(f"{name}, profile {source.profile}: {error}", file=sys.stderr)
        if not source.tasks:
            print(f"{source.profile}: not run; {source.command}")
    return files


def pictures() -> dict[str, Callable[[], Figure]]:
    """The pictures of docs/results/, by file name."""
    (toy,) = (source for source in profiles(PROJECT / "results")[0] if source.profile == "toy")
    reference = groups(experiment(PROJECT / "results", "reference"))
    costs = {"cost.png": partial(cost_figure, "textworld", "textworld_short")} if has_test_runs("textworld") else {}
    return {
        "reference.png": partial(training_figure, reference),
        "gain.png": gain_figure,
        **costs,
        **{f"figure_{name}_toy.png": partial(draw, toy) for name, draw in FIGURES.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
