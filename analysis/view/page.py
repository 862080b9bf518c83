"""The page of rollouts, one self-contained file: an index of trees, then each tree, as page.html lays them out."""

import base64
import hashlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from analysis.view.rollouts import RecordedRun, RecordedTree, RecordedTurn, SampledPath
from rtpo.core.chat import ChatFormat
from rtpo.core.visible import visible
from rtpo.run.building import leaves

HERE = Path(__file__).parent
SHADES = (0.9, 0.5, 0.1, 0.01)
"""the shade of a token is the number of these above its probability"""
CALL = re.compile(r"<tool_call>.*?(?:</tool_call>|\Z)", re.DOTALL)
BROKEN = "\ufffd"
"""a decoder's text for an incomplete character"""
MOST_TOKENS = 8
"""the most tokens that one character may take"""


@dataclass(frozen=True)
class Piece:
    """The text of output_ids[first:last]: one token, or several that make a character together."""

    text: str
    first: int
    last: int


@dataclass(frozen=True)
class ReplyPassage:
    """A part of a reply: thinking, or the text outside of it."""

    is_thinking: bool
    pieces: Sequence[Piece]


def page(run: RecordedRun, trees: Sequence[RecordedTree], chat: ChatFormat, count: int) -> str:
    """The page of the first `count` trees, after an index of all trees if there are several. Its
    Content-Security-Policy forbids scripts and loading."""
    jinja = Environment(loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, finalize=_shown)
    jinja.trim_blocks = jinja.lstrip_blocks = True
    style = (HERE / "view.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    words = {"chat": chat, "passages": passages, "tokens_of": tokens, "signed": signed, "was_trained": was_trained}
    has_calls = any(turn.calls for tree in trees for path in tree.paths for turn in path.turns)
    content = {
        "has_calls": has_calls,
        "run": run,
        "settings": dict(leaves(run.config)),
        "trees": trees,
        "shown": count,
        "shades": SHADES,
    }
    return jinja.get_template("page.html").render(style=style, digest=digest, **words, **content)


def _shown(value: object) -> object:
    return visible(value) if type(value) is str else value  # markup is a subclass of str, and is visible already


def was_trained(tree: RecordedTree, path: SampledPath) -> bool:
    """Whether an update trained the path, or a path forked from it, with an advantage other than 0."""
    is_unequal = any(training.advantage for training in path.trained)
    return is_unequal or any(was_trained(tree, fork) for forks in tree.forked(path).values() for fork in forks)


def tokens(passage: ReplyPassage, turn: RecordedTurn) -> Iterator[tuple[str, str, str]]:
    """Text, CSS classes and tooltip of each piece of a passage. The classes are the shade and, for a tool call outside
    of thinking, `call`."""
    text, place = "".join(piece.text for piece in passage.pieces), 0
    calls = [] if passage.is_thinking else [match.span() for match in CALL.finditer(text)]
    for piece in passage.pieces:
        is_call = any(start <= place < end for start, end in calls)
        place += len(piece.text)
        ids = " ".join(map(str, turn.output_ids[piece.first : piece.last]))
        logprobs = [value for value in turn.logprobs[piece.first : piece.last] if value is not None]
        shade = sum(math.exp(min(logprobs)) < limit for limit in SHADES) if logprobs else 0
        odds = ", ".join(f"{signed(logprob, 4)} (p {math.exp(logprob):.3f})" for logprob in logprobs) or "unknown"
        yield piece.text or f"⟨{ids}⟩", f"t p{shade}{' call' if is_call else ''}", f"log-prob {odds}; id {ids}"


def signed(value: float, digits: int = 3) -> str:
    """A number with its sign, as −0.250; zero has no sign."""
    return f"{value:+.{digits}f}".replace("-", "−") if value else "0"


def passages(chat: ChatFormat, output_ids: Sequence[int]) -> list[ReplyPassage]:
    """The non-empty parts of a reply, in order. Thinking is everything up to the last `</think>`, and everything from a
    later unclosed `<think>` up to the stop token. `rtpo.core.contexts.strip_think` drops the same tokens, and the
    newlines after them."""
    tags, end = chat.tags, len(output_ids)
    closed = max((i + 1 for i, token in enumerate(output_ids) if token == tags.close_id), default=0)
    opened = next((i for i in range(closed, end) if output_ids[i] == tags.open_id), end)
    stop = end - 1 if opened < end and output_ids[-1] == tags.stop_id else end
    parts = [(True, 0, closed), (False, closed, opened), (True, opened, stop), (False, stop, end)]
    return [
        ReplyPassage(kind, pieces(output_ids, first, last, chat.decode)) for kind, first, last in parts if first < last
    ]


def pieces(ids: Sequence[int], first: int, last: int, decode: Callable[[Sequence[int]], str]) -> list[Piece]:
    """The tokens ids[first:last] in pieces that end where a character ends."""
    result: list[Piece] = []
    # a piece is what its tokens add to the text from `context` on: where the piece before begins, or ends if broken
    context = start = first
    for end in range(first + 1, last + 1):
        known, text = decode(ids[context:start]), decode(ids[context:end])
        is_broken = text.endswith(BROKEN)
        if is_broken and end < last and end - start < MOST_TOKENS:
            continue
        result.append(Piece(text[len(known) :], start, end))
        context, start = (end if is_broken else start), end
    return result
