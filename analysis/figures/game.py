"""Draw a text game's trunk with two siblings of one turn, of which one won, in the game's words (README):

python -m analysis.figures.game RUN --output docs/run/game.png
"""

import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from analysis.plots import TWO_COLUMNS
from analysis.view.rollouts import RecordedRun, SampledPath, load_recorded
from rtpo.core.chat import ChatFormat
from rtpo.errors import DataError
from rtpo.run.cli import Parser, command
from rtpo.run.model_folder import load_tokenizer

LETTERS = 46
"""in a line of a column"""
OPENING = 150
"""in a line of the opening"""
LINE = 0.105
"""inches"""
LONGEST = 150
"""letters of an answer that are shown"""
MARKUP = re.compile(r"<\|im_start\|>\w*|<\|im_end\|>")
Columns = tuple[SampledPath, SampledPath, SampledPath]


def groups(run: RecordedRun) -> Iterator[Columns]:
    """Trunks, each with the siblings of one turn that earned most and least, where these differ; short games first."""

    def reward(path: SampledPath) -> float:
        return path.reward or 0.0

    chosen = [
        (path, max(forks, key=reward), min(forks, key=reward))
        for tree in run.trees
        for path in tree.roots
        for k, forks in tree.forked(path).items()
        if k and len(set(map(reward, forks))) > 1
    ]
    yield from sorted(chosen, key=lambda columns: sum(len(path.turns) for path in columns))


def told(path: SampledPath, chat: ChatFormat) -> dict[int, list[str]]:
    """The lines of each turn: a thought, a command and what the game said."""
    lines = {}
    for turn in path.turns:
        thought, _, said = MARKUP.sub("", chat.decode(turn.output_ids)).replace("<think>", "").rpartition("</think>")
        answer = " ".join(MARKUP.sub("", chat.decode(turn.feedback_ids)).split())
        parts = ((thought.strip(), "({})"), (said.strip(), "> {}"), (textwrap.shorten(answer, LONGEST), "{}"))
        lines[turn.k] = [line for text, form in parts if text for line in textwrap.wrap(form.format(text), LETTERS)]
    return lines


def drawn(columns: Columns, chat: ChatFormat) -> Figure:
    """Turns from top to bottom. Siblings begin at the turn that they play again."""
    texts, start = [told(path, chat) for path in columns], columns[1].start_k
    heights = [max(len(text.get(k, ())) for text in texts) + 1 for k in range(max(map(max, texts)) + 1)]
    asked = MARKUP.split(chat.decode(columns[0].turns[0].context_ids).rpartition("user")[2])[0]
    opening = textwrap.wrap(" ".join(asked.split()), OPENING)
    above = len(opening) + 3
    total = sum(heights) + above
    figure = Figure(figsize=(TWO_COLUMNS, LINE * total))
    figure.text(0.005, 1 - 1 / total, "\n".join(opening), fontsize=5.5, va="top", linespacing=1.25)
    names = ["Trunk", f"Sibling, turn {start} again", f"Sibling, turn {start} again"]
    for column, (path, text, name) in enumerate(zip(columns, texts, names, strict=True)):
        x, top = 0.045 + 0.325 * column, above - 1 + sum(heights[: path.start_k])
        figure.text(x, 1 - top / total, f"{name}: {'won' if path.reward else 'not won'}", fontsize=6.5, weight="bold")
        for k, lines in text.items():
            y = 1 - (above + sum(heights[:k]) - 0.6) / total
            figure.text(x, y, "\n".join(lines), fontsize=5.5, va="top", linespacing=1.25)
            if not column:
                figure.text(0.005, y, f"S{k}", fontsize=6, va="top", weight="bold" if k == start else "normal")
    return figure


@command
def main(arguments: Sequence[str] | None = None) -> None:
    parser = Parser(__doc__)
    parser.add_argument("folder", type=Path, metavar="RUN", help="of RTPO, with rollouts of a text game")
    parser.add_argument("--output", type=Path, required=True, help="a PNG file")
    options = parser.parse_args(arguments)
    run = load_recorded(options.folder)
    columns = next(groups(run), None)
    if columns is None:
        raise DataError(f"{options.folder} has no trunk with unequal siblings after its first turn: name another run.")
    figure = drawn(columns, ChatFormat(load_tokenizer(run.model_folder)))
    figure.savefig(options.output, dpi=160, facecolor="white")
    print(options.output)


if __name__ == "__main__":
    sys.exit(main())
