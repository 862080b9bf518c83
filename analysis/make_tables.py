"""Make tables of runs (docs/run/runs.md), or the paper's tables beside ours (docs/results/tables.md).

    python analysis/make_tables.py                          every table of the paper
    python analysis/make_tables.py --table supp_budget      one of them; supp_budget_toy has the toy runs
    python analysis/make_tables.py --experiment quickstart  runs of results/quickstart, by configuration
    python analysis/make_tables.py results/trial results/default/rtpo-seed0
                                                            any runs in one table

analysis/paper/cells.yaml names the records behind each of our cells in the paper's tables.
"""

import sys
from pathlib import Path

from analysis.paper import pages
from analysis.paper.tables import all_tables, named
from analysis.run_table import COLUMNS, files_of, folder_table, run_table, short
from analysis.tables import changed, markdown, report_stale, write
from rtpo.core.names import missing_file
from rtpo.run.cli import Parser, command, folder

RESULTS = Path("results")
COMMAND = "python analysis/make_tables.py"


@command
def main(arguments: list[str] | None = None) -> int:
    parser = Parser(__doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="a run, or a folder of runs")
    parser.add_argument("--results", type=folder, default=RESULTS, help="folder of the run records")
    parser.add_argument("--experiment", help="make a table of the runs in this folder under --results")
    parser.add_argument("--table", help="make only this table of the paper")
    parser.add_argument("--columns", help=f"columns of a table of runs, separated by commas: all, {', '.join(COLUMNS)}")
    parser.add_argument("--output", type=Path, help="folder of the tables (default: tables/ under --results)")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the files would change")
    options = parser.parse_args(arguments)
    chosen = sum([bool(options.folders), options.experiment is not None, options.table is not None])
    if chosen > 1:
        parser.error("FOLDER, --experiment and --table choose different tables: give one of them")
    results = options.results
    if not (options.folders or results.is_dir()):
        parser.error(f"argument --results: {missing_file(results)}")
    output = options.output or results / "tables"
    if not chosen:
        (tables, faults), paper = all_tables(results), output / "paper"
        return pages.check(tables, paper, COMMAND, faults) if options.check else pages.save(tables, paper, faults)
    if options.table is not None:
        this_command, table = f"{COMMAND} --table {options.table}", named(results, options.table)
        shown, files = pages.layouts([table]), pages.files_of([table], output / "paper")
    else:
        this_command = f"{COMMAND} {' '.join(map(str, options.folders)) or f'--experiment {options.experiment}'}"
        columns = [] if options.columns in (None, "all") else options.columns.split(",")
        of_folders = folder_table(options.folders, columns) if options.folders else None
        runs = of_folders or run_table(results, options.experiment, columns)
        is_whole = options.columns is not None
        shown, files = [runs if is_whole else short(runs)], files_of(runs, output, whole=is_whole)
    if options.check:
        return report_stale(changed(files), this_command)
    write(files)
    print(*map(markdown, shown), *files, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
