"""The page that says when RTPO pays, from results/: python -m analysis.when [--check]

Fills the blocks of docs/results/when.md, and draws docs/results/when_ladder.png and when_map.png, and the same as PDF
in results/figures/, once runs of the studies were evaluated at the paper's decoding.
"""

import sys
from functools import partial

from rtpo.run.command import Parser, command, folder

from analysis.pages.markdown import changed, told_stale, write
from analysis.plots import METADATA, drawn_from, png_from, records_checksum, save
from analysis.when import ladder, shares
from analysis.when.page import PAGE, figure, filled, load
from rtpo.run.config import PROJECT


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the page or a figure is stale")
    parser.add_argument("--project", type=folder, default=str(PROJECT), help="folder of docs/ and results/")
    given = parser.parse_args(arguments)
    project = given.project
    evidence = load(project)
    files = {project / PAGE: filled(project, evidence)}
    regimes = [project / "results" / "map" / "map.json"] * (evidence.regimes.manifest is not None)
    drawn = {
        "ladder": (partial(ladder.draw, evidence.sites), evidence.manifests),
        "map": (
            partial(shares.draw, evidence.placed, evidence.regimes),
            [*evidence.manifests, *regimes] if evidence.placed else [],
        ),
    }
    checksums = {name: records_checksum(manifests) for name, (_, manifests) in drawn.items()}
    if given.check:
        stale = [one for name, of in checksums.items() if drawn_from(one := figure(project, name)) != of]
        return told_stale([*changed(files), *stale], "python -m analysis.when")
    write(files)
    print(*files)
    for name, (draw, manifests) in drawn.items():
        if manifests:
            png, pdf = figure(project, name), project / "results" / "figures" / f"when_{name}.pdf"
            save(draw, {png: png_from(checksums[name]), pdf: METADATA["pdf"]})
            print(png, pdf, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
