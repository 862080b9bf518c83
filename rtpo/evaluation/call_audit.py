"""Facts about an episode's tool calls, for the paper's audit (tab:supp_gsm8k_audit)."""

import ast
import re
import warnings
from collections.abc import Sequence
from typing import Any

from rtpo.tools.protocol import Call, parse_calls, visible_text
from rtpo.types import Rollout


def call_audit(rollout: Rollout, replies: Sequence[str]) -> dict[str, Any] | None:
    """The audit of an episode's calls; None for an episode without a call. replies: the text of each turn."""
    calling = [index for index, turn in enumerate(rollout.turns) if turn.calls]
    if not calling:
        return None
    said = [visible_text(replies[index]).strip() for index in calling]
    calls = [call for text in said for call in parse_calls(text) if isinstance(call, Call)]
    programs = [str(call.arguments["code"]) for call in calls if "code" in call.arguments]
    first = replies[calling[0]]
    before = "".join(replies[: calling[0]]) + first[: len(first) - len(visible_text(first))]
    answer = rollout.task.answer
    accepted = answer if isinstance(answer, list | tuple) else (answer,)
    return {
        "repeated": len(said) - len(set(said)),  # replies that call as an earlier one did, word for word after thinking
        "programs": len(programs),  # Python programs that could be read
        "valid_programs": sum(_parses(program) for program in programs),  # of these, those that Python can parse
        # whether an accepted answer was written before the first call
        "answer_first": any(_stands_in(str(text), before) for text in accepted),
    }


def _parses(program: str) -> bool:
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _stands_in(answer: str, text: str) -> bool:
    """Whether an answer stands in a text as a whole word: 14 does not stand in 140 or 1.14."""
    return bool(answer) and re.search(rf"(?<![\w.]){re.escape(answer)}(?!\w|\.\d)", text) is not None
