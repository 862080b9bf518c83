"""Build the search tool's BM25 index from a JSONL file of passages (docs/run/tools.md):

    python experiments/build_index.py passages.jsonl --output FOLDER

A line is {"id", "title", "text"}, or {"id", "contents"} as in Search-R1's corpora, with the title as the first line of
the contents. Use the index with task.settings.search.backend=bm25 task.settings.search.bm25.index=FOLDER.
"""

import json
import sys
from pathlib import Path

from rtpo.run.cli import Parser, command
from rtpo.tools.search.bm25 import build_index


@command
def main(arguments: list[str] | None = None) -> None:
    parser = Parser(__doc__)
    parser.add_argument("passages", type=Path, help="the JSONL file of passages")
    parser.add_argument("--output", required=True, type=Path, help="the folder of the index; it must not exist yet")
    options = parser.parse_args(arguments)
    manifest = build_index(options.passages, options.output)
    print(json.dumps({part: manifest[part] for part in ("passages", "bm25", "files")}, indent=1))


if __name__ == "__main__":
    sys.exit(main())
