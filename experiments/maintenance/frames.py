"""Keep finished runs as Parquet frames (results/README.md), beside those that were kept before:

    python experiments/maintenance/frames.py FOLDER --output results/turns

The runs stay where they are.
"""

import sys
from pathlib import Path

from analysis.load import keep, load
from rtpo.core.names import counted
from rtpo.run.cli import Parser, command


@command
def main(arguments: list[str] | None = None) -> None:
    parser = Parser(__doc__)
    parser.add_argument("folder", type=Path, help="folder with finished runs below it")
    parser.add_argument("--output", type=Path, required=True, help="where the frames are kept")
    options = parser.parse_args(arguments)
    kept = keep(load(options.folder), options.output)
    print(f"{counted(len(kept.runs), 'run')}, {counted(len(kept.answers), 'answer')}")


if __name__ == "__main__":
    sys.exit(main())
