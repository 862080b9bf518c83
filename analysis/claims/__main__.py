"""The paper's claims with what was found of each: python -m analysis.claims [--check]

Writes docs/results/claims.md.
"""

import sys
from pathlib import Path

from rtpo.run.command import Parser, command, folder

from analysis.claims.evidence import load_evidence
from analysis.claims.page import page
from rtpo.run.config import PROJECT


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a page is stale")
    parser.add_argument("--project", type=folder, default=str(PROJECT), help="folder of docs/ and results/")
    given = parser.parse_args(arguments)
    claims = given.project / "docs" / "results" / "claims.md"
    claims.parent.stat()  # so that a folder that is no project is said before anything is read
    stale = _settled(claims, page(load_evidence(given.project / "results")), given.check)
    return int(given.check and stale > 0)


def _settled(path: Path, text: str, check: bool) -> int:
    """1 where the file was another; it is written, or with `check` named."""
    if path.exists() and path.read_bytes() == text.encode():
        return 0
    if check:
        print(f"{path} is not what the records give: python -m analysis.claims", file=sys.stderr)
    else:
        path.write_text(text, encoding="utf-8")
        print(path)
    return 1


if __name__ == "__main__":
    sys.exit(main())
