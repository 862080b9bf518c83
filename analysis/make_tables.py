"""Tables of runs (docs/run/runs.md), and of the paper (docs/results/tables.md).

    python analysis/make_tables.py                          the paper's tables beside ours
    python analysis/make_tables.py --table supp_budget      one; supp_budget_toy: of the profile toy
    python analysis/make_tables.py --experiment quickstart  a row a configuration of an experiment
    python analysis/make_tables.py results/trial results/default/rtpo-seed0
                                                            any runs in one table

What the cells of the paper's tables are made of stands in analysis/paper/reproduction.yaml. Tables of runs have a
column for each benchmark that their policies were evaluated on, with its decoding.
"""

import sys
from pathlib import Path

from rtpo.run.command import Parser, command, folder

from analysis.experiment import folder_table, run_table
from analysis.pages.markdown import changed, told_stale
from analysis.paper import table_page
from analysis.tables import files_of, told

RESULTS, PAGE = Path("results"), Path("docs", "results", "tables.md")
COMMAND = "python analysis/make_tables.py"


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(__doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="of a run, or of an experiment's runs")
    parser.add_argument("--results", type=folder, default=str(RESULTS), help="folder of the run records")
    parser.add_argument("--experiment", help="folder under it, for the table of its runs")
    parser.add_argument("--table", help="one table of the paper, by its name")
    parser.add_argument("--output", type=Path, help="folder of the tables (default: tables/ under --results)")
    parser.add_argument(
        "--page",
        type=Path,
        help="overview of the paper's tables (default: docs/results/tables.md; for other folders beside them)",
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the files would change")
    given = parser.parse_args(arguments)
    chosen = [bool(given.folders), given.experiment is not None, given.table is not None]
    if sum(chosen) > 1:
        parser.error("FOLDER, --experiment and --table are of different tables: give one of them")
    output = given.output or given.results / "tables"
    page = given.page or (PAGE if output == RESULTS / "tables" == given.results / "tables" else output / "paper.md")
    if not any(chosen):
        pages = table_page.all_pages(given.results)
        paper = output / "paper"
        return table_page.check(pages, paper, page, COMMAND) if given.check else table_page.save(pages, paper, page)
    if given.table is not None:
        pages, again = table_page.one_table(given.results, given.table), f"{COMMAND} --table {given.table}"
        tables, files = [one.table for one in pages], table_page.files_of(pages, output / "paper")
    else:
        again = f"{COMMAND} {' '.join(map(str, given.folders)) or f'--experiment {given.experiment}'}"
        tables = [folder_table(given.folders) if given.folders else run_table(given.results, given.experiment)]
        files = files_of(tables, output)
    if given.check:
        return told_stale(changed(files), again)
    told(tables, files)
    return 0


if __name__ == "__main__":
    sys.exit(main())
