"""Tables of the toy study from its run records: python -m analysis.toy_study [--check]

docs/results/toy_study.md is made from the same records, by python -m analysis.pages, and its figures by
python analysis/make_figures.py --page.
"""

import sys
from pathlib import Path

from rtpo.run.command import Parser, command, folder

from analysis.study.plan import TOY_RESULTS, TOY_STUDY
from analysis.study.records import load_study, missing_lines
from analysis.tables import NOT_RUN, check_tables, write_tables
from analysis.toy_study.page import tables


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(__doc__)
    parser.add_argument("--results", type=folder, default=str(TOY_RESULTS), help="folder of the study's records")
    parser.add_argument("--study", type=Path, default=TOY_STUDY, help="file of the study's plan")
    parser.add_argument("--output", type=Path, help="tables/ goes there (default: results/; of others, beside them)")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the tables would change")
    given = parser.parse_args(arguments)
    output = given.output or (Path("results") if given.results.resolve() == TOY_RESULTS else given.results)
    records = load_study(given.results, given.study)
    made = tables(records)
    if given.check:
        return check_tables(made, output / "tables", "python -m analysis.toy_study")
    write_tables(made, output / "tables")
    for line in missing_lines(records):
        print(f"{NOT_RUN}: {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
