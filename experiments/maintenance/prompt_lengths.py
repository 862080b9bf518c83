"""Measure how long the real prompts are, in tokens (docs/run/data.md):

    python experiments/maintenance/prompt_lengths.py --tokenizer FOLDER
    python experiments/maintenance/prompt_lengths.py --tokenizer FOLDER --data FOLDER --check

Every set of mathematics and search in the data folder, as its task's environment opens an episode.
Plans read what is kept (rtpo/planning/prompts.json); --check writes nothing and fails where the sets
that are here differ from it.
"""

import sys
from pathlib import Path

from rtpo.run.command import Parser, command

from rtpo.core.chat import ChatFormat
from rtpo.errors import DataError
from rtpo.planning.prompts import FILE, differing, measure, write
from rtpo.run.config import PROJECT
from rtpo.run.model_folder import load_tokenizer


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(__doc__)
    parser.add_argument("--tokenizer", required=True, type=Path, metavar="FOLDER", help="Qwen3's")
    parser.add_argument("--data", default=PROJECT / "data", type=Path, metavar="FOLDER", help="prepared or raw sets")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where lengths differ")
    given = parser.parse_args(arguments)
    if not given.tokenizer.is_dir():
        raise DataError(f"{given.tokenizer} cannot be read: there is no such folder. Give Qwen3's tokenizer.")
    found = measure(given.data, ChatFormat(load_tokenizer(given.tokenizer)))
    if not given.check:
        write(found, given.tokenizer)
        print(f"{FILE}: {', '.join(found)}")
    elif stale := differing(found):
        raise DataError(f"{FILE} has other lengths of {', '.join(stale)}: run the command without --check.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
