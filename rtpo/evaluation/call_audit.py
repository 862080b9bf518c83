"""What the paper's audit of tool calls asks of an episode (tab:supp_gsm8k_audit)."""

import ast
import re
import warnings
from collections.abc import Sequence
from typing import Any

from rtpo.tools.protocol import Call, parse_calls, visible_text
from rtpo.types import Rollout


def call_audit(rollout: Rollout, replies: Sequence[str]) -> dict[str, Any] | None:
    """None for an episode without a call. replies: the text of each turn. repeated: replies that call as an earlier one
    did, word for word after the thinking. programs, valid_programs: Python programs that could be read, and those of
    them that Python can parse. answer_first: whether an accepted answer stands in what was written before the first
    call."""
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
        "repeated": len(said) - len(set(said)),
        "programs": len(programs),
        "valid_programs": sum(_parses(program) for program in programs),
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
    """As a word of its own: 14 does not stand in 140 or 1.14."""
    return bool(answer) and re.search(rf"(?<![\w.]){re.escape(answer)}(?!\w|\.\d)", text) is not None
