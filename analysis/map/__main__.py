"""The page and the figure of the map of regimes from results/map: python -m analysis.map [--check]

Fills the blocks of docs/results/map.md, and draws docs/results/map.png and results/figures/map.pdf once the map is
measured.
"""

import sys
from functools import partial

from rtpo.run.command import Parser, command, folder

from analysis.map.figure import draw
from analysis.map.page import PAGE, filled
from analysis.map.records import load
from analysis.pages.markdown import changed, told_stale, write
from analysis.plots import METADATA, Files, drawn_from, png_from, records_checksum, save
from rtpo.run.config import PROJECT


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the page or the figure is stale")
    parser.add_argument("--project", type=folder, default=str(PROJECT), help="folder of docs/ and results/")
    given = parser.parse_args(arguments)
    page, manifest = given.project / PAGE, given.project / "results" / "map" / "map.json"
    records = load(manifest.parent)
    files, png = {page: filled(given.project, records)}, page.with_suffix(".png")
    checksum = None if records.manifest is None else records_checksum([manifest])
    if given.check:
        stale = [png] if drawn_from(png) != checksum else []
        return told_stale([*changed(files), *stale], "python -m analysis.map")
    write(files)
    print(page)
    if records.manifest is not None:
        figures: Files = {png: png_from(checksum), given.project / "results" / "figures" / "map.pdf": METADATA["pdf"]}
        save(partial(draw, records), figures)
        print(*figures, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
