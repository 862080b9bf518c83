"""Write one page of a run's rollouts, the most unequal first (docs/results/view.md):

    python -m analysis.view results/reference/rtpo-seed0
    python -m analysis.view results/reference/rtpo-seed0 results/reference/grpo-seed0

Several folders stand side by side. The page needs no server and no network.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from rtpo.run.command import Parser, command, whole

from analysis.view.page import page
from analysis.view.records import AnySource, RunSource, entries, load_source
from analysis.view.text import IdReader, Reader, open_reader


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(__doc__)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="a run, or an evaluation")
    parser.add_argument("--step", type=whole(0), help="of the runs; without it, all")
    parser.add_argument("--question", help="uid; without it, all, behind an index")
    parser.add_argument("--trees", type=whole(1), default=20, help="on the page; default: %(default)s")
    parser.add_argument("--ids", action="store_true", help="show token ids instead of text")
    parser.add_argument("--output", type=Path, default=Path("outputs/rollouts.html"), help="default: %(default)s")
    given = parser.parse_args(arguments)
    sources = [load_source(folder) for folder in given.folders]
    html = view(sources, given.step, given.question, ids=given.ids, trees=given.trees)
    for source in sources:
        for sentence in source.damaged:
            print(f"left out: {sentence}", file=sys.stderr)
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(html, encoding="utf-8")
    print(given.output)
    return 0


def view(sources: Sequence[AnySource], step: int | None, question: str | None, *, ids: bool, trees: int) -> str:
    """The page. Raises DataError for a question or step that is not there, and where a tokenizer is missing."""
    rows = entries(sources, step, question)
    return page(sources, rows, [_reader(source, ids=ids) for source in sources], trees)


def _reader(source: AnySource, *, ids: bool) -> Reader | None:
    if not isinstance(source, RunSource):
        return None
    return IdReader() if ids else open_reader(source.model_folder)


if __name__ == "__main__":
    sys.exit(main())
