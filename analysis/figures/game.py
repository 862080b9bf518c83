"""Draw a trunk of a text game and two of its siblings as text, for README:

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

COLUMN_WIDTH, OPENING_WIDTH = 46, 150
"""letters in a line of a path, and of the game's opening"""
LINE_HEIGHT = 0.105
"""inches"""
ANSWER_LENGTH = 150
"""letters of the game's answer that are shown"""
MARKUP = re.compile(r"<\|im_start\|>\w*|<\|im_end\|>")
Columns = tuple[SampledPath, SampledPath, SampledPath]
"""a trunk, and two siblings of one turn"""


def uneven_siblings(run: RecordedRun) -> Iterator[Columns]:
    """For each turn k > 0 whose siblings have unequal rewards: the trunk, the best sibling and the worst. Short games
    come first."""

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


def turn_lines(path: SampledPath, chat: ChatFormat) -> dict[int, list[str]]:
    """The lines of each turn k: the thought, the command and the game's answer."""
    lines = {}
    for turn in path.turns:
        thought, _, said = MARKUP.sub("", chat.decode(turn.output_ids)).replace("<think>", "").rpartition("</think>")
        answer = " ".join(MARKUP.sub("", chat.decode(turn.feedback_ids)).split())
        parts = ((thought.strip(), "({})"), (said.strip(), "> {}"), (textwrap.shorten(answer, ANSWER_LENGTH), "{}"))
        texts = [form.format(text) for text, form in parts if text]
        lines[turn.k] = [line for text in texts for line in textwrap.wrap(text, COLUMN_WIDTH)]
    return lines


def draw(columns: Columns, chat: ChatFormat) -> Figure:
    """A column for each path, with its turns from top to bottom. Siblings begin at the turn that they play again."""
    texts, start = [turn_lines(path, chat) for path in columns], columns[1].start_k
    heights = [max(len(text.get(k, ())) for text in texts) + 1 for k in range(max(map(max, texts)) + 1)]
    game_text = MARKUP.split(chat.decode(columns[0].turns[0].context_ids).rpartition("user")[2])[0]
    opening = textwrap.wrap(" ".join(game_text.split()), OPENING_WIDTH)
    above = len(opening) + 3
    total = sum(heights) + above
    figure = Figure(figsize=(TWO_COLUMNS, LINE_HEIGHT * total))
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
    parser.add_argument("folder", type=Path, metavar="RUN", help="a run of RTPO, with rollouts of a text game")
    parser.add_argument("--output", type=Path, required=True, help="a PNG file")
    options = parser.parse_args(arguments)
    run = load_recorded(options.folder)
    columns = next(uneven_siblings(run), None)
    if columns is None:
        raise DataError(f"{options.folder} has no trunk with unequal siblings after its first turn: name another run.")
    figure = draw(columns, ChatFormat(load_tokenizer(run.model_folder)))
    figure.savefig(options.output, dpi=160, facecolor="white")
    print(options.output)


if __name__ == "__main__":
    sys.exit(main())
