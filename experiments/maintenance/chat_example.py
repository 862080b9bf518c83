"""Print the worked example of the paper's figure of Qwen3's chat template: what the second turn of an episode sees
(docs/run/real_tasks.md).

    python experiments/maintenance/chat_example.py                       the byte-level tokenizer
    python experiments/maintenance/chat_example.py --tokenizer FOLDER    a model's own
    python experiments/maintenance/chat_example.py --template FILE       another template

Two turns, a real tool call and a real grade, by the code that training and evaluation run. What a context leaves out of
the history stands between `[-` and `-]`.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rtpo.run.command import Parser, command

import numpy as np
from transformers import AutoTokenizer

from rtpo.core.chat import ChatFormat
from rtpo.core.contexts import flattened_context, strip_think
from rtpo.engines.base import Generation, Request, Sampling
from rtpo.envs.math import MathEnv, MathSettings
from rtpo.errors import DataError
from rtpo.harness.episodes import EpisodeLimits, EpisodeWorld, Plan, run_episodes
from rtpo.tools.protocol import render_call
from rtpo.toy.byte_model import byte_tokenizer
from rtpo.types import Ids, Role, Rollout, RolloutContext, StopReason, Task, as_ids

TASK = Task("example", "What is 17 * 23?", ("391",))
COMMENTARY = f"I will compute it.\n{render_call('python', {'code': '17 * 23'})}"
REPLIES = (
    f"<think>\nThe user wants a product. The tool is safer than my head.\n</think>\n\n{COMMENTARY}",
    "<think>\nThe tool says 391.\n</think>\n\nThe product is \\boxed{391}.",
)
LIMITS = EpisodeLimits(max_turns=3, max_prompt_tokens=8192, max_turn_tokens=4096, max_context_tokens=32768)


@dataclass(frozen=True)
class Example:
    """The same two turns under both rollout contexts."""

    chat: ChatFormat
    stripped: Rollout
    full: Rollout


class _Replies:
    """An engine that says REPLIES, one a turn."""

    def __init__(self, tokenizer: Any) -> None:
        texts = [reply + tokenizer.eos_token for reply in REPLIES]
        self._replies = iter([as_ids(tokenizer.encode(text, add_special_tokens=False)) for text in texts])

    async def generate(self, request: Request) -> Generation:
        output = next(self._replies)
        return Generation(output, np.zeros(len(output), np.float32), 0, StopReason.STOP, None)


def example(tokenizer: Any) -> Example:
    """Play the episode. Raises ConfigError for a tokenizer that `rtpo.core.chat` does not take."""
    chat = ChatFormat(tokenizer)

    def play(mode: RolloutContext) -> Rollout:
        settings = MathSettings()
        world = EpisodeWorld(
            _Replies(tokenizer), chat, lambda: MathEnv(settings, LIMITS.max_turns), LIMITS, mode, seed=0
        )
        (rollout,) = run_episodes(world, [Plan("example", TASK, Role.EVAL)], Sampling(), on_retry=print)
        return rollout

    return Example(chat, play("strip_think"), play("full"))


def sections(shown: Example) -> Iterator[tuple[str, str]]:
    """Title and text of each part of the printout."""
    chat, (first, second), whole = shown.chat, shown.stripped.turns, shown.full.turns[1]
    removed = removed_thinking(first.output_ids, chat)
    marked = chat.decode(first.context_ids) + f"[-{chat.decode(removed)}-]"
    marked += chat.decode(second.context_ids[len(first.context_ids) :])
    flattened = flattened_context(shown.stripped.turns, 1)
    same = "the same ids as c_1 under" if np.array_equal(flattened, whole.context_ids) else "other ids than c_1 under"
    use = ", ".join(f"{use.tool}: {use.outcome.value}" for use in first.calls)
    grade = shown.stripped.grade
    yield f"c_0: what the first turn sees ({len(first.context_ids)} ids)", chat.decode(first.context_ids)
    yield f"u_0: thinking, commentary, tool call ({len(first.output_ids)} ids)", chat.decode(first.output_ids)
    yield f"f_0: the tool's answer ({use}; {len(first.feedback_ids)} ids)", chat.decode(first.feedback_ids)
    yield (
        f"c_1, rollout_context=strip_think: what the second turn sees ({len(second.context_ids)} ids; "
        f"{len(removed)} of u_0 left out)",
        marked,
    )
    yield (
        f"c_1, rollout_context=full: nothing left out ({len(whole.context_ids)} ids)",
        chat.decode(whole.context_ids),
    )
    yield (
        f"training_context=flattened of turn 1 ({len(flattened)} ids): {same} rollout_context=full, whatever the "
        "second turn saw",
        chat.decode(flattened),
    )
    yield f"u_1: the final reply (reward {grade.reward:g})", chat.decode(second.output_ids)


def removed_thinking(output_ids: Ids, chat: ChatFormat) -> Ids:
    """The ids that `strip_think` drops from the front of a reply."""
    return output_ids[: len(output_ids) - len(strip_think(output_ids, chat.tags))]


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(__doc__)
    parser.add_argument("--tokenizer", type=Path, metavar="FOLDER")
    parser.add_argument("--template", type=Path, metavar="FILE")
    given = parser.parse_args(arguments)
    for title, text in sections(example(_tokenizer(given.tokenizer, given.template))):
        print(f"== {title}\n{text}\n")
    return 0


def _tokenizer(folder: Path | None, template: Path | None) -> Any:
    if folder is not None and not folder.is_dir():
        raise DataError(f"{folder} cannot be read: there is no such folder. Give a model's own, with its tokenizer.")
    try:
        tokenizer: Any = byte_tokenizer() if folder is None else AutoTokenizer.from_pretrained(folder)
        if template is not None:
            tokenizer.chat_template = template.read_text(encoding="utf-8")
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{folder or template} cannot be read ({str(error).splitlines()[0]}): check the path"
        ) from error
    return tokenizer


if __name__ == "__main__":
    sys.exit(main())
