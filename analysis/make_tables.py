"""Tables from run records.

    python analysis/make_tables.py                          the paper's tables beside ours; docs/results/tables.md
    python analysis/make_tables.py --table supp_budget      one of them; supp_budget_toy: that of the profile toy
    python analysis/make_tables.py --experiment quickstart  the runs of one experiment, one row a configuration

What the cells of the paper's tables are made of stands in analysis/paper/reproduction.yaml.
"""

import sys
from pathlib import Path

from rtpo.run.command import Parser, command, folder

from analysis.experiment import run_table
from analysis.paper import table_page
from analysis.tables import check_tables, write_tables

RESULTS, PAGE = Path("results"), Path("docs", "results", "tables.md")
COMMAND = "python analysis/make_tables.py"


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(__doc__)
    parser.add_argument("--results", type=folder, default=str(RESULTS), help="folder of the run records")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--experiment", help="folder under it, for the table of its runs")
    chosen.add_argument("--table", help="one table of the paper, by its name")
    parser.add_argument("--output", type=Path, help="folder of the tables (default: tables/ under --results)")
    parser.add_argument(
        "--page",
        type=Path,
        help="overview of the paper's tables (default: docs/results/tables.md; for other folders beside them)",
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the files would change")
    given = parser.parse_args(arguments)
    output = given.output or given.results / "tables"
    page = given.page or (PAGE if output == RESULTS / "tables" == given.results / "tables" else output / "paper.md")
    paper = output / "paper"
    if given.experiment is None and given.table is None:
        made = table_page.all_tables(given.results)
        return table_page.check(made, paper, page, COMMAND) if given.check else table_page.save(made, paper, page)
    if given.table is None:
        table, again = run_table(given.results, given.experiment), f"{COMMAND} --experiment {given.experiment}"
    else:
        table, again = table_page.one_table(given.results, given.table), f"{COMMAND} --table {given.table}"
        output = paper
    if given.check:
        return check_tables([table], output, again)
    write_tables([table], output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
