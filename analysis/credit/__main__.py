"""The page and the figure of the credit study from results/credit: python -m analysis.credit [--check]

Fills the blocks of docs/results/credit.md, and draws docs/results/credit.png and results/figures/credit.pdf once runs
are finished.
"""

import sys
from functools import partial

from rtpo.run.command import Parser, command, folder

from analysis.credit.page import NAME, PAGE, STUDY, draw, filled
from analysis.credit.predictions import load_predictions
from analysis.pages.markdown import changed, told_stale, write
from analysis.plots import METADATA, Files, drawn_from, png_from, records_checksum, save
from analysis.study.records import load_study
from rtpo.run.config import PROJECT


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the page or the figure is stale")
    parser.add_argument("--project", type=folder, default=str(PROJECT), help="folder of docs/ and results/")
    given = parser.parse_args(arguments)
    page, results = given.project / PAGE, given.project / "results" / NAME
    records = load_study(results, STUDY)
    files, png = {page: filled(given.project, records, load_predictions(results))}, page.with_suffix(".png")
    checksum = records_checksum([run.folder / "manifest.json" for run in records.runs])
    if given.check:
        stale = [png] if drawn_from(png) != checksum else []
        return told_stale([*changed(files), *stale], "python -m analysis.credit")
    write(files)
    print(page)
    if records.runs:
        figures: Files = {
            png: png_from(checksum),
            given.project / "results" / "figures" / "credit.pdf": METADATA["pdf"],
        }
        save(partial(draw, records), figures)
        print(*figures, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
