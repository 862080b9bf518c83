"""Write one HTML page with rollouts of a run (docs/results/figures.md):

    python -m analysis.view results/reference/rtpo-seed0
    python -m analysis.view RUN/BENCHMARK --question UID    the samples of a question that an evaluation keeps

A tree has the kept paths of one question in one step. Trees with the most unequal rewards come first. The page needs no
server and no network.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.view.page import page
from analysis.view.rollouts import load_recorded
from rtpo.core.chat import ChatFormat
from rtpo.run.cli import Parser, command, whole_number
from rtpo.run.model_folder import load_tokenizer


@command
def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a run or one of its evaluations, finished or not")
    parser.add_argument("--step", type=whole_number(0), help="keep the trees of this step alone")
    parser.add_argument("--question", help="keep the trees of the question with this uid alone")
    parser.add_argument("--trees", type=whole_number(1), default=20, help="at most so many trees; default: %(default)s")
    parser.add_argument("--output", type=Path, default=Path("outputs/rollouts.html"), help="file; default: %(default)s")
    options = parser.parse_args(arguments)
    run = load_recorded(options.folder)
    trees = run.choose(options.step, options.question)
    html = page(run, trees, ChatFormat(load_tokenizer(run.model_folder)), options.trees)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(html, encoding="utf-8")
    print(options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
