"""The paper's claims with what was found of each: python -m analysis.claims [--check]

Writes docs/results/claims.md.
"""

import sys

from rtpo.run.command import Parser, command, folder

from analysis.claims.evidence import load_evidence
from analysis.claims.page import page
from analysis.pages.markdown import changed, told_stale, write
from rtpo.run.config import PROJECT


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the page is stale")
    parser.add_argument("--project", type=folder, default=str(PROJECT), help="folder of docs/ and results/")
    given = parser.parse_args(arguments)
    claims = given.project / "docs" / "results" / "claims.md"
    claims.parent.stat()  # so that a folder that is no project is said before anything is read
    files = {claims: page(load_evidence(given.project / "results"))}
    if given.check:
        return told_stale(changed(files), "python -m analysis.claims")
    write(files)
    print(claims)
    return 0


if __name__ == "__main__":
    sys.exit(main())
