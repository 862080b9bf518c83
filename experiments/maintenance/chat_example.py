"""Print what the second turn of an episode sees, as in the paper's figure of Qwen3's chat template
(docs/run/tasks.md).

    python experiments/maintenance/chat_example.py --tokenizer models/Qwen3-8B

The example has two turns, a tool call and a grade. It runs the code of training and evaluation. History that a context
leaves out stands between `[-` and `-]`.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rtpo.core.chat import ChatFormat
from rtpo.core.contexts import flattened_context, strip_think
from rtpo.core.names import counted
from rtpo.engines.base import Generation, Request, Sampling
from rtpo.envs.math import MathEnv, MathSettings
from rtpo.harness.episodes import EpisodeLimits, EpisodeWorld, Plan, run_episodes
from rtpo.run.cli import Parser, command, folder
from rtpo.run.model_folder import load_tokenizer
from rtpo.tools.protocol import render_call
from rtpo.types import Role, Rollout, RolloutContext, StopReason, Task, as_ids

TASK = Task("example", "What is 17 * 23?", ("391",))
COMMENTARY = f"I will compute it.\n{render_call('python', {'code': '17 * 23'})}"
REPLIES = (
    f"<think>\nThe user wants a product. The tool is safer than my head.\n</think>\n\n{COMMENTARY}",
    "<think>\nThe tool says 391.\n</think>\n\nThe product is \\boxed{391}.",
)
LIMITS = EpisodeLimits(max_turns=3, max_prompt_tokens=8192, max_turn_tokens=4096, max_context_tokens=32768)


class _Replies:
    """An engine that says REPLIES, one a turn."""

    def __init__(self, tokenizer: Any) -> None:
        texts = [reply + tokenizer.eos_token for reply in REPLIES]
        self._replies = iter([as_ids(tokenizer.encode(text, add_special_tokens=False)) for text in texts])

    async def generate(self, request: Request) -> Generation:
        output = next(self._replies)
        return Generation(output, np.zeros(len(output), np.float32), 0, StopReason.STOP, None)


def play(tokenizer: Any, mode: RolloutContext) -> Rollout:
    """The episode under a rollout context. Raises ConfigError for a tokenizer that `rtpo.core.chat` does not take."""
    engine, chat = _Replies(tokenizer), ChatFormat(tokenizer)
    world = EpisodeWorld(engine, chat, lambda: MathEnv(MathSettings(), LIMITS.max_turns), LIMITS, mode, seed=0)
    (rollout,) = run_episodes(world, [Plan("example", TASK, Role.EVAL)], Sampling(), on_retry=print)
    return rollout


def sections(chat: ChatFormat, stripped: Rollout, full: Rollout) -> Iterator[tuple[str, str]]:
    """Title and text of each part of the printout."""
    (first, second), full_context = stripped.turns, full.turns[1].context_ids
    removed = first.output_ids[: len(first.output_ids) - len(strip_think(first.output_ids, chat.tags))]
    marked = f"{chat.decode(first.context_ids)}[-{chat.decode(removed)}-]"
    marked += chat.decode(second.context_ids[len(first.context_ids) :])
    flattened = flattened_context(stripped.turns, 1)
    same = "the same ids as" if np.array_equal(flattened, full_context) else "other ids than"
    use = ", ".join(f"{use.tool}: {use.outcome.value}" for use in first.calls)
    yield f"c_0: what the first turn sees ({counted(len(first.context_ids), 'id')})", chat.decode(first.context_ids)
    yield (
        f"u_0: thinking, commentary, tool call ({counted(len(first.output_ids), 'id')})",
        chat.decode(first.output_ids),
    )
    yield f"f_0: the tool's answer ({use}; {counted(len(first.feedback_ids), 'id')})", chat.decode(first.feedback_ids)
    yield (
        f"c_1, rollout_context=strip_think ({counted(len(second.context_ids), 'id')}; {len(removed)} left out)",
        marked,
    )
    yield f"c_1, rollout_context=full ({counted(len(full_context), 'id')})", chat.decode(full_context)
    title = (
        f"training_context=flattened of turn 1 ({counted(len(flattened), 'id')}): {same} c_1 under rollout_context=full"
    )
    yield title, chat.decode(flattened)
    yield f"u_1: the final reply (reward {stripped.grade.reward:g})", chat.decode(second.output_ids)


@command
def main(arguments: Sequence[str] | None = None) -> None:
    parser = Parser(__doc__)
    parser.add_argument("--tokenizer", type=folder, metavar="FOLDER", required=True, help="folder with a tokenizer")
    options = parser.parse_args(arguments)
    tokenizer = load_tokenizer(options.tokenizer)
    for title, text in sections(ChatFormat(tokenizer), play(tokenizer, "strip_think"), play(tokenizer, "full")):
        print(f"== {title}\n{text}\n")


if __name__ == "__main__":
    sys.exit(main())
