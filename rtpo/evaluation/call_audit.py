"""Facts about an episode's tool calls, for the paper's audit (tab:supp_gsm8k_audit)."""

import ast
import re
import warnings
from collections.abc import Sequence
from typing import Any

from rtpo.tools.protocol import Call, parse_calls, visible_text
from rtpo.types import Rollout


def call_audit(rollout: Rollout, replies: Sequence[str]) -> dict[str, Any] | None:
    """Facts about an episode's tool calls; None for an episode without a call. replies: each turn's text."""
    calling_turns = [index for index, turn in enumerate(rollout.turns) if turn.calls]
    if not calling_turns:
        return None
    calling_texts = [visible_text(replies[index]).strip() for index in calling_turns]
    calls = [call for text in calling_texts for call in parse_calls(text) if isinstance(call, Call)]
    programs = [str(call.arguments["code"]) for call in calls if "code" in call.arguments]
    first_reply = replies[calling_turns[0]]
    text_before_call = "".join(replies[: calling_turns[0]]) + first_reply.rpartition("</think>")[0]
    answer = rollout.task.answer
    accepted = answer if isinstance(answer, list | tuple) else (answer,)
    return {
        "repeated": len(calling_texts) - len(set(calling_texts)),  # replies that equal an earlier one, thinking aside
        "programs": len(programs),  # Python programs that could be read
        "valid_programs": sum(_parses(program) for program in programs),  # of these, those that Python can parse
        # whether an accepted answer is in a reply before the first call, or in the thinking before it
        "answer_first": any(_contains_word(str(text), text_before_call) for text in accepted),
    }


def _parses(program: str) -> bool:
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _contains_word(answer: str, text: str) -> bool:
    """Whether a text contains an answer as a whole word: neither 140 nor 1.14 contains 14."""
    return bool(answer) and re.search(rf"(?<![\w.]){re.escape(answer)}(?!\w|\.\d)", text) is not None
